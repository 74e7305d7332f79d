"""A hold that a handler has set can be ended: nobody waits for a year for a partner that answers again."""

from __future__ import annotations

import pytest

from command_bus import Command, CommandContext, EntityId, Limit, Rate, Snooze
from command_bus.doctor.stored_checks import check_limits
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until


class Fetch(Command[None], entity="page", limits=(Limit("partner", key="partner"),)):
    page: EntityId
    partner: str


@pytest.mark.parametrize(
    ("hold", "name", "key"),
    [("limit:partner", "partner", "a b"), ("limit:type:page", "type:page", None), ("limit:bus", "bus", None)],
)
async def test_a_hold_can_be_ended(sandbox: Sandbox, hold: str, name: str, key: str | None) -> None:
    ran: list[str] = []

    @sandbox.registry.handles(Fetch)
    async def fetch(command: Fetch, context: CommandContext) -> None:
        ran.append(str(command.page))
        if len(ran) == 1:
            raise Snooze(31_536_000, hold=hold)

    async with sandbox.bus(limits=(Limit("partner", rate=Rate(100)),)) as bus:
        await bus.limits.put(name, Rate(100))
        async with bus.worker():
            await bus.dispatch(Fetch(page="first", partner="a b"))
            await until(lambda: ran == ["first"])

            async def warned() -> str:
                return "".join(each.advice for each in check_limits(await bus.limits.list(), {}) if each.grade == "warning")

            assert f"limits release {name}" in await until(warned), "although none waits"
            await bus.dispatch(Fetch(page="second", partner="a b"))

            async def waits() -> int:
                return await bus.limits.waiting()

            await until(waits)
            assert ran == ["first"]
            assert f"limits release {name}" in await warned()
            await bus.limits.release(name, key=key)
            assert not await warned()
            assert {each.held_for for each in await bus.limits.list(name)} == {0.0}
            await until(lambda: ran == ["first", "second"])
            await bus.limits.release(name, key=key)


async def test_a_hold_of_what_has_no_limit_is_told(sandbox: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []

    @sandbox.registry.handles(Fetch)
    async def fetch(command: Fetch) -> None:
        ran.append(str(command.page))
        if len(ran) == 1:
            raise Snooze(0.1, hold="limit:partner")

    async with sandbox.bus() as bus, bus.worker():
        await bus.call(Fetch(page="1", partner="a"), timeout=10)
    assert "holds name:partner:a, which has no limit that could be held" in caplog.text
