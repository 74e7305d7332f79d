"""Histories in which commands of several entities go wrong, each in one way; and lines on a server that do not agree."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from command_bus.testing.simulated.store import Store
from command_bus.testing.simulated.streams import Stream
from tests.simulation.history import Claim, History
from tests.simulation.standing import LineRun, Stander

__all__ = ["SEVERAL_BREAKAGES", "moved_rightly"]

PREFIX = b"{sim:0}:"
HOME, OTHER, THIRD = "purse:p0", "purse:p1", "purse:p2"
_AT = 1_700_000_000


def _process() -> Any:
    return SimpleNamespace(name="w1", troubles=[], dead=False)


def _moved(history: History, tag: str, lines: tuple[str, ...], at: float, **more: Any) -> LineRun:
    """Accept a command, and run it once."""
    history.standing.standers[tag] = Stander(tag, lines, "p1", at, acked=at + 0.01, **more)
    return _run(history, tag, at + 0.1)


def _run(history: History, tag: str, at: float, how: str = "returned", attempt: int = 1) -> LineRun:
    run = LineRun(tag, int((at + _AT) * 1e6), attempt, "aaaa", _process(), at, at + 0.05, how)
    history.standing.runs.append(run)
    return run


def moved_rightly(history: History) -> None:
    """Run one of two lines, after a failure; then one in each of them."""
    _moved(history, "m1", (HOME, OTHER), 1000.0).how = "failed"
    _run(history, "m1", 1000.3, attempt=2)
    _moved(history, "m2", (OTHER,), 1001.0)
    _moved(history, "m3", (OTHER, THIRD), 1002.0)


def overtook_in_the_other_line(history: History) -> None:
    moved_rightly(history)
    history.standing.standers["m0"] = Stander("m0", (THIRD, OTHER), "p2", 999.0, acked=999.1)
    _run(history, "m0", 1003.0)


def overtook_in_a_batch(history: History) -> None:
    _moved(history, "m1", (HOME, OTHER), 1000.0, kind="batch", position=2)
    _moved(history, "m2", (THIRD, OTHER), 1000.0, kind="batch", position=1).fence += 1000


def between_two_attempts(history: History) -> None:
    moved_rightly(history)
    _moved(history, "m4", (OTHER,), 1000.1, kind="delayed")


def beside_the_other_line(history: History) -> None:
    moved_rightly(history)
    history.standing.runs[1].ended = 1001.5


def beside_after_another_line_was_taken_over(history: History) -> None:
    beside_the_other_line(history)
    history.claims.append(Claim(1001.05, "7-0", OTHER, "aaaa", "bbbb", 9.0))  # its lease is that of its home


def the_same_fence(history: History) -> None:
    moved_rightly(history)
    history.standing.runs[2].fence = history.standing.runs[1].fence


def a_fence_that_falls_in_the_other_line(history: History) -> None:
    moved_rightly(history)
    history.standing.runs[3].fence -= 10_000_000


def started_although_the_other_line_was_paused(history: History) -> None:
    moved_rightly(history)
    history.standing.pauses.append((OTHER, 1000.05, 1000.2))


def started_although_the_type_was_paused(history: History) -> None:
    moved_rightly(history)
    history.standing.pauses.append(("purse", 1000.05, 1000.2))


def removed_and_started(history: History) -> None:
    moved_rightly(history)
    history.standing.standers["m2"].removed = 1000.9


def refused_and_ran(history: History) -> None:
    moved_rightly(history)
    history.standing.standers["m2"].acked, history.standing.standers["m2"].refused = None, "queue_full"


def one_attempt_too_many(history: History) -> None:
    moved_rightly(history)
    history.standing.standers["m1"].most = 1


def ran_to_its_end_twice(history: History) -> None:
    moved_rightly(history)
    _run(history, "m3", 1002.5)


def never_ended(history: History) -> None:
    moved_rightly(history)
    history.standing.runs[3].how = "failed"


# On the server.

_HOME_BLOCKED, _PLACE_BLOCKED = b"b|||1-0|0|0||w=1-0", b"b|||2-0|0|0||at=purse:p0"


def _server(
    home: bytes = b"h|9-0|7|1-0|1|5|aaaa|w=1-0",
    other: bytes = _PLACE_BLOCKED,
    lines: bytes = b"purse:p1=2-0 ",
    of: bytes = b"purse:p0",
) -> Store:
    """Return a server on which a command with a place in a second line runs."""
    store = Store(lambda: 1000.0)
    store.data[PREFIX + b"active"] = {HOME.encode(): home, OTHER.encode(): other}
    for name, entry, field, value in ((HOME, (1, 0), b"w", lines), (OTHER, (2, 0), b"s", of)):
        stream = store.data[PREFIX + b"m:" + name.encode()] = Stream()
        stream.entries[entry] = [b"e", b"", field, value]
    return store


def _looks(history: History, store: Store, *moments: float) -> None:
    for at in moments or (1000.0,):
        history.standing.look(store, PREFIX, at)


def lines_agree(history: History) -> None:
    """Look at a server where a command runs that heads both its lines."""
    _looks(history, _server(), 1000.0, 1020.0)


def a_place_without_its_home(history: History) -> None:
    _looks(history, _server(lines=b""))


def a_home_without_its_place(history: History) -> None:
    _looks(history, _server(lines=b"purse:p1=3-0 "))


def a_place_of_another_home(history: History) -> None:
    _looks(history, _server(of=b"purse:p7", other=b"b|||2-0|0|0||at=purse:p7"))


def blocked_by_what_is_not_the_head(history: History) -> None:
    _looks(history, _server(other=b"b|||1-5|0|0||at=purse:p0"))


def blocked_by_a_place_of_another(history: History) -> None:
    _looks(history, _server(other=b"b|||2-0|0|0||at=purse:p3"))


def blocked_and_another_is_kept(history: History) -> None:
    _looks(history, _server(home=b"b|||1-0|0|0||w=0-9"))


def heads_all_its_lines_and_nobody_is_told(history: History) -> None:
    _looks(history, _server(home=_HOME_BLOCKED), 1000.0, 1009.0)


def blocked_by_nothing(history: History) -> None:
    store = Store(lambda: 1000.0)
    store.data[PREFIX + b"active"] = {HOME.encode(): _HOME_BLOCKED}
    _looks(history, store)


def in_two_orders(history: History) -> None:
    store = _server(lines=b"purse:p1=2-5 ")
    store.data[PREFIX + b"m:" + HOME.encode()].entries[1, 1] = [b"e", b"", b"w", b"purse:p1=2-0 "]
    store.data[PREFIX + b"m:" + OTHER.encode()].entries[2, 5] = [b"e", b"", b"s", HOME.encode()]
    _looks(history, store)


SEVERAL_BREAKAGES: list[Callable[[History], None]] = [
    overtook_in_the_other_line,
    overtook_in_a_batch,
    between_two_attempts,
    beside_the_other_line,
    beside_after_another_line_was_taken_over,
    the_same_fence,
    a_fence_that_falls_in_the_other_line,
    started_although_the_other_line_was_paused,
    started_although_the_type_was_paused,
    removed_and_started,
    refused_and_ran,
    one_attempt_too_many,
    ran_to_its_end_twice,
    never_ended,
    a_place_without_its_home,
    a_home_without_its_place,
    a_place_of_another_home,
    blocked_by_what_is_not_the_head,
    blocked_by_a_place_of_another,
    blocked_and_another_is_kept,
    heads_all_its_lines_and_nobody_is_told,
    blocked_by_nothing,
    in_two_orders,
]
