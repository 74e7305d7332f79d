"""`Tallies`: what became of the runs of handlers, by command, and how long they took.

A worker has one in memory, and publishes it with its signs of life: a command costs the server nothing for it.

    {wire name: [key, number, key, number, …]}

A key is negative for an end, else a step of durations, the bits of the square of their microseconds: each is √2 times as long as the one
before, so a quantile is right to a fifth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Self

from command_bus.serialization.limits import PayloadLimits, Undecodable
from command_bus.serialization.msgpack import pack, unpack
from command_bus.serialization.odd_values import pass_over

HANDLED, FAILED, RETRIED = -1, -2, -3
_LAST = 100
_MOST = 100
"""Commands of which numbers are published: those that ran most."""
_LIMITS = PayloadLimits(max_bytes=256 * 1024)


class Tallies(dict[str, Counter[int]]):
    """Numbers of ends and of durations, by command."""

    def __missing__(self, name: str) -> Counter[int]:
        """Return that of a command of which none was kept yet."""
        return self.setdefault(name, Counter())

    @property
    def runs(self) -> int:
        """The number of runs."""
        return sum(tally[end] for tally in self.values() for end in (HANDLED, FAILED, RETRIED))

    def pack(self) -> bytes:
        """Return the bytes; none of nothing. Another thread may count meanwhile."""
        if not self:
            return b""
        rows = sorted(self.copy().items(), key=lambda each: -each[1].get(HANDLED, 0))[:_MOST]
        return pack({name: [number for pair in list(tally.items()) for number in pair] for name, tally in rows})

    @classmethod
    def sum(cls, parts: Iterable[bytes]) -> Self:
        """Return the sum of what was packed; what cannot be read is left out."""
        found = cls()
        for data in filter(None, parts):
            try:
                for name, row in dict[str, list[int]](unpack(data, _LIMITS)).items():
                    found[str(name)].update(
                        {key: number for key, number in zip(row[::2], row[1::2], strict=True) if _fits(key, number)}
                    )
            except (Undecodable, TypeError, ValueError, KeyError) as error:
                pass_over("workers", data, error)
        return found

    def grow(self, before: Tallies, after: Tallies) -> None:
        """Add the numbers by which others have grown. What has shrunk counts as nothing: a worker has left."""
        for name, tally in after.items():
            self[name] += tally - before.get(name, Counter())


def _fits(key: object, number: object) -> bool:
    return type(key) is int and type(number) is int and RETRIED <= key <= _LAST and 0 < number < 2**53


def quantile(tally: Counter[int], share: float) -> float | None:
    """Return about how many seconds a share of runs took at most; None of none."""
    steps = sorted((step, number) for step, number in tally.items() if step >= 0)
    left = share * sum(number for _, number in steps)
    for step, number in steps:
        left -= number
        if left <= 0:
            return 2 ** ((step - 0.5) / 2) / 1_000_000
    return None
