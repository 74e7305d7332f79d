"""A search for entities by a part of their names, a bounded part of them at a time."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from command_bus.admin.info import EntityInfo
from command_bus.errors import InvalidSettings
from command_bus.messages.message import check_entity_type
from command_bus.session import Session
from command_bus.transport.mailboxes import encoded, mailbox_parts

_STEPS = (200, 2_000, 20_000)
"""Entities that the requests of a page look at: a search that finds much ends with the first."""
_TOGETHER = 16
"""Shards that are asked at a time."""
_CURSOR = re.compile(r"(\d{1,4})\.(\d{1,20})\.(\d{1,6})")
_SPECIAL = re.compile(r"([*?\[\]\\^-])")


@dataclass(frozen=True, slots=True)
class FoundEntities:
    """A page of a search.

    Attributes:
        entities: In no order.
        cursor: The place where the next page begins; None if everything was looked at.
        looked: About how many entities this page has looked at.
    """

    entities: tuple[EntityInfo, ...]
    cursor: str | None
    looked: int


async def find_entities(
    session: Session, text: str, entity_type: str | None, limit: int, cursor: str | None
) -> tuple[list[str], str | None, int]:
    """Return the mailboxes of a page, the cursor of the next one, and how many were looked at.

    Raises:
        InvalidCommand: It is no entity type.
        InvalidSettings: The cursor is none, or the limit is below 1.
    """
    if limit < 1:
        raise InvalidSettings("limit: at least 1")
    shard, at, passed = _place(cursor, session.transport.shards)
    views, pattern, wanted = session.transport.operator.views, _pattern(text, entity_type), _id_part(text, entity_type)
    names: list[str] = []
    looked = 0
    for count in _STEPS:
        several = range(shard, min(shard + _TOGETHER, session.transport.shards)) if count == _STEPS[0] else (shard,)
        starts = [at if each == shard else 0 for each in several]
        for found in await asyncio.gather(*(views.find(*place, pattern, count) for place in zip(several, starts, strict=True))):
            looked += found.looked
            fresh = [name for name in found.names if _matches(name, wanted)][passed:]
            taken = fresh[: limit - len(names)]
            names += taken
            if len(taken) < len(fresh):
                return names, f"{shard}.{at}.{passed + len(taken)}", looked
            shard, at, passed = (shard, found.cursor, 0) if found.cursor else (shard + 1, 0, 0)
            if at:  # the rest of this shard comes first
                break
        if shard == session.transport.shards:
            return names, None, looked
        if len(names) == limit:
            break
    return names, f"{shard}.{at}.0", looked


def _pattern(text: str, entity_type: str | None) -> str:
    """Return the glob of the mailboxes that match: ids stand percent-encoded in them."""
    kind, colon, rest = text.partition(":")
    if entity_type is not None:
        return f"{check_entity_type(entity_type)}[:/]*{_glob(text)}*"
    if colon and _is_type(kind):
        return f"{kind}:*{_glob(rest)}*"
    return f"*{_glob(text)}*" if text else "*"


def _id_part(text: str, entity_type: str | None) -> str:
    """Return what an id has to contain."""
    kind, colon, rest = text.partition(":")
    return rest if entity_type is None and colon and _is_type(kind) else text


def _matches(mailbox: str, wanted: str) -> bool:
    """Return whether an id contains a text, and not only its form in the mailbox's name; a lane or a long id counts."""
    kind, entity_id = mailbox_parts(mailbox)
    return entity_id is None or wanted in entity_id or wanted in f"{kind}:{entity_id}"


def _is_type(text: str) -> bool:
    try:
        check_entity_type(text)
    except Exception:  # noqa: BLE001 - whatever is wrong with it
        return False
    return True


def _glob(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", encoded(text)) if text else ""


def _place(cursor: str | None, shards: int) -> tuple[int, int, int]:
    """Return shard, cursor in it, and how many of what is found there were shown.

    Raises:
        InvalidSettings: The cursor is none.
    """
    if cursor is None:
        return 0, 0, 0
    found = _CURSOR.fullmatch(cursor)
    if found is None or int(found[1]) >= shards:
        raise InvalidSettings(f"cursor={cursor!r}: not the cursor of a page of this search")
    return int(found[1]), int(found[2]), int(found[3])
