"""`PageSize`: how many entries to ask for at a time, when their size is not known beforehand.

A payload may have a few bytes or many megabytes. Requests of a fixed number of entries would make the server copy hundreds of megabytes at
once, while all other clients wait, and would not get through a slow link in time. The size of the last answers is the best estimate.
"""

from __future__ import annotations

_WANTED = 1024 * 1024
"""Bytes that an answer should have at most: a server copies that in about a millisecond."""
_FIRST_GUESS = 16 * 1024


class PageSize:
    """Guesses how many entries make an answer of a good size.

    Args:
        most: Entries that are never exceeded, however small they are.
        wanted: Bytes that an answer should have at most.
    """

    __slots__ = ("_guess", "_most", "_wanted", "count")

    def __init__(self, most: int, wanted: int = _WANTED) -> None:
        self._most = most
        self._wanted = wanted
        self._guess = _FIRST_GUESS
        self.count = self._entries()

    def observe(self, size: int, entries: int) -> None:
        """Record an answer: so many bytes for so many entries. Large entries shrink the page at once, small ones widen it gradually."""
        if entries:
            guess = max(size // entries, self._guess // 2)
            if guess != self._guess:
                self._guess = guess
                self.count = self._entries()

    def _entries(self) -> int:
        return max(1, min(self._most, self._wanted // max(self._guess, 1)))
