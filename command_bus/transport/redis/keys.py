"""The names of all keys.

All keys of a shard share the hash tag `{namespace:shard}`, so that one script may use them on Redis Cluster. An entity's id is
percent-encoded before it becomes part of a key: a `}` in an id would move its keys to another slot, and a newline or NUL would make
them unreadable. The encoded name `type:id` (or `type/lane`) is the *mailbox* name; it decides the shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, get_type_hints

from command_bus.serialization.odd_values import stored_number
from command_bus.transport.mailboxes import encoded, shard_of

GROUP: Final = "workers"
"""The consumer group of every ready stream."""


def delayed_number(command_id: str) -> str:
    """Return the field of `later` that has the number of a delayed command: see `lua/shared/delayed.lua`."""
    return f"*{command_id}"


def delayed_member(number: bytes, command_id: str) -> str:
    """Return the member of `due` of a delayed command."""
    return f"d:{stored_number('later', number):016}:{command_id}"


def delayed_id(member: str) -> str:
    """Return the command id in a member of `due`."""
    return member[2:].partition(":")[2]


Hash = Annotated[str, "hash"]
Stream = Annotated[str, "stream"]
SortedSet = Annotated[str, "sorted set"]
String = Annotated[str, "string"]
List = Annotated[str, "list"]


@dataclass(init=False, slots=True, eq=False, repr=False)
class ShardKeys:
    """The names of one shard's keys, each with the type of its value. `KEYS` lists them.

    Args:
        namespace: Name of the namespace.
        shard: Number of the shard; `*` makes the patterns of the keys of all shards.

    Attributes:
        prefix: What all names begin with: the hash tag and a colon.
        meta: What all clients must agree on; of the first shard only.
        ready: Activations, the mailboxes that a worker may hold.
        active: Mailbox name -> record (see `mailbox_record`).
        lone: Mailbox name -> envelope, of mailboxes with a single command.
        flows: What classes and shares have used; there once they are used.
        turns: Flows, by their virtual time.
        line: The places of mailboxes that wait behind the ready stream.
        fair: These three, in the order in which scripts take them.
        fence: The highest fence.
        stats: Counters.
        due: Retries, delayed commands, schedules and ends of pauses, by the ms when they are due.
        delayed: Command id -> mailbox name and envelope.
        delayed_counts: Mailbox name -> number of delayed commands; `*` and a command id -> its own number, which orders them.
        paused: Scope -> hold.
        parked: Mailbox name -> id of its dead letter.
        dead: Letters in the dead-letter queue.
        workers: Consumer name -> what the worker publishes of itself.
        interrupts: Mailbox name -> request to end an attempt.
        unique: Key -> the command that holds it (see `lua/shared/unique.lua`).
        rules: What limits apply.
        limits: What limits have spent, and who waits for one; of the first shard only.
        places: The queues and places of limits; of the first shard only.
        watched: Entity type -> number of events to keep.
        events: Stream of what workers and operators tell.
        arrivals: Events that senders write: whatever has a sender's rights may write anything there.
        schedules: Schedule -> record, in the shard of its name.
        fired: Schedule -> number of its last firing in this shard.
        commands: Wire name -> description of a command; of the first shard only.
        dispatches: Dispatch ids, by the ms when they expire.
        mailboxes: Prefix of the mailboxes' names.
        marks: Prefix of the marks' names.
        last_batches: Prefix of the names of producers' last batches.
        outboxes: Prefix of the names of what was taken from the outboxes of databases.
        notes: Prefix of the names of books of notes (see `transport.ports.extensions`); of the first shard only.
        outs: Prefix of the names of streams of follow-ups for other shards.
        sides: Prefix of the names of side records.
        states: Mailbox name -> state of its entity.
        suspended: Mailbox name -> since when, and which durable command waits there.
        relays: Prefix of the names of what was taken of those of other shards.
        bulk: Prefix of the names of a dispatch's keys.
        hints: Prefix of the names of hints, the new commands of a type for which nothing was woken yet; of the first shard only.
        audit: What operators did; of the first shard only.
        trends: Figures over time; of the first shard only.
        history: The ends of commands that have a history.
        history_ids: Command id -> entry in that stream.
        inboxes: Prefix of the inboxes' names.
    """

    prefix: str
    fair: tuple[str, str, str]
    meta: Hash
    ready: Stream
    active: Hash
    lone: Hash
    flows: Hash
    turns: SortedSet
    line: SortedSet
    fence: String
    stats: Hash
    due: SortedSet
    delayed: Hash
    delayed_counts: Hash
    paused: Hash
    parked: Hash
    dead: Stream
    workers: Hash
    interrupts: Hash
    unique: Hash
    rules: Hash
    limits: Hash
    places: SortedSet
    watched: Hash
    events: Stream
    arrivals: Stream
    schedules: Hash
    fired: Hash
    commands: Hash
    dispatches: SortedSet
    mailboxes: Stream
    marks: String
    last_batches: String
    outboxes: Hash
    notes: Hash
    outs: Stream
    sides: Hash
    states: Hash
    suspended: Hash
    relays: Hash
    bulk: Hash
    hints: String
    audit: Stream
    trends: Stream
    history: Stream
    history_ids: Hash
    inboxes: List

    def __init__(self, namespace: str, shard: int | Literal["*"]) -> None:
        self.prefix = f"{{{namespace}:{shard}}}:"
        for name in KEYS:
            setattr(self, name, self.prefix + suffix(name))
        self.fair = (self.flows, self.turns, self.line)

    def mailbox(self, name: str) -> str:
        """Return the name of a mailbox's stream."""
        return self.mailboxes + name

    def mark(self, command_id: str) -> str:
        """Return the name of a command id's mark (see `transport.marks`)."""
        return self.marks + command_id

    def side(self, command_id: str) -> str:
        """Return the name of a durable command's side record (see `lua/shared/arrive.lua`)."""
        return self.sides + command_id

    def last_batch(self, producer: str) -> str:
        """Return the name of the answer to a producer's last batch."""
        return self.last_batches + producer

    def inbox(self, process: str) -> str:
        """Return the name of the list of replies to one process."""
        return self.inboxes + process

    def dispatch(self, dispatch_id: str) -> str:
        """Return the name of a dispatch's record."""
        return self.bulk + encoded(dispatch_id)

    def ids(self, dispatch_id: str) -> str:
        """Return the name of the command ids that an open dispatch has accepted."""
        return self.dispatch(dispatch_id) + ":ids"

    def sequences(self, dispatch_id: str) -> str:
        """Return the name of each entity's last sequence number, for dispatches whose rows have one."""
        return self.dispatch(dispatch_id) + ":seq"

    def homes(self, dispatch_id: str) -> str:
        """Return the name of the tasks by entity: each writes its entities' commands while the dispatch is open."""
        return self.dispatch(dispatch_id) + ":home"

    def fingerprints(self, dispatch_id: str) -> str:
        """Return the name of the fingerprints of each version's rows."""
        return self.dispatch(dispatch_id) + ":rows"

    def outcomes(self, dispatch_id: str) -> str:
        """Return the name of the stream of outcomes of a dispatch's commands."""
        return self.dispatch(dispatch_id) + ":out"

    def keeping(self, dispatch_id: str) -> tuple[str, str]:
        """Return record and outcomes of the dispatch that keeps an outcome; without one (an empty id) those of the history."""
        return (self.dispatch(dispatch_id), self.outcomes(dispatch_id)) if dispatch_id else (self.history_ids, self.history)

    def rejects(self, dispatch_id: str) -> str:
        """Return the name of the rows of a dispatch that are no commands."""
        return self.dispatch(dispatch_id) + ":bad"


KEYS: Final[dict[str, str]] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(ShardKeys, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
"""The type of each key's value, by its attribute of `ShardKeys`."""
_SUFFIXES: Final = {
    "delayed_counts": "later",
    "mailboxes": "m:",
    "marks": "k:",
    "last_batches": "p:",
    "outboxes": "outbox:",
    "notes": "note:",
    "outs": "out:",
    "sides": "x:",
    "relays": "relayed:",
    "bulk": "b:",
    "hints": "hint:",
    "history_ids": "history:ids",
    "inboxes": "in:",
}


def suffix(name: str) -> str:
    """Return what follows the prefix of the shard in the name of a key. Behind a colon at its end a name of its own follows."""
    return _SUFFIXES.get(name, name)


class KeySpace:
    """All shards of a namespace."""

    __slots__ = ("count", "namespace", "shards")

    def __init__(self, namespace: str, shards: int) -> None:
        self.namespace = namespace
        self.count = shards
        self.shards = tuple(ShardKeys(namespace, shard) for shard in range(shards))

    def limits(self, commands: int, mailboxes: int | None) -> int | str:
        """Return the limits of one shard as the scripts take them: its part of those of the namespace, rounded up."""
        share = -(-commands // self.count)
        return share if mailboxes is None else f"{share}:{-(-mailboxes // self.count)}"

    def shard_of(self, mailbox: str) -> int:
        """Return the shard of a mailbox: a stable hash of its name."""
        return shard_of(mailbox, self.count)

    def of(self, mailbox: str) -> ShardKeys:
        """Return the keys of the shard of a mailbox."""
        return self.shards[self.shard_of(mailbox)]
