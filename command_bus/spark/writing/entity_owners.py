"""`EntityOwners`: the entities that a task has begun, so that the server notices an entity whose rows are in two tasks of a run."""

from __future__ import annotations

from collections.abc import Sequence

from command_bus.transport.bulk import EntityOwner, LoadItem
from command_bus.transport.mailboxes import mailbox_parts


class EntityOwners:
    """The entities of one attempt of a task. Each is declared once, with the request that has its first commands.

    Args:
        run: Name of the job's run; empty: nothing is declared.
        partition: Number of the task's partition.
        strict: Whether an entity that another partition has begun is refused, or only counted.
    """

    def __init__(self, run: str, partition: int, *, strict: bool) -> None:
        self._run, self._partition, self._strict = run, partition, strict
        self._begun: set[str] = set()
        self._declared: list[str] = []
        self._shared_mailboxes = False

    def declare(self, chunk: Sequence[LoadItem], new: Sequence[str]) -> EntityOwner | None:
        """Return what to declare with a chunk; None if nothing is new.

        Args:
            chunk: The commands to send.
            new: The mailboxes of the chunk that no earlier chunk had.
        """
        if not self._run:
            return None
        if not self._shared_mailboxes and any(_is_shared(mailbox) for mailbox in new):
            self._shared_mailboxes = True
        if self._shared_mailboxes:
            names = {_name(item) for item in chunk if item[4]}
        else:
            names = {mailbox for mailbox in (*new, *self._declared) if mailbox_parts(mailbox)[0] is not None}
        self._declared = sorted(names - self._begun)  # declared again if the request fails
        return EntityOwner(self._run, self._partition, self._declared, self._strict) if self._declared else None

    def confirm(self) -> None:
        """Record that the last request was answered."""
        self._begun.update(self._declared)
        self._declared = []


def _is_shared(mailbox: str) -> bool:
    """Return whether a mailbox may hold several entities, or does not say which one it holds."""
    kind, entity = mailbox_parts(mailbox)
    return kind is not None and entity is None


def _name(item: LoadItem) -> str:
    """Return the name of an entity within a dispatch."""
    return f"{item[0]} {item[4]}" if _is_shared(item[0]) else item[0]
