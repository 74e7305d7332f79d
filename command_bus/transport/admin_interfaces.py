"""The protocols of a transport for operators. See `interfaces.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Protocol

from command_bus.transport.durable import Suspensions
from command_bus.transport.event_interfaces import EventStreams, HistoryStore
from command_bus.transport.flows import Flow
from command_bus.transport.interrupts import Attempt, Interrupt
from command_bus.transport.records import (
    Contents,
    Hold,
    MailboxHead,
    Recount,
    Resolution,
    ShardSnapshot,
    StoredDeadLetter,
    StoredEntity,
    TypeRecord,
    Waiting,
)
from command_bus.transport.steps import Removal, Settlement
from command_bus.transport.unique_keys import StoredKey
from command_bus.transport.view_interfaces import Journals, Views


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


class EntityReader(Protocol):
    """Reads entities. Nothing here is a snapshot: an entity that comes or goes while they are read may be missing; none comes twice."""

    def pages(self, shard: int) -> AsyncIterator[list[StoredEntity]]:
        """Yield the entities of a shard that have work, or are paused or drained themselves."""
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


class Mailboxes(Protocol):
    """Reads what waits in mailboxes, and takes commands out."""

    async def depth(self, mailbox: str) -> int:
        """Return how many commands a mailbox holds, delayed ones included."""
        ...

    def names(self) -> AsyncIterator[str]:
        """Yield every mailbox that has work, in no order, perhaps one twice."""
        ...

    def waiting(self, mailbox: str) -> AsyncIterator[list[Waiting]]:
        """Yield what waits in a mailbox, page by page, delayed commands last."""
        ...

    def lined_up(self, mailbox: str) -> AsyncIterator[list[Waiting]]:
        """Yield what waits in a mailbox, page by page, without delayed commands."""
        ...

    def delayed(self, shard: int) -> AsyncIterator[list[tuple[str, Waiting]]]:
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
            shard: The shard.
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


class Recounts(Protocol):
    """Compares counters with what is there."""

    async def recount(self, *, correct: bool) -> Recount:
        """Count, exactly also while commands come and go; with `correct`, set the counters right in the same step."""
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

    async def wide(self) -> list[Hold]:
        """Return what is paused or drained as a type or as a whole, the whole first, then by name."""
        ...


class Shares(Protocol):
    """Reads and writes the weights of tenants, and counts who waits in the lines."""

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
    def recounts(self) -> Recounts:
        """Compares counters with what is there."""
        ...

    @property
    def history(self) -> HistoryStore:
        """Reads the ends of commands."""
        ...

    @property
    def interrupts(self) -> Interrupts:
        """Ends attempts."""
        ...

    @property
    def suspensions(self) -> Suspensions:
        """Reads what is suspended."""
        ...

    @property
    def views(self) -> Views:
        """Reads what stands still, and parts of what is long."""
        ...

    @property
    def journals(self) -> Journals:
        """Keeps what operators did, and figures over time."""
        ...

    @property
    def obliteration(self) -> Obliteration:
        """Deletes the namespace."""
        ...
