"""Plain values that a transport stores and returns: entities, holds, dead letters, waiting commands, events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote

from command_bus.messages.policies import parts_of_delivery
from command_bus.serialization.limits import printable
from command_bus.transport.flows import NO_FLOW, Flow
from command_bus.transport.mailboxes import envelope_in, mailbox_label

_DIGEST = 8
_NAMED = 3
"""Things that a sentence names at most."""


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """A dead letter as it is stored: `record` and `raw` are opaque here.

    Attributes:
        keeps: Whether what its durable command has stored is kept for the replay, which goes on from there.
    """

    id: str
    mailbox: str
    record: bytes
    raw: bytes
    parked: bool
    keeps: bool = False

    @classmethod
    def parse(cls, shard: int, entry: bytes, fields: Mapping[bytes, bytes]) -> StoredDeadLetter:
        """Return a dead letter from its entry in the stream of a shard."""
        return cls(
            f"{shard}-{entry.decode()}",
            fields.get(b"m", b"").decode(errors="replace"),
            fields.get(b"r", b""),
            envelope_in(fields.get(b"e", b"")),
            fields.get(b"p") == b"1",
            b"x" in fields,
        )


class WaitingEntry(NamedTuple):
    """A command that waits in a mailbox.

    Attributes:
        id: Its id in the mailbox; the command id if it is delayed.
        envelope: Opaque bytes; empty if the entry has none.
        delayed: Whether it takes its place in the mailbox later.
        home: Of an entry that stands for a command of several entities, the mailbox of that; else empty.
        places: Of such a command the entries that stand for it: `<mailbox>=<id> ` for each; while it is delayed without ids.
    """

    id: str
    envelope: bytes
    delayed: bool = False
    home: str = ""
    places: str = ""

    @property
    def message(self) -> str:
        """Its message id; empty for a delayed command, which has none yet."""
        return "" if self.delayed else self.id

    @property
    def lines(self) -> list[str]:
        """The further mailboxes in which a command of several entities stands, or will stand."""
        return [each.partition("=")[0] for each in self.places.split()]


EntityCondition = Literal[
    "waiting", "running", "retrying", "snoozed", "limited", "suspended", "blocked", "paused", "parked", "draining"
]


class Failure(NamedTuple):
    """The last attempt of a command that failed.

    Attributes:
        at_ms: When it failed, by the server's clock.
        text: Type and text of its error, cut at 200 characters.
    """

    at_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class StoredEntity:
    """An entity that has work, or is paused or drained itself.

    Attributes:
        mailbox: Its mailbox's name.
        state: What it waits for; `waiting` also if all that it has is delayed; `draining` if it waits and accepts nothing.
        depth: Commands in its mailbox, the running one and delayed ones included.
        oldest_ms: When the first of them was accepted; 0 if they are all delayed.
        attempt: Number of times that the command at its head was started; 1 at least if it was.
        holder: The lease under which that runs: a worker's name, `#` and what tells its leases apart; empty if it does not run.
        first_ms: When that was first started; 0 if it never was.
        started_ms: When this attempt of it started, about; 0 if it does not run.
        letter: Id, in its shard, of the dead letter by which it is parked; empty if it is not.
        hold: By whom it is paused or drained: itself, its type or the bus, the narrowest; None by none.
        oldest_id: Id of the first of its commands; empty if they are all delayed.
        flow: What it waits in: its priority and tenant.
        snoozes: The number of times the command at its head was put off by its handler.
        failure: How the last attempt of that command failed; None if none did.
        last_id: Id of the last command that runs, where several do in one call; empty if none runs.
        home: Of a blocked entity the mailbox in which its first command runs; empty if that is its own.
    """

    mailbox: str
    state: EntityCondition
    depth: int
    oldest_ms: int
    attempt: int
    holder: str = ""
    first_ms: int = 0
    started_ms: int = 0
    letter: str = ""
    hold: HoldInfo | None = None
    oldest_id: str = ""
    flow: Flow = NO_FLOW
    snoozes: int = 0
    failure: Failure | None = None
    last_id: str = ""
    home: str = ""

    @property
    def is_delayed(self) -> bool:
        """Return whether all that it has is delayed."""
        return self.depth > 0 and not self.oldest_ms


Mode = Literal["paused", "draining"]


@dataclass(frozen=True, slots=True)
class HoldInfo:
    """A pause or drain by an operator.

    Attributes:
        what: For people: an entity, `all account` or `everything`.
        entity_type: The type, or None for the whole bus and for what has no entity.
        mode: Whether nothing is started, or nothing accepted.
        since_ms: Since when, by the server's clock; 0 if that is not known.
        reason: What the operator said.
        everywhere: Whether all shards have it. If not, the request broke off: ask again.
        until_ms: When a pause ends by itself, by the server's clock; None: never.
    """

    what: str
    entity_type: str | None
    mode: Mode
    since_ms: int
    reason: str
    everywhere: bool = True
    until_ms: int | None = None

    @property
    def subscription(self) -> str:
        """The subscription that is held as a whole; empty: something else is."""
        event_entity, name = parts_of_delivery(self.entity_type or "")
        return "" if event_entity else name


@dataclass(frozen=True, slots=True)
class AwaitedInfo:
    """One call or signal that a suspended command waits for.

    Attributes:
        kind: What it is.
        name: The wire name of the command that was called, or the name of the signal.
        command_id: Id of the command that was called; empty for a signal.
        entity: What that command is for, as people read it; empty for a signal.
    """

    kind: Literal["call", "signal"]
    name: str
    command_id: str = ""
    entity: str = ""

    def __str__(self) -> str:
        return f"the signal {self.name}" if self.kind == "signal" else f"{self.name} {self.command_id} on {self.entity}"


@dataclass(frozen=True, slots=True)
class SuspensionInfo:
    """A durable command that waits without a worker.

    Attributes:
        command_id: Id of the command.
        since_ms: Since when, by the server's clock.
        until_ms: When it is started in any case, by the server's clock; None: never.
        waits_for: The calls and signals that it waits for; empty if it only sleeps.
        compensating: Whether it undoes what it did, and ends then.
        cancelling: Why it was asked to end: it waits for what it called and has started. Empty if it was not.
    """

    command_id: str
    since_ms: int
    until_ms: int | None
    waits_for: tuple[AwaitedInfo, ...]
    compensating: bool = False
    cancelling: str = ""

    def __str__(self) -> str:
        named = " and ".join(map(str, self.waits_for[:_NAMED]))
        more = len(self.waits_for) - _NAMED
        what = f"waits for {named}{f' and {more:,} more' if more > 0 else ''}" if named else "sleeps"
        if self.compensating:
            return f"{what}, to undo what it did"
        return f"{what}, and ends then: {self.cancelling}" if self.cancelling else what


def wish_text(wish: bytes | None) -> str:
    """Return why a command was asked to end; empty if it was not."""
    return "" if wish is None else printable(wish.decode(errors="replace")) or "it was cancelled"


def awaited_info(field: str, call: bytes | None) -> AwaitedInfo:
    """Return the wait that a field of a side record belongs to."""
    what = field[2:].rpartition("#")[0] or field[2:]
    if call is None:
        return AwaitedInfo("signal", unquote(what))
    child, mailbox = called_in(call)
    name = what.removeprefix("u:").removeprefix("undo:").partition("@")[0]
    return AwaitedInfo("call", unquote(name), child, mailbox_label(mailbox))


def called_in(value: bytes) -> tuple[str, str]:
    """Return the id and the mailbox of a command that was called, from the field of its call."""
    child, _, mailbox = value[_DIGEST:].decode(errors="replace").partition("|")
    return child, mailbox


BEFORE_ALL = "0-0"
"""The id before all others. The ids of events, dead letters and message ids are text: milliseconds, a dash and a number. They grow."""


SENT_KINDS: Final = ("accepted", "superseded")
"""The kinds of events that senders write. Anybody who may send can write them of any command, so they are no proof of one."""


class StoredEvent(NamedTuple):
    """An entry as it is stored."""

    shard: int
    id: str
    facts: list[str]
    """Kind, attempt, fence, worker, detail; empty where there is none."""
    mailbox: str
    """Or a scope."""
    names: bytes
    """Four MessagePack texts (or nil): command id, wire name, entity type, entity id; empty if they could not be read."""
    feed: int
    """Which of the ids of a cursor it moves."""
    is_told: bool
    """True if it is believed: a sender can only say what senders do."""

    @classmethod
    def parse(cls, shard: int, feed: int, entry: bytes, fields: Mapping[bytes, bytes] | None) -> StoredEvent:
        """Return an event from its entry in a stream; that of workers is the feed with the number of the shard."""
        fields = fields or {}
        facts = fields.get(b"v", b"").decode(errors="replace").split("|", 4)
        mailbox = fields.get(b"m", b"").decode(errors="replace")
        is_told = feed == shard or facts[0] in SENT_KINDS
        return cls(shard, entry.decode(), facts + [""] * (5 - len(facts)), mailbox, fields.get(b"c", b""), feed, is_told)


class CommandLocation(NamedTuple):
    """The server's state of a command at a moment.

    Attributes:
        entity: Its mailbox.
        mark: The command's mark; None if it has none.
        retry_ms: When the retry of the mailbox's head is due, or its snooze over, by the server's clock; None if it waits for none.
        delayed_ms: When the command takes its place in line; None if it is not delayed.
        workers: What the workers say of themselves; None if that may not be read.
        now_ms: The server's time.
    """

    entity: StoredEntity
    mark: bytes | None
    retry_ms: int | None
    delayed_ms: int | None
    workers: tuple[bytes, ...] | None
    now_ms: int


class MailboxHead(NamedTuple):
    """The first commands of one mailbox, and its lease.

    Attributes:
        lease_ms: Milliseconds since the lease was renewed; None if no worker holds it.
        entries: Message ids and envelopes.
        shard: The mailbox's shard.
    """

    lease_ms: int | None
    entries: tuple[tuple[str, bytes], ...]
    shard: int


class ShardSnapshot(NamedTuple):
    """The figures of one shard at one moment.

    Attributes:
        counters: Counts since the namespace was made, by the names under which they are stored; `command_bus.admin.info.Stats` has their meaning.
        ready: Activations, those that workers hold included.
        in_flight: Activations that workers hold.
        oldest_ready_ms: When the first activation became ready that no worker holds; None if there is none.
        due: Retries and delayed commands that wait for their time.
        active: Mailboxes with work.
        paused: Scopes that are paused or drained.
        parked: Mailboxes that a dead letter holds.
        dead: Letters in the dead-letter queue.
        workers: The records of the workers.
        now_ms: The server's time.
        line: Mailboxes that wait behind the ready stream, by priority; None if the line is not in use.
        starts: Number of starts since then, by priority.
        schedule_ms: When the first schedule is due, if that is among the first of what is due; else None.
        ends: Pauses that end by themselves, of those that end first.
        limited: Mailboxes of all shards that wait for a limit; 0 of all shards but the first.
        schedules: All that are stored.
        suspended: Mailboxes whose durable command is suspended.
        history: Ends of commands in the history.
        states: Those of entities.
    """

    counters: Counter[str]
    ready: int
    in_flight: int
    oldest_ready_ms: int | None
    due: int
    active: int
    paused: frozenset[str]
    parked: int
    dead: int
    workers: tuple[bytes, ...]
    now_ms: int
    line: tuple[int, ...] | None = None
    starts: tuple[int, ...] = (0, 0, 0)
    schedule_ms: int | None = None
    ends: int = 0
    limited: int = 0
    schedules: int = 0
    suspended: int = 0
    history: int = 0
    states: int = 0


class EndBounds(NamedTuple):
    """The bounds of one end in the history.

    Attributes:
        settled_ms: The server's time of the end.
        age_ms: For how long it is kept.
        number: How many newer ones of its shard it is kept beside, and itself.
    """

    settled_ms: int
    age_ms: int
    number: int


class HistoryExtent(NamedTuple):
    """The history of one shard.

    Attributes:
        shard: The number of the shard.
        now_ms: The server's time.
        ends: How many it keeps.
        oldest: The bounds of some of them, the oldest first.
    """

    shard: int
    now_ms: int
    ends: int
    oldest: tuple[EndBounds, ...]


class StoredEnd(NamedTuple):
    """The end of a command in the history. They compare by the time of their ends.

    Attributes:
        settled_ms: The server's time of the end.
        sequence: Tells apart what ended in the same ms of a shard.
        shard: The number of the shard.
        record: See `serialization/outcome.py`.
        is_over: Whether its age is over, so that it may be deleted at any time.
    """

    settled_ms: int
    sequence: int
    shard: int
    record: bytes
    is_over: bool


class TypeRecord(NamedTuple):
    """One entity type. The values are bytes, because a client may store any.

    Attributes:
        name: The type as it is stored.
        policy: Its mailbox policy; None if the type was only paused or drained.
        held: What a pause or drain of the type recorded; None if it was never paused or drained.
    """

    name: bytes
    policy: bytes | None = None
    held: bytes | None = None

    @property
    def mailboxes(self) -> str | None:
        """The text of the mailbox policy."""
        return None if self.policy is None else self.policy.decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Recount:
    """A comparison of counters with what is there.

    Attributes:
        stored: The depth as it was stored: commands that are accepted and not settled.
        counted: The depth as it was counted.
        delayed: Entities whose number of delayed commands was wrong.
        complete: Whether everything was counted. Not if a shard has more than 20,000 entities with work or delayed commands, or more than
            16 MiB of these.
    """

    stored: int
    counted: int
    delayed: int
    complete: bool = True

    @property
    def is_right(self) -> bool:
        """Whether nothing was found to be wrong."""
        return self.stored == self.counted and not self.delayed


Resolution = Literal["replay", "discard"]
"""What an operator does with a dead letter."""


Contents = tuple[StoredEntity, list[WaitingEntry]]
"""A mailbox, and commands that stand in it; a long one comes in several parts."""
