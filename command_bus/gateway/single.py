"""`GET` and `DELETE /commands/{id}`: where a command is, its reply, and its end by hand."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from starlette.responses import Response

from command_bus.admin.json_data import to_jsonable
from command_bus.errors import CommandBusError, UnknownCommand
from command_bus.gateway.incoming import Incoming, Query
from command_bus.gateway.problems import Problem, answer, problem_of


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
    status = await incoming.bus.commands.status(command_id)
    outcome: dict[str, Any] = {}
    if status.state == "settled":
        outcome = await _outcome(incoming, command_id, 0.0)
    elif query.wait > 0 and status.state != "parked":
        outcome = await _outcome(incoming, command_id, min(query.wait, incoming.state.options.max_wait))
        status = await incoming.bus.commands.status(command_id)
    return answer({**to_jsonable(status), **(outcome if status.state == "settled" else {})})


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
    status = await bus.commands.status(command_id)
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
