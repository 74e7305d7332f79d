"""One entity from near: everything that a person on call asks of it, put together from a few reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from command_bus.admin.entities import entity_info
from command_bus.admin.info import DeadLetter, EntityDetails, EntityInfo, WaitingCommand
from command_bus.errors import UnknownDeadLetter
from command_bus.serialization.announcements import WorkerStatus
from command_bus.serialization.envelope import unpack_envelope
from command_bus.serialization.limits import reading_limits
from command_bus.serialization.msgpack import Limits, Undecodable
from command_bus.transport.redis.admin.entities import Survey
from command_bus.transport.redis.admin.inspection import Inspection

if TYPE_CHECKING:
    from command_bus.bus import CommandBus

__all__ = ["details_of"]


async def details_of(bus: CommandBus, mailbox: str, count: int) -> EntityDetails:
    """A mailbox with the first `count` commands behind its head."""
    transport, patience = bus.transport, bus.settings.dispatch_timeout
    inspection = Inspection(transport.connections, transport.keys, patience=patience)
    surveyed = await Survey(transport.connections, transport.keys, patience=patience).look(mailbox)
    closeup = await inspection.closeup(mailbox, count + 1)
    due = await inspection.due_ms([mailbox] if surveyed.state in ("retrying", "paused") else [])
    limits = reading_limits(bus.settings)
    line = [_waiting(message, envelope, limits) for message, envelope in closeup.entries]
    wanted = count - len(line[1:])
    sought = surveyed.depth > len(line) and (wanted > 0 or not line)
    delayed = await _delayed(bus, inspection, mailbox) if sought else []
    entity = entity_info(
        surveyed,
        closeup.shard,
        await inspection.now_ms(),
        retry_at_ms=due.get(mailbox),
        due_ms=delayed[0].due_ms if delayed and not line else None,
    )
    head = line[0] if line else None
    workers = await bus.fleet.workers()
    return EntityDetails(
        entity=entity,
        head=head,
        first_started_ms=surveyed.first_ms or None,
        lease_age=None if closeup.lease_ms is None else closeup.lease_ms / 1000,
        holder=_holder(entity, workers),
        waiting=(*line[1:], *delayed[: max(wanted, 0)]),
        letter=await _letter(bus, entity),
        handlers=sum(worker.alive and head.name in worker.commands for worker in workers) if head and head.name else None,
    )


async def _delayed(bus: CommandBus, inspection: Inspection, mailbox: str) -> list[WaitingCommand]:
    """The delayed commands of a mailbox, those that are due first ahead. They stand in one hash per shard, which has to be read for that."""
    keys = bus.transport.keys
    limits = reading_limits(bus.settings)
    ids: dict[str, WaitingCommand] = {}
    async for page in bus.transport.operations.delayed(keys.shards[keys.shard_of(mailbox)]):
        for home, command in page:
            if home == mailbox:
                ids[command.id.removeprefix("d:")] = _waiting("0", command.envelope, limits)
    due = await inspection.delayed_ms(mailbox, list(ids))
    found = [WaitingCommand(each.command_id, each.name, 0, due.get(key)) for key, each in ids.items()]
    return sorted(found, key=lambda each: (each.due_ms or 0, each.command_id))


def _waiting(message: str, raw: bytes, limits: Limits) -> WaitingCommand:
    accepted = int(message.partition("-")[0])
    try:
        envelope = unpack_envelope(raw, limits)
    except Undecodable:
        return WaitingCommand("", "", accepted, None)
    return WaitingCommand(envelope.command_id, envelope.name, accepted, None)


def _holder(entity: EntityInfo, workers: list[WorkerStatus]) -> WorkerStatus | None:
    return next((worker for worker in workers if worker.name == entity.worker), None)


async def _letter(bus: CommandBus, entity: EntityInfo) -> DeadLetter | None:
    if entity.letter_id is None:
        return None
    try:
        return await bus.dead_letters.get(entity.letter_id)
    except UnknownDeadLetter:  # decided meanwhile
        return None
