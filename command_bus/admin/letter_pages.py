"""Dead letters of all shards, newest first, a bounded part of them at a time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from command_bus.admin.info import DeadLetter
from command_bus.errors import InvalidCommand, InvalidSettings
from command_bus.messages.message import Message, canonical_entity_id, other_entities
from command_bus.messages.outgoing import Across, OutgoingMessage
from command_bus.messages.policies import parts_of_delivery
from command_bus.sending.admission import receipt
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.serialization.announcements import CommandInfo, read_description
from command_bus.serialization.envelope import AT_MOST_ONCE, ENCRYPTED, WireEnvelope, pack_envelope
from command_bus.serialization.envelope_options import ACROSS, GIVEN, HISTORY, OTHERS, PRIORITY, VERSION
from command_bus.serialization.json_fields import JsonFields
from command_bus.serialization.limits import PayloadLimits
from command_bus.serialization.models import codec_for
from command_bus.serialization.msgpack import pack
from command_bus.session import Session, shard_of
from command_bus.stream_ids import stream_id
from command_bus.transport.ports.operator import Views
from command_bus.transport.records import StoredDeadLetter

_CURSOR = re.compile(r"(\d{1,19})-(\d{1,19})-(\d{1,4})")
_SIZES = (64, 128, 256)
"""Letters of each shard that the requests of a page ask for. One may have many megabytes: a larger answer is not asked for at first."""
_LARGE = 8 << 20
"""Bytes of letters after which a page asks for no more, and ends."""

Place = tuple[int, int, int]
"""The place of a letter, or of an end in the history, among those of all shards: its ms, its number in that, its shard."""


@dataclass(slots=True)
class LetterPart:
    """The findings of a page.

    Attributes:
        found: The letters that are wanted.
        cursor: The place where the next page begins, or None.
        looked: Letters that were looked at.
        size: Bytes of what was found.
        oldest_ms: The time of the oldest of those.
    """

    found: list[DeadLetter] = field(default_factory=list)
    cursor: str | None = None
    looked: int = 0
    size: int = 0
    oldest_ms: int | None = None


class _Shard:
    """One shard, as far as it has been read."""

    __slots__ = ("before", "is_done", "letters")

    def __init__(self, before: str) -> None:
        self.before = before
        self.is_done = False
        self.letters: list[_Letter] = []


class _Letter(NamedTuple):
    place: Place
    stored: StoredDeadLetter


async def newest_letters(
    views: Views, shards: int, cursor: str | None, limit: int, read: Callable[[StoredDeadLetter], DeadLetter | None]
) -> LetterPart:
    """Return the newest letters behind a cursor that `read` takes.

    Raises:
        InvalidSettings: The limit is below 1, or it is no cursor.
    """
    if limit < 1:
        raise InvalidSettings("limit: at least 1")
    after = place_in(cursor)
    readers = [_Shard(_before(after, shard)) for shard in range(shards)]
    part = LetterPart()
    for size in _SIZES:
        await asyncio.gather(*(_read_on(views, shard, each, size) for shard, each in enumerate(readers) if not each.is_done))
        if _take(part, readers, limit, read) or all(each.is_done for each in readers):
            break
        if sum(len(each.stored.raw) for reader in readers for each in reader.letters) > _LARGE:
            break
    return part


async def _read_on(views: Views, shard: int, reader: _Shard, size: int) -> None:
    page = await views.letters(shard, reader.before, size)
    reader.letters += [
        _Letter((at.ms, at.number, shard), stored) for at, stored in ((stream_id(entry), stored) for entry, stored in page)
    ]
    reader.is_done = len(page) < size
    if page:
        reader.before = page[-1][0]


def _take(part: LetterPart, readers: list[_Shard], limit: int, read: Callable[[StoredDeadLetter], DeadLetter | None]) -> bool:
    """Look at the letters that no unread one can come before; return whether the page is full."""
    horizon = max((each.letters[-1].place for each in readers if not each.is_done and each.letters), default=None)
    fresh = sorted((each for reader in readers for each in reader.letters), reverse=True)
    ready = [each for each in fresh if horizon is None or each.place >= horizon]
    for each in ready:
        if len(part.found) == limit or part.size > _LARGE:
            return True
        part.looked, part.oldest_ms = part.looked + 1, each.place[0]
        part.cursor = "-".join(map(str, each.place))
        letter = read(each.stored)
        if letter is not None:
            part.found.append(letter)
            part.size += len(each.stored.raw)
    for reader in readers:
        reader.letters = [each for each in reader.letters if horizon is not None and each.place < horizon]
    if horizon is None:
        part.cursor = None
    return len(part.found) == limit


def place_in(cursor: str | None, what: str = "dead letters") -> Place | None:
    """Return the place that a cursor names; None without one.

    Raises:
        InvalidSettings: It is no cursor of such pages.
    """
    if cursor is None:
        return None
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise InvalidSettings(f"cursor={cursor!r}: not the cursor of a page of {what}")
    return int(found[1]), int(found[2]), int(found[3])


def _before(after: Place | None, shard: int) -> str:
    """Return the id in a shard before which its letters come behind a place."""
    if after is None:
        return ""
    ms, number, last = after
    return f"{ms}-{number + 1}" if shard < last else f"{ms}-{number}"


EDITED = "edited_letter"
"""The header of a command that was edited: the id of its dead letter."""


async def edited_envelope(
    session: Session, letter_id: str, envelope: WireEnvelope, payload: Mapping[str, Any] | Message[Any]
) -> bytes:
    """Return the packed envelope of a command with another payload.

    Raises:
        InvalidCommand: The payload is not one of this command, or of another entity.
        InvalidSettings: This bus cannot sign or encrypt as the command was.
    """
    limits = PayloadLimits(max_bytes=session.settings.max_payload, max_nesting=session.settings.max_nesting)
    if isinstance(payload, Message):
        packed, entities, version = _of_class(envelope, payload, limits)
    else:
        packed, entities, version = await _of_mapping(session, envelope, payload, limits)
    across = ACROSS.of(envelope.options)
    others = OTHERS.of(envelope.options) if across is None else across.entities[1:]
    stands = (envelope.entity_id if across is None else across.entities[0][1], *(entity_id for _, entity_id in others))
    if entities != stands:
        given, has = (", ".join(map(repr, each)) for each in (entities, stands))
        raise InvalidCommand(
            f"{envelope.name}: the payload is of entity {given}, the letter of {has}: a replay moves no command to another entity. Discard the "
            "letter and dispatch a new command"
        )
    headers = {**(envelope.headers or {}), EDITED: letter_id}
    options = VERSION.replaced(envelope.options, version)
    return _protected(session, replace(envelope, payload=packed, headers=headers, options=options, signature=None))


async def dispatch_again(session: Session, envelope: WireEnvelope, across: Across, command_id: str) -> None:
    """Dispatch a command over several shards once more, from a part of it: alone that would stand in the lines of one shard.

    Raises:
        CommandBusError: It is not accepted.
    """
    builder, protection = (
        EnvelopeBuilder(session.settings, session.protection, partial(shard_of, session)),
        session.protection,
    )
    (entity_type, entity_id), *others = across.entities
    given = {option.letter for option in (*GIVEN, PRIORITY, VERSION, HISTORY)}
    out = OutgoingMessage(
        envelope.name, entity_type, entity_id, envelope.payload if protection is None else protection.payload(envelope),
        command_id, given_id=True, at_most_once=bool(envelope.flags & AT_MOST_ONCE), headers=dict(envelope.headers or {}),
        options=OTHERS.replaced({letter: value for letter, value in (envelope.options or {}).items() if letter in given}, others) or {},
        priority=PRIORITY.of(envelope.options), across_shards=True,
    )  # fmt: skip
    receipt(command_id, await session.transport.producer.enqueue(builder.build(out), session.settings.dispatch_timeout))


def _protected(session: Session, envelope: WireEnvelope) -> bytes:
    """Return the envelope's bytes, encrypted and signed as the bus does that.

    Raises:
        InvalidSettings: It was encrypted, and this bus does not do that.
    """
    protection = session.protection
    if envelope.flags & ENCRYPTED and (protection is None or protection.cipher is None):
        raise InvalidSettings("the command was encrypted: edit it with a bus that has the cipher, CommandBus(cipher=…)")
    envelope = replace(envelope, flags=envelope.flags & ~ENCRYPTED)
    return pack_envelope(envelope) if protection is None else protection.pack(envelope)


_Entities = tuple[str | None, ...]
"""Ids of the entities of a command, the home first."""


def _of_class(envelope: WireEnvelope, message: Message[Any], limits: PayloadLimits) -> tuple[bytes, _Entities, int]:
    spec = type(message).spec()
    if spec.name != parts_of_delivery(envelope.name)[0]:
        raise InvalidCommand(f"the letter is of {envelope.name!r}, and the payload is a {spec.name!r}")
    entity_id = None if spec.key is None else canonical_entity_id(getattr(message, spec.key, None))
    others = (each for _, each in message.entity_ids())
    return codec_for(type(message)).encode(message, limits), (entity_id, *others), spec.version


async def _of_mapping(
    session: Session, envelope: WireEnvelope, payload: Mapping[str, Any], limits: PayloadLimits
) -> tuple[bytes, _Entities, int]:
    if not isinstance(payload, Mapping):
        raise InvalidCommand(f"the payload of {envelope.name!r} is a mapping of field names to values")
    info = await _announced(session, envelope.name)
    fields = JsonFields(info.schema).read(envelope.name, dict(payload))
    entity_id = None if info.key is None else canonical_entity_id(fields.get(info.key))
    others = other_entities(info.entity, entity_id, info.others(fields))
    return pack(fields, limits), (entity_id, *(each for _, each in others)), info.version


async def _announced(session: Session, name: str) -> CommandInfo:
    """Return the announcement of a command.

    Raises:
        InvalidCommand: There is none.
    """
    records, name = await session.transport.announcements.commands(), parts_of_delivery(name)[0]
    info = read_description(name, records[name], ()) if name in records else None
    if info is None:
        raise InvalidCommand(f"no worker has announced {name!r}, so its fields cannot be checked: give an instance of its class")
    return info
