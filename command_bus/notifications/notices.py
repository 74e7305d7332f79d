"""`Notice`: a message to others, and its bytes: a small JSON object, so that a browser or a program in another language can read it."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast, get_args

from command_bus.errors import InvalidSettings
from command_bus.spelling import shown

NoticeKind = Literal["work", "settled", "lease_lost", "published"]
"""`work`: a type has new work. `settled`: a command was settled. `lease_lost`: a worker lost an entity while a handler ran. `published`: an event
was published."""

ALL_TYPES: Final = "*"
"""Stands for every entity type in a topic. No entity type has a `*` in its name."""

_KINDS: Final = get_args(NoticeKind)
_MOST_BYTES: Final = 16_384
_MOST_COMMANDS: Final = 1_000_000_000
_TEXTS: Final = ("entity_id", "command_id", "name", "status", "worker")


class Topic(NamedTuple):
    """A subject that can be listened to.

    Attributes:
        kind: What its notices tell.
        entity_type: Type of what they are about; None is what has no entity, `*` all.
    """

    kind: NoticeKind
    entity_type: str | None


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to others.

    Attributes:
        kind: What.
        entity_type: Type of the entity; None without one.
        entity_id: Id of the entity (of all but `work`); None without one, or where it is not known.
        command_id: Id of the command or event; empty where it is not known.
        name: Its wire name; empty where it is not known.
        status: `completed`, `rejected`, `expired`, `cancelled`, `dead_lettered` or `parked` (`settled`); else empty.
        worker: That tells it (`lease_lost`); else empty.
        commands: How many new commands (`work`); else 0.
        missed: Whether it tells only that others of its topic may have been missed (`published`): forget what you know by them.
    """

    kind: NoticeKind
    entity_type: str | None
    entity_id: str | None = None
    command_id: str = ""
    name: str = ""
    status: str = ""
    worker: str = ""
    commands: int = 0
    missed: bool = False


def checked_kinds(kinds: Collection[str]) -> frozenset[NoticeKind]:
    """Return kinds of notices as a set.

    Raises:
        InvalidSettings: One is none, or there is none at all.
    """
    wanted = {kinds} if isinstance(kinds, str) else set(kinds)
    unknown = sorted(map(str, wanted - set(_KINDS)))
    if not wanted or unknown:
        named = ", ".join(unknown) or "none is named"
        raise InvalidSettings(f"kinds of notices: {named}: give some of {', '.join(_KINDS)}")
    return cast("frozenset[NoticeKind]", frozenset(wanted))


def checked_names(settled: Collection[str] | None, kinds: frozenset[NoticeKind]) -> frozenset[str] | None:
    """Return the wire names whose end the notice `settled` reports; None is all.

    Raises:
        InvalidSettings: One is none, there is none at all, or `settled` is not told.
    """
    if settled is None:
        return None
    names = {settled} if isinstance(settled, str) else set(settled)
    if not names or not all(isinstance(each, str) and each for each in names):
        raise InvalidSettings(
            f"settled: {shown(settled)}: give wire names of commands, as {{'command_bus.Chain'}}, or leave it out for all"
        )
    if "settled" not in kinds:
        raise InvalidSettings("settled: the kind 'settled' is not told: name it in kinds, too")
    return frozenset(names)


def pack_notice(notice: Notice) -> bytes:
    """Return the bytes of a notice: JSON without what is empty."""
    fields: dict[str, Any] = {"kind": notice.kind, "entity_type": notice.entity_type}
    for name in (*_TEXTS, "commands"):
        if value := getattr(notice, name):
            fields[name] = value
    return json.dumps(fields, separators=(",", ":")).encode()


def unpack_notice(data: bytes) -> Notice | None:
    """Return the notice that these bytes are; None if they are none. All who may publish may have written them."""
    if len(data) > _MOST_BYTES:
        return None
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    kind, entity_type, commands = fields.get("kind"), fields.get("entity_type"), fields.get("commands", 0)
    texts = {name: fields[name] for name in _TEXTS if name in fields}
    if kind not in _KINDS or not (entity_type is None or isinstance(entity_type, str)):
        return None
    if (
        type(commands) is not int
        or not 0 <= commands <= _MOST_COMMANDS
        or not all(isinstance(each, str) for each in texts.values())
    ):
        return None
    return Notice(cast("NoticeKind", kind), entity_type, commands=commands, **texts)
