"""Comparison of two descriptions of the commands: what one side sends and the other side does not read.

| compares | who sends | who reads |
| --- | --- | --- |
| backward | old senders, and what waits: in line, delayed, as letters and in schedules | new workers |
| forward | new senders | old workers |
| replies | new workers | old callers |

The rules see shapes: `unread` looks for values that fit one schema and not the other. Where they allow a change, or where an upcaster has a say,
the values that the old class has sent go through the upcasters and the wire validator of the new class.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from command_bus.cli.schemas.document import STATE, Described
from command_bus.cli.schemas.unread import Gap, unread
from command_bus.errors import CommandBusError
from command_bus.messages.message import canonical_entity_id
from command_bus.messages.upcasting import check_upcasters, upcast
from command_bus.serialization.announcements import CommandInfo
from command_bus.serialization.models import codec_for, problems_of
from command_bus.serialization.msgpack import pack, unpack

FITS: Final = "fits"
WORKERS_FIRST: Final = "workers first"
BREAKS: Final = "breaks"
CANNOT_TELL: Final = "cannot tell"
VERDICTS: Final = (FITS, WORKERS_FIRST, CANNOT_TELL, BREAKS)
"""From the best to the worst."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a command.

    Attributes:
        command: Its wire name.
        field: Path of the field, with `reply` before that of a reply; empty for the command as a whole.
        verdict: One of `VERDICTS`.
        compares: `backward`, `forward` or `replies`, or empty for what concerns no value.
        text: What has changed, and what follows.
    """

    command: str
    field: str
    verdict: str
    compares: str
    text: str

    @property
    def place(self) -> str:
        """The name by which the change can be accepted."""
        return f"{self.command}.{self.field}" if self.field else self.command


_GONE: Final = "it is gone"
_IDENTITY: Final = (
    ("kind", "it was a {}, now it is a {}"),
    ("entity", "entities of type {}, now {}: what waits stands in other lines"),
    ("key", "the field of the entity was {}, now {}"),
    ("also", "further entities {}, now {}: it stands in other lines"),
    ("across_shards", "across shards: {}, now {}: another order in its lines"),
    ("durable", "durable: {}, now {}: what has begun has another record"),
)


def changes(old: Mapping[str, Described], new: Mapping[str, Described]) -> list[Change]:
    """Return all changes, by command."""
    added = [name for name in new if name not in old]
    found: list[Change] = []
    for name in sorted({*old, *new}):
        if name.startswith(f"{STATE}@") and not (name in old and name in new):
            found.append(Change(name, "", FITS, "", f"it {'is new' if name in new else 'is gone: what is stored stays'}"))
        elif name not in new:
            found.append(Change(name, "", BREAKS, "backward", _gone(name, old[name], {each: new[each] for each in added})))
        elif name not in old:
            info = new[name].info
            is_event = info is not None and info.kind == "event"
            found.append(Change(name, "", FITS if is_event else WORKERS_FIRST, "" if is_event else "forward", "it is new"))
        else:
            found += _changes(name, old[name], new[name])
    return found


def worst(found: Sequence[Change]) -> str:
    """Return the worst verdict."""
    return max((each.verdict for each in found), key=VERDICTS.index, default=FITS)


def accepted(found: Sequence[Change], removed: Collection[str], places: Collection[str]) -> tuple[list[Change], list[str]]:
    """Return the changes, worst first, with those that were accepted as such; and what was accepted and is not among them."""
    told: list[Change] = []
    used: set[str] = set()
    for each in found:
        is_gone = each.verdict == BREAKS and not each.field
        may_be = each.text.startswith(_GONE) if is_gone else each.verdict in (BREAKS, CANNOT_TELL)
        if may_be and each.place in (removed if is_gone else places):
            used.add(each.place)
            each = replace(each, verdict=FITS, text=f"accepted: {each.text}")  # noqa: PLW2901
        told.append(each)
    told.sort(key=lambda each: VERDICTS.index(each.verdict), reverse=True)
    return told, sorted({*removed, *places} - used)


def _gone(name: str, old: Described, added: Mapping[str, Described]) -> str:
    alike = [name for name, each in added.items() if old.info and each.info and _shape(old.info) == _shape(each.info)]
    return f'{_GONE}, or was renamed to {alike[0]}: name="{name}" in its class keeps the wire name' if alike else _GONE


def _shape(info: CommandInfo) -> tuple[Any, ...]:
    return info.entity, info.key, info.schema.get("properties"), info.schema.get("required")


def _changes(name: str, old: Described, new: Described) -> Iterator[Change]:
    if old.mailbox and new.mailbox and old.mailbox != new.mailbox:
        yield Change(name, "", BREAKS, "", f"mailboxes {old.mailbox}, now {new.mailbox}: drain the type first")
    if old.info is None or new.info is None:
        yield Change(name, "", CANNOT_TELL, "", "JSON Schema cannot describe its fields")
        return
    before, after = old.info, new.info
    for attribute, text in _IDENTITY:
        if (was := getattr(before, attribute)) != (now := getattr(after, attribute)):
            yield Change(name, "", BREAKS, "", text.format(_said(was), _said(now)))
    yield from _fields(name, old, new, before, after)
    yield from _reply(name, before.reply, after.reply)
    for policy in sorted({*before.policy, *after.policy}):
        if (was := before.policy.get(policy)) != (now := after.policy.get(policy)):
            yield Change(name, "", FITS, "", f"{policy} was {_said(was)}, now {_said(now)}: its behaviour changes")
    if before.delivery != after.delivery:
        yield Change(name, "", FITS, "", f"delivery was {before.delivery}, now {after.delivery}: its behaviour changes")


def _fields(name: str, old: Described, new: Described, before: CommandInfo, after: CommandInfo) -> Iterator[Change]:
    if after.version < before.version:
        yield Change(name, "", BREAKS, "backward", f"version {before.version} fell to {after.version}: what was sent is not read")
        return
    verdict = FITS if after.kind == STATE else WORKERS_FIRST
    if after.version > before.version:
        text = f"version {before.version} rose to {after.version}: old workers leave to new ones what has it"
        yield Change(name, "", verdict, "forward", text)
        yield from _tried(name, old, new, before, is_upcast=True)
        return
    if new.takes_state and not old.takes_state:
        yield Change(
            name, "", BREAKS, "forward", "its handler takes the state now, and old workers run it without: raise version="
        )
    gaps = [
        Change(name, gap.path, BREAKS if gap.is_certain else CANNOT_TELL, "backward", gap.text)
        for gap in unread(before.schema, after.schema)
    ]
    yield from _renamed(gaps, before, after)
    yield from _tried(name, old, new, before, is_upcast=False) if not gaps else ()
    known = {each.field for each in gaps}
    for gap in unread(after.schema, before.schema):
        if gap.path not in known:
            yield Change(name, gap.path, verdict, "forward", f"old workers do not read it: {gap.text}")


def _renamed(gaps: list[Change], before: CommandInfo, after: CommandInfo) -> Iterator[Change]:
    """Yield the changes, with a word on a field that is gone while another of the same schema has come."""
    was, now = (each.schema.get("properties", {}) for each in (before, after))
    for each in gaps:
        alike = [
            field
            for field in now
            if each.field in was and each.field not in now and field not in was and _same(was[each.field], now[field])
        ]
        hint = f"; if it is {alike[0]} now: raise version= and write @upcasts" if alike else ""
        yield Change(each.command, each.field, each.verdict, each.compares, each.text + hint)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return {**one, "title": 0} == {**other, "title": 0}


def _reply(name: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Iterator[Change]:
    if before is None or after is None:
        if before is not after:
            yield Change(name, "reply", CANNOT_TELL, "replies", "JSON Schema cannot describe its reply")
        return
    gaps: list[Gap] = unread(after, before)
    for gap in gaps:
        verdict = BREAKS if gap.is_certain else CANNOT_TELL
        yield Change(name, f"reply.{gap.path}".rstrip("."), verdict, "replies", f"old callers do not read it: {gap.text}")


def _tried(name: str, old: Described, new: Described, before: CommandInfo, *, is_upcast: bool) -> Iterator[Change]:
    """Yield which values that the old class has sent the new class refuses."""
    kind = new.kind
    if kind is None:
        return
    try:
        check_upcasters(kind)
    except CommandBusError as error:
        yield Change(name, "", BREAKS, "backward", error.message)
        return
    if not old.example:
        text = "there is no value of the old class to try the upcasters with: give Field(examples=…)"
        yield from [Change(name, "", CANNOT_TELL, "backward", text)] if is_upcast else ()
        return
    told: set[str] = set()
    tries = [("", {}), *((field, {field: value}) for field, several in old.values.items() for value in several)]
    for field, value in tries:
        if field not in told and (refused := _refused({**old.example, **value}, new, before)):
            told.add(field)
            yield Change(name, field or refused[0], BREAKS, "backward", f"what was sent is refused: {refused[1]}")
        if "" in told:  # all else has what is refused in it
            return


def _refused(fields: Mapping[str, Any], new: Described, before: CommandInfo) -> tuple[str, str] | None:
    """Return which field of an old version the new class refuses, if one, and why; None if it takes them."""
    kind: Any = new.kind
    try:
        message = codec_for(kind).validated(upcast(kind, unpack(pack(dict(fields))), before.version))
        ids = [canonical_entity_id(fields[each]) for each in (before.key, *(field for _, field in before.also)) if each]
        keys = [] if new.info is None else [each for each in (new.info.key, *(field for _, field in new.info.also)) if each]
        moved = [key for key, was in zip(keys, ids, strict=False) if canonical_entity_id(getattr(message, key)) != was]
    except ValidationError as error:
        places = [each["loc"] for each in error.errors(include_url=False, include_input=False)]
        return str(places[0][0]) if places and places[0] and before.version == kind.spec().version else "", problems_of(error)
    except (CommandBusError, LookupError) as error:
        return "", str(error)
    return (moved[0], "an upcaster changed it, the id of an entity") if moved else None


def _said(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(f"{each[0]} by {each[1]}" if isinstance(each, tuple) else str(each) for each in value) or "none"
    return "none" if value is None else ("yes" if value else "no") if isinstance(value, bool) else str(value)
