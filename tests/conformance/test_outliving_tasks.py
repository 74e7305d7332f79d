"""A task that outlives the handler that started it is on its own: it holds no entity, and what it sends is caused by no command."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from command_bus import CallCycle, Command, CommandContext, EntityId
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import Put, put_service


class Start(Command[None], entity="box"):
    box: EntityId


class Trace(Command[tuple[str, str | None]], entity="box"):
    box: EntityId


@pytest.mark.promise("A handler's task outlives the handler")
@pytest.mark.parametrize("runs", ["async", "thread"])
async def test_it_may_call_the_entity_once_the_handler_is_over(sandbox: Sandbox, runs: str) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[int]] = []

    async with put_service(sandbox) as service:

        async def later() -> int:
            with pytest.raises(CallCycle):
                await service.bus.call(Put(box="a", value=0), timeout=5)
            began.set()
            await over.wait()
            return await service.bus.call(Put(box="a", value=7), timeout=5)

        began = asyncio.Event()

        async def start(command: Start) -> None:
            tasks.append(asyncio.create_task(later()))
            await began.wait()

        def start_in_thread(command: Start) -> None:
            here = contextvars.copy_context()
            loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(later(), context=here)))
            asyncio.run_coroutine_threadsafe(began.wait(), loop).result(5)

        sandbox.registry.handles(Start)(start if runs == "async" else start_in_thread)  # type: ignore[arg-type]
        await service.bus.call(Start(box="a"), timeout=5)
        over.set()
        assert await tasks[0] == 7
        await service.assert_unharmed("a")


async def test_what_it_sends_is_of_no_correlation(sandbox: Sandbox) -> None:
    over = asyncio.Event()
    tasks: list[asyncio.Task[tuple[str, str | None]]] = []

    async with put_service(sandbox) as service:

        @sandbox.registry.handles(Trace)
        async def trace(command: Trace, context: CommandContext) -> tuple[str, str | None]:
            return context.correlation_id, context.causation_id

        @sandbox.registry.handles(Start)
        async def start(command: Start) -> None:
            assert await service.bus.call(Trace(box="b"), timeout=5) == ("first", "first")

            async def later() -> tuple[str, str | None]:
                await over.wait()
                return await service.bus.call(Trace(box="b"), timeout=5, command_id="second")

            tasks.append(asyncio.create_task(later()))

        await service.bus.call(Start(box="a"), timeout=5, command_id="first")
        over.set()
        assert await tasks[0] == ("second", None)
        await service.assert_unharmed("a", "b")
