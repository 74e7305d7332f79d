"""Mailbox names: the names of entities, lanes and scopes. An id is percent-encoded, so that any text can be part of a key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Final
from urllib.parse import quote, unquote
from zlib import crc32

from command_bus.messages.policies import OF_SUBSCRIPTION, Lanes, MailboxPolicy, PerEntity
from command_bus.serialization.limits import printable

EVERYTHING: Final = "*"
"""The scope of all mailboxes, in the hash of what is paused. No mailbox and no entity type has a `*` in its name."""

SCHEDULES: Final = "@schedules"
"""The name of all schedules where events name an entity type. No entity type has an `@` in its name."""

_PLAIN = re.compile(r"[A-Za-z0-9_.@-]+")
is_plain_id = re.compile(r"[A-Za-z0-9_.@-]{1,511}").fullmatch
"""Matches an id that stands in a key as it is."""


def message_order(message: str) -> tuple[int, int]:
    """Return what orders ids of commands in a mailbox; (0, 0) of what is no id."""
    ms, _, count = message.partition("-")
    return (int(ms), int(count)) if ms.isdecimal() and count.isdecimal() else (0, 0)


_TYPE = re.compile(r"[:/]")


_LONG = 512


_FREE: Final = "~:"


_HASHED: Final = "~"
_APART: Final = ","


def mailbox_name(entity_type: str, entity_id: str, policy: MailboxPolicy) -> str:
    """Return the mailbox of an entity: `type:encoded-id`, or `type/lane` where entities share lanes.

    With `shard_by`, a comma stands behind the part of the id that decides the shard; there is none in an encoded id.

    Ids over 512 bytes are replaced by `~` and their SHA-256; the full id travels in the envelope.
    """
    if isinstance(policy, Lanes):
        return f"{entity_type}/{crc32(entity_id.encode()) % policy.count}"
    if policy.shard_by is not None:
        head, separator, rest = entity_id.partition(policy.shard_by)
        return f"{entity_type}:{encoded(head)}{_APART}{encoded(separator + rest)}"
    if len(entity_id) < _LONG and _PLAIN.fullmatch(entity_id):
        return f"{entity_type}:{entity_id}"
    return f"{entity_type}:{encoded(entity_id)}"


def encoded(entity_id: str) -> str:
    """Return an id as a part of a key: percent-encoded, or its SHA-256 if it is over 512 bytes."""
    raw = entity_id.encode()
    if len(raw) > _LONG:
        return _HASHED + sha256(raw).hexdigest()
    return quote(raw, safe="@").replace("~", "%7E")


def free_mailbox(command_id: str) -> str:
    """Return the mailbox of a command without an entity: its own, so that it waits for no other command."""
    return _FREE + encoded(command_id)


def type_scope(entity_type: str | None) -> str:
    """Return the scope of all mailboxes of an entity type, or (None) of all commands without an entity."""
    return f"{_FREE[0] if entity_type is None else entity_type}:{EVERYTHING}"


def subscription_scope(subscription: str) -> str:
    """Return the scope of all deliveries of a subscription."""
    return f"{OF_SUBSCRIPTION}{subscription}:{EVERYTHING}"


def scopes_of(mailbox: str) -> tuple[str, ...]:
    """Return the scopes that a mailbox is in, the narrowest first: its own, that of its type, of its subscription, of all."""
    kind = _TYPE.split(mailbox, maxsplit=1)[0]
    _, at, subscription = kind.partition(OF_SUBSCRIPTION)
    wider = (subscription_scope(subscription),) if at else ()
    return (mailbox, f"{kind}:{EVERYTHING}", *wider, EVERYTHING)


def shard_key(mailbox: str) -> str:
    """Return the part of a mailbox's name that decides its shard: what `shard_by` sets apart, if anything does.

    The subscription does not, so that all deliveries of an event are on one.
    """
    if _APART in mailbox:
        return mailbox[: mailbox.index(_APART)].partition(":")[2]
    if OF_SUBSCRIPTION not in mailbox or (end := _TYPE.search(mailbox)) is None:
        return mailbox
    return mailbox[: end.start()].partition(OF_SUBSCRIPTION)[0] + mailbox[end.start() :]


def shard_of(mailbox: str, shards: int) -> int:
    """Return the shard of a mailbox among so many: a stable hash of its name."""
    return 0 if shards == 1 else crc32(shard_key(mailbox).encode()) % shards


def is_mailbox(field: bytes) -> bool:
    """Return whether a field can be a mailbox's name. A field that is no text is ignored, whichever program wrote it."""
    try:
        field.decode()
    except UnicodeDecodeError:
        return False
    return True


def mailbox_label(mailbox: str) -> str:
    """Return the mailbox for people: `account:a-17`, `order (lane 3)`, `(no entity) id`; escape what cannot be printed."""
    if mailbox.startswith(_FREE):
        return printable(f"(no entity) {unquote(mailbox[len(_FREE) :])}")
    kind, colon, rest = mailbox.partition(":")
    if not colon:
        kind, _, lane = mailbox.partition("/")
        return printable(f"{kind} (lane {lane})")
    return printable(f"{kind}:{unquote(rest.replace(_APART, ''))}")


def scope_label(scope: str) -> str:
    """Return a scope for people: a mailbox's label, `all account`, or `everything`."""
    if scope == EVERYTHING:
        return "everything"
    if schedule := schedule_in(scope):
        return printable(f"schedule {schedule}")
    kind, colon, rest = scope.partition(":")
    if not colon or rest != EVERYTHING:
        return mailbox_label(scope)
    if kind.startswith(OF_SUBSCRIPTION):
        return printable(f"subscription {kind[1:]}")
    return "all without entity" if kind == _FREE[0] else printable(f"all {kind}")


def schedule_in(scope: str) -> str:
    """Return the name of the schedule that an event is about; empty if it is about none."""
    kind, _, name = scope.partition(":")
    return name if kind == SCHEDULES else ""


def mailbox_parts(mailbox: str) -> tuple[str | None, str | None]:
    """Return entity type and id, as far as the name has them: a lane holds many entities, and a long id is only a digest here."""
    if mailbox.startswith(_FREE):
        return None, None
    kind, colon, rest = mailbox.partition(":")
    if not colon:
        return mailbox.partition("/")[0], None
    return kind, None if _HASHED in rest else unquote(rest.replace(_APART, ""))


def stands_in(
    mailbox: str, entity_type: str | None, entity_id: str | None, command_id: str, policy: MailboxPolicy | None
) -> bool:
    """Return whether this is the one mailbox of that entity, under the policy of its type; None is that of a type without one, `per_entity()`."""
    if entity_type is None or entity_id is None:
        return mailbox == free_mailbox(command_id)
    return mailbox == mailbox_name(entity_type, entity_id, policy or PerEntity())


def type_of(mailbox: str) -> str | None:
    """Return the entity type of a mailbox's entities; None for the mailbox of a command without an entity."""
    return None if mailbox.startswith(_FREE) else _TYPE.split(mailbox, maxsplit=1)[0]


def is_wide(scope: str) -> bool:
    """Return whether a scope is more than one mailbox."""
    return scope.endswith(EVERYTHING)


_MARK = b"\xc1"
_MOST = 32
"""Fields of an entry that are kept: no release writes more, and the scripts unpack them at once."""
_FIELD = re.compile(rb"([^:]+):(\d{1,10}):")


def pack_entry(fields: Sequence[bytes]) -> bytes:
    """Return the text of an entry; `fields` are names and values by turns. What no release writes is left out."""
    pairs = [(name, value) for name, value in zip(fields[::2], fields[1::2], strict=True) if name and b":" not in name]
    if len(pairs) > _MOST:
        pairs = [pair for pair in pairs if pair[0] == b"e"][:1]
    if len(pairs) == 1 and pairs[0][0] == b"e" and not pairs[0][1].startswith(_MARK):
        return pairs[0][1]
    return _MARK + b"".join(b"%b:%d:%b" % (name, len(value), value) for name, value in pairs)


def unpack_entry(text: bytes) -> list[tuple[bytes, bytes]]:
    """Return the fields of an entry. A text that is none of ours is an envelope."""
    if not text.startswith(_MARK):
        return [(b"e", text)]
    fields: list[tuple[bytes, bytes]] = []
    at = len(_MARK)
    while at < len(text):
        found = _FIELD.match(text, at)
        if found is None or len(fields) == _MOST or found.end() + int(found[2]) > len(text):
            return [(b"e", text)]
        at = found.end() + int(found[2])
        fields.append((found[1], text[found.end() : at]))
    return fields or [(b"e", text)]


def envelope_in(text: bytes) -> bytes:
    """Return the envelope of an entry; empty if it has none."""
    return dict(reversed(unpack_entry(text))).get(b"e", b"")
