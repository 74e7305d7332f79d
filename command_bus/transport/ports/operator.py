"""The protocols of a transport for operators. See `transport.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from command_bus.messages.policies import Priority
from command_bus.transport.flows import Flow
from command_bus.transport.interrupts import Attempt, Interrupt
from command_bus.transport.ports.kept_streams import KeptStreams
from command_bus.transport.records import (
    Contents,
    HistoryExtent,
    HoldInfo,
    MailboxHead,
    Recount,
    Resolution,
    ShardSnapshot,
    StoredDeadLetter,
    StoredEnd,
    StoredEntity,
    StoredEvent,
    TypeRecord,
    WaitingEntry,
)
from command_bus.transport.steps import Removal, Settlement
from command_bus.transport.unique_keys import StoredKey


class EventStreams(Protocol):
    """Switches events on and off, and reads them.

    A shard has two streams: what workers and operators wrote, and what senders wrote. An event has an id in its stream, and
    `records.BEFORE_ALL` is before all ids. A list of ids has one for each stream: those of what workers wrote, shard by shard, then the others.
    """

    async def watch(self, types: Sequence[str], kept: int) -> None:
        """Record events of these types (`*`: of all), and keep about `kept` events per shard."""
        ...

    async def unwatch(self, types: Sequence[str]) -> None:
        """Record events of these types no more; without any, no events at all."""
        ...

    async def watched(self) -> dict[str, int]:
        """Return what is watched on all shards, and how many events are kept."""
        ...

    async def ends(self) -> list[str]:
        """Return the id of the last event of each stream."""
        ...

    async def lost(self, after: Sequence[str]) -> list[bool]:
        """Return for each stream whether events behind an id may have been deleted, because they were too many: that of the id itself is gone."""
        ...

    def kept(self, after: Sequence[str]) -> AsyncIterator[StoredEvent]:
        """Yield the events behind an id in each stream that happened before this began, shard by shard."""
        ...

    def follow(self, after: Sequence[str]) -> AsyncIterator[StoredEvent]:
        """Yield the events behind an id in each stream, in order per shard, until the streams are closed."""
        ...

    @property
    def closed(self) -> bool:
        """Whether they are closed."""
        ...


JournalName = Literal["audit", "trends"]


class HistoryStore(Protocol):
    """Reads the ends of commands that have a history. An entry's id is `ms-number`, and `-` and `+` stand before and behind all.

    It also keeps journals: the newest of some entries in time's order. What they hold is opaque here.
    """

    async def find(self, command_id: str) -> list[StoredEnd]:
        """Return the end of a command in each shard that has one."""
        ...

    def newest_first(self, shard: int, newest: str, oldest: str) -> AsyncIterator[list[StoredEnd]]:
        """Yield the ends of a shard between two ids, page by page, newest first; a `(` before `newest` leaves that one out."""
        ...

    async def extents(self, count: int) -> list[HistoryExtent]:
        """Return how much each shard keeps, with the bounds of at most so many of its oldest ends."""
        ...

    async def append(self, name: JournalName, data: bytes, *, kept: int, once_ms: int | None = None) -> str | None:
        """Write an entry; return its id. With `once_ms` only the first is written that names this time or a later one; else None."""
        ...

    async def newest(self, name: JournalName, before: str, count: int) -> list[tuple[str, bytes]]:
        """Return entries with their ids, newest first: before one of them, which is left out; empty: before none."""
        ...


GroupName = Literal["parked", "paused", "limited", "suspended", "retrying", "waiting", "running"]
"""What mailboxes that do not get on have in common."""


class NamedGroup(NamedTuple):
    """Mailboxes of one shard that are in the same way.

    Attributes:
        names: Some of them, those first that have been so the longest, as far as that is known.
        total: How many there are; None if that is not counted.
        cut: Whether there may be more than `names`.
    """

    names: tuple[str, ...] = ()
    total: int | None = 0
    cut: bool = False


NO_GROUP = NamedGroup()


@dataclass(frozen=True, slots=True)
class FoundNames:
    """Mailboxes of one shard that were found by a pattern.

    Attributes:
        names: Those of the mailboxes.
        cursor: The place where the search goes on; 0 if the shard was looked through.
        looked: About how many were looked at.
    """

    names: tuple[str, ...] = field(default=())
    cursor: int = 0
    looked: int = 0


class Views(Protocol):
    """Reads mailboxes, events and dead letters in parts of a bounded size."""

    async def groups(self, shard: int, count: int) -> Mapping[GroupName, NamedGroup]:
        """Return of each group the first mailboxes, about `count`. What is limited stands in the first shard's answer."""
        ...

    async def look(self, mailboxes: Sequence[str]) -> dict[str, StoredEntity]:
        """Return mailboxes of any shards, with or without work."""
        ...

    async def first_commands(self, mailboxes: Sequence[str]) -> dict[str, tuple[str, bytes]]:
        """Return message id and envelope of the first command of each mailbox that has one."""
        ...

    async def find(self, shard: int, cursor: int, pattern: str, count: int) -> FoundNames:
        """Look at about `count` mailboxes with work from a cursor on, and return those that match a glob pattern."""
        ...

    async def events(self, shard: int, before: Sequence[str], count: int) -> list[StoredEvent]:
        """Return the last events of a shard, newest first: before one that workers wrote and one that senders wrote; empty: before none."""
        ...

    async def letters(self, shard: int, before: str, count: int) -> list[tuple[str, StoredDeadLetter]]:
        """Return dead letters with their ids in the shard, newest first, before one of them, or (empty) before none."""
        ...

    async def letters_by_id(self, letter_ids: Sequence[str]) -> list[StoredDeadLetter]:
        """Return those of these dead letters that are there."""
        ...

    def parking(self) -> AsyncIterator[list[StoredDeadLetter]]:
        """Yield the dead letters that park an entity, page by page, in no order."""
        ...


class Announcements(Protocol):
    """The records that workers publish of themselves and of their commands; they are opaque here."""

    async def describe(self, records: dict[str, bytes]) -> None:
        """Store the descriptions of commands, by wire name."""
        ...

    async def described(self, name: str) -> bytes | None:
        """Return the last description of a command, or None."""
        ...

    async def commands(self) -> dict[str, bytes]:
        """Return the last description of each command."""
        ...

    async def workers(self) -> list[tuple[int, bytes]]:
        """Return the records of live and lost workers, one per shard, each with the shard's time in ms."""
        ...


class StatisticsReader(Protocol):
    """Reads figures from counters and lengths, never from a scan of commands."""

    async def snapshot(self, shard: int) -> ShardSnapshot:
        """Return the figures of one shard."""
        ...

    async def stopped(self, shard: int, limit: int) -> list[str] | None:
        """Return at most `limit` mailboxes that only an operator can move; None if any other mailbox has work."""
        ...

    async def recount(self, *, correct: bool) -> Recount:
        """Count, exactly also while commands come and go; with `correct`, set the counters right in the same step."""
        ...


class EntityReader(Protocol):
    """Reads entities. Nothing here is a snapshot: an entity that comes or goes while they are read may be missing; none comes twice."""

    def pages(self, shard: int, *, deliveries: bool = False) -> AsyncIterator[list[StoredEntity]]:
        """Yield the entities of a shard that have work, or are paused or drained themselves; or only the lines of subscriptions."""
        ...

    async def look(self, mailbox: str) -> StoredEntity:
        """Return one mailbox, with or without work."""
        ...

    async def head(self, mailbox: str, count: int) -> MailboxHead:
        """Return a mailbox's lease and its first `count` commands."""
        ...

    async def retry_times(self, mailboxes: Sequence[str]) -> dict[str, int]:
        """Return when the retries of these mailboxes are due, in ms, where one waits."""
        ...

    async def delayed_times(self, mailbox: str, command_ids: Sequence[str]) -> dict[str, int]:
        """Return when these delayed commands take their place, in ms."""
        ...

    async def first_delayed(self, mailboxes: Iterable[str]) -> dict[str, int]:
        """Return when the first delayed command of each mailbox takes its place, in ms, as far as that is found quickly."""
        ...

    async def now_ms(self) -> int:
        """Return the server's time."""
        ...

    async def now_us(self) -> int:
        """Return the server's time in microseconds."""
        ...


class Mailboxes(Protocol):
    """Reads what waits in mailboxes, and takes commands out."""

    async def depth(self, mailbox: str) -> int:
        """Return how many commands a mailbox holds, delayed ones included."""
        ...

    def names(self) -> AsyncIterator[str]:
        """Yield every mailbox that has work, in no order, perhaps one twice."""
        ...

    def waiting(self, mailbox: str) -> AsyncIterator[list[WaitingEntry]]:
        """Yield what waits in a mailbox, page by page, delayed commands last."""
        ...

    def lined_up(self, mailbox: str) -> AsyncIterator[list[WaitingEntry]]:
        """Yield what waits in a mailbox, page by page, without delayed commands."""
        ...

    def delayed(self, shard: int) -> AsyncIterator[list[tuple[str, WaitingEntry]]]:
        """Yield the delayed commands of a shard with their mailboxes, page by page."""
        ...

    def contents(self, shard: int) -> AsyncIterator[list[Contents]]:
        """Yield the mailboxes of a shard with the envelopes in them, oldest first. No command that waits all the while is missing."""
        ...

    async def find_delayed(self, command_id: str, mailbox: str | None = None) -> tuple[str, bytes] | None:
        """Return the mailbox and the envelope of a delayed command; None if there is none (in this mailbox)."""
        ...

    async def reschedule(self, mailbox: str, command_id: str, at_ms: int | None, delay_ms: int) -> bool:
        """Give a delayed command another time, or (None) one so long from now; return False if it is not delayed any more."""
        ...

    async def remove(self, mailbox: str, commands: Iterable[Removal], *, fresh: bool = False) -> int:
        """Take waiting commands out of a mailbox, answer their callers, and return how many were still there.

        With `fresh` commands that were started before, and wait to be started again, are left.
        """
        ...

    async def release_key(self, mailbox: str, key: str) -> bool:
        """Release a unique key (see `unique_keys.py`), and return whether it was held. Its command stays where it is."""
        ...

    async def unique_keys(self, mailbox: str, entity: str, scan: int) -> tuple[list[StoredKey], bool]:
        """Return the held unique keys of an entity, given as it stands in keys, and whether these are all.

        About `scan` keys of its shard are looked at.
        """
        ...

    async def held_keys(self, shard: int, scope: str, after: str, limit: int, scan: int) -> tuple[list[StoredKey], bool]:
        """Return the first held unique keys of a shard, and whether all of its keys were looked at.

        Args:
            shard: Its number.
            scope: Everything, or all of a type.
            after: Only those behind this one. They are in the order of the names under which they are stored, and have these.
            limit: At most so many.
            scan: Look at about so many at most.
        """
        ...


class DeadLetterStore(Protocol):
    """Reads dead letters, and settles one at a time."""

    def all(self) -> AsyncIterator[StoredDeadLetter]:
        """Yield all dead letters, oldest first per shard."""
        ...

    async def get(self, letter_id: str) -> StoredDeadLetter | None:
        """Return one dead letter, or None."""
        ...

    async def oldest_ms(self) -> int | None:
        """Return when the oldest dead letter was written, by the server's clock, or None."""
        ...

    async def newest(self, shard: int, before_ms: int | None = None) -> str | None:
        """Return the id of a shard's newest dead letter, of those written before `before_ms` if given; None if there is none."""
        ...

    async def page(self, shard: int, after: str, until: str, count: int) -> list[tuple[str, StoredDeadLetter]]:
        """Return dead letters, oldest first, with their ids in the shard (see `records.BEFORE_ALL`).

        The first comes behind the id `after`, which need not exist (empty: behind none), and none behind the id `until`.
        """
        ...

    async def settle(
        self,
        letter: StoredDeadLetter,
        verb: Resolution,
        left: Settlement,
        edited: bytes = b"",
        flow: str = "",
        *,
        ending: bytes = b"",
    ) -> bool:
        """Replay or discard a dead letter; return False if it is gone.

        `edited` is the envelope to replay instead of its own. With an `ending`, a durable command only undoes what it did, and ends with that.
        """
        ...


class Holds(Protocol):
    """Pauses, drains and resumes a scope: one mailbox, all of an entity type, or everything."""

    async def pause(self, scope: str, reason: str, until_ms: int | None = None) -> bool:
        """Start nothing of it any more, until that time if one is given; return False if it was paused."""
        ...

    async def drain(self, scope: str, reason: str) -> bool:
        """Accept nothing new for it; return False if it was drained."""
        ...

    async def resume(self, scope: str) -> bool:
        """Take back a pause or drain of exactly this scope; return False if there was none."""
        ...

    async def wide(self) -> list[HoldInfo]:
        """Return what is paused or drained as a type or as a whole, the whole first, then by name."""
        ...


class Shares(Protocol):
    """Reads and writes the weights of tenants and the priorities of what waits, and counts who waits in the lines."""

    async def put(self, tenant: str, weight: float | None) -> None:
        """Write a tenant's weight; None takes it back."""
        ...

    async def weights(self) -> dict[str, float]:
        """Return the weights that were written, by tenant."""
        ...

    async def waiting(self) -> Counter[Flow]:
        """Return how many entities of each flow wait for a worker."""
        ...

    async def running(self) -> Counter[Flow]:
        """Return how many entities of each flow are held by workers."""
        ...

    async def served(self) -> Counter[Flow]:
        """Return how many starts each flow had in the last minute, about; a transport that does not count them returns none."""
        ...

    async def prioritize(self, mailbox: str, priority: Priority, delayed: Sequence[str] = ()) -> int:
        """Give all that waits in a mailbox now another priority, and return 1, or 0 if nothing is there.

        With ids of delayed commands of this mailbox instead these; return how many still were delayed.
        """
        ...


class TypeRecords(Protocol):
    """Reads the records of entity types, and takes one back."""

    async def all(self) -> dict[str, TypeRecord]:
        """Return all records, by type."""
        ...

    async def used(self) -> list[str]:
        """Return the entity types that commands were sent to, or that settings have named."""
        ...

    async def remove(self, record: TypeRecord) -> None:
        """Take a record back."""
        ...

    async def restore(self, record: TypeRecord) -> None:
        """Write a record again, unless another client has already."""
        ...


class Interrupts(Protocol):
    """Asks the worker that runs a command to end its attempt."""

    async def running(self, mailbox: str) -> Attempt | None:
        """Return what runs in a mailbox now, or None."""
        ...

    async def request(self, mailbox: str, interrupt: Interrupt) -> None:
        """Ask the holder of a mailbox to end an attempt."""
        ...

    async def answer(self, mailbox: str) -> Interrupt | None:
        """Return the request with the holder's answer; None if there is none."""
        ...

    async def withdraw(self, mailbox: str) -> None:
        """Take back a request."""
        ...


class Obliteration(Protocol):
    """Deletes a namespace that is drained, shard by shard: `begin` of all, `go_on` of all, `end` of all. Each says how many keys it deleted."""

    async def begin(self, shard: int) -> int:
        """Delete what the rest hangs on, at once: from then on nothing of the shard runs, waits or becomes due."""
        ...

    async def go_on(self, shard: int) -> int:
        """Delete what else is stored, in steps, but what is agreed on and drained."""
        ...

    async def end(self, shard: int) -> int:
        """Delete that."""
        ...


StateChange = Literal["done", "none", "busy", "other", "newer"]
"""The end of a change: done; nothing to delete; a command of the entity runs or is suspended; it is not the expected one; only a later release
knows what the entity does."""


class StateStore(Protocol):
    """Reads and changes the states of entities, by their mailboxes. What a state holds is opaque here."""

    async def read(self, mailboxes: Sequence[str]) -> dict[str, bytes]:
        """Return those of some states that are stored."""
        ...

    def pages(self, entity_type: str | None, shard: int | None = None) -> AsyncIterator[dict[str, bytes]]:
        """Yield all states of a type, or of all (None), of one shard or of all, page by page, perhaps one twice."""
        ...

    async def change(self, mailbox: str, state: bytes, expected: bytes | None) -> StateChange:
        """Write a state, or delete it (an empty one), if it is what is expected: empty for none, None for anything."""
        ...


class OperatorSide(Protocol):
    """The parts that only operators use."""

    @property
    def statistics(self) -> StatisticsReader:
        """Figures."""
        ...

    @property
    def entities(self) -> EntityReader:
        """Reads entities."""
        ...

    @property
    def mailboxes(self) -> Mailboxes:
        """Reads what waits."""
        ...

    @property
    def dead_letters(self) -> DeadLetterStore:
        """Reads and settles dead letters."""
        ...

    @property
    def holds(self) -> Holds:
        """Pauses and drains."""
        ...

    @property
    def shares(self) -> Shares:
        """Fair shares between tenants."""
        ...

    @property
    def types(self) -> TypeRecords:
        """Reads entity types."""
        ...

    @property
    def events(self) -> EventStreams:
        """Reads events."""
        ...

    @property
    def kept(self) -> KeptStreams:
        """Reads `history`, `events`, `arrivals`, `audit` (of the first shard) and `dead` from their old ends."""
        ...

    @property
    def history(self) -> HistoryStore:
        """Reads the ends of commands; keeps what operators did, and figures over time."""
        ...

    @property
    def states(self) -> StateStore:
        """Reads and changes the states of entities."""
        ...

    @property
    def interrupts(self) -> Interrupts:
        """Ends attempts."""
        ...

    @property
    def views(self) -> Views:
        """Reads what is stuck, and parts of what is long."""
        ...

    @property
    def obliteration(self) -> Obliteration:
        """Deletes the namespace."""
        ...
