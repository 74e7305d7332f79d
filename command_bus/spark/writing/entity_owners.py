"""`EntityOwners`: which entities a task has begun, so that the server can notice one of which two tasks of a run have rows."""

from __future__ import annotations

from collections.abc import Sequence

from command_bus.transport.bulk import EntityOwner, LoadItem
from command_bus.transport.mailboxes import mailbox_parts

__all__ = ["EntityOwners"]


class EntityOwners:
    """The entities of one attempt of a task. An entity is told of once, with the request that has its first commands.

    Args:
        run: Names the run of the job; empty: nobody minds.
        partition: Of the task.
        strict: Whether an entity that another partition has begun is refused, or counted.
    """

    def __init__(self, run: str, partition: int, *, strict: bool) -> None:
        self._run, self._partition, self._strict = run, partition, strict
        self._begun: set[str] = set()
        self._asked: list[str] = []
        self._several = False

    def declare(self, chunk: Sequence[LoadItem], new: Sequence[str]) -> EntityOwner | None:
        """What to tell with a chunk; None if that is nothing.

        Args:
            chunk: That is sent.
            new: Its mailboxes that no chunk had before.
        """
        if not self._run:
            return None
        if not self._several and any(_several(mailbox) for mailbox in new):
            self._several = True
        if self._several:
            names = {_name(item) for item in chunk if item[4]}
        else:
            names = {mailbox for mailbox in (*new, *self._asked) if mailbox_parts(mailbox)[0] is not None}
        self._asked = sorted(names - self._begun)  # asked for again, should the request fail
        return EntityOwner(self._run, self._partition, self._asked, self._strict) if self._asked else None

    def confirm(self) -> None:
        """The request with the last ones was answered."""
        self._begun.update(self._asked)
        self._asked = []


def _several(mailbox: str) -> bool:
    """Tell whether it may hold several entities, or does not tell which one it holds."""
    kind, entity = mailbox_parts(mailbox)
    return kind is not None and entity is None


def _name(item: LoadItem) -> str:
    """What names an entity among all of a dispatch."""
    return f"{item[0]} {item[4]}" if _several(item[0]) else item[0]
