"""Histories of commands that a worker does not know: rows of `test_unknown_commands.py`. The grace is 60 s."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["HISTORIES", "History", "Offered"]

End = Literal["waits", "ends"]


class Offered(NamedTuple):
    """A command that is offered to the worker.

    Attributes:
        at: When, in s.
        accepted: When it was accepted.
        first: When it was first offered, or started.
        end: What becomes of it.
        handled: Whether a live worker handles its name then.
        attempt: Which start of it this is.
        name: Its wire name.
        replayed: Whether its grace begins with its first start, however long ago it was accepted.
    """

    at: float
    accepted: float
    first: float
    end: End
    handled: bool = False
    attempt: int = 1
    name: str = "Newer"
    replayed: bool = False


History = list[Offered]


def _each(seconds: int, until: int, **what: object) -> History:
    """Return offers of a command that came at 0, that go on."""
    return [Offered(at, 0, 0, "waits", **what) for at in range(0, until, seconds)]  # type: ignore[arg-type]


HISTORIES: dict[str, History] = {
    "one waits for its grace": [*_each(5, 60), Offered(60, 0, 0, "ends")],
    "of one line each has waited with the first": [*_each(5, 60), Offered(60, 0, 0, "ends"), Offered(60, 0, 60, "ends")],
    "one that came later waits for its own grace": [
        *_each(5, 60), Offered(60, 0, 0, "ends"), Offered(60, 50, 60, "waits"), Offered(75, 50, 60, "waits"), Offered(90, 50, 60, "waits"),
        Offered(109, 50, 60, "waits"), Offered(110, 50, 60, "ends"),
    ],
    "a schedule is worked off as fast as it fires": [
        *_each(10, 60), *(Offered(60 + 10 * n, 10 * n, 60 + 10 * (n - 1 if n else -6), "ends") for n in range(9)),
    ],
    "one that stood behind a backlog waits for the grace": [Offered(3600, 0, 3600, "waits"), Offered(3615, 0, 3600, "waits")],
    "another name is another grace": [*_each(5, 60), Offered(60, 0, 60, "waits", name="Other")],
    "a worker that handles it was there meanwhile": [
        *_each(5, 30), Offered(30, 0, 0, "waits", handled=True),
        *(Offered(at, 20, 40, "waits") for at in (40, 55, 70, 85, 99)), Offered(100, 20, 40, "ends"),
    ],
    "its worker is away for a moment, long after": [
        *_each(5, 30), Offered(1000, 500, 1000, "waits"), Offered(1015, 500, 1000, "waits"),
    ],
    "one that was retried for long has been handled": [
        Offered(3600, 0, 5, "waits", attempt=7), Offered(3615, 0, 5, "waits", attempt=7), Offered(3630, 0, 5, "waits", attempt=7),
        Offered(3645, 0, 5, "waits", attempt=7), Offered(3660, 0, 5, "ends", attempt=7),
    ],
    "one whose worker lives is never given up": [Offered(at, 0, 0, "waits", handled=True) for at in range(0, 600, 10)],
    "one that has woken waits from then": [
        *_each(5, 60), Offered(60, 0, 60, "waits", replayed=True), Offered(75, 0, 60, "waits", replayed=True),
    ],
    "another worker has offered it before": [Offered(60, 0, 0, "ends")],
}  # fmt: skip
