"""The table of `schema_changes`: what is said, and what a worker does with the old form, an old worker with the new one, and an old caller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

pytest.importorskip("typer")

from command_bus import CommandBus, Event, HandlerRegistry
from command_bus.cli.schemas.compare import BREAKS, CANNOT_TELL, FITS, WORKERS_FIRST, Change, accepted, changes, worst
from command_bus.cli.schemas.document import Described, described, exported, read_document
from command_bus.errors import BadResult
from command_bus.messages.message import canonical_entity_id
from command_bus.messages.policies import PerEntity
from command_bus.serialization.envelope import WireEnvelope, pack_envelope
from command_bus.serialization.envelope_options import OTHERS, VERSION
from command_bus.serialization.models import codec_for, reply_codec_for
from command_bus.serialization.msgpack import pack
from command_bus.settings import BusSettings
from command_bus.transport.mailboxes import mailbox_name
from command_bus.transport.steps import Started
from command_bus.worker.decisions import Decisions
from command_bus.worker.runnable import Runnable
from tests.tables.schema_changes import ROWS, Kind, Row, pay

rows = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())


def application(kinds: tuple[Kind, ...]) -> CommandBus:
    registry = HandlerRegistry()
    for kind in kinds:
        if issubclass(kind, Event):
            registry.declare(kind)
        else:
            registry.handles(kind)(run)
    return CommandBus("redis://127.0.0.1:1", registry=registry)


async def run(command: Any) -> Any:
    """Handle any command."""


@cache
def document(kinds: tuple[Kind, ...]) -> dict[str, Described]:
    return read_document(json.dumps(exported(application(kinds))))


def said(row: Row, *, places: tuple[str, ...] = (), removed: tuple[str, ...] = ()) -> list[Change]:
    return accepted(changes(document(row.old), described(application(row.new))), removed, places)[0]


def sent(kinds: tuple[Kind, ...]) -> Iterator[tuple[Kind, dict[str, Any]]]:
    """Yield what is sent with these classes, each value in the file once, and without them: what has a default may be left out."""
    for kind in kinds:
        found = document(kinds)[kind.spec().name]
        yield kind, dict(found.example)
        for field, several in found.values.items():
            yield from ((kind, {**found.example, field: value}) for value in several)
        for field, model in kind.model_fields.items():
            if not model.is_required():
                yield kind, {name: value for name, value in found.example.items() if name != field}


def refused(old: tuple[Kind, ...], new: tuple[Kind, ...]) -> list[tuple[str, dict[str, Any]]]:
    """Return what some classes send and a worker with others does not run."""
    decisions = Decisions(application(new).registry.lookup, BusSettings(url="redis://none"), worker="w")
    found: list[tuple[str, dict[str, Any]]] = []
    for kind, fields in sent(old):
        spec = kind.spec()
        message = codec_for(kind).decode(pack(fields))
        options: dict[str, Any] = {}
        VERSION.put(options, spec.version)
        OTHERS.put(options, message.entity_ids())
        entity_id = canonical_entity_id(fields[spec.key or ""])
        box, *others = (
            mailbox_name(entity, each, PerEntity()) for entity, each in ((spec.entity or "", entity_id), *message.entity_ids())
        )
        stands = [each for other in others for each in (b"w", other.encode())]
        envelope = pack_envelope(WireEnvelope("c-1", spec.name, spec.entity, entity_id, pack(fields), options=options))
        if not issubclass(kind, Event) and not isinstance(
            decisions.read(Started("7", "1-0", 1, 1, 1, envelope, [b"e", envelope, *stands]), box), Runnable
        ):
            found.append((spec.name, fields))
    return found


def unread_replies(row: Row) -> list[Any]:
    """Return what the new workers reply and callers with the old class do not read."""
    found: list[Any] = []
    for old, new in zip(row.old, row.new, strict=False):
        values = pay({"reply": new.spec().reply})
        for _, fields in sent((values,)):
            try:
                reply_codec_for(old.spec().reply).decode(pack(fields["reply"]))
            except BadResult:
                found.append(fields["reply"])
    return found


@rows
def test_the_verdict(row: Row) -> None:
    found = said(row)
    first = found[0] if found and row.verdict != FITS else None
    assert worst(found) == row.verdict, found
    assert first is None or row.place in [each.place for each in found if each.verdict == row.verdict], found
    assert first is None or row.compares in [each.compares for each in found if each.place == row.place], found


@rows
def test_what_is_said_is_what_happens(row: Row) -> None:
    warned = {each.compares for each in said(row) if each.verdict in (BREAKS, CANNOT_TELL)}
    if row.verdict in (FITS, WORKERS_FIRST):
        assert not refused(row.old, row.new)
        assert not unread_replies(row)
    elif row.compares == "replies":
        assert unread_replies(row)
    elif row.verdict == BREAKS and not row.is_read:
        assert refused(row.old, row.new), warned
    if row.verdict == FITS:
        assert not refused(row.new, row.old)
    elif row.verdict == WORKERS_FIRST and not row.is_read:
        assert refused(row.new, row.old)
