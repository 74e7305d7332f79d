"""Collect everything an on-call engineer needs to know about one entity, in a few reads."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from command_bus.admin.dead_letters import DeadLetters
from command_bus.admin.entities import Waits, entity_info
from command_bus.admin.fleet import Fleet
from command_bus.admin.info import DeadLetter, EntityDetails, EntityInfo, WaitingCommand
from command_bus.errors import UnknownDeadLetter
from command_bus.messages.event import handles
from command_bus.serialization.announcements import WorkerStatus
from command_bus.serialization.envelope import unpack_envelope
from command_bus.serialization.envelope_options import OTHERS, UNIQUE
from command_bus.serialization.limits import Undecodable, reading_limits
from command_bus.serialization.odd_values import stored_number
from command_bus.serialization.protection import readable_payload
from command_bus.session import Session
from command_bus.transport.mailboxes import mailbox_name
from command_bus.transport.records import StoredEntity


async def look_at(session: Session, mailbox: str) -> tuple[StoredEntity, Waits]:
    """Read a mailbox and what it may wait for at the same time, a retry also while it is paused; what has changed meanwhile is read again."""
    transport = session.transport
    entities = transport.operator.entities
    stored, due, suspended = await asyncio.gather(
        entities.look(mailbox), entities.retry_times([mailbox]), transport.durable.suspended([mailbox])
    )
    if stored.state in ("retrying", "snoozed") and not due:
        due = await entities.retry_times([mailbox])
    if stored.state == "suspended" and not suspended:
        suspended = await transport.durable.suspended([mailbox])
    limits = await transport.limits.waits([mailbox]) if stored.state == "limited" else {}  # a transport may have none
    return stored, Waits(due, limits, suspended if stored.state == "suspended" else {}, {})


async def details_of(session: Session, mailbox: str, count: int, scan: int | None = None) -> EntityDetails:
    """Collect everything an on-call engineer needs to know about one mailbox, with `count` commands behind its head."""
    reader = session.transport.operator.entities
    (stored, waits), found, workers, now_ms = await asyncio.gather(
        look_at(session, mailbox), reader.head(mailbox, count + 1), Fleet(session).workers(), reader.now_ms()
    )
    line = [_waiting(session, message, envelope) for message, envelope in found.entries]
    wanted = count - len(line[1:])
    sought = stored.depth > len(line) and (wanted > 0 or not line)
    delayed = await _delayed(session, mailbox, scan) if sought else []
    waits = waits._replace(
        retries=waits.retries if stored.state in ("retrying", "snoozed", "paused") else {},
        delayed={mailbox: delayed[0].due_ms} if delayed and not line else {},
    )
    entity = entity_info(stored, found.shard, now_ms, waits)
    head = line[0] if line else None
    return EntityDetails(
        entity=entity,
        head=head,
        first_started_ms=stored.first_ms or None,
        lease_age=None if found.lease_ms is None else found.lease_ms / 1000,
        holder=_holder(entity, workers),
        waiting=(*line[1:], *delayed[: max(wanted, 0)]),
        letter=await _letter(session, entity),
        handlers=sum(worker.alive and handles(worker.commands, head.name) for worker in workers) if head and head.name else None,
        waits_for=await _waits_for(session, stored, found.entries[0][1], now_ms) if head and entity.state == "blocked" else (),
    )


async def _waits_for(session: Session, home: StoredEntity, raw: bytes, now_ms: int) -> tuple[EntityInfo, ...]:
    """Return the further entities of the command at the head of a blocked home that have something else to do first, or are paused."""
    if home.home:
        return ()
    try:
        others = OTHERS.of(unpack_envelope(raw, reading_limits(session.settings)).options)
    except Undecodable:
        return ()
    boxes = dict.fromkeys(mailbox_name(of, each, session.settings.entity(of).mailbox) for of, each in others)
    looked = await asyncio.gather(*map(session.transport.operator.entities.look, boxes))
    shard, waits = session.transport.shard_of(home.mailbox), Waits({}, {}, {}, {})
    return tuple(entity_info(each, shard, now_ms, waits) for each in looked if each.home != home.mailbox or each.hold is not None)


async def _delayed(session: Session, mailbox: str, scan: int | None) -> list[WaitingCommand]:
    """Return the delayed commands of a mailbox, those due first ahead. They are in one hash per shard, which is read for that, up to `scan` of it."""
    transport = session.transport
    ids: dict[str, WaitingCommand] = {}
    looked = 0
    async for page in transport.operator.mailboxes.delayed(transport.shard_of(mailbox)):
        looked += len(page)
        if scan is not None and looked > scan:
            break
        for home, command in page:
            if home == mailbox or mailbox in command.lines:
                ids[command.id] = _waiting(session, "0", command.envelope)
    due = await transport.operator.entities.delayed_times(mailbox, list(ids))
    found = [replace(each, accepted_ms=0, due_ms=due.get(key)) for key, each in ids.items()]
    return sorted(found, key=lambda each: (each.due_ms or 0, each.command_id))


def _waiting(session: Session, message: str, raw: bytes) -> WaitingCommand:
    limits = reading_limits(session.settings)
    accepted = stored_number("active", message.partition("-")[0])
    try:
        envelope = unpack_envelope(raw, limits)
    except Undecodable:
        return WaitingCommand("", "", accepted, None)
    payload = readable_payload(raw, limits, session.protection)
    return WaitingCommand(envelope.command_id, envelope.name, accepted, None, UNIQUE.of(envelope.options), payload)


def _holder(entity: EntityInfo, workers: list[WorkerStatus]) -> WorkerStatus | None:
    return next((worker for worker in workers if worker.name == entity.worker), None)


async def _letter(session: Session, entity: EntityInfo) -> DeadLetter | None:
    if entity.letter_id is None:
        return None
    try:
        return await DeadLetters(session).get(entity.letter_id)
    except UnknownDeadLetter:  # another operator decided first
        return None
