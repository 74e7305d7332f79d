"""A step that refuses, gives up or snoozes is not tried again in place: it decides about the command, as its handler does."""

from __future__ import annotations

import pytest

from command_bus import Command, CommandBusError, DurableContext, EntityId, GiveUp, Reject, RetryPolicy, Snooze
from tests.conformance.conftest import Sandbox


class Pay(Command[str], entity="order", durable=True, retry=RetryPolicy(attempts=1)):
    order: EntityId


@pytest.mark.parametrize(
    ("refusal", "end"),
    [(Reject("the card is refused"), "refused"), (GiveUp("no such card"), "no such card"), (Snooze(0.05), "paid")],
    ids=["reject", "give up", "snooze"],
)
async def test_a_refusal_in_a_step_is_not_tried_again_in_place(sandbox: Sandbox, refusal: Exception, end: str) -> None:
    tries: list[int] = []

    async def charge() -> str:
        tries.append(len(runs))
        if len(tries) == 1:
            raise refusal
        return "paid"

    runs: list[int] = []

    @sandbox.registry.handles(Pay)
    async def pay(command: Pay, context: DurableContext) -> str:
        runs.append(context.attempt)
        return await context.step("charge", charge, retry=RetryPolicy(attempts=5, delay=0.01, jitter=0))

    async with sandbox.bus() as bus, bus.worker():
        try:
            ended = await bus.call(Pay(order="o-1"), timeout=10)
        except CommandBusError as error:
            ended = str(error)
    assert end in ended
    assert tries == ([1, 2] if end == "paid" else [1]), "each try is a run of the handler of its own"
