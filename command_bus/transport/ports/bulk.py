"""The seam for dispatches in bulk: opened, loaded in chunks, committed; and what is known of them afterwards.

A *dispatch* is named by its id, which makes loading repeatable: a command id that the open dispatch has accepted is a duplicate, and
once a *version* of it is committed (a batch has the version 0, a micro-batch its number) nothing of that version is added any more,
whichever task still writes. Both hold for as long as the dispatch is remembered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from command_bus.transport.ports.kept_streams import KeptStreams
from command_bus.transport.submissions import Admission
from command_bus.transport.unique_keys import LoadKey

LoadItem = tuple[str, str, bytes, bytes, str, int, str, LoadKey | None]
"""Mailbox, command id, check (bytes that differ between different payloads), envelope, entity, sequence number, flow, unique key.

Entity and sequence number count only where a chunk is loaded `sequenced`. The flow is empty for the normal class without a tenant (see
`flow_of`). A tuple, because there are millions.
"""

OpenState = Literal["open", "done"]


@dataclass(slots=True, frozen=True)
class Version:
    """A version of a dispatch, which is loaded."""

    dispatch_id: str
    number: int = 0


@dataclass(slots=True, frozen=True)
class Opening:
    """The terms on which a dispatch is remembered.

    Attributes:
        what: A text for people: the commands that are dispatched.
        owner: Another owner's dispatch of the same id is refused: its versions would count as this one's.
        remember_ms: How long after the last touch it is remembered, open or committed.
        keep_ms: How long outcomes are kept; 0 keeps none.
        keep_max: How many per shard, about.
    """

    what: str = ""
    owner: str = ""
    remember_ms: int = 30 * 86_400_000
    keep_ms: int = 0
    keep_max: int = 10_000_000


@dataclass(slots=True, frozen=True)
class EntityOwner:
    """The task that loads, and the entities that are new to it: if two tasks wrote commands of one entity, their order would be left to chance.

    Attributes:
        run: Name of one run of the job: entities that another run has begun do not count.
        partition: Number of the task's partition; its second attempt has the same.
        entities: Those that are new to this attempt.
        strict: Whether an entity that another partition of the run has begun is refused, or only counted.
    """

    run: str
    partition: int
    entities: Sequence[str] = ()
    strict: bool = True


@dataclass(slots=True, frozen=True)
class LoadAnswer:
    """The answer to a chunk: an admission for each item, or `done` because its version is committed already.

    Attributes:
        shared: How many of the new entities another partition of the run had begun.
        others: For each `FOLDED` and each `REPLACED` item, in their order, the command that it was folded into or that it replaced.
    """

    done: bool
    admissions: list[Admission]
    shared: int = 0
    others: tuple[str, ...] = ()


@dataclass(slots=True)
class DispatchFacts:
    """The state of a dispatch, over all shards.

    Attributes:
        version: The highest that is committed; -1 before the first.
        opened: The version that is being loaded, or None.
        first_ms: When it was first opened.
        done_ms: When it was last committed; 0 if it never was.
        added: Commands that were accepted, over all versions.
        duplicates: Commands that were there already when they came (again), and folded ones that came again.
        folded: Commands that were dropped, because another one stood for their unique key.
        replaced: Commands of `added` that took the place of another one of their unique key.
        rejected: Rows that were noted as no commands.
        summary: What the last commit left, or an empty text.
        note: What held a task of the open version up when it last said so, or an empty text.
        left_ms: How long it is still remembered without another touch.
    """

    dispatch_id: str
    version: int = -1
    opened: int | None = None
    first_ms: int = 0
    done_ms: int = 0
    added: int = 0
    duplicates: int = 0
    folded: int = 0
    replaced: int = 0
    rejected: int = 0
    keep_ms: int = 0
    what: str = ""
    owner: str = ""
    summary: str = ""
    note: str = ""
    left_ms: int = 0

    @property
    def state(self) -> Literal["open", "committed"]:
        """`open` while a version is being loaded, `committed` once all that were begun are."""
        return "committed" if self.opened is None and self.version >= 0 else "open"


class BulkDispatches(Protocol):
    """Loads dispatches and reads what is known of them. Every method repeats what is ambiguous: each is idempotent."""

    @property
    def outcomes(self) -> KeptStreams:
        """What became of their commands."""
        ...

    async def open(self, version: Version, opening: Opening) -> OpenState:
        """Open a version in all shards, or learn that it is committed.

        Raises:
            DispatchConflict: The id is another owner's.
            TransportUnavailable: The server cannot be reached.
        """
        ...

    async def load(
        self,
        version: Version,
        shard: int,
        items: Sequence[LoadItem],
        *,
        backlog: int | None = None,
        sequenced: bool = False,
        suspects: Collection[str] | None = None,
        entity_owner: EntityOwner | None = None,
    ) -> LoadAnswer:
        """Accept a chunk, in order per mailbox; all of its items belong to the shard.

        An item with a unique key may be folded or replace another command. That is decided once: loaded again it is `DUPLICATE`. The
        outcome of one that was folded, and of one that was replaced, is kept in the same step.

        Args:
            version: Must be open.
            shard: The place where they go.
            items: At most 1,000.
            backlog: Commands that the namespace may hold.
            sequenced: Refuse what is not behind its entity's last sequence number, whichever task loaded that.
            suspects: The mailboxes that may be full, or of another type; None: any of them.
            entity_owner: The task that loads, and the entities that are new to it; None: owners are not checked.

        Raises:
            DispatchConflict: Another partition of the run has begun an entity that is new here.
            DispatchFenced: The version is not open: never opened, superseded or forgotten.
            QueueFull: The server is at its memory limit; nothing was accepted.
            TransportUnavailable: The server cannot be reached.
        """
        ...

    async def reject(self, version: Version, rows: Iterable[tuple[str, bytes]], limit: int | None) -> bool:
        """Note rows that are no commands, each under a key of its own; False if there are more than `limit`.

        Raises:
            DispatchFenced: The version is not open.
        """
        ...

    async def mark_rejects(self, dispatch_id: str, by: str, mark: Callable[[bytes], bytes]) -> None:
        """Change the records of those rejects whose command ids the open dispatch `by` has accepted."""
        ...

    async def note(self, version: Version, text: str) -> None:
        """Store what holds a task up, in the facts, until the commit."""
        ...

    async def commit(self, version: Version, summary: str, remember_ms: int, fingerprint: str = "") -> None:
        """Close a version for good, and keep of what rows it was made.

        Raises:
            DispatchFenced: It is not open.
        """
        ...

    async def fingerprints(self, dispatch_id: str) -> dict[int, str]:
        """Return the fingerprints of the last thousand versions, as far as their commits stored one."""
        ...

    async def facts(self, dispatch_id: str) -> DispatchFacts | None:
        """Return what is known of a dispatch; None if nothing is (any more)."""
        ...

    def rejects(self, dispatch_id: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield the rejected rows."""
        ...

    async def names(self) -> list[str]:
        """Return the dispatches that are remembered."""
        ...
