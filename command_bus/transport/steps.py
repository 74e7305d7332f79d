"""The steps that move a held mailbox forward, and the answers to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, NamedTuple

from command_bus.transport.mailboxes import pack_entry
from command_bus.transport.records import WaitingEntry


def attempt_id(fence: str, message: str) -> str:
    """Return the id of an attempt."""
    return fence + "|" + message


def fence_of(attempt: str) -> int:
    """Return the fence in an attempt's id."""
    return int(attempt.partition("|")[0])


def began_ms(fence: int | str) -> int:
    """Return the server's time in milliseconds when an attempt began, about: its clock may have jumped since."""
    return int(fence) // 1000


class Cause(Enum):
    """The causes that end an attempt from outside."""

    LOST = "lost"
    """Its lease is lost: another worker may have the command."""
    STOPPING = "stopping"
    """Its worker stops."""
    APPLICATION = "application"
    """The application cancelled the handler's task."""
    ABORTED = "aborted"
    """An operator wants it to end, and its command to be settled as interrupted."""
    CANCELLED = "cancelled"
    """Somebody wants its command to be settled as cancelled."""
    ABANDONED = "abandoned"
    """As `ABORTED`, and its command is settled already: nothing waits for the end of the handler, which may be in a thread."""


@dataclass(frozen=True, slots=True)
class Cancellation:
    """The end of an attempt from outside.

    Attributes:
        cause: What ends it.
        text: The reason in words, for logs, dead letters and the handler's context.
    """

    cause: Cause
    text: str

    @property
    def by_operator(self) -> bool:
        """Whether an operator asked for the end of the attempt."""
        return self.cause is Cause.ABORTED or self.cause is Cause.ABANDONED or self.cause is Cause.CANCELLED


WORKER_LOST = Cancellation(Cause.LOST, "its worker was lost while it ran")
"""The end of an attempt whose lease another worker took over."""


@dataclass(slots=True)
class Lease:
    """The right to run one mailbox, held by this worker.

    Attributes:
        holder: Names this lease, not only its worker: what was started for another lease of the same worker is not its own.
        deadline: Local monotonic time after which nothing may be started: taken before the server was asked, plus the lease.
        attempt_id: Id of the attempt that runs now (see `attempt_id`); empty before the first start.
        renew_until: Local time after which it is no longer renewed (an async handler far past its timeout), or None.
        cancel: While a handler runs: interrupts it.
        lost: Whether its handler was interrupted because the lease was lost.
        in_thread: Whether the handler that runs is in a thread, which nothing can stop.
        ahead: Ids and envelopes of commands that were read ahead, the next one last.
        begun: What was started together with the delivery: the first take answers it, without a request.
        record: What is stored of its mailbox while a command runs, where that is known exactly; else empty.
        is_limited: Whether limits were asked under it: they are told when it ends.
        has_place: Whether the server said that limits gave it a place.
        state: What its worker knows of its entity's state; None: it has to be read.
        is_unused: Whether what was started was not given to its handler: the tokens that it took are given back. Where limits were asked
            for it that is not known to the script.
    """

    shard: int
    mailbox: str
    activation: str
    deadline: float
    holder: str = ""
    attempt_id: str = ""
    renew_until: float | None = None
    cancel: Callable[[Cancellation], None] | None = None
    lost: bool = False
    in_thread: bool = False
    ahead: list[tuple[str, bytes]] | None = None
    begun: Started | None = None
    record: str = ""
    is_limited: bool = False
    has_place: bool = False
    is_unused: bool = False
    state: Any = None

    @property
    def task_name(self) -> str:
        """The name of the task in which its commands run."""
        return f"command_bus.run {self.mailbox}"

    @property
    def may_have_places(self) -> bool:
        """Whether limits may have given it places; who asked them is not told."""
        return self.has_place or self.is_limited


class Snoozes(NamedTuple):
    """The count of times that the handler of a command has put it off, and its first start, also if it was suspended or replayed.

    Attributes:
        times: The number of snoozes.
        first_ms: When the command was first started; 0 if its record says so itself.
        waits: Whether its entity waits for the end of one, if it waits.
    """

    times: int = 0
    first_ms: int = 0
    waits: bool = False


NO_SNOOZES = Snoozes()


class RunNotes(NamedTuple):
    """The part of a mailbox's record about runs: neighbours that one call of a handler takes.

    Attributes:
        size: The number of commands that run.
        cap: Most commands of the next run, because a worker was lost in one; 0: no such limit.
        begun: The last of those that may have run, because a run has ended without them; empty if there are none.
    """

    size: int = 1
    cap: int = 0
    begun: str = ""


NO_RUN = RunNotes()


@dataclass(slots=True)
class Started:
    """The head of a mailbox, started under its lease.

    Attributes:
        fence: Decimal text; see `began_ms`.
        message: Its id in the mailbox; the part before the dash is the time of acceptance in ms.
        attempt: 1 for the first start.
        first: The server's time of the first start in ms; below zero: of a durable command that has stored something, or of the wake after a snooze
            or a suspension, or of an operator's replay where it was parked.
        now_ms: The server's time of this start.
        envelope: None if the entry has no envelope at all.
        raw: The entry's fields as they are, where there are others than an envelope.
        confirmed: Whether the replicas that must know of the start do.
        snoozes: The number of times its handler has put it off, and when it was truly first started.
        is_first: Whether it certainly was never started before, so that no run of it has stored anything.
        begun: Whether it is durable and has stored something; said only of a command whose worker was lost.
        run: What is known of runs of its entity.
    """

    fence: str
    message: str
    attempt: int
    first: int
    now_ms: int
    envelope: bytes | None
    raw: Sequence[bytes] = ()
    confirmed: bool = True
    snoozes: Snoozes = NO_SNOOZES
    is_first: bool = False
    begun: bool = False
    run: RunNotes = NO_RUN

    @property
    def others(self) -> tuple[str, ...]:
        """Further mailboxes in which it stands, as a command of several entities."""
        for name, value in zip(self.raw[2::2], self.raw[3::2], strict=False):
            if name == b"w":
                return tuple(each.partition("=")[0] for each in value.decode("utf-8", "backslashreplace").split())
        return ()

    @property
    def first_ms(self) -> int:
        """The server's time of the first start."""
        return self.snoozes.first_ms or abs(self.first)

    @property
    def woken_ms(self) -> int:
        """The server's time of the first start, or of that after the last snooze or an operator's replay."""
        return abs(self.first)

    @property
    def began_ms(self) -> int:
        """The server's time of this start, also long after it."""
        return began_ms(self.fence)

    @property
    def entry(self) -> bytes:
        """Its entry as a dead letter keeps it: see `mailboxes.pack_entry`."""
        if self.envelope is None:
            return b"".join(self.raw)
        return pack_entry(self.raw or (b"e", self.envelope))

    @property
    def replayed(self) -> bool:
        """Whether its deadline no longer counts: it is durable and has begun, its handler put it off, or an operator replayed it while parked."""
        return self.first < 0

    @property
    def had_begun(self) -> bool:
        """True if it was started before, so that an earlier run may have done something."""
        return self.attempt > 1 or self.replayed


@dataclass(slots=True, frozen=True)
class Released:
    """The lease was released: the mailbox is empty, waits, is stopped, or is for any worker to take."""

    reason: Literal["idle", "yield", "wait", "stop"]


@dataclass(slots=True, frozen=True)
class LeaseLost:
    """The lease is not ours (any more): nothing was changed."""


@dataclass(slots=True, frozen=True)
class StepFailed:
    """The step failed for this mailbox alone: one of its keys is of another type, say."""

    reason: str


@dataclass(slots=True, frozen=True)
class LimitQuestion:
    """The next command needs leave of limits that were not asked: those of another shard, or by a key. The lease is kept.

    Attributes:
        message: Its id in the mailbox.
        envelope: None if the entry has no envelope at all.
        is_paid: Whether it was suspended: it took its tokens when it first started.
        flow: Its entity's class and tenant, as in the scripts; empty for the normal class without a tenant.
        due_ms: The server's time, if its deadline counts; else 0.
        is_suspect: Whether workers seem to die of reading it: it is read under an attempt only, which counts.
        others: Costs and buckets of its further entities, as `LimitKeys` gives them.
    """

    message: str
    envelope: bytes | None
    is_paid: bool = False
    flow: str = ""
    due_ms: int = 0
    is_suspect: bool = False
    others: str = ""


@dataclass(slots=True, frozen=True)
class Extended:
    """The run is what was asked for."""


Answer = Started | Released | LeaseLost | StepFailed | LimitQuestion | Extended


Follow = Literal["stay", "yield", "leave"]


@dataclass(slots=True, frozen=True)
class Take:
    """Start the head of a mailbox whose activation was read.

    Attributes:
        granted: The message that limits let start, after `LimitQuestion`; empty if none was asked for.
    """

    granted: str = ""


TAKE: Final = Take()


@dataclass(slots=True, frozen=True)
class Refused:
    """A limit refused the command of a `LimitQuestion`: its entity waits."""


@dataclass(slots=True, frozen=True)
class FollowUp:
    """A command that a handler sends with its settlement.

    Attributes:
        mailbox: Its name.
        command_id: Id of the command: the same whenever the handler runs.
        envelope: Opaque bytes.
        flow: What it waits in (see `flows.py`); empty for the normal class without a tenant.
        delay_ms: Milliseconds until it takes its place in the mailbox; below zero the moment itself.
        mark: Value of its dedup mark while it waits; empty if it has none.
    """

    mailbox: str
    command_id: str
    envelope: bytes
    flow: str = ""
    delay_ms: int = 0
    mark: bytes = b""


@dataclass(slots=True, frozen=True)
class ChildOutcome:
    """The outcome of a command, for the durable command that called it and waits for it.

    Attributes:
        mailbox: Name of the mailbox of the command that waits.
        command_id: Id of the command that waits.
        child: Id of the command that has ended.
        call: Name of the call in the side record of the command that waits.
        reply: The outcome, as a caller gets it.
    """

    mailbox: str
    command_id: str
    child: str
    call: str
    reply: bytes


@dataclass(slots=True, frozen=True)
class Settlement:
    """The mark, reply and outcome that settling leaves behind.

    Attributes:
        command_id: Empty if it is unknown (an envelope that cannot be read): then nothing is remembered.
        mark: The value of the dedup mark; empty for a command that has none.
        mark_ms: How long it is kept.
        inbox: The process that waits for the reply, or empty.
        reply: What is pushed to it.
        dispatch: Name of the dispatch that keeps the outcome; empty if the history does.
        outcome: What is kept there; empty if nothing is.
        waits_ms: For a command with a wrong signature: ms for which its mark is kept, if that says that the command waits here.
            Any other mark is left as it is, and `mark` is empty.
        unique: Its unique key, which is released (see `unique_keys.py`); empty if it has none.
        stander: What is stored under its unique key if a replayed command takes that key again.
        follow_ups: What its handler sends with it, in this order.
        waiting: Its outcome for the durable command that called it; None if none did.
        side: Whether the side record of a durable command ends, or is kept with the dead letter; empty for others.
        published: Entity type and id, event id and name of the events among what is sent, for notices.
    """

    command_id: str
    mark: bytes
    mark_ms: int
    inbox: str = ""
    reply: bytes = b""
    dispatch: str = ""
    outcome: bytes = b""
    waits_ms: int = 0
    unique: str = ""
    stander: str = ""
    follow_ups: tuple[FollowUp, ...] = ()
    waiting: ChildOutcome | None = None
    side: Literal["", "ends", "kept"] = ""
    published: tuple[tuple[str | None, str | None, str, str], ...] = ()


NO_SETTLEMENT = Settlement("", b"", 0)
"""The settlement of a command whose id cannot be repeated or asked for."""


class Removal(NamedTuple):
    """A waiting command that is taken out of its mailbox.

    Attributes:
        command: Its entry in the mailbox.
        left: What it leaves behind.
        begun: What it leaves if it was started before, and waits to be started again: the same with another text and code.
    """

    command: WaitingEntry
    left: Settlement
    begun: Settlement


@dataclass(slots=True)
class Done:
    """The command is settled with this status, under which it is counted.

    Attributes:
        left: What it leaves.
        follow: What follows.
        status: How it ended.
        state: What its entity's state becomes, empty if that is deleted; None: it stays as it is.
    """

    left: Settlement
    follow: Follow = "stay"
    status: Literal["completed", "rejected", "expired", "cancelled"] = "completed"
    state: bytes | None = None


@dataclass(slots=True)
class DeadLetterStep:
    """Dead-letter the command; its entity goes on."""

    left: Settlement
    record: bytes
    raw: bytes
    follow: Follow = "stay"


@dataclass(slots=True, frozen=True)
class Park:
    """Dead-letter the command and hold its entity, the command still at its head, until an operator decides."""

    left: Settlement
    record: bytes
    raw: bytes


@dataclass(slots=True, frozen=True)
class Retry:
    """Start the command again after a delay, for which its entity waits. `counts` says whether this was an attempt, `error` how that failed."""

    delay_ms: int
    counts: bool = True
    error: str = ""


@dataclass(slots=True, frozen=True)
class PutOff:
    """Start the command again after a delay, because its handler said so. No attempt was used; it is counted as a snooze."""

    delay_ms: int


@dataclass(slots=True, frozen=True)
class GiveBack:
    """Let another worker start the command again at once. `counts` says whether this was an attempt."""

    counts: bool


GIVE_BACK_UNCOUNTED: Final = GiveBack(counts=False)
"""The command was not started, or not by its own fault: no attempt is counted."""


@dataclass(slots=True, frozen=True)
class Extend:
    """Let neighbours run with the command that runs, as one run. If one of them is gone, the answer is `Started`, of that command alone.

    Attributes:
        last: Id of the last of them.
        count: The number of commands of the run.
    """

    last: str
    count: int

    @property
    def part(self) -> str:
        """The run as the record has it."""
        return f"{self.last}:{self.count}"


@dataclass(slots=True, frozen=True)
class RunStep:
    """The step of one command of a run, behind others that are settled with it.

    Attributes:
        run: As the record has it.
        before: Those others, each with its end, in their order.
        started: The command.
        step: Its step.
        state: As of `Done`.
    """

    run: Extend
    before: Sequence[tuple[Started, Done | DeadLetterStep]]
    started: Started
    step: Done | DeadLetterStep | Park | Retry | PutOff | GiveBack
    state: bytes | None = None


@dataclass(slots=True, frozen=True)
class Suspend:
    """Let a durable command wait without a worker until what it waits for is in its side record. It is started again then, or at once.

    Attributes:
        command_id: Id of the command.
        awaited: Names of fields in the side record.
        wanted: How many of them must be there.
        until_ms: The server's time when it is started in any case; None: there is none.
        knows_wish: Whether its handler knows that it is to be cancelled.
    """

    command_id: str
    awaited: tuple[str, ...] = ()
    wanted: int = 1
    until_ms: int | None = None
    knows_wish: bool = False


Step = Take | Refused | Done | DeadLetterStep | Park | Retry | PutOff | GiveBack | Suspend | Extend | RunStep
