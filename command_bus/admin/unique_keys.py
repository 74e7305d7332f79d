"""Unique keys as views show them, and pages of those of a whole namespace."""

from __future__ import annotations

from collections.abc import Sequence

from command_bus.admin.info import UniqueKeyInfo
from command_bus.transport.mailboxes import mailbox_parts, type_of
from command_bus.transport.ports.operator import OperatorSide
from command_bus.transport.unique_keys import StoredKey, mailbox_of_key


def key_info(stored: StoredKey, entity_type: str, entity_id: str | None) -> UniqueKeyInfo:
    """Return the public form of a key of an entity; `stored` has it as the application gave it."""
    key, stander, state = stored
    return UniqueKeyInfo(
        key, state, stander.command_id, stander.name, stander.window_ms or None, stander.most_ms or None, entity_type, entity_id
    )


def stored_info(stored: StoredKey) -> UniqueKeyInfo:
    """Return the public form of a key under the name under which it is stored: type, perhaps a lane, encoded entity id, key."""
    kind, entity, key = stored.key.split(":", 2)
    entity_type = type_of(mailbox_of_key(stored.key)) or ""
    return key_info(stored._replace(key=key), entity_type, mailbox_parts(f"{kind}:{entity}")[1])


async def keys_behind(
    operator: OperatorSide, shards: int, scope: str, after: str, limit: int, scan: int
) -> tuple[Sequence[StoredKey], bool]:
    """Return the first held keys of a namespace behind one, at most so many, and whether all keys were looked at."""
    found: list[StoredKey] = []
    complete = True
    for shard in range(shards):
        page, whole = await operator.mailboxes.held_keys(shard, scope, after, limit, -(-scan // shards))
        found += page
        complete = complete and whole
    return sorted(found, key=lambda each: each.key)[:limit], complete
