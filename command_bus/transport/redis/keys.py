"""The one owner of key names.

All keys of a shard share the hash tag `{namespace:shard}`, so that one script may touch them on Redis Cluster. An entity's id is
percent-encoded before it becomes part of a key: a `}` in an id would move its keys to another slot, and a newline or NUL would make
them unreadable. The encoded name `type:id` (or `type/lane`) is the *mailbox* name; it decides the shard.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from command_bus.transport.mailboxes import _encoded

__all__ = ["GROUP", "KeySpace", "ShardKeys"]

GROUP: Final = "workers"
"""The consumer group of every ready stream."""


class ShardKeys:
    """The names of one shard's keys."""

    __slots__ = (
        "_bulk",
        "_lasts",
        "active",
        "commands",
        "dead",
        "delayed",
        "dispatches",
        "due",
        "events",
        "fence",
        "inboxes",
        "interrupts",
        "later",
        "mailboxes",
        "marks",
        "meta",
        "parked",
        "paused",
        "prefix",
        "ready",
        "stats",
        "watched",
        "workers",
    )

    def __init__(self, namespace: str, shard: int) -> None:
        self.prefix = prefix = f"{{{namespace}:{shard}}}:"
        self.meta = prefix + "meta"
        self.ready = prefix + "ready"
        self.active = prefix + "active"
        self.fence = prefix + "fence"
        self.stats = prefix + "stats"
        self.due = prefix + "due"
        self.delayed = prefix + "delayed"
        self.later = prefix + "later"
        self.paused = prefix + "paused"
        self.parked = prefix + "parked"
        self.dead = prefix + "dead"
        self.workers = prefix + "workers"
        self.interrupts = prefix + "interrupts"
        self.watched = prefix + "watched"
        self.events = prefix + "events"
        self.commands = prefix + "commands"
        self.dispatches = prefix + "dispatches"
        self.mailboxes = prefix + "m:"
        self.marks = prefix + "k:"
        self.inboxes = prefix + "in:"
        self._lasts = prefix + "p:"
        self._bulk = prefix + "b:"

    def mailbox(self, name: str) -> str:
        """The stream of a mailbox."""
        return self.mailboxes + name

    def mark(self, command_id: str) -> str:
        """The dedup mark of a command id, which becomes its stored reply."""
        return self.marks + command_id

    def last(self, producer: str) -> str:
        """How a producer's last batch was answered."""
        return self._lasts + producer

    def inbox(self, process: str) -> str:
        """The list that the replies for one process are pushed to."""
        return self.inboxes + process

    def dispatch(self, dispatch_id: str) -> str:
        """The record of a dispatch."""
        return self._bulk + _encoded(dispatch_id)

    def ids(self, dispatch_id: str) -> str:
        """The command ids that an open dispatch has accepted."""
        return self._bulk + _encoded(dispatch_id) + ":ids"

    def sequences(self, dispatch_id: str) -> str:
        """The last sequence number of each entity, for dispatches whose rows have one."""
        return self._bulk + _encoded(dispatch_id) + ":seq"

    def homes(self, dispatch_id: str) -> str:
        """Which task writes each entity's commands, while the dispatch is open."""
        return self._bulk + _encoded(dispatch_id) + ":home"

    def fingerprints(self, dispatch_id: str) -> str:
        """Of what rows each version was made."""
        return self._bulk + _encoded(dispatch_id) + ":rows"

    def outcomes(self, dispatch_id: str) -> str:
        """The stream of what became of a dispatch's commands."""
        return self._bulk + _encoded(dispatch_id) + ":out"

    def keeping(self, dispatch_id: str | None, otherwise: str) -> tuple[str, str]:
        """Return record and outcomes of the dispatch that keeps an outcome; without one `otherwise` twice, which a script leaves alone."""
        return (otherwise, otherwise) if dispatch_id is None else (self.dispatch(dispatch_id), self.outcomes(dispatch_id))

    def rejects(self, dispatch_id: str) -> str:
        """The rows of a dispatch that are no commands."""
        return self._bulk + _encoded(dispatch_id) + ":bad"


class KeySpace:
    """All shards of a namespace."""

    __slots__ = ("count", "namespace", "shards")

    def __init__(self, namespace: str, shards: int) -> None:
        self.namespace = namespace
        self.count = shards
        self.shards = tuple(ShardKeys(namespace, shard) for shard in range(shards))

    def shard_of(self, mailbox: str) -> int:
        """The shard of a mailbox: a stable hash of its name."""
        return 0 if self.count == 1 else crc32(mailbox.encode()) % self.count
