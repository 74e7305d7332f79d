"""An export in random worlds: appends, deletions from the old end, failovers, kills between any two system calls, and looks at any time.

No row may come twice. What no file has must have been deleted before it was read, or lost by the server, and then a gap says how many.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from command_bus.errors import ExportGap
from command_bus.export import Export
from command_bus.serialization.msgpack import pack
from command_bus.stream_ids import StreamId, stream_id
from command_bus.transport.ports.kept_streams import KeptStream, StreamPage

WORLDS = 60
HOUR = 3_600_000


class Killed(BaseException):
    """The end of the exporter's process."""


class Server:
    """One stream of a server that loses, deletes and fails over."""

    def __init__(self, chance: random.Random, *, counts: bool) -> None:
        self.chance, self.counts = chance, counts
        self.now = 10 * HOUR
        self.entries: list[tuple[StreamId, str]] = []
        self.last, self.added, self.term, self.made = StreamId(0, 0), 0, 1, 0
        self.ever: dict[str, StreamId] = {}
        self.trimmed: set[str] = set()
        self.meanwhile, self.fails, self.begin, self.before = 0.0, False, False, set[str]()

    def append(self, count: int) -> None:
        for _ in range(count):
            self.now += self.chance.choice((0, 0, 1, 50))
            self.last = max(StreamId(self.now, 0), StreamId(self.last.ms, self.last.number + 1))
            self.made += 1
            who = f"p-{self.made}"
            self.entries.append((self.last, who))
            self.ever[who] = self.last
            self.added += 1

    def trim(self, count: int) -> None:
        self.trimmed.update(who for _, who in self.entries[:count])
        del self.entries[:count]

    def expire(self) -> None:
        """End the stream, as that of a history whose entries are all over: the next one counts from 0."""
        self.trim(len(self.entries))
        self.last, self.added = StreamId(0, 0), 0
        self.now += HOUR

    def fail_over(self) -> None:
        """Lose the newest entries; the clock of the new server is behind."""
        lost = min(self.chance.randrange(4), len(self.entries))
        for _, who in self.entries[len(self.entries) - lost :] if lost else ():
            self.ever.pop(who)
        if lost:
            self.entries, kept = self.entries[:-lost], len(self.entries) - lost
            self.added -= lost
            self.last = self.entries[-1][0] if kept > 0 else self.last
        self.now -= self.chance.choice((0, 0, 30, 200))
        self.term += 1

    def happen(self) -> None:
        """Let something happen between two requests."""
        if self.chance.random() < self.meanwhile:
            acts = [lambda: self.append(2), lambda: self.trim(2), self.fail_over]
            self.chance.choice(acts if self.fails else acts[:2])()

    # KeptStreams

    async def streams(self, wanted: Any) -> list[KeptStream | None]:
        self.happen()
        if self.begin:  # an export begins with what there is
            self.before, self.begin = set(self.trimmed), False
        first = str(self.entries[0][0]) if self.entries else ""
        added = self.added if self.counts else None
        if self.last == (0, 0):
            return [None for _ in wanted]
        return [KeptStream(len(self.entries), added, first, str(self.last)) for _ in wanted]

    async def lineage(self, shard: int) -> str:
        self.happen()
        return f"{self.term:08x}"

    async def page(self, name: str, shard: int, after: str, until: str, count: int) -> StreamPage:
        self.happen()
        low = stream_id(after) if after else StreamId(0, 0)
        found = [(at, who) for at, who in self.entries if low < at <= stream_id(until)][: min(count, 3)]
        return [str(at).encode() for at, _ in found], [[b"v", pack([who])] for _, who in found]


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.glob("audit/shard=0/audit.*") for line in file.read_text().splitlines()]


def bus_on(server: Server) -> Any:
    settings, operator = SimpleNamespace(namespace="n"), SimpleNamespace(kept=server)
    return SimpleNamespace(
        settings=settings, transport=SimpleNamespace(shards=1, operator=operator), session=SimpleNamespace(observer=None)
    )


def export(server: Server, folder: Path) -> int:
    """Look once; return the number of gaps."""
    server.begin = not list(folder.glob("audit/*/audit.*"))
    if server.begin:
        rmtree(folder / "gaps", ignore_errors=True)
    report = Export(bus_on(server), folder, ["audit"], format="jsonl", rows=server.chance.choice((1, 4, 100)))
    with suppress(ExportGap):
        asyncio.run(report.run())
    return len(report.report.gaps)


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the exporter die before the system call with a number."""
    left = [-1]

    def before(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if left[0] == 0:
                left[0] = -1
                with suppress(OSError, TypeError):  # what was not synced is there in part
                    os.ftruncate(args[0], os.fstat(args[0]).st_size // 2)
                raise Killed
            left[0] -= left[0] > 0
            return real(*args, **options)

        return call

    monkeypatch.setattr(os, "fsync", before(lambda _: None))
    monkeypatch.setattr(Path, "rename", before(Path.rename))
    monkeypatch.setattr(Path, "open", before(Path.open))
    return lambda call: left.__setitem__(0, call)


@pytest.mark.parametrize("counts", [True, False], ids=["counted", "redis-6"])
@pytest.mark.parametrize("trims", [False, True], ids=["kept", "deleted"])
def test_each_row_comes_once_whatever_happens(tmp_path: Path, dies: Any, counts: bool, trims: bool) -> None:
    for seed in range(WORLDS):
        chance = random.Random(seed)
        server, folder = Server(chance, counts=counts), tmp_path / str(seed)
        fails = chance.random() < 0.6
        for _ in range(chance.randrange(2, 9)):
            server.append(chance.randrange(12))
            if trims and chance.random() < 0.4:
                server.trim(chance.randrange(8))
            if fails and chance.random() < 0.3:
                server.fail_over()
            server.meanwhile, server.fails = chance.choice((0.0, 0.1)) if trims else 0.0, fails
            dies(chance.choice((-1, -1, 0, 1, 2, 3, 4, 5, 6)))
            with suppress(Killed):
                export(server, folder)
            dies(-1)
        server.meanwhile, ends = 0.0, False
        if trims and chance.random() < 0.2:  # nothing came for longer than anything is kept
            ends = bool(rows(folder))
            server.expire()
            server.append(3)
        elif trims and chance.random() < 0.2:  # nothing is left of what no file has
            server.append(3)
            server.trim(len(server.entries))
        export(server, folder)
        files = sorted(folder.glob("*/*/*"))
        assert export(server, folder) == 0, f"seed {seed}: a gap is told twice"
        assert sorted(folder.glob("*/*/*")) == files, f"seed {seed}: a file for nothing"
        assert not list(folder.glob("audit/*/.*")), f"seed {seed}: half a file is left"
        found = Counter(row["who"] for row in rows(folder))
        assert not [who for who, count in found.items() if count > 1], f"seed {seed}: twice"
        missing = set(server.ever) - set(found) - server.before
        assert missing <= server.trimmed, f"seed {seed}: {missing - server.trimmed} are on the server and in no file"
        gaps = [json.loads(file.read_text()) for file in folder.glob("gaps/audit.*.json")]
        if missing and not fails:
            assert gaps, f"seed {seed}: {len(missing)} are missing, and no gap says so"
            if counts and not ends:
                assert sum(gap["lost"] for gap in gaps) == len(missing), f"seed {seed}"
        if not missing and counts and not fails and not ends:
            assert not gaps, f"seed {seed}: a gap where nothing is missing"
