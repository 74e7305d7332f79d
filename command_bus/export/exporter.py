"""`Export`: what happened, from the server into files, each row once.

    report = await Export(bus, "ledger", ["history", "events"]).run()      # all that there is now
    await Export(bus, "ledger").follow()                                   # for ever, a look each minute

The cursor is in the names of the files, so an exporter that was killed goes on where the last file ends, and what it had read and not written is
read again. A server that has restarted, or that another one has replaced, may have lost entries and give new ones ids below the cursor: what the
last hour has is read again then, and rows that a file has are left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from command_bus.bus import CommandBus
from command_bus.clock import mono
from command_bus.errors import ExportGap, InvalidSettings, MissingExtra, TransportUnavailable
from command_bus.export.cursors import BEGINNING, Cursor, before_ms, passed
from command_bus.export.views import View
from command_bus.observer import ExportFigures, outward_of
from command_bus.stream_ids import StreamId, ms_of, stream_id
from command_bus.sync.bus import SyncCommandBus
from command_bus.sync.parts import Part, blocking

try:
    from command_bus.export.files import ExportFolder, Format, about, files_in
    from command_bus.export.pages import STREAMS
    from command_bus.export.reading import StreamReader
except ImportError as error:
    if (error.name or "").partition(".")[0] != "pyarrow":
        raise
    raise MissingExtra("command_bus.export needs pyarrow: pip install 'command-bus[export]'") from error

Exported = Literal["history", "steps", "events", "audit", "letters"]
"""Ends of commands, steps of durable ones, events of watched types, acts of operators, dead letters."""

_log = logging.getLogger("command_bus.export")
VIEWS: Final[dict[str, View]] = {
    "history": "history",
    "steps": "steps",
    "events": "events",
    "audit": "audit",
    "letters": "deadLetters",
}
_AGAIN_MS: Final = 3_600_000
"""The time below the cursor that is read again behind a failover or a restart."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries that were deleted before they were exported.

    Attributes:
        view: `history`, `events`, `audit` or `steps`.
        shard: Number of the shard.
        after: Id of an entry before them.
        until: Id of an entry behind them.
        lost: How many, about; None if the server does not count (Redis before 7): there may be none.
    """

    view: Exported
    shard: int
    after: str
    until: str
    lost: int | None


@dataclass(slots=True)
class ExportReport:
    """The extent of an export so far.

    Attributes:
        rows: By view.
        files: How many were written.
        gaps: What is missing.
    """

    rows: dict[str, int] = field(default_factory=dict[str, int])
    files: int = 0
    gaps: list[Gap] = field(default_factory=list[Gap])


class Export:
    """An export of a namespace into a folder.

    Args:
        bus: Open, with the rights of an operator.
        folder: It is made where it is missing. Only one exporter writes to it at a time.
        views: What is exported; one or several.
        format: `parquet`, or `jsonl`: a JSON object in each line.
        rows: Most rows of a file.
        since: The time from which a new export begins: only what happened then or later; without a time zone it is local time.
        allow_gaps: Whether entries that were deleted before they were read are no error. They are written down in the folder `gaps` in any case.
        progress: Called after each file with the report so far.

    Attributes:
        bus: The one given.
        report: The sum of all that this object has exported.

    Raises:
        InvalidSettings: A value is not what it may be.
    """

    def __init__(
        self,
        bus: CommandBus,
        folder: str | Path,
        views: Sequence[Exported] = ("history",),
        *,
        format: Format = "parquet",  # noqa: A002 - as everybody calls it
        rows: int = 100_000,
        since: datetime | None = None,
        allow_gaps: bool = False,
        progress: Callable[[ExportReport], object] | None = None,
    ) -> None:
        unknown = [str(each) for each in views if each not in VIEWS]
        if unknown or not views:
            raise InvalidSettings(f"views: {', '.join(unknown) or 'none'}: one or several of {', '.join(VIEWS)}")
        if format not in get_args(Format) or rows < 1:
            raise InvalidSettings(f"format={format!r}, rows={rows}: one of {', '.join(get_args(Format))}, and rows from 1")
        self.bus, self.report = bus, ExportReport(dict.fromkeys(views, 0))
        self._folder, self._views, self._format, self._rows = Path(folder), tuple(dict.fromkeys(views)), format, rows
        self._since = BEGINNING if since is None else before_ms(int(since.timestamp() * 1000))
        self._allows, self._progress = allow_gaps, progress
        self._begun = mono()
        self._works = False
        self._seen = set[tuple[str, str, int]]()  # streams of which the last look has read all
        self._ended = set[tuple[str, str, int]]()  # those of them that ended by themselves since then: the next ones count from 0
        if (outward := outward_of(bus.session.observer)) is not None:
            outward.exports(self.figures)

    def figures(self) -> ExportFigures:
        """Return how far it is; any thread may call it."""
        lost = sum(gap.lost or 0 for gap in self.report.gaps)
        return ExportFigures(sum(self.report.rows.values()), self.report.files, lost, mono() - self._begun)

    async def why_not_ready(self, _: float) -> str | None:
        """Return why it does not export; None while it does."""
        return None if self._works else "the last look at the server failed, or there was none yet"

    async def run(self) -> ExportReport:
        """Export all that there is now, and return what that was.

        Raises:
            ExportGap: Entries were deleted before they were read. All that there was is in the folder, and the next run goes on behind it.
            InvalidSettings: The folder cannot be used.
            TransportUnavailable: The server cannot be reached.
        """
        with self._opened() as folder:
            await self._pass(folder)
        return self.report

    async def follow(self, every: float = 60.0) -> None:
        """Export for ever, with a look each `every` seconds. A server that is away is waited for.

        Raises:
            ExportGap: As of `run`.
            InvalidSettings: The folder cannot be used.
        """
        with self._opened() as folder:
            while True:
                begun = mono()
                try:
                    await self._pass(folder)
                except TransportUnavailable as error:
                    self._works = False
                    self._seen.clear()
                    _log.warning("not exported, to be tried again: %s", error.message)
                await asyncio.sleep(max(every - (mono() - begun), 0.1))

    def _opened(self) -> ExportFolder:
        facts = {"namespace": self.bus.settings.namespace, "shards": self.bus.transport.shards, "format": self._format}
        return ExportFolder(self._folder, facts)

    async def _pass(self, folder: ExportFolder) -> None:
        begun, known = mono(), len(self.report.gaps)
        for shown in self._views:
            view = VIEWS[shown]
            for shard in range(1 if view == "audit" else self.bus.transport.shards):
                for name in STREAMS[view]:
                    await self._export(folder, shown, name, shard)
        self._begun, self._works = begun, True
        certain = [gap for gap in self.report.gaps[known:] if gap.lost]
        if certain and not self._allows:
            lost = sum(gap.lost or 0 for gap in certain)
            raise ExportGap(
                f"{lost:,} entries of {', '.join(sorted({gap.view for gap in certain}))} were deleted before they were read: look at them in "
                f"{folder.path / 'gaps'}, and keep them for longer or export more often",
                lost=lost,
            )

    async def _export(self, folder: ExportFolder, shown: Exported, name: str, shard: int) -> None:
        """Write what one stream has now."""
        key, files = (shown, name, shard), folder.stream(VIEWS[shown], shown, _label(shown, name), shard)
        reader = StreamReader(self.bus.transport.operator.kept, VIEWS[shown], name, shard, files.fresh, self._rows)
        lineage = await reader.lineage()
        stream = await reader.look()
        if stream is None:
            self._ended |= {key} & self._seen
            return
        until, before = stream_id(stream.last), files.cursor or Cursor(self._since, None, lineage)
        if key in self._ended and before.added is not None:
            before = before._replace(added=0)
        cursor, lost = passed(before, stream, [], before.last)
        if is_new := before.lineage != lineage:  # what the server has lost may come again, under ids below
            again = max(before_ms(before.last.ms - _AGAIN_MS), files.begin)
            cursor = Cursor(min(cursor.last, again), None, lineage, cursor.number)
        self._note(folder, shown, reader, before, cursor.last, lost)
        while is_new or lost != 0 or cursor.last < until:
            read = await reader.read(cursor, until)
            self._note(folder, shown, reader, cursor, read.cursor.last, read.lost)
            await asyncio.to_thread(files.write, read.batches, cursor.last, read.cursor)
            self.report.files += 1
            self.report.rows[shown] += sum(batch.num_rows for batch in read.batches)
            if self._progress is not None:
                self._progress(self.report)
            cursor, is_new, lost = read.cursor._replace(number=read.cursor.number + 1), False, 0
        self._seen.add(key)
        self._ended.discard(key)

    def _note(
        self, folder: ExportFolder, shown: Exported, reader: StreamReader, cursor: Cursor, until: StreamId, lost: int | None
    ) -> None:
        if lost == 0:
            return
        gap = Gap(shown, reader.shard, str(cursor.last), str(until), lost)
        many, level = ("perhaps some", logging.WARNING) if lost is None else (f"{lost:,}", logging.ERROR)
        _log.log(
            level, "%s entries of %s were deleted in shard %d before they were read, behind %s", many, shown, gap.shard, gap.after
        )
        folder.note_gap(_label(shown, reader.name), gap.shard, cursor.last, asdict(gap))
        self.report.gaps.append(gap)


def _label(shown: str, name: str) -> str:
    """Return the name with which files begin: events have two streams."""
    return name if shown == "events" else shown


class Standing(NamedTuple):
    """The standing of a stream: what its files lack.

    Attributes:
        view: `history`, `steps`, `events`, `audit` or `letters`.
        shard: Number of the shard.
        lost: Entries behind the last file that are deleted; None: perhaps some.
        waits: Seconds for which the oldest entry behind the last file has waited; 0 without one.
    """

    view: str
    shard: int
    lost: int | None
    waits: float


async def standing(bus: CommandBus, folder: Path) -> list[Standing]:
    """Return what the files of an export lack; nothing is changed, and an exporter may run.

    Raises:
        InvalidSettings: The folder has no export, or one of another namespace.
        TransportUnavailable: The server cannot be reached.
    """
    namespace = about(folder).get("namespace")
    if namespace != bus.settings.namespace:
        other = "no export" if namespace is None else f"an export of the namespace {namespace!r}, not {bus.settings.namespace!r}"
        raise InvalidSettings(f"{folder} has {other}")
    now, kept, found = await bus.transport.operator.entities.now_ms(), bus.transport.operator.kept, list[Standing]()
    for shown, view in VIEWS.items():
        for part in sorted((folder / shown).glob("shard=*")):
            shard = int(part.name.partition("=")[2])
            for name in STREAMS[view]:
                files = files_in(part, _label(shown, name))
                stream = await StreamReader(kept, view, name, shard, _same, 1).look()
                if not files or stream is None:
                    continue
                cursor, lost = passed(files[-1].cursor, stream, [], files[-1].cursor.last)
                ends = await kept.ends(name, shard, f"({cursor.last}", "+")
                found.append(Standing(shown, shard, lost, 0.0 if ends is None else (now - ms_of(ends[0])) / 1000))
    return found


def _same(batch: Any) -> Any:
    return batch


class SyncExport(Part[Export]):
    """`Export` with a `SyncCommandBus`: its methods wait.

    Args:
        bus: Open or not.
        folder: As of `Export`.
        views: As of `Export`.
        options: As of `Export`.
    """

    def __init__(self, bus: SyncCommandBus, folder: str | Path, views: Sequence[Exported] = ("history",), **options: Any) -> None:
        super().__init__(bus._bus, lambda found: Export(found, folder, views, **options))  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]

    run = blocking(Export.run)
    follow = blocking(Export.follow)
