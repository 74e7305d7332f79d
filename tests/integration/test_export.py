"""`command-bus export`, as a program: what it writes and says, and how it ends."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from command_bus import Command, CommandBus, EntityId, Envelope, HandlerRegistry, History
from command_bus.embedded import EmbeddedServer
from command_bus.embedded.binary import find_server_binary
from command_bus.errors import TransportUnavailable
from tests.program import run_program
from tests.topologies.node import Node, free_ports, until

pq = pytest.importorskip("pyarrow.parquet")

from command_bus.export import Export  # noqa: E402 - after the skip

ROOT = Path(__file__).parents[2]


class Note(Command[int], entity="book", history=History(age="1 day", number=10, payload=True)):
    book: EntityId
    number: int


class Write(Command[int], entity="book", history="1 day"):
    book: EntityId
    number: int


def registry() -> HandlerRegistry:
    found = HandlerRegistry()

    @found.handles(Note)
    @found.handles(Write)
    def write(command: Note | Write) -> int:
        if command.number < 0:
            raise ValueError("no such page")
        return command.number

    return found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with EmbeddedServer.start() as server:
        yield server.url


@pytest.fixture
async def bus(url: str) -> AsyncIterator[CommandBus]:
    async with CommandBus(url, namespace=f"x-{secrets.token_hex(3)}", registry=registry()) as bus:
        yield bus


async def note(bus: CommandBus, *numbers: int, kind: type[Note | Write] = Note) -> None:
    async with bus.worker():
        await bus.dispatch_batch(kind(book=f"b-{number % 3}", number=number) for number in numbers)
        await bus.wait_idle(20)


async def run(bus: CommandBus, folder: Path, *words: str) -> Any:
    words = ("export", *words, "--to", str(folder), "--url", bus.url, "--namespace", bus.settings.namespace)
    done = await asyncio.to_thread(run_program, *words)
    assert "Traceback" not in done.stderr, done.stderr
    return done


async def test_it_writes_each_row_once_and_goes_on(bus: CommandBus, tmp_path: Path) -> None:
    await note(bus, 1, 2, 3)
    done = await run(bus, tmp_path, "history", "letters", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (
        0,
        {"views": [{"view": "history", "rows": 3}, {"view": "letters", "rows": 0}], "files": 1, "gaps": []},
    )
    await note(bus, 4, -5)
    done = await run(bus, tmp_path, "history", "letters")
    assert done.stdout.split() == ["VIEW", "ROWS", "history", "2", "letters", "1", "new", "files:", "2"]
    assert (await run(bus, tmp_path, "history", "letters")).stdout.endswith("nothing new\n")
    rows = pq.read_table(tmp_path / "history").to_pylist()
    assert sorted((json.loads(row["payload"])["number"], row["status"], row["result"]) for row in rows) == [
        (-5, "dead_lettered", None),
        *((number, "completed", str(number)) for number in (1, 2, 3, 4)),
    ]
    [letter] = pq.read_table(tmp_path / "letters").to_pylist()
    assert (letter["error_type"], json.loads(letter["payload"])["number"]) == ("ValueError", -5)


async def test_lines_have_what_parquet_has(bus: CommandBus, tmp_path: Path) -> None:
    await note(bus, 1, 2, -3)
    for suffix in ("jsonl", "parquet"):
        assert (await run(bus, tmp_path / suffix, "history", "--format", suffix)).returncode == 0
    [file] = (tmp_path / "jsonl/history/shard=0").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    rows = pq.read_table(tmp_path / "parquet/history").to_pylist()
    for row in rows:
        row.update({name: row[name].strftime("%Y-%m-%dT%H:%M:%S.%fZ") for name in ("accepted_at", "started_at", "finished_at")})
    assert lines == [{**row, "shard": 0} for row in rows]


async def test_what_was_deleted_unread_is_told_once(bus: CommandBus, tmp_path: Path) -> None:
    await note(bus, *range(5))
    assert (await run(bus, tmp_path, "history")).returncode == 0
    await note(bus, *range(5, 30))  # ten are kept
    done = await run(bus, tmp_path, "history")
    assert done.returncode == 1
    assert "15 entries of history were deleted before they were read" in done.stderr
    [gap] = (tmp_path / "gaps").iterdir()
    assert {"view": "history", "shard": 0, "lost": 15}.items() <= json.loads(gap.read_text()).items()
    assert (await run(bus, tmp_path, "history")).returncode == 0
    numbers = [json.loads(row["payload"])["number"] for row in pq.read_table(tmp_path / "history").to_pylist()]
    assert {*range(5)} <= {*numbers}
    assert len(numbers) == len({*numbers}) == 15
    await note(bus, *range(30, 50))
    said = await asyncio.to_thread(
        run_program, "doctor", "--export", str(tmp_path), "--url", bus.url, "-n", bus.settings.namespace, "--json"
    )
    found = [each["found"] for each in json.loads(said.stdout)["findings"] if each["about"] == "export"]
    text = "entries were deleted before they were read"
    assert found == [f"{text}: {gap}", f"history of shard 0: 10 {text}"]
    assert (await run(bus, tmp_path, "history", "--allow-gaps")).returncode == 0


async def test_a_history_that_has_ended_meanwhile_is_a_gap_unless_somebody_saw_it(bus: CommandBus, tmp_path: Path) -> None:
    """Behind its age Redis deletes all of a history, and the number of entries that there were with it."""

    async def end(*unread: int) -> None:
        await note(bus, *unread)
        async with Redis.from_url(bus.url) as client:
            await client.delete(f"{{{bus.settings.namespace}:0}}:history", f"{{{bus.settings.namespace}:0}}:history:ids")

    seeing, later = Export(bus, tmp_path / "seeing"), Export(bus, tmp_path / "later")
    await note(bus, 1, 2, 3)
    await seeing.run()
    await later.run()
    await end()
    await seeing.run()
    await note(bus, 4)
    assert (await seeing.run()).gaps == []
    await end(5)
    await note(bus, 6)
    [gap] = (await later.run()).gaps
    assert (gap.view, gap.lost) == ("history", None)
    assert len((await later.run()).gaps) == 1
    for folder, numbers in (("seeing", {1, 2, 3, 4}), ("later", {1, 2, 3, 6})):
        found = [json.loads(row["payload"])["number"] for row in pq.read_table(tmp_path / folder / "history").to_pylist()]
        assert sorted(found) == sorted(numbers)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("histories",), "is not one of 'history', 'steps', 'events', 'audit', 'letters'"),
        (("history", "--rows", "0"), "Invalid value for '--rows'"),
        (("history", "--every", "soon"), "is no duration"),
        (("history", "--since", "lunch"), "is no age"),
        (("history", "--format", "jsonl"), "has another export (format 'parquet', not 'jsonl')"),
        (("history", "--namespace", "other"), "no namespace"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
async def test_bad_input_is_refused(bus: CommandBus, tmp_path: Path, words: tuple[str, ...], text: str) -> None:
    await run(bus, tmp_path, "history")
    done = await asyncio.to_thread(
        run_program,
        "export",
        *words,
        "--to",
        str(tmp_path),
        "--url",
        bus.url,
        *(() if "--namespace" in words else ("-n", bus.settings.namespace)),
    )
    assert done.returncode == 2
    assert text in " ".join(done.stderr.replace("│", " ").split())


async def test_a_folder_has_one_export_of_one_namespace(bus: CommandBus, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    assert "is no folder of an export" in (await run(bus, tmp_path / "mine", "history")).stderr
    assert (await run(bus, tmp_path / "out", "history")).returncode == 0
    async with CommandBus(bus.url, namespace=f"{bus.settings.namespace}-2") as other:
        done = await run(other, tmp_path / "out", "history")
    assert (done.returncode, "has another export (namespace" in done.stderr) == (2, True)


@contextmanager
def started(url: str, namespace: str, folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run an exporter that follows; at the end it is killed."""
    command = [
        sys.executable,
        "-m",
        "command_bus",
        "export",
        *words,
        "--to",
        str(folder),
        "--url",
        url,
        "-n",
        namespace,
        "--follow",
    ]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_it_follows_until_it_is_asked_to_end(bus: CommandBus, tmp_path: Path) -> None:
    await note(bus, 1, 2)
    [port] = free_ports(1)
    with started(bus.url, bus.settings.namespace, tmp_path, "history", "--every", "0.1s", "--health-port", str(port)) as process:

        def metrics() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                return str(answer.read(), "utf-8")

        def rows() -> int:
            return sum(pq.read_metadata(file).num_rows for file in tmp_path.glob("history/*/history.*"))

        until(lambda: rows() == 2, "two rows")
        await note(bus, 3)
        until(lambda: rows() == 3, "a third row")
        found = await asyncio.to_thread(until, metrics, "metrics")
        assert "command_bus_export_rows_total 3.0" in found
        [lag] = [line for line in found.splitlines() if line.startswith("command_bus_export_lag_seconds")]
        assert 0 <= float(lag.split()[1]) < 20
        done = await run(bus, tmp_path, "history")
        assert (done.returncode, "another exporter writes to" in done.stderr) == (2, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_kills_of_exporter_and_server_lose_and_double_no_row(tmp_path: Path) -> None:
    """100,000 ends, 50 kills."""
    [port] = free_ports(1)
    config = {"appendonly": "yes", "appendfsync": "always"}
    node = Node(find_server_binary(), port, tmp_path / "server", config)
    node.start()
    url, folder, kills, count = f"redis://127.0.0.1:{port}", tmp_path / "out", 50, 100_000
    try:
        async with CommandBus(url, namespace="kills", registry=registry(), shards=2, dispatch_timeout=60) as bus:
            working = asyncio.create_task(_work(bus, count))
            for kill in range(kills):
                with started(url, "kills", folder, "history", "events", "--every", "0.05s", "--rows", "700"):
                    await asyncio.sleep(1.0 + kill % 5 * 0.17)
                    if kill % 7 == 3:
                        await asyncio.to_thread(node.kill)
                        await asyncio.sleep(0.3)
                        await asyncio.to_thread(node.start)
                        await asyncio.sleep(0.5)
            await working
            done = await run(bus, folder, "history", "events", "--rows", "700")
            assert done.returncode == 0, done.stderr
    finally:
        node.stop()
    ends = Counter(pq.read_table(folder / "history", columns=["command_id"]).column("command_id").to_pylist())
    assert len(ends) == count, "an end is lost"
    assert set(ends.values()) == {1}, "an end is doubled"
    rows = pq.read_table(folder / "events", columns=["entry", "shard", "kind", "command_id"]).to_pylist()
    assert max(Counter(tuple(row.items()) for row in rows).values()) == 1, "an event is doubled"
    completed = Counter(row["command_id"] for row in rows if row["kind"] == "completed")
    assert completed == ends, "an event is lost"


async def _work(bus: CommandBus, count: int) -> None:
    await bus.events.watch("book", kept=10_000_000)
    async with bus.worker(concurrency=100):
        for start in range(0, count, 1000):
            batch = [
                Envelope(Write(book=f"b-{number % 997}", number=number), command_id=f"w-{number}")
                for number in range(start, start + 1000)
            ]
            while (await bus.dispatch_batch(batch)).rejected:  # the server was away: what it had taken is a duplicate
                await asyncio.sleep(0.1)
        while True:
            with suppress(TransportUnavailable):
                return await bus.wait_idle(300)
            await asyncio.sleep(0.1)
