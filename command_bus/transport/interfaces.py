"""What a transport provides, as protocols: one part for each role, so that a producer never meets consumer code.

`Transport` holds the parts. A sender uses `producer`, `replies`, `marks`, `agreements`, `locations` and `announcements`; a worker uses
`worker_side`, `agreements` and `announcements`; an operator uses the parts of `admin_interfaces.py`; bulk loads use `bulk` (see `bulk.py`).
The values that pass through are in `submissions.py`, `steps.py`, `records.py`, `interrupts.py` and `marks.py`. Envelopes and replies are
opaque bytes here. A transport may lack `events`, `interrupts` or `bulk`: the property then raises `UnsuitableServer`.

A *mailbox* is the name that `mailboxes.mailbox_name` gives an entity (or its lane); a *lease* is the right to run a mailbox's commands.
An *activation* is the id under which a ready mailbox is offered to the workers: one that reads it holds the lease.
A *shard* is a number below `Transport.shards`: all commands of a mailbox are in one shard, and a shard can be read by itself.
"""

from __future__ import annotations

from asyncio import Future, Task
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from command_bus.errors import CommandBusError
from command_bus.messages.policies import MailboxPolicy
from command_bus.transport.admin_interfaces import (
    Announcements,
    DeadLetterStore,
    EntityReader,
    EventStreams,
    Holds,
    Interrupts,
    Mailboxes,
    Statistics,
    TypeRecords,
)
from command_bus.transport.bulk import BulkDispatches
from command_bus.transport.records import (
    CommandLocation,
)
from command_bus.transport.steps import Answer, Cancellation, Lease, Started, Step
from command_bus.transport.submissions import Admission, Submission, UnavailableShards

__all__ = [
    "Agreements",
    "CommandLocator",
    "Consumer",
    "Decide",
    "Leases",
    "Marks",
    "Places",
    "Policies",
    "Producer",
    "Replies",
    "Reply",
    "Run",
    "Steps",
    "Transport",
    "WorkerSide",
    "WorkerSideOptions",
]


Run = Callable[[Lease], Awaitable[None]]
"""Runs the commands of a mailbox under a lease, until the lease is released."""

Decide = Callable[[Started, str], Step | None]
"""Decides what to do with a command that was interrupted, and for what reason; None leaves it to another worker."""


class Producer(Protocol):
    """Puts commands into mailboxes."""

    @property
    def window(self) -> int:
        """How many commands leave together at most."""
        ...

    def enqueue(self, submission: Submission, timeout: float) -> Awaitable[Admission]:
        """Accept one command; concurrent calls of one event-loop turn leave as one batch, in the order of the calls.

        Raises:
            TransportUnavailable: No answer within `timeout` seconds.
            QueueFull: The server is at its memory limit.
        """
        ...

    async def enqueue_many(
        self, submissions: Sequence[Submission], timeout: float, silent: UnavailableShards | None = None
    ) -> list[Admission | CommandBusError]:
        """Accept many commands, in order per mailbox; an outcome per command, or the error because of which there is none.

        `timeout` is per chunk. After a chunk that failed nothing more of its shard is sent; nor by later calls that are given the same
        `silent`, in which shards are noted that did not answer in time.
        """
        ...


class Steps(Protocol):
    """Moves held mailboxes forward; the steps of one event-loop turn may leave as one batch."""

    def advance(self, lease: Lease, step: Step) -> Awaitable[Answer]:
        """Carry out a step under its lease; repeat what is ambiguous until there is an answer.

        `Take` starts the head of the mailbox. `GiveBack` with an empty `lease.attempt_id` makes an untouched mailbox ready for any worker.
        Every other step concerns the command that `lease.attempt_id` names: it is carried out only
        while the lease is held and that command is the one that was started last under it; else the answer is `LeaseLost` and
        nothing changes. After `Done` and `DeadLetterStep` the next command is started if the mailbox has one and `follow` is `stay`, or
        `yield` while no other mailbox of the shard waits; else the mailbox is made ready for any worker. A mailbox that is paused or parked
        starts nothing: the answer is `Released("stop")`. With the answer `Started`, `lease.attempt_id` is that of the new start.
        """
        ...


class Reply(Protocol):
    """One call's wait."""

    async def within(self, deadline: float) -> bytes | None:
        """Return the reply record, or None if it does not come before the deadline (monotonic)."""
        ...

    def forget(self) -> None:
        """Drop the wait: its caller waits no longer."""
        ...


class Replies(Protocol):
    """Receives the replies of one process.

    Attributes:
        process: What a command must carry so that its reply comes here.
    """

    process: str

    def expect(self, command_id: str) -> Reply:
        """Be ready for a reply, before the command is sent."""
        ...


class Places(Protocol):
    """The places of a worker: as many entities as it may run at a time."""

    @property
    def lent(self) -> int:
        """How many are lent."""
        ...

    @property
    def all_lent(self) -> bool:
        """Whether no more may be lent."""
        ...

    def lend(self, *, beyond: bool = False) -> bool:
        """Lend the place of a handler that waits; return False if no more may be lent. `beyond` lends it all the same."""
        ...

    def take_back(self) -> Future[None]:
        """Take a place again for a handler that goes on, before any reader does; return what is done once it has one."""
        ...

    def withdraw(self, turn: Future[None]) -> bool:
        """Leave the place lent that `take_back` waits for, and end that wait; return False if the place is taken already."""
        ...

    def take_back_now(self) -> None:
        """Take a place again at once, also beyond the limit."""
        ...

    def admits_caller(self) -> bool:
        """Return whether a handler may begin that will lend its place."""
        ...

    def another_waits(self, reader: int) -> bool:
        """Return whether the reader of another shard waits for a place."""
        ...


class Marks(Protocol):
    """Reads the marks of command ids; `marks.py` says what is in one."""

    async def read(self, command_id: str) -> list[bytes]:
        """Return the marks of a command id: several if it was accepted in several shards."""
        ...


class Policies(Protocol):
    """Knows what mailboxes the entities of a type have in a namespace."""

    def recorded(self, entity_type: str) -> MailboxPolicy | None:
        """Return the policy that the namespace recorded, if it is known here."""
        ...

    async def learn(self, entity_type: str) -> None:
        """Read it, if it is recorded.

        Raises:
            CommandBusError: It cannot be read now.
        """
        ...


class Agreements(Policies, Protocol):
    """What all clients of a namespace agree on: the mailbox policy of each entity type."""

    def agreed(self, entity_type: str) -> MailboxPolicy | None:
        """Return the policy of an entity type, if it was agreed on; None while others wait for an agreement, so that none is overtaken."""
        ...

    async def agree(self, entity_type: str, deadline: float = 0.0) -> MailboxPolicy:
        """Record or compare the policy of an entity type, once, or repeatedly until a monotonic deadline.

        Raises:
            InvalidSettings: The namespace recorded another policy.
            TooManyEntityTypes: The namespace has as many types as it may have.
            TransportUnavailable: There was no answer in time.
        """
        ...

    def forget(self, entity_type: str) -> None:
        """Agree on this type again before its next command."""
        ...


class CommandLocator(Protocol):
    """Finds one command for a caller whose time is over. A sender may have few rights: what it may not read is left out."""

    async def look(self, mailbox: str, command_id: str) -> CommandLocation:
        """Return where a command of this mailbox is.

        Raises:
            CommandBusError: The server cannot be asked.
        """
        ...

    async def line(self, mailbox: str) -> Sequence[tuple[str, bytes]]:
        """Return the first entries of a mailbox: message ids and envelopes.

        Raises:
            CommandBusError: The server cannot be asked, or this user may not read mailboxes.
        """
        ...


class Leases(Protocol):
    """The leases that a worker holds, renewed in the background."""

    @property
    def lost(self) -> int:
        """How many were lost so far."""
        ...

    @property
    def longest(self) -> float:
        """Seconds for which the longest attempt has run."""
        ...

    @property
    def overdue(self) -> float:
        """Seconds for which the renewal has been silent beyond its time."""
        ...

    def __len__(self) -> int:
        """Return how many leases are held."""
        ...


class Consumer(Protocol):
    """Reads activations and runs them, never more than there are free places."""

    async def start(self) -> None:
        """Begin to read; return at once."""
        ...

    async def stop_reading(self) -> None:
        """Read no more; hand back untouched what is still delivered."""
        ...

    @property
    def running(self) -> Mapping[Task[None], str]:
        """The tasks that hold a mailbox, each with that mailbox; at this moment."""
        ...

    @property
    def silent_for(self) -> float:
        """Seconds since it last asked for work with success; infinite if it cannot, 0 while it could not run any."""
        ...

    @property
    def reads(self) -> bool:
        """Whether it goes on reading: false once it was stopped, or its event loop shuts down."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerSideOptions:
    """What a worker asks of its transport.

    Attributes:
        name: The worker's name, different for each start.
        lease: Seconds that a lease lives.
        reply_ttl: Seconds that a reply waits for its caller.
        places: Entities that it runs at a time.
        max_lent: Places that may be lent at a time.
        is_stuck: Whether some of the work cannot be run here for now.
        heartbeat: Called with the server's time in ms, with each renewal; returns the record that `announcements.workers` reads.
    """

    name: str
    lease: float
    reply_ttl: float
    places: int
    max_lent: int
    is_stuck: Callable[[], bool]
    heartbeat: Callable[[int], bytes]


class WorkerSide(Protocol):
    """What a transport provides for one worker.

    After `begin` and `start` the consumer reads activations while there are free places, makes a task for each, and
    awaits `run(lease)` in it. When `run` returns, the lease is dropped and the place given back. In the background
    leases are renewed, delayed commands and retries are made ready when they are due, and leases of lost workers are taken over: what was
    started under one is settled by `decide`. `places` is a `transport.slots.Slots` with one reader per shard.
    """

    @property
    def places(self) -> Places:
        """Where entities run."""
        ...

    @property
    def steps(self) -> Steps:
        """Carries out steps."""
        ...

    @property
    def leases(self) -> Leases:
        """What this worker holds."""
        ...

    @property
    def consumer(self) -> Consumer:
        """Reads; there after `begin`."""
        ...

    @property
    def recovered(self) -> int:
        """Leases taken over from lost workers so far."""
        ...

    def begin(self, run: Run, decide: Decide) -> None:
        """Make `consumer`, which runs a mailbox by `run` and settles what a lost worker has started by `decide`."""
        ...

    async def start(self) -> None:
        """Begin to renew leases, to recover and to read."""
        ...

    def cancel_all(self, why: Cancellation) -> None:
        """Interrupt every handler that runs."""
        ...

    async def stop(self, patience: float) -> None:
        """Recover no more, let steps leave within `patience` seconds, end all leases and sign off."""
        ...


class Transport(Protocol):
    """One open connection to a namespace, with its parts.

    Attributes:
        label: Names the server for people, without a password.
        shards: How many shards the namespace has.
    """

    label: str
    shards: int
    producer: Producer  # an observer may stand before the transport's own

    @property
    def replies(self) -> Replies:
        """Receives replies."""
        ...

    @property
    def marks(self) -> Marks:
        """Reads marks."""
        ...

    @property
    def agreements(self) -> Agreements:
        """What all clients agree on."""
        ...

    @property
    def locations(self) -> CommandLocator:
        """Finds single commands."""
        ...

    @property
    def announcements(self) -> Announcements:
        """What workers publish."""
        ...

    @property
    def statistics(self) -> Statistics:
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
    def types(self) -> TypeRecords:
        """Reads entity types."""
        ...

    @property
    def events(self) -> EventStreams:
        """Reads events."""
        ...

    @property
    def interrupts(self) -> Interrupts:
        """Ends attempts."""
        ...

    @property
    def bulk(self) -> BulkDispatches:
        """Loads dispatches in bulk."""
        ...

    @property
    def reconnects(self) -> int:
        """How often a request was repeated because it had no answer."""
        ...

    def shard_of(self, mailbox: str) -> int:
        """Return the shard of a mailbox."""
        ...

    def worker_side(self, options: WorkerSideOptions) -> WorkerSide:
        """Make the parts of one worker."""
        ...

    async def ping(self) -> None:
        """Send one request and wait for its answer.

        Raises:
            TransportUnavailable: There is none.
        """
        ...

    async def close(self) -> None:
        """Let accepted work leave, fail calls that wait, and close the connections."""
        ...
