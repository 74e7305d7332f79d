"""The names of all keys.

All keys of a shard share the hash tag `{namespace:shard}`, so that one script may use them on Redis Cluster. An entity's id is
percent-encoded before it becomes part of a key: a `}` in an id would move its keys to another slot, and a newline or NUL would make
them unreadable. The encoded name `type:id` (or `type/lane`) is the *mailbox* name; it decides the shard.
"""

from __future__ import annotations

from typing import Final, Literal
from zlib import crc32

from command_bus.serialization.odd_values import stored_number
from command_bus.transport.mailboxes import encoded

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


class ShardKeys:
    """The names of one shard's keys.

    Args:
        namespace: Name of the namespace.
        shard: Number of the shard; `*` makes the patterns of the keys of all shards.

    Attributes:
        prefix: What all names begin with: the hash tag and a colon.
        meta: Hash of what all clients must agree on; of the first shard only.
        ready: Stream of activations, the mailboxes that a worker may hold.
        active: Hash of mailbox name -> record (see `mailbox_record`).
        lone: Hash of mailbox name -> envelope, of mailboxes with a single command.
        flows: Hash of what classes and shares have used; there once they are used.
        turns: Sorted set of flows, by their virtual time.
        line: Sorted set of the places of mailboxes that wait behind the ready stream.
        fair: These three, in the order in which scripts take them.
        fence: The highest fence.
        stats: Hash of counters.
        due: Sorted set of retries, delayed commands, schedules and ends of pauses, by the ms when they are due.
        delayed: Hash of command id -> mailbox name and envelope.
        delayed_counts: Hash of mailbox name -> number of delayed commands; `*` and a command id -> its own number, which orders them.
        paused: Hash of scope -> hold.
        parked: Hash of mailbox name -> id of its dead letter.
        dead: Stream of dead letters.
        workers: Hash of consumer name -> what the worker publishes of itself.
        interrupts: Hash of mailbox name -> request to end an attempt.
        unique: Hash of unique key -> the command that holds it (see `lua/shared/unique.lua`).
        rules: Hash of what limits apply.
        limits: Hash of what limits have spent, and who waits for one; of the first shard only.
        places: Sorted set of the queues and places of limits; of the first shard only.
        watched: Hash of entity type -> number of events to keep.
        events: Stream of events that workers and operators write.
        arrivals: Stream of events that senders write: whatever has a sender's rights may write anything there.
        schedules: Hash of schedule -> record, in the shard of its name.
        fired: Hash of schedule -> number of its last firing in this shard.
        commands: Hash of wire name -> description of a command; of the first shard only.
        dispatches: Sorted set of dispatch ids, by the ms when they expire.
        mailboxes: Prefix of the mailboxes' names.
        marks: Prefix of the marks' names.
        last_batches: Prefix of the names of producers' last batches.
        notes: Prefix of the names of books of notes (see `transport.ports.extensions`); of the first shard only.
        outs: Prefix of the names of streams of follow-ups for other shards.
        sides: Prefix of the names of side records.
        suspended: Hash of mailbox name -> since when, and which durable command waits there.
        relays: Prefix of the names of what was taken of those of other shards.
        bulk: Prefix of the names of a dispatch's keys.
        hints: Prefix of the names of hints, the new commands of a type for which nothing was woken yet; of the first shard only.
        audit: Stream of what operators did; of the first shard only.
        trends: Stream of figures over time; of the first shard only.
        history: Stream of the ends of commands that have a history.
        history_ids: Hash of command id -> entry in that stream.
        inboxes: Prefix of the inboxes' names.
    """

    __slots__ = (
        "active",
        "arrivals",
        "audit",
        "bulk",
        "commands",
        "dead",
        "delayed",
        "delayed_counts",
        "dispatches",
        "due",
        "events",
        "fair",
        "fence",
        "fired",
        "flows",
        "hints",
        "history",
        "history_ids",
        "inboxes",
        "interrupts",
        "last_batches",
        "limits",
        "line",
        "lone",
        "mailboxes",
        "marks",
        "meta",
        "notes",
        "outs",
        "parked",
        "paused",
        "places",
        "prefix",
        "ready",
        "relays",
        "rules",
        "schedules",
        "sides",
        "stats",
        "suspended",
        "trends",
        "turns",
        "unique",
        "watched",
        "workers",
    )

    def __init__(self, namespace: str, shard: int | Literal["*"]) -> None:
        self.prefix = prefix = f"{{{namespace}:{shard}}}:"
        self.meta = prefix + "meta"
        self.ready = prefix + "ready"
        self.active = prefix + "active"
        self.lone = prefix + "lone"
        self.flows = prefix + "flows"
        self.turns = prefix + "turns"
        self.line = prefix + "line"
        self.fair = (self.flows, self.turns, self.line)
        self.fence = prefix + "fence"
        self.stats = prefix + "stats"
        self.due = prefix + "due"
        self.delayed = prefix + "delayed"
        self.delayed_counts = prefix + "later"
        self.paused = prefix + "paused"
        self.parked = prefix + "parked"
        self.dead = prefix + "dead"
        self.workers = prefix + "workers"
        self.interrupts = prefix + "interrupts"
        self.unique = prefix + "unique"
        self.rules = prefix + "rules"
        self.limits = prefix + "limits"
        self.places = prefix + "places"
        self.watched = prefix + "watched"
        self.events, self.arrivals = prefix + "events", prefix + "arrivals"
        self.schedules = prefix + "schedules"
        self.fired = prefix + "fired"
        self.commands = prefix + "commands"
        self.dispatches = prefix + "dispatches"
        self.mailboxes = prefix + "m:"
        self.marks = prefix + "k:"
        self.inboxes = prefix + "in:"
        self.last_batches = prefix + "p:"
        self.bulk = prefix + "b:"
        self.hints, self.audit, self.trends = prefix + "hint:", prefix + "audit", prefix + "trends"
        self.history, self.history_ids = prefix + "history", prefix + "history:ids"
        self.notes, self.outs = prefix + "note:", prefix + "out:"
        self.relays = prefix + "relayed:"
        self.sides = prefix + "x:"
        self.suspended = prefix + "suspended"

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
        return self.bulk + encoded(dispatch_id) + ":ids"

    def sequences(self, dispatch_id: str) -> str:
        """Return the name of each entity's last sequence number, for dispatches whose rows have one."""
        return self.bulk + encoded(dispatch_id) + ":seq"

    def homes(self, dispatch_id: str) -> str:
        """Return the name of the tasks by entity: each writes its entities' commands while the dispatch is open."""
        return self.bulk + encoded(dispatch_id) + ":home"

    def fingerprints(self, dispatch_id: str) -> str:
        """Return the name of the fingerprints of each version's rows."""
        return self.bulk + encoded(dispatch_id) + ":rows"

    def outcomes(self, dispatch_id: str) -> str:
        """Return the name of the stream of outcomes of a dispatch's commands."""
        return self.bulk + encoded(dispatch_id) + ":out"

    def keeping(self, dispatch_id: str) -> tuple[str, str]:
        """Return record and outcomes of the dispatch that keeps an outcome; without one (an empty id) those of the history."""
        return (self.dispatch(dispatch_id), self.outcomes(dispatch_id)) if dispatch_id else (self.history_ids, self.history)

    def rejects(self, dispatch_id: str) -> str:
        """Return the name of the rows of a dispatch that are no commands."""
        return self.bulk + encoded(dispatch_id) + ":bad"


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
        return 0 if self.count == 1 else crc32(mailbox.encode()) % self.count
