"""The one owner of key names.

All keys of a shard share the hash tag `{namespace:shard}`, so that one script may touch them on Redis Cluster. An entity's id is
percent-encoded before it becomes part of a key: a `}` in an id would move its keys to another slot, and a newline or NUL would make
them unreadable. The encoded name `type:id` (or `type/lane`) is the *mailbox* name; it decides the shard.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final
from urllib.parse import quote, unquote
from zlib import crc32

from command_bus.messages.policies import Lanes, Mailbox, PerEntity
from command_bus.serialization.text import printable

__all__ = [
    "EVERYTHING",
    "GROUP",
    "KeySpace",
    "ShardKeys",
    "free_mailbox",
    "is_mailbox",
    "mailbox_label",
    "mailbox_name",
    "mailbox_parts",
    "scope_label",
    "scope_of",
    "stands_in",
    "type_of",
    "type_scope",
]

GROUP: Final = "workers"
"""The consumer group of every ready stream."""

EVERYTHING: Final = "*"
"""The scope of all mailboxes, in the hash of what is paused. No mailbox and no entity type has a `*` in its name."""

_PLAIN = re.compile(r"[A-Za-z0-9_.@-]+")
_TYPE = re.compile(r"[:/]")
_LONG = 512
_FREE: Final = "~:"
_HASHED: Final = "~"


def mailbox_name(entity_type: str, entity_id: str, policy: Mailbox) -> str:
    """The mailbox of an entity: `type:encoded-id`, or `type/lane` where entities share lanes.

    Ids over 512 bytes are replaced by `~` and their SHA-256; the full id travels in the envelope.
    """
    if isinstance(policy, Lanes):
        return f"{entity_type}/{crc32(entity_id.encode()) % policy.count}"
    if len(entity_id) < _LONG and _PLAIN.fullmatch(entity_id):
        return f"{entity_type}:{entity_id}"
    return f"{entity_type}:{_encoded(entity_id)}"


def _encoded(entity_id: str) -> str:
    raw = entity_id.encode()
    if len(raw) > _LONG:
        return _HASHED + sha256(raw).hexdigest()
    return quote(raw, safe="@").replace("~", "%7E")


def free_mailbox(command_id: str) -> str:
    """The mailbox of a command without an entity: its own, so that it waits for nobody."""
    return _FREE + _encoded(command_id)


def type_scope(entity_type: str | None) -> str:
    """The scope of all mailboxes of an entity type, or (None) of all commands without an entity."""
    return f"{_FREE[0] if entity_type is None else entity_type}:{EVERYTHING}"


def scope_of(mailbox: str) -> str:
    """The scope of all mailboxes of a mailbox's type."""
    return f"{_TYPE.split(mailbox, maxsplit=1)[0]}:{EVERYTHING}"


def is_mailbox(field: bytes) -> bool:
    """Whether a field can be a mailbox's name. What is no text is nobody's, whoever wrote it: it is passed over."""
    try:
        field.decode()
    except UnicodeDecodeError:
        return False
    return True


def mailbox_label(mailbox: str) -> str:
    """The mailbox for people: `account:a-17`, `order (lane 3)`, `(no entity) id`; what cannot be printed is escaped."""
    if mailbox.startswith(_FREE):
        return printable(f"(no entity) {unquote(mailbox[len(_FREE) :])}")
    kind, colon, rest = mailbox.partition(":")
    if not colon:
        kind, _, lane = mailbox.partition("/")
        return printable(f"{kind} (lane {lane})")
    return printable(f"{kind}:{unquote(rest)}")


def scope_label(scope: str) -> str:
    """A scope for people: a mailbox's label, `all account`, or `everything`."""
    if scope == EVERYTHING:
        return "everything"
    kind, colon, rest = scope.partition(":")
    if not colon or rest != EVERYTHING:
        return mailbox_label(scope)
    return "all without entity" if kind == _FREE[0] else printable(f"all {kind}")


def mailbox_parts(mailbox: str) -> tuple[str | None, str | None]:
    """Entity type and id as far as the name tells them: a lane holds many entities, and a long id is only a digest here."""
    if mailbox.startswith(_FREE):
        return None, None
    kind, colon, rest = mailbox.partition(":")
    if not colon:
        return mailbox.partition("/")[0], None
    return kind, None if rest.startswith(_HASHED) else unquote(rest)


def stands_in(mailbox: str, entity_type: str | None, entity_id: str | None, command_id: str, policy: Mailbox | None) -> bool:
    """Whether this is the one mailbox of that entity, under the policy of its type; None is that of a type without one, `per_entity()`."""
    if entity_type is None or entity_id is None:
        return mailbox == free_mailbox(command_id)
    return mailbox == mailbox_name(entity_type, entity_id, policy or PerEntity())


def type_of(mailbox: str) -> str | None:
    """The entity type of a mailbox's entities; None for the mailbox of a command without an entity."""
    return None if mailbox.startswith(_FREE) else _TYPE.split(mailbox, maxsplit=1)[0]


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
