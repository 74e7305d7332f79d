"""A context that a unit test makes by hand."""

from __future__ import annotations

import pytest

from command_bus import Command, CommandContext, EntityId
from command_bus.testing import TestBus


class Ring(Command[None], entity="bell"):
    bell: EntityId


async def test_without_a_bus_it_says_how_to_give_one() -> None:
    with pytest.raises(RuntimeError, match=r"CommandContext\(bus=command_bus\)"):
        await CommandContext(command_id="c-1").dispatch(Ring(bell="b"))
    with pytest.raises(RuntimeError, match=r"CommandContext\(bus=command_bus\)"):
        await CommandContext(command_id="c-1").call(Ring(bell="b"))


def test_nor_does_a_handler_in_a_thread() -> None:
    with pytest.raises(RuntimeError, match=r"CommandContext\(bus=command_bus\)"):
        CommandContext(command_id="c-1").blocking.call(Ring(bell="b"))


async def test_with_the_fixture_what_is_sent_is_noted(command_bus: TestBus) -> None:
    await CommandContext(bus=command_bus).dispatch(Ring(bell="b"), delay=5)
    command_bus.assert_dispatched(Ring, bell="b", count=1)
