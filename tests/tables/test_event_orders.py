"""Runs `event_orders.py`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from command_bus.transport.records import SENT_KINDS
from command_bus.transport.redis.admin.events import newest_events
from tests.tables.event_orders import CLOCKS, LIVES

_RETENTION_MS = 600_000
Entries = list[tuple[bytes, dict[bytes, bytes]]]


def written(entries: Entries, now: int, facts: str, name: str) -> None:
    """Write an event as XADD does: ids grow, also where the clock goes back."""
    ms, number = (int(part) for part in entries[-1][0].split(b"-")) if entries else (0, 0)
    ms, number = (now, 0) if now > ms else (ms, number + 1)
    entries.append((b"%d-%d" % (ms, number), {b"v": f"{facts}||||".encode(), b"m": b"line:a", b"c": name.encode()}))


def histories(life: list[str], clock: str) -> Iterator[tuple[Entries, Entries]]:
    """Yield both streams, with the jump before each event, and with events of another command before it, behind it and in the end."""
    step, jump = CLOCKS[clock]
    for jumps, others in product(range(len(life)), product(("accepted", "limited", ""), repeat=2)):
        done: Entries = []
        sent: Entries = []
        now = 5000
        for at, kind in enumerate(life):
            now += _RETENTION_MS if kind == "later" else step
            if at == jumps:
                for other, then in zip(others, (now, now + jump), strict=True):
                    if other:
                        written(sent if other in SENT_KINDS else done, then, other, "another")
                now += jump
            if kind != "later":
                written(sent if kind in SENT_KINDS else done, now, kind.partition(":")[0], "it")
        written(done, now + step, "limited", "another")
        yield done, sent


CELLS = [(life, clock) for life in LIVES for clock in CLOCKS if "later" not in LIVES[life] or CLOCKS[clock][1] >= 0]


@pytest.mark.parametrize(("life", "clock"), CELLS)
def test_events_of_a_command_are_told_in_their_order(life: str, clock: str) -> None:
    for done, sent in histories(LIVES[life].split(), clock):
        events = newest_events(0, 1, done[::-1], sent[::-1])[::-1]
        told = [event.facts[0] for event in events if event.names == b"it"]
        assert told == LIVES[life].replace(":worker", "").replace("later ", "").split(), (done, sent)
        if clock == "steady":
            assert events == sorted(events, key=lambda event: int(event.id.partition("-")[0]))
