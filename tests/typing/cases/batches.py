"""Findings of type checkers on `@handles_many` and on states: outcomes are checked; the ones of a function are widened to what may be returned."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, assert_type

from command_bus.bus import CommandBus
from command_bus.errors import Reject
from command_bus.handlers.registry import HandlerRegistry, handles_many
from command_bus.messages.context import CommandContext
from command_bus.messages.message import Command, EntityId
from command_bus.messages.state import EntityState
from command_bus.messages.upcasting import upcasts

registry = HandlerRegistry()


class Insert(Command[int], entity="row"):
    row: EntityId


class Note(Command[None], entity="row"):
    row: EntityId


@handles_many(Insert)
async def insert(commands: Sequence[Insert]) -> Sequence[int]:
    return [len(commands)]


@registry.handles_many(Insert, size=500, wait=0.01)
async def mixed(commands: Sequence[Insert], contexts: Sequence[CommandContext]) -> list[int | Reject]:
    return [len(commands) + len(contexts), Reject("no")]


@registry.handles_many(Note)
def plain(commands: Sequence[Note]) -> None: ...


@registry.handles_many(Insert)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
async def texts(commands: Sequence[Insert]) -> Sequence[str]:
    return [""]


inserted: Callable[[Sequence[Insert]], Coroutine[Any, Any, Sequence[int | Exception]]] = insert


class Row(EntityState, entity="row", version=2, keep="30 days"):
    cents: int = 0


@upcasts(Row, since=1)
def cents(fields: dict[str, Any]) -> dict[str, Any]:
    return fields


@registry.handles(Insert)
async def one(command: Insert, row: Row) -> int:
    return row.cents


async def states(bus: CommandBus) -> None:
    assert_type(await bus.states.get(Row, "r"), Row | None)
    assert_type(await bus.states.get_many(Row, ["r"]), dict[str, Row])
    async for each in bus.states.list(Row):
        assert_type(each.value, Row)
    async for row in bus.states.list("row"):
        assert_type(row.value, dict[str, Any])
    await bus.states.put("r", Row(cents=1))
    await bus.states.get(Insert, "r")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
