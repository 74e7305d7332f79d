"""Answers about commands, entities, dead letters and schedules; and `DELETE /commands/{id}`, which cancels a command."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from pydantic import AwareDatetime, Field
from starlette.responses import Response

from command_bus.admin.info import EntityOrder
from command_bus.admin.json_data import to_jsonable
from command_bus.errors import CommandBusError, UnknownCommand
from command_bus.gateway.incoming import Incoming, Query
from command_bus.gateway.problems import Problem, answer, problem_of
from command_bus.transport.records import EntityCondition


class LookQuery(Query):
    """Options of a look at a command."""

    wait: float = Field(default=0.0, ge=0, description="Seconds to wait for its outcome.")


class CancelQuery(Query):
    """Options of a cancel."""

    running: bool = Field(default=False, description="Also end it if it has started.")
    reason: str = Field(default="", max_length=500, description="For its caller, and for the audit log.")
    wait: float = Field(default=10.0, gt=0, description="Seconds to wait for the end of its handler.")


async def get_command(incoming: Incoming) -> Response:
    """Answer where a command is, and with its reply or error once it is settled."""
    incoming.need("look")
    query, command_id = incoming.query(LookQuery), incoming.path[1]
    status = await incoming.bus.commands.status(command_id, looks_around=False)
    outcome: dict[str, Any] = {}
    if status.state == "settled":
        outcome = await _outcome(incoming, command_id, 0.0)
    elif query.wait > 0 and status.state != "parked":
        outcome = await _outcome(incoming, command_id, min(query.wait, incoming.state.options.max_wait))
        status = await incoming.bus.commands.status(command_id, looks_around=False)
    told = to_jsonable(replace(status, payload=None, failure=None))  # who may look may not read
    del told["payload"], told["failure"]
    return answer({**told, **(outcome if status.state == "settled" else {})})


async def delete_command(incoming: Incoming) -> Response:
    """Cancel a command. It stands in the audit log, as what operators do."""
    incoming.need("cancel")
    query, command_id, bus = incoming.query(CancelQuery), incoming.path[1], incoming.bus
    wait = min(query.wait, incoming.state.options.max_wait)
    who = f"token {incoming.holder.name}"
    ref = await bus.audit.write(who, "Cancel", command_id, query.reason, details="and end it if it runs" if query.running else "")
    cancelled, said = False, "failed"
    try:
        cancelled = await bus.cancel(command_id, running=query.running, reason=query.reason, wait=wait)
        said = "cancelled" if cancelled else "not cancelled"
    finally:
        await bus.audit.write(who, "Cancel", command_id, query.reason, outcome=said, ref=ref)
    if cancelled:
        return answer({"command_id": command_id, "cancelled": True})
    status = await bus.commands.status(command_id, looks_around=False)
    advice = "; running=true ends it" if not query.running and status.state == "running" else ""
    raise Problem(409, "not_cancelled", f"the command is {status.state}{advice}", command_id=command_id, state=status.state)


async def _outcome(incoming: Incoming, command_id: str, wait: float) -> dict[str, Any]:
    """Return the reply of a command, or its error as a problem; nothing if neither is kept, or not there in time."""
    try:
        return {"reply": to_jsonable(await incoming.bus.result(command_id, timeout=wait))}
    except UnknownCommand:
        return {}
    except CommandBusError as error:
        return {"error": problem_of(error).facts()}


_RIGHT = "inspect"
_MOST_SCHEDULES = 1000
_TICKS = 5


class EntitiesQuery(Query):
    """Choice of entities."""

    type: str | None = Field(default=None, description="Only those of this type.")
    state: tuple[EntityCondition, ...] = Field(default=(), description="Only those in one of these states.")
    order: EntityOrder = Field(default="depth", description="What comes first.")
    limit: int = Field(default=50, ge=1, le=500, description="At most so many.")
    cursor: str | None = Field(default=None, description="Of the page before.")


class EntityQuery(Query):
    """Amount of an entity that is shown."""

    waiting: int = Field(default=20, ge=0, le=500, description="Commands of its line, at most.")


class LettersQuery(Query):
    """Choice of dead letters."""

    name: str | None = Field(default=None, description="Only of this command.")
    reason: str | None = Field(default=None, description="Only with this reason.")
    entity_type: str | None = Field(default=None, description="Only of entities of this type.")
    entity_id: str | None = Field(default=None, description="Only of the entity with this id.")
    parked: bool | None = Field(default=None, description="Only those for which an entity waits, or none does.")
    since: AwareDatetime | None = Field(default=None, description="Only from then on.")
    until: AwareDatetime | None = Field(default=None, description="Only before then.")
    limit: int = Field(default=50, ge=1, le=200, description="At most so many.")
    cursor: str | None = Field(default=None, description="Of the page before.")


class SchedulesQuery(Query):
    """Choice of schedules."""

    entity_type: str | None = Field(default=None, description="Only of commands for entities of this type.")
    limit: int = Field(default=_MOST_SCHEDULES, ge=1, le=_MOST_SCHEDULES, description="At most so many.")


async def get_entities(incoming: Incoming) -> Response:
    """Answer with entities that have work, the hottest first."""
    incoming.need(_RIGHT)
    query = incoming.query(EntitiesQuery)
    entities = incoming.bus.entities if query.type is None else incoming.bus.entities.of(query.type)
    page = await entities.list(states=query.state, order=query.order, limit=query.limit, cursor=query.cursor)
    return answer(to_jsonable(page))


async def get_entity(incoming: Incoming) -> Response:
    """Answer with one entity: its state, its line, what it waits for."""
    incoming.need(_RIGHT)
    query = incoming.query(EntityQuery)
    scope = incoming.bus.entity(incoming.path[1], incoming.path[2])
    return answer(to_jsonable(await scope.show(waiting=query.waiting)))


async def get_state(incoming: Incoming) -> Response:
    """Answer with the state of an entity, as its last settled command left it."""
    _, kind, entity_id, _ = incoming.path
    incoming.need("read", kind)
    entry = await incoming.bus.states.find(kind, entity_id)
    if entry is None:
        raise Problem(404, "no_state", f"{kind}:{entity_id} has no state")
    return answer(to_jsonable(entry), headers={"ETag": f'"{entry.revision}"'})


async def get_letters(incoming: Incoming) -> Response:
    """Answer with dead letters, newest first."""
    incoming.need(_RIGHT)
    asked = incoming.query(LettersQuery).model_dump(exclude_none=True)
    limit, cursor = asked.pop("limit"), asked.pop("cursor", None)
    page = await incoming.bus.dead_letters.page(limit=limit, cursor=cursor, **asked)
    return await asyncio.to_thread(lambda: answer(to_jsonable(page)))


async def get_letter(incoming: Incoming) -> Response:
    """Answer with one dead letter."""
    incoming.need(_RIGHT)
    incoming.query(Query)
    letter = await incoming.bus.dead_letters.get(incoming.path[1])
    return await asyncio.to_thread(lambda: answer(to_jsonable(letter)))


async def get_schedules(incoming: Incoming) -> Response:
    """Answer with the schedules, by name."""
    incoming.need(_RIGHT)
    query = incoming.query(SchedulesQuery)
    found: list[Any] = []
    async for each in incoming.bus.schedules.list(entity_type=query.entity_type):
        if len(found) == query.limit:
            return answer({"schedules": found, "complete": False})
        found.append(to_jsonable(each))
    return answer({"schedules": found, "complete": True})


async def get_schedule(incoming: Incoming) -> Response:
    """Answer with one schedule, and when it comes next."""
    incoming.need(_RIGHT)
    incoming.query(Query)
    schedules, name = incoming.bus.schedules, incoming.path[1]
    found = to_jsonable(await schedules.get(name))
    return answer({**found, "ticks": await schedules.next(name, _TICKS)})
