"""The seams of the transport: what a producer, a worker, a caller and an operator may ask of it.

Each part sees only its own interface, so that a producer never meets consumer code. Envelopes and replies are opaque bytes here.
A *mailbox* is the name that `keys.mailbox_name` gives an entity (or its lane); a *lease* is the right to run a mailbox's commands.
"""

from __future__ import annotations

from asyncio import Future, Task
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Protocol

from command_bus.errors import CommandBusError
from command_bus.messages.policies import Mailbox

__all__ = [
    "NOTHING_LEFT",
    "NO_DIGEST",
    "Admission",
    "Answer",
    "Bury",
    "ByOperator",
    "Consumer",
    "Done",
    "Failed",
    "Follow",
    "GiveBack",
    "GivenUp",
    "Gone",
    "Lease",
    "Park",
    "Places",
    "Policies",
    "Producer",
    "Recovery",
    "Released",
    "Remembered",
    "Replies",
    "Reply",
    "Retry",
    "Silent",
    "Started",
    "Step",
    "Steps",
    "Submission",
    "Take",
]

NO_DIGEST = bytes(8)
"""The digest of a command whose id was generated: it cannot conflict."""


@dataclass(slots=True)
class Submission:
    """One command on its way into a mailbox.

    Attributes:
        mailbox: The mailbox's name.
        command_id: Unique per command; a repeat is answered `DUPLICATE`.
        envelope: Opaque bytes.
        digest: Eight bytes that differ between different commands; equal ids with unequal digests conflict.
        max_depth: Commands that the mailbox may hold.
        delay_ms: Milliseconds until the command takes its place in the mailbox.
        marked: Whether a mark remembers the command id, because somebody may send it again or ask for its reply.
        name: The command's wire name, for who observes.
        renewed: Gives the envelope as it would be sealed now, or None: it stays right however late it leaves.
    """

    mailbox: str
    command_id: str
    envelope: bytes
    digest: bytes
    max_depth: int
    delay_ms: int = 0
    marked: bool = True
    name: str = ""
    renewed: Callable[[], bytes] | None = None


class Admission(Enum):
    """What became of a submission; the values are those of enqueue.lua."""

    ACCEPTED = "+"
    DUPLICATE = "="
    CONFLICT = "!"
    ENTITY_FULL = "e"
    TOTAL_FULL = "t"
    PREDECESSOR_REFUSED = "p"
    WRONG_TYPE = "w"
    OUT_OF_SEQUENCE = "s"
    DRAINING = "d"


Silent = dict[int, CommandBusError]
"""Shards that were unavailable, each with how it showed."""


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
        self, submissions: Sequence[Submission], timeout: float, silent: Silent | None = None
    ) -> list[Admission | CommandBusError]:
        """Accept many commands, in order per mailbox; an outcome per command, or the error because of which there is none.

        `timeout` is per chunk. After a chunk that failed nothing more of its shard is sent; nor by later calls that are given the same
        `silent`, in which shards are noted that did not answer in time.
        """
        ...


class ByOperator(str):
    """A reason for which a handler is cancelled: an operator wants its attempt to end, and its command to be settled as interrupted."""

    __slots__ = ()


class GivenUp(ByOperator):
    """Beside that, its command has been settled already: nothing waits for the end of the handler, which may be in a thread."""

    __slots__ = ()


@dataclass(slots=True)
class Lease:
    """The right to run one mailbox, held by this worker.

    Attributes:
        holder: Names this lease, not only its worker: what was started for another lease of the same worker is not its own.
        deadline: Local monotonic time after which nothing may be started: taken before the server was asked, plus the lease.
        running: Fence and message of the command that runs now, with a bar between; empty before the first start.
        renew_until: Local time after which it is no longer renewed (an async handler far past its timeout), or None.
        cancel: While a handler runs: interrupts it, because the lease is lost.
        lost: Whether its handler was told so.
        in_thread: Whether the handler that runs is in a thread, which nothing can stop.
    """

    shard: int
    mailbox: str
    activation: str
    deadline: float
    holder: str = ""
    running: str = ""
    renew_until: float | None = None
    cancel: Callable[[str], None] | None = None
    lost: bool = False
    in_thread: bool = False


@dataclass(slots=True)
class Started:
    """The head of a mailbox, started under its lease.

    Attributes:
        fence: Grows with every start in the shard.
        message: Its id in the mailbox; the part before the dash is the time of acceptance in ms.
        attempt: 1 for the first start.
        first: The server's time of the first start in ms; below zero if an operator replayed it where it was parked.
        now_ms: The server's time of this start.
        envelope: None if the entry has no envelope at all.
        raw: The entry's fields as they are, where there are others than an envelope.
        confirmed: Whether the replicas that must know of the start do.
    """

    fence: str
    message: str
    attempt: int
    first: int
    now_ms: int
    envelope: bytes | None
    raw: Sequence[bytes] = ()
    confirmed: bool = True

    @property
    def first_ms(self) -> int:
        """The server's time of the first start."""
        return abs(self.first)

    @property
    def replayed(self) -> bool:
        """Whether an operator replayed it where it was parked."""
        return self.first < 0


@dataclass(slots=True, frozen=True)
class Released:
    """The lease was given up: the mailbox is empty, waits, is stopped, or is for somebody else to take."""

    reason: Literal["idle", "yield", "wait", "stop"]


@dataclass(slots=True, frozen=True)
class Gone:
    """The lease is not ours (any more): nothing was changed."""


@dataclass(slots=True, frozen=True)
class Failed:
    """The step failed for this mailbox alone: one of its keys is of another type, say."""

    reason: str


Answer = Started | Released | Gone | Failed
Follow = Literal["stay", "yield", "leave"]


@dataclass(slots=True, frozen=True)
class Take:
    """Start the head of a mailbox whose activation was read."""


@dataclass(slots=True, frozen=True)
class Remembered:
    """What settling leaves behind.

    Attributes:
        command_id: Empty if it is unknown (an envelope that cannot be read): then nothing is remembered.
        mark: The value of the dedup mark; empty for a command that has none.
        mark_ms: How long it is kept.
        inbox: The process that waits for the reply, or empty.
        reply: What is pushed to it.
        dispatch: The dispatch that keeps the outcome, or empty.
        outcome: What it keeps; empty if none does.
        waits_ms: Of a command that nobody can vouch for: how long its mark is kept if it says that the command waits in this very mailbox.
            Any other mark is left as it is, and `mark` is empty.
    """

    command_id: str
    mark: bytes
    mark_ms: int
    inbox: str = ""
    reply: bytes = b""
    dispatch: str = ""
    outcome: bytes = b""
    waits_ms: int = 0


NOTHING_LEFT = Remembered("", b"", 0)
"""Of a command whose id nobody can repeat or ask for."""


@dataclass(slots=True)
class Done:
    """The command is settled; `verb` says how it is counted: completed, rejected, expired."""

    left: Remembered
    follow: Follow = "stay"
    verb: Literal["done", "deny", "lapse"] = "done"


@dataclass(slots=True)
class Bury:
    """Dead-letter the command; its entity goes on."""

    left: Remembered
    record: bytes
    raw: bytes
    follow: Follow = "stay"


@dataclass(slots=True, frozen=True)
class Park:
    """Dead-letter the command and hold its entity, the command still at its head, until an operator decides."""

    left: Remembered
    record: bytes
    raw: bytes


@dataclass(slots=True, frozen=True)
class Retry:
    """Start the command again after a delay; meanwhile its entity waits. `counts` says whether this was an attempt."""

    delay_ms: int
    counts: bool = True


@dataclass(slots=True, frozen=True)
class GiveBack:
    """Let another worker start the command again at once. `counts` says whether this was an attempt."""

    counts: bool


Step = Take | Done | Bury | Park | Retry | GiveBack


class Steps(Protocol):
    """Moves held mailboxes forward; the steps of one event-loop turn leave as one batch."""

    def advance(self, lease: Lease, step: Step) -> Awaitable[Answer]:
        """Carry out a step under its lease. Repeats what is ambiguous until it has an answer."""
        ...


class Reply(Protocol):
    """One call's wait."""

    async def within(self, deadline: float) -> bytes | None:
        """The reply record, or None if it does not come until then (monotonic)."""
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

    def forget(self, pending: Any) -> None:
        """Nobody waits for it any more."""
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


class Policies(Protocol):
    """Knows what mailboxes the entities of a type have in a namespace."""

    def recorded(self, entity_type: str) -> Mailbox | None:
        """Return the policy that the namespace recorded, if it is known here."""
        ...

    async def learn(self, entity_type: str) -> None:
        """Read it, if it is recorded.

        Raises:
            CommandBusError: It cannot be read now.
        """
        ...


class Consumer(Protocol):
    """Feeds activations to whoever runs them, never more than there are free slots."""

    async def start(self) -> None:
        """Begin to read; returns at once."""
        ...

    async def stop_reading(self) -> None:
        """Read no more; what was delivered meanwhile is handed back untouched."""
        ...

    @property
    def running(self) -> frozenset[Task[None]]:
        """The tasks that hold a mailbox."""
        ...

    @property
    def silent_for(self) -> float:
        """Seconds since it last asked for work with success; infinite if it cannot, 0 while it could not run any."""
        ...

    @property
    def reads(self) -> bool:
        """Whether it goes on reading: false once it was stopped, or its event loop shuts down."""
        ...


class Recovery(Protocol):
    """Takes over what nobody holds any more, and wakes what has become due."""

    def start(self) -> None:
        """Begin to watch; returns at once."""
        ...

    def kick(self, shard: int) -> None:
        """Something may be due earlier than known."""
        ...

    async def settle(self, shard: int, activations: list[tuple[str, str]], *, ours: bool = False) -> None:
        """Settle activations (id, mailbox) that nobody holds; with `ours`, none whose holder was another worker, which may live."""
        ...

    async def stop(self) -> None:
        """Stop watching."""
        ...
