"""Types of what a durable handler awaits: that of the command that it calls, of the function of a step, or what `returns=` says.

Read by mypy and pyright, never run; see `registration.py`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, assert_type

from command_bus import Command, DurableContext, EntityId, HandlerRegistry

registry = HandlerRegistry()


class Reserve(Command[int], entity="sku"):
    sku: EntityId
    pieces: int


class Release(Command[None], entity="sku"):
    sku: EntityId


class Checkout(Command[str], entity="order", durable=True):
    order: EntityId


async def charged(cents: int) -> str:
    return f"{cents} cents"


async def packed_in(text: str, boxes: int = 1) -> int:
    return boxes


def printed(text: str) -> bytes:
    return text.encode()


def untyped(data: Any) -> Any:
    return data


@registry.handles(Checkout)
async def checkout(command: Checkout, context: DurableContext) -> str:
    assert_type(await context.call(Reserve(sku="lamp", pieces=2), undo=Release(sku="lamp"), timeout=60), int)
    assert_type(await context.call(Release(sku="lamp")), None)
    assert_type(await context.step("charge", charged, 500, key="500"), str)
    assert_type(await context.step("print", printed, "lamp"), bytes)
    assert_type(await context.step("pack", packed_in, "lamp"), int)
    assert_type(await context.step("pack", packed_in, "lamp", 3), int)
    assert_type(await context.step("partly", partial(packed_in, "lamp"), 3), int)
    assert_type(await context.step("parse", untyped, "5", returns=int | None), Any)
    assert_type(await context.step("parse", untyped, "5", returns=Literal["a", "b"]), Any)
    assert_type(await context.signal("packed", returns=bool | None), Any)
    assert_type(await context.signal("packed", returns=list[Literal[1]]), list[Literal[1]])
    assert_type(await context.step("parse", untyped, "5", returns=int), int)
    assert_type(await context.signal("packed"), Any)
    assert_type(await context.signal("packed", timeout=60, returns=bool), bool)
    assert_type(await context.sleep(60), None)
    reserve, packed = Reserve(sku="lamp", pieces=2), context.signal("packed", returns=bool)
    assert_type(await context.all(context.call(reserve), packed), tuple[int, bool])
    charge = context.step("charge", charged, 500)
    assert_type(await context.all(context.call(reserve), packed, charge), tuple[int, bool, str])
    assert_type(await context.all(*[context.call(reserve) for _ in range(9)]), tuple[int, ...])
    won = await context.first(context.call(reserve), context.call(reserve))
    assert_type(await won, int)
    async with context.timeout(60):
        context.compensate(Release(sku="lamp"), key="lamp")
    return await charge


@registry.handles(Checkout)
async def mistaken(command: Checkout, context: DurableContext) -> str:
    pieces = await context.call(Reserve(sku="lamp", pieces=2))
    await context.call(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await context.call(Release(sku="lamp"), undo=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await context.call(Release(sku="lamp"), command_id="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await context.call(Release(sku="lamp"), on_progress=print)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await context.step("charge", charged, "x")  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await context.step("charge", charged)  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    context.step("charge", charged, 500)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    context.sleep(60)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    context.signal("packed")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    context.call(Release(sku="lamp"))  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    await context.sleep("60")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    context.compensate(checkout)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return pieces  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
