"""Errors of steps that a handler has caught are the same in all of its runs: the function is not called again.

**A row** is an error in `ERRORS` of `tests/tables/caught_errors.py`, one that cannot be stored in `REFUSED`. **A column** is in `WAYS`: how the
handler goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from command_bus import Command, DurableContext, EntityId, HandlerRegistry, RetryPolicy
from command_bus.testing import TestBus
from tests.tables.caught_errors import ERRORS, REFUSED, WAYS, Beside, Mute

PLAIN = 1_000


class Cell(Command[str], entity="cell", durable=True, retry=RetryPolicy(attempts=2, delay=0.01)):
    name: EntityId


def _shown(error: BaseException) -> Any:
    """Return what a handler may go by."""
    parts = [_shown(each) for each in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    own = {name: value for name, value in vars(error).items() if isinstance(value, str | int | float | dict | list)}
    args = [] if parts else [each if isinstance(each, int | bytes) else _text(each) for each in error.args]
    return type(error), args, own, parts


def _text(value: object) -> bytes:
    return b"" if isinstance(value, Mute) else str(value)[:PLAIN].encode("utf-8", "backslashreplace")


async def _ended(
    errors: dict[str, Callable[[], Exception]], way: str
) -> tuple[dict[str, list[Any]], dict[str, int], dict[str, str]]:
    """Return what handlers have caught in each run, how often each function was called, and the errors of letters."""
    caught: dict[str, list[Any]] = {name: [] for name in errors}
    called = dict.fromkeys(errors, 0)
    registry = HandlerRegistry()

    @registry.handles(Beside)
    async def beside(command: Beside) -> str:
        return "beside"

    @registry.handles(Cell)
    async def cell(command: Cell, context: DurableContext) -> str:
        name = str(command.name)
        made = errors[name]

        async def fails() -> None:
            called[name] += 1
            if called[name] == 1:
                raise made()

        try:
            await context.step("fails", fails)
        except Exception as error:
            caught[name].append(_shown(error))
            if way != "fails" or len(caught[name]) == 1:
                await WAYS[way](context)
        else:
            caught[name].append("nothing")
        await context.sleep(60)
        await context.step("last", beside, Beside(name="b"))
        return name

    async with TestBus(registry) as bus:
        for name in errors:
            await bus.dispatch(Cell(name=name))
        await bus.run_until_idle(timeout=60)
        letters = {str(letter.entity_id): letter.error_type async for letter in bus.bus.dead_letters.list()}
    return caught, called, letters


@pytest.mark.parametrize("way", WAYS)
async def test_an_error_that_was_caught_is_the_same_in_all_runs(way: str) -> None:
    caught, called, letters = await _ended(ERRORS, way)
    wrong = {name: shown for name, shown in caught.items() if len(shown) < 2 or any(each != shown[0] for each in shown)}
    assert (wrong, letters) == ({}, {})
    assert called == dict.fromkeys(ERRORS, 1)


async def test_one_that_cannot_be_stored_parks_before_the_handler_goes_on() -> None:
    caught, called, letters = await _ended(REFUSED, "step")
    assert set(letters.values()) == {"command_bus.errors.BadStep"}
    assert set(letters) == set(REFUSED)
    assert called == dict.fromkeys(REFUSED, 1)
    assert all(len(shown) == 1 for shown in caught.values())
