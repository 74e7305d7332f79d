"""The folder of an export in the hands of others: full, replaced, in the way, damaged, taken over."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from shutil import rmtree
from typing import Any, get_args

import pytest
from redis.asyncio import Redis
from redis.exceptions import BusyLoadingError

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, History
from command_bus.embedded import EmbeddedServer
from command_bus.errors import InvalidSettings, UnsuitableServer
from tests.topologies.node import until

pq = pytest.importorskip("pyarrow.parquet")

from command_bus.export import Export  # noqa: E402 - after the skip
from command_bus.export.columns import batch_of  # noqa: E402
from command_bus.export.cursors import BEGINNING, Cursor  # noqa: E402
from command_bus.export.files import ExportFolder, Format  # noqa: E402
from command_bus.stream_ids import StreamId  # noqa: E402

STREAM: Any = ("history", "history", "history", 0)


class Note(Command[int], entity="book", history=History(age="1 day", number=100, payload=True)):
    book: EntityId
    text: str


def registry() -> HandlerRegistry:
    found = HandlerRegistry()

    @found.handles(Note)
    def write(command: Note) -> int:
        return len(command.text)

    return found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with EmbeddedServer.start() as server:
        yield server.url


@pytest.fixture
async def bus(url: str) -> AsyncIterator[CommandBus]:
    async with CommandBus(url, namespace=f"x-{secrets.token_hex(3)}", registry=registry()) as bus:
        yield bus


async def note(bus: CommandBus, *texts: str) -> None:
    async with bus.worker():
        await bus.dispatch_batch(Note(book="b", text=text) for text in texts)
        await bus.wait_idle(20)


def exported(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "history").to_pylist()
    return rows


async def test_a_new_disk_and_what_foreign_clients_wrote_are_no_obstacle(bus: CommandBus, tmp_path: Path) -> None:
    await note(bus, "a")
    async with Redis.from_url(bus.url) as client:
        for entry in ("253402300800000-1", "18446744073709551610-5"):  # in the year 10,000, and beyond 64 bits
            await client.xadd(f"{{{bus.settings.namespace}:0}}:history", {"a": b"\xff"}, id=entry)
    for suffix in get_args(Format):
        (tmp_path / suffix / "lost+found").mkdir(parents=True)
        assert (await Export(bus, tmp_path / suffix, format=suffix).run()).rows == {"history": 3}
    rows = [(row["status"], row["finished_at"] is None) for row in exported(tmp_path / "parquet")]
    assert rows == [("completed", False), ("unreadable", True), ("unreadable", True)]


async def test_a_key_of_another_type_is_told_and_a_server_that_loads_is_waited_for(
    bus: CommandBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await note(bus, "a")
    reading = "command_bus.transport.redis.kept_streams._stream"
    real, errors = resolve_name(reading), [BusyLoadingError("LOADING Redis is loading the dataset in memory")]
    monkeypatch.setattr(reading, lambda *answers: real(errors.pop(), 0) if errors else real(*answers))
    assert (await Export(bus, tmp_path).run()).rows == {"history": 1}
    async with Redis.from_url(bus.url) as client:
        await client.set(f"{{{bus.settings.namespace}:0}}:history", "a text")
    with pytest.raises(UnsuitableServer, match="a value of another type"):
        await Export(bus, tmp_path).run()


@pytest.mark.parametrize("place", ["history", "history/shard=0", "gaps"])
async def test_what_stands_in_the_way_is_told(bus: CommandBus, tmp_path: Path, place: str) -> None:
    await Export(bus, tmp_path, ["audit"]).run()
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("a file")
    about = json.loads((tmp_path / "_command_bus.json").read_text())
    with ExportFolder(tmp_path, about) as folder:
        act = partial(folder.note_gap, "history", 0, BEGINNING, {}) if place == "gaps" else partial(folder.stream, *STREAM)
        with pytest.raises(InvalidSettings, match=f"cannot export to {tmp_path}: .*{place}"):
            act()


async def test_a_folder_that_may_not_be_read_is_no_empty_one(
    bus: CommandBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows would be exported again."""

    def denied(folder: Any = ".") -> Any:
        if str(folder).endswith("shard=0"):
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scan(folder)

    await note(bus, "a")
    await Export(bus, tmp_path).run()
    scan, names = os.scandir, os.listdir
    monkeypatch.setattr(os, "scandir", denied)
    monkeypatch.setattr(os, "listdir", lambda folder=".": denied(folder) and names(folder))
    with pytest.raises(InvalidSettings, match="Permission denied"):
        await Export(bus, tmp_path).run()


@pytest.mark.parametrize("suffix", get_args(Format))
async def test_a_full_disk_leaves_nothing_and_the_next_export_goes_on(bus: CommandBus, tmp_path: Path, suffix: Format) -> None:
    await note(bus, secrets.token_hex(100_000), "b")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(InvalidSettings, match="File too large"):
            await Export(bus, tmp_path, format=suffix).run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [*tmp_path.glob("history/*/*"), *tmp_path.glob("history/*/.*")]
    assert (await Export(bus, tmp_path, format=suffix).run()).rows == {"history": 2}


async def test_an_exporter_ends_when_its_folder_is_replaced(bus: CommandBus, tmp_path: Path) -> None:
    """The new folder is another exporter's: with two of them rows would be there twice."""
    await note(bus, "a")
    folder = tmp_path / "out"
    following = asyncio.create_task(Export(bus, folder).follow(0.1))
    await asyncio.to_thread(until, lambda: [*folder.glob("history/*/history.*")], "a file")
    rmtree(folder)
    await Export(bus, folder).run()
    await note(bus, "b")
    with pytest.raises(InvalidSettings, match="not the folder any more"):
        await asyncio.wait_for(following, 20)
    await Export(bus, folder).run()
    assert len(exported(folder)) == 2


async def test_nobody_gets_the_folder_while_a_write_goes_on(
    bus: CommandBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled exporter leaves a thread behind, whose file appeared after the next exporter had looked."""
    await note(bus, "a", "b")
    writes, goes_on, sync, loop = asyncio.Event(), threading.Event(), os.fsync, asyncio.get_running_loop()

    def slow(file: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            loop.call_soon_threadsafe(writes.set)
            goes_on.wait(20)
        sync(file)

    monkeypatch.setattr(os, "fsync", slow)
    exporting = asyncio.create_task(Export(bus, tmp_path).run())
    await writes.wait()
    threading.Timer(0.3, goes_on.set).start()
    exporting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exporting
    assert (await Export(bus, tmp_path).run()).rows == {"history": 0}
    assert len(exported(tmp_path)) == 2


def test_a_file_that_was_taken_away_is_missed_by_nobody_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    """Behind a restart of the server the last hour is read again, and compared with what the files have."""
    about = {"namespace": "n", "shards": 1, "format": "parquet"}
    with ExportFolder(tmp_path, about) as folder:
        files = folder.stream("audit", "audit", "audit", 0)
        entries = [StreamId(ms, 0) for ms in (1, 2, 3)]
        batches = [batch_of("audit", [(entry.ms, "ann", "pause", *[None] * 5, str(entry))]) for entry in entries]
        for number, (entry, batch) in enumerate(zip(entries, batches, strict=True), 1):
            files.write([batch], StreamId(entry.ms - 1, 0), Cursor(entry, number, "0", number))
        first, second, third = sorted(tmp_path.glob("audit/*/audit.*"))
        first.unlink()
        assert files.begin == entries[0]
        assert [files.fresh(batch).num_rows for batch in batches[:2]] == [1, 0]
        second.unlink()
        third.unlink()
        assert files.begin == entries[2]
    third.write_bytes(b"PAR1")
    with ExportFolder(tmp_path, about) as folder, pytest.raises(InvalidSettings, match=f"cannot read {third}"):
        folder.stream("audit", "audit", "audit", 0).fresh(batches[2])
