"""`Notes`: small records that extensions of the bus keep beside it, in *books*. They are opaque here, and written by compare-and-set only."""

from __future__ import annotations

from typing import Protocol


class Notes(Protocol):
    """Keeps records by book and name."""

    async def read(self, book: str, name: str) -> bytes | None:
        """Return a record; None if there is none."""
        ...

    async def all(self, book: str) -> dict[str, bytes]:
        """Return all records of a book by their names: it must be a small one."""
        ...

    async def change(self, book: str, name: str, before: bytes | None, after: bytes | None) -> bool:
        """Write a record, if it is what is expected, None for none; return whether it is now what was asked for."""
        ...

    async def now_ms(self) -> int:
        """Return the server's time, by which leases in records are judged."""
        ...
