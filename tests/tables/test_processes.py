"""Handlers in processes: each kind of value goes through the pipe and back, nothing that a call leaves is seen by the next, and each exception
ends a command as it does in a thread.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from command_bus import BusSettings, CommandBus
from command_bus.errors import BadResult, CommandBusError, CommandFailed
from tests.conformance import conftest
from tests.conformance.conftest import Sandbox
from tests.selection import quick
from tests.tables.command_contexts import THINGS
from tests.tables.processes import DEFINED, ERRORS, REFUSED, Fails, FailsHere, Leaves, registry
from tests.tables.shapes import shape
from tests.tables.values import ROWS, Row

sandbox, servers = conftest.sandbox, conftest.servers
pytestmark = pytest.mark.server
ONE = BusSettings(processes=1)


async def _verdict(bus: CommandBus, row: Row, kind: Any, *, given: bool) -> str:
    try:
        value = row.make()
        found = await bus.call(kind(sheet="s", value=value) if given else kind(sheet="s"), timeout=30)
    except (CommandBusError, ValidationError) as error:
        text = str(error)
        unreadable = isinstance(error, BadResult) and "as this process knows it" in text and "cannot be sent" not in text
        return f"accepted and then unreadable: {text[:150]}" if unreadable or isinstance(error, CommandFailed) else "given"
    wanted, came = shape(TypeAdapter(row.kind).validate_python(value, strict=True)), shape(found)
    return "same" if wanted == came else f"another: {str(wanted)[:80]} -> {str(came)[:80]}"


@pytest.mark.parametrize("way", quick(["argument", "result"], ["argument"]))
async def test_182_a_value_goes_to_a_process_and_back_or_is_refused(sandbox: Sandbox, way: str) -> None:
    sandbox.registry.include(registry)
    wrong: list[str] = []
    async with sandbox.bus(settings=ONE) as bus, bus.worker():
        for row in ROWS:
            if row.name in (
                "Json",
                "FutureDatetime",
            ):  # its handler has what the text says, and replies with text; a child makes another time
                continue
            verdict = "defined" if row.name in REFUSED else ""
            if not verdict:
                _, echo, make = DEFINED[row.name]
                verdict = await _verdict(bus, row, echo if way == "argument" else make, given=way == "argument")
            if verdict != row.outcome and not (row.outcome == "either" and verdict in ("same", "given")):
                wrong.append(f"{row.name}: {row.outcome}, but {verdict}")
    assert not wrong, f"{len(wrong)} of {len(ROWS)}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("thing", [name for name in THINGS if name != "the task's name"])
async def test_the_next_call_of_a_process_sees_nothing_of_the_one_before(sandbox: Sandbox, thing: str) -> None:
    sandbox.registry.include(registry)
    async with sandbox.bus(settings=ONE) as bus, bus.worker():
        seen = [await bus.call(Leaves(sheet=f"s-{number % 2}", thing=thing), timeout=20) for number in range(3)]
    assert len(set(seen)) == 1


@pytest.mark.parametrize("how", ERRORS)
async def test_204_an_exception_ends_a_command_as_it_does_in_a_thread(sandbox: Sandbox, how: str) -> None:
    sandbox.registry.include(registry)
    async with sandbox.bus(settings=ONE) as bus, bus.worker():
        ends = [await _end_of(bus, kind(sheet=f"s-{number}", how=how)) for number, kind in enumerate((FailsHere, Fails))]
        assert await bus.call(Leaves(sheet="s-1", thing="decimal's precision"), timeout=20), "its line goes on"
    thread, process = ends
    named = ERRORS[how][1]
    if named:
        assert process[:3] == (*thread[:2], "HandlerCrashed")
        assert process[3].startswith(named)
    else:
        assert process == thread


async def _end_of(bus: CommandBus, command: Any) -> tuple[str, ...]:
    """Return how a command ended: error, attempts, and the type and text of a failure."""
    with pytest.raises(CommandBusError) as ended:
        await bus.call(command, timeout=20)
    error: Any = ended.value
    if isinstance(error, CommandFailed):
        return type(error).__name__, str(error.attempts), error.error_type.rpartition(".")[2], error.error_message[:1000]
    return type(error).__name__, getattr(error, "code", ""), str(error), str(getattr(error, "details", ""))
