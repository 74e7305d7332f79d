"""The folder of an export: what was written, and by the same files where to go on.

    <folder>/_command_bus.json                  what is exported here: namespace, shards, format; locked by the exporter
    <folder>/history/shard=0/history.00000042.1a2b3c4d.<after>.<last>.<count>.parquet
    <folder>/gaps/history.0.<after>.json        entries that were deleted before they were read

A file is written beside its place, synced and renamed: rows and cursor appear in one step. Its name has the number of the file, the lineage of the
server, the ids between which its entries stand, and how many entries there had been up to the last.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic_core import from_json, to_json

from command_bus.errors import InvalidSettings
from command_bus.export.columns import MICROS, arrow_schema_of, gc_paused, pc
from command_bus.export.cursors import BEGINNING, Cursor
from command_bus.export.views import View
from command_bus.stream_ids import StreamId, stream_id

Format = Literal["parquet", "jsonl"]
FORMAT = 1
"""Version of the layout of the folder."""
_NAME = re.compile(r"[a-z]+\.(\d+)\.([0-9a-f]+)\.(\d+-\d+)\.(\d+-\d+)\.(\d+|x)\.(?:parquet|jsonl)")
_ABOUT, _GAPS, _FOUND = "_command_bus.json", "gaps", "lost+found"
_OLD: Final = 4
"""Files whose rows are kept in memory while entries are read again."""
# What tells rows of one stream apart. The id alone does not: after a failover another entry may have it.
_KEYS: dict[View, tuple[str, ...]] = {
    "history": ("entry", "command_id", "status", "attempt"),
    "steps": ("entry", "command_id", "number"),
    "events": ("entry", "kind", "command_id", "attempt"),
    "audit": ("entry", "who", "act"),
    "deadLetters": ("id", "command_id"),
}


class _File(NamedTuple):
    path: Path
    number: int
    after: StreamId
    cursor: Cursor


def about(folder: Path) -> dict[str, Any]:
    """Return what is exported to a folder; empty if nothing is."""
    with suppress(OSError, ValueError):
        return dict(json.loads((folder / _ABOUT).read_text(encoding="utf-8")))
    return {}


def files_in(folder: Path, name: str) -> list[_File]:
    """Return the files of a stream, by their numbers."""
    # Not by `glob`, which passes over a folder that it may not read.
    found = (_file(path) for path in folder.iterdir() if path.name.startswith(f"{name}."))
    return sorted((each for each in found if each is not None), key=lambda each: each.number)


class StreamFolder:
    """The files of one stream of a shard.

    Args:
        folder: That of the view and shard.
        name: That with which the files begin.
        view: The columns.
        suffix: The format.
        held: Holds the folder of the export for a write.
    """

    def __init__(
        self, folder: Path, name: str, view: View, suffix: Format, held: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._folder, self._name, self._held = folder, name, held
        self._view: View = view
        self._suffix: Format = suffix
        _ready(folder, name)
        self._files = files_in(folder, name)

    @property
    def cursor(self) -> Cursor | None:
        """The place to go on; None if nothing is exported yet."""
        return self._files[-1].cursor if self._files else None

    @property
    def begin(self) -> StreamId:
        """The id behind which the first file begins that was not taken away meanwhile."""
        return next((each.after for each in self._files if each.path.exists()), self.end)

    @property
    def end(self) -> StreamId:
        """The highest id of all files."""
        return max((each.cursor.last for each in self._files), default=BEGINNING)

    def fresh(self, batch: Any) -> Any:
        """Return the rows of a batch that no file has."""
        if not batch.num_rows:
            return batch
        first, last = (stream_id(_entry_in(self._view, batch, at)) for at in (0, batch.num_rows - 1))
        over = [each.path for each in self._files if each.after < last and first <= each.cursor.last]
        if not over:
            return batch
        known = set[Any]().union(*(_keys_in(path, self._view) for path in over))
        rows = zip(*(batch.column(name).to_pylist() for name in _KEYS[self._view]), strict=True)
        return batch.filter(pa.array([row not in known for row in rows]))

    def write(self, batches: list[Any], after: StreamId, cursor: Cursor) -> None:
        """Write a file of entries behind `after`; the cursor is where to go on from then on."""
        count = "x" if cursor.added is None else cursor.added
        name = f"{self._name}.{cursor.number:08d}.{cursor.lineage}.{after}.{cursor.last}.{count}.{self._suffix}"
        write = _parquet if self._suffix == "parquet" else _jsonl
        with self._held(), gc_paused():
            _put(self._folder / name, lambda file: write(pa.Table.from_batches(batches, arrow_schema_of(self._view)), file))
        self._files.append(_File(self._folder / name, cursor.number, after, cursor._replace(number=cursor.number + 1)))


class ExportFolder:
    """The folder of an export, locked until it is closed.

    Args:
        folder: It is made where it is missing.
        facts: What is exported to it: namespace, shards, format.

    Raises:
        InvalidSettings: It cannot be used, another exporter writes to it, or something else is exported there.
    """

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.path = folder
        self._format: Format = facts["format"]
        self._streams: dict[tuple[str, int], StreamFolder] = {}
        self._writes = threading.Lock()
        with _usable(folder):
            _make(folder)
            self._lock = (folder / _ABOUT).open("a+")
        try:
            with _usable(folder):
                self._claim(facts | {"version": FORMAT})
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another exporter in, behind a write that goes on in its thread although its waiter is gone."""
        with self._writes:
            self._lock.close()

    def stream(self, view: View, shown: str, name: str, shard: int) -> StreamFolder:
        """Return the files that begin with a name in the folder `shown` of the view."""
        with _usable(self.path):
            return self._stream(view, shown, name, shard)

    def _stream(self, view: View, shown: str, name: str, shard: int) -> StreamFolder:
        if (name, shard) not in self._streams:
            place = self.path / shown / f"shard={shard}"
            found = self._streams[name, shard] = StreamFolder(place, name, view, self._format, self._held)
            for told in (self.path / _GAPS).glob(f"{name}.{shard}.*.json"):  # by an exporter that was killed before its next file
                if stream_id(told.name.split(".")[2]) > found.end:
                    told.unlink()
        return self._streams[name, shard]

    def note_gap(self, name: str, shard: int, after: StreamId, gap: dict[str, Any]) -> None:
        """Write a gap down, in a file that has its name from the place: written again it is the same."""
        with self._held():
            _ready(self.path / _GAPS, name)
            _put(self.path / _GAPS / f"{name}.{shard}.{after}.json", lambda file: file.write(to_json(gap) + b"\n"))

    @contextmanager
    def _held(self) -> Generator[None]:
        """Hold the folder for a write; one that was closed, or put in the place of the locked one, belongs to another exporter."""
        with self._writes, _usable(self.path):
            if self._lock.closed or not os.path.samestat(os.fstat(self._lock.fileno()), (self.path / _ABOUT).stat()):
                raise InvalidSettings(f"{self.path} is not the folder any more that this export has begun with: start it again")
            yield

    def _claim(self, facts: dict[str, Any]) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidSettings(
                f"another exporter writes to {self.path}: one is enough, or give this one its own folder"
            ) from None
        self._lock.seek(0)
        known: Any = None
        with suppress(ValueError):
            known = json.loads(self._lock.read() or "null")
        if known is None:
            if any(each.name not in (_ABOUT, _FOUND) for each in self.path.iterdir()):  # a new file system has lost+found
                raise InvalidSettings(f"{self.path} has files and is no folder of an export: give an empty one, or a new name")
            self._lock.truncate(0)  # a killed exporter may have left half of it
            self._lock.write(json.dumps(facts))
            self._lock.flush()
            os.fsync(self._lock.fileno())
            _sync(self.path)
        elif known != facts:
            differing = ", ".join(
                f"{name} {known.get(name)!r}, not {value!r}" for name, value in facts.items() if known.get(name) != value
            )
            raise InvalidSettings(f"{self.path} has another export ({differing}): give this one a folder of its own")


def _file(path: Path) -> _File | None:
    found = _NAME.fullmatch(path.name)
    if found is None:
        return None
    number, lineage, after, last, count = found.groups()
    cursor = Cursor(stream_id(last), None if count == "x" else int(count), lineage, int(number) + 1)
    return _File(path, int(number), stream_id(after), cursor)


def _entry_in(view: View, batch: Any, at: int) -> str:
    """Return the id of the entry of a row; that of a dead letter begins with its shard."""
    value: str = batch.column(_KEYS[view][0])[at].as_py()
    return value.partition("-")[2] if view == "deadLetters" else value


@lru_cache(_OLD)
def _keys_in(path: Path, view: View) -> frozenset[tuple[Any, ...]]:
    """Return what tells apart the rows of a file."""
    try:
        return _read_keys(path, view)
    except FileNotFoundError:  # somebody has taken it away
        return frozenset()
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InvalidSettings(f"cannot read {path}, which was written by an export: put it back as it was ({error})") from error


def _read_keys(path: Path, view: View) -> frozenset[tuple[Any, ...]]:
    names = _KEYS[view]
    if path.suffix == ".jsonl":
        rows = (from_json(line) for line in path.read_bytes().splitlines())
        return frozenset(tuple(row[name] for name in names) for row in rows)
    table = pq.ParquetFile(path).read(columns=list(names))
    return frozenset(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def _ready(folder: Path, name: str) -> None:
    """Make a folder, and delete what an exporter that was killed has left in it for a stream."""
    _make(folder)
    for left in folder.glob(f".{name}.*"):
        left.unlink()


def _make(folder: Path) -> None:
    """Make a folder where it is missing, so that it is there behind a power cut, as the files in it are."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _usable(folder: Path) -> Generator[None]:
    """Raise what the system says against the folder as what it is to a user."""
    try:
        yield
    except OSError as error:
        raise InvalidSettings(f"cannot export to {folder}: {error.strerror or error} ({error.filename or 'a file'})") from error


def _put(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Make a file, whole or not at all."""
    beside = path.with_name(f".{path.name}")
    try:
        with beside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        beside.rename(path)
        _sync(path.parent)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def _parquet(table: Any, file: IO[bytes]) -> None:
    # The folder says the shard: readers of partitioned folders refuse files that say it, too.
    pq.write_table(table.select([name for name in table.column_names if name != "shard"]), file, compression="zstd")


def _jsonl(table: Any, file: IO[bytes]) -> None:
    for batch in table.to_batches(max_chunksize=10_000):
        columns = [_shown(column).to_pylist() for column in batch.columns]
        file.writelines(to_json(dict(zip(batch.schema.names, row, strict=True))) + b"\n" for row in zip(*columns, strict=True))


def _shown(column: Any) -> Any:
    """Return times as texts in UTC, all of one length: to make a datetime of each takes longer than all the rest."""
    return pc.strftime(column.cast(pa.timestamp("us")), "%Y-%m-%dT%H:%M:%SZ") if column.type == MICROS else column
