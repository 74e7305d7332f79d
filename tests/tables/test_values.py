"""The table *values × ways*: whatever a program carries arrives as the same value of the same class, or is refused with a typed error
where the class is defined or where the value is given. It is never accepted and then unreadable, never silently another.

**A row** is a line in `ROWS` of `tests/tables/values.py`.

**A way** is a function here with `@way`: it gets a `Bench`, in whose `carriers` each row that could be defined has its classes, sends all
rows on its one bus, and gives for each row what arrived, or the error that refused it. `sent(row, made)` keeps errors of the sender. What
`bench.arrived` has was noted by handlers; rows that a way cannot have are named in `bench.left_out`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import NullPool
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from command_bus import (
    CommandContext,
    DurableContext,
    Envelope,
    HandlerRegistry,
    History,
    Reject,
    every,
)
from command_bus.errors import BadResult, BadState, CommandBusError, RegistrationError
from command_bus.serialization.models import codec_for
from command_bus.serialization.msgpack import unpack
from command_bus.sql import Inbox, Outbox, OutboxRelay, metadata
from command_bus.testing import TestBus
from command_bus.workflows import chain, group, node
from tests.selection import quick
from tests.tables.carriers import NOTHING, SOON, Bench, Carrier, carrier_of
from tests.tables.shapes import shape
from tests.tables.values import ROWS

WAYS: dict[str, Callable[[Bench], Awaitable[None]]] = {}


def way(function: Callable[[Bench], Awaitable[None]]) -> Callable[[Bench], Awaitable[None]]:
    WAYS[function.__name__] = function
    return function


@way
async def dispatch(bench: Bench) -> None:
    await bench.come(lambda carrier: bench.bus.dispatch(carrier.carrying()))


@way
async def dispatch_batch(bench: Bench) -> None:
    async def send(carrier: Carrier) -> None:
        result = await bench.bus.dispatch_batch([carrier.carrying(), Envelope(carrier.carrying(), headers={"a": "b"})])
        for outcome in result.outcomes:
            if outcome.error is not None:
                raise outcome.error

    await bench.come(send)


@way
async def publish(bench: Bench) -> None:
    await bench.come(lambda carrier: bench.bus.publish(carrier.message(carrier.tell, value=carrier.given())))


@way
async def published_by_handler(bench: Bench) -> None:
    await _working(bench, "publish")


@way
async def outbox_event(bench: Bench) -> None:
    await _relayed(bench, lambda carrier: carrier.message(carrier.tell, value=carrier.given()))


@way
async def grouped_reply(bench: Bench) -> None:
    await _called(bench, lambda carrier: group([carrier.message(carrier.ask)]))
    for carrier in bench.carriers:
        if isinstance(found := bench.outcomes.get(carrier.row.name), list):
            (bench.outcomes[carrier.row.name],) = found


@way
async def taken(bench: Bench) -> None:
    """Let a node take the result of the one before. Its own value, which that replaces, is another command's."""

    async def send(carrier: Carrier) -> None:
        await bench.bus.dispatch(chain(carrier.message(carrier.ask), node(carrier.carrying(), takes="value")))

    await bench.come(send)


@way
async def chained(bench: Bench) -> None:
    await bench.come(lambda carrier: bench.bus.dispatch(chain(carrier.carrying())))


@way
async def chained_reply(bench: Bench) -> None:
    await _called(bench, lambda carrier: chain(carrier.message(carrier.ask)))


@way
async def dispatch_raw(bench: Bench) -> None:
    async def send(carrier: Carrier) -> None:
        fields = unpack(codec_for(carrier.carry).encode(carrier.carrying()))
        await bench.bus.dispatch_raw(carrier.carry.spec().entity, fields["box"], carrier.carry.spec().name, fields)

    await bench.come(send)


@way
async def schedule(bench: Bench) -> None:
    for carrier in bench.carriers:
        with bench.sent(carrier):
            await bench.bus.bus.schedules.put(f"s{carrier.number}", carrier.carrying(), every(60))
    time.sleep(SOON)
    await bench.bus.advance(70)


@way
async def retry(bench: Bench) -> None:
    await bench.come(lambda carrier: bench.bus.dispatch(carrier.carrying(fails=1)))


@way
async def replay(bench: Bench) -> None:
    await bench.come(lambda carrier: bench.bus.dispatch(carrier.carrying(fails=2)))
    await bench.bus.bus.dead_letters.replay_all()
    await bench.bus.run_until_idle(timeout=60)


@way
async def edited_letter(bench: Bench) -> None:
    """Give the value with the edit: the letter's own is that of a row that is always carried."""
    bench.left_out |= {row.name for row in ROWS if row.outcome != "same"}
    whole = [carrier for carrier in bench.carriers if carrier.row.outcome == "same"]
    for carrier in whole:
        with bench.sent(carrier):
            await bench.bus.dispatch(carrier.carrying(fails=2))
    await bench.bus.run_until_idle(timeout=60)
    letters = {letter.name: letter.id async for letter in bench.bus.bus.dead_letters.list()}
    for carrier in whole:
        with bench.sent(carrier):
            await bench.bus.bus.dead_letters.replay(letters[carrier.carry.spec().name], payload=carrier.carrying())
    await bench.bus.run_until_idle(timeout=60)


@way
async def reply(bench: Bench) -> None:
    for carrier in bench.carriers:
        with bench.sent(carrier):
            bench.outcomes[carrier.row.name] = await bench.bus.call(carrier.message(carrier.ask), timeout=60)


@way
async def stored_result(bench: Bench) -> None:
    for carrier in bench.carriers:
        await bench.bus.dispatch(carrier.message(carrier.ask), command_id=f"a{carrier.number}")
    await bench.bus.run_until_idle(timeout=60)
    for carrier in bench.carriers:
        with bench.sent(carrier):
            bench.outcomes[carrier.row.name] = await bench.bus.bus.result(f"a{carrier.number}", carrier.ask, timeout=0)


@way
async def history(bench: Bench) -> None:
    """Read the payload that is kept as a worker would."""

    async def send(carrier: Carrier) -> None:
        await bench.bus.dispatch(carrier.carrying(), command_id=f"h{carrier.number}", history=History("1 h", payload=True))

    await bench.come(send)
    for carrier in bench.carriers:
        entry = await bench.bus.bus.history.get(f"h{carrier.number}")
        if entry is not None and entry.payload is not None:
            read: Any = codec_for(carrier.carry).validate(entry.payload)
            bench.arrived[carrier.row.name] = read.value


@way
async def follow_up(bench: Bench) -> None:
    await _working(bench, "follow_up")


@way
async def step(bench: Bench) -> None:
    await _working(bench, "step")


@way
async def called(bench: Bench) -> None:
    await _working(bench, "called")


@way
async def signal(bench: Bench) -> None:
    """Send values of the type that the handler waits for. The sender does not know that type, so what it would refuse is not looked at."""
    bench.left_out |= {row.name for row in ROWS if row.outcome != "same"}
    await _working(bench, "signal", signalled=True)


@way
async def run(bench: Bench) -> None:
    await _called(bench, lambda carrier: carrier.message(carrier.run, value=carrier.given()))


@way
async def batch(bench: Bench) -> None:
    await _called(bench, lambda carrier: carrier.message(carrier.member, value=carrier.given()))


async def _called(bench: Bench, made: Callable[[Carrier], Any]) -> None:
    bench.left_out.add("Json")  # its handler has what the text says, and its reply is text
    for carrier in bench.carriers:
        with bench.sent(carrier):
            bench.outcomes[carrier.row.name] = await bench.bus.call(made(carrier), timeout=60)


@way
async def state(bench: Bench) -> None:
    """Read the state beside the line, and by the next command, which must find what the first left."""

    async def send(carrier: Carrier) -> None:
        for _ in range(2):
            await bench.bus.dispatch(carrier.message(carrier.keep))

    await bench.come(send)
    letters = {letter.name: letter async for letter in bench.bus.bus.dead_letters.list()}
    for carrier in bench.carriers:
        if (letter := letters.get(carrier.keep.spec().name)) is not None:
            assert letter.error_type in ("BadState", "ValidationError"), letter.error_type
            bench.outcomes[carrier.row.name] = BadState(letter.error_message)
            continue
        with bench.sent(carrier):
            found: Any = await bench.bus.bus.states.get(carrier.state, f"b{carrier.number}")
            if found is not None:
                assert shape(found.value) == shape(bench.arrived[carrier.row.name])
                bench.arrived[carrier.row.name] = found.value


@way
async def inbox(bench: Bench) -> None:
    """Fail behind the commit: the repeat has what the inbox remembers."""
    await _called(bench, lambda carrier: carrier.message(carrier.once))


@way
async def outbox(bench: Bench) -> None:
    await _relayed(bench, lambda carrier: carrier.carrying())


async def _relayed(bench: Bench, made: Callable[[Carrier], Any]) -> None:
    added = Outbox(bench.bus.bus)
    for carrier in bench.carriers:
        with bench.sent(carrier):
            async with AsyncSession(bench.engine) as session:
                added.add(session, made(carrier))
                await session.commit()
    time.sleep(SOON)
    async with OutboxRelay(bench.bus.bus, bench.engine) as relay:
        await relay.drained()
    await bench.bus.run_until_idle(timeout=60)


async def _working(bench: Bench, name: str, *, signalled: bool = False) -> None:
    for carrier in bench.carriers:
        await bench.bus.dispatch(carrier.message(carrier.work, way=name), command_id=f"w{carrier.number}")
    await bench.bus.advance(1)
    if signalled:
        for carrier in bench.carriers:
            with bench.sent(carrier):
                await bench.bus.bus.commands.signal(f"w{carrier.number}", "value", carrier.given())
    await bench.bus.advance(120)


async def _work(carrier: Carrier, way: str, context: DurableContext, arrived: dict[str, Any]) -> None:
    name = carrier.row.name
    if way == "follow_up":
        context.send(carrier.carrying())
    elif way == "publish":
        context.publish(carrier.message(carrier.tell, value=carrier.given()))
    elif way == "step":
        given = await context.step("make", carrier.given, returns=carrier.row.kind)
        await context.sleep(60)
        arrived[name] = given
    elif way == "called":
        given = await context.call(carrier.message(carrier.ask))
        await context.sleep(60)
        arrived[name] = given
    else:
        arrived[name] = await context.signal("value", timeout=100, returns=carrier.row.kind)


def _handlers(carrier: Carrier, arrived: dict[str, Any], refused: dict[str, Any]) -> HandlerRegistry:
    registry, row = HandlerRegistry(), carrier.row

    async def carry(command: Any) -> None:
        if len(failed) < command.fails:
            failed.append(1)
            raise RuntimeError("the first times")
        arrived[row.name] = command.value

    failed: list[int] = []

    async def ask(command: Any) -> Any:
        return carrier.given()

    async def work(command: Any, context: DurableContext) -> None:
        try:
            await _work(carrier, command.way, context, arrived)
        except (CommandBusError, ValidationError) as error:
            refused[row.name] = error

    registry.subscribes("s", carrier.tell)(lambda event: arrived.update({row.name: event.value}))
    for kind, handler in ((carrier.carry, carry), (carrier.ask, ask), (carrier.work, work)):
        registry.handles(kind)(handler)
    return registry


def _database_handlers(
    carrier: Carrier, arrived: dict[str, Any], refused: dict[str, Any], engine: AsyncEngine
) -> HandlerRegistry:
    registry, name = HandlerRegistry(), carrier.row.name

    async def replies(commands: Sequence[Any]) -> list[Any]:
        return [command.value for command in commands]

    async def put(command: Any, kept: Any) -> None:
        if kept.changes:
            arrived[name] = kept.value  # what the command before left
            return
        kept.value, kept.changes = carrier.given(), 1

    async def remembered(command: Any, context: CommandContext) -> Any:
        async with AsyncSession(engine) as session:
            try:
                async with Inbox().once(session, context) as block:
                    if not block.repeated:
                        block.remember(carrier.given())
            except (CommandBusError, ValidationError) as error:
                refused[name] = error
                raise Reject("refused") from error
        if not block.repeated:
            raise RuntimeError("behind the commit")
        arrived[name] = block.reply
        return block.reply

    put.__annotations__["kept"] = carrier.state
    registry.handles_many(carrier.run, of="entity")(replies)
    registry.handles_many(carrier.member)(replies)
    registry.handles(carrier.keep)(put)
    registry.handles(carrier.once)(remembered)
    return registry


def _defined() -> tuple[list[Carrier], dict[str, Exception]]:
    carriers: list[Carrier] = []
    refused: dict[str, Exception] = {}
    for number, row in enumerate(ROWS):
        try:
            carriers.append(carrier_of(number, row))
        except RegistrationError as error:
            refused[row.name] = error
    return carriers, refused


def _verdict(wanted: Any, found: Any) -> str:
    """Return what became of a value, in a word or two."""
    if found is NOTHING:
        return "accepted, and never arrived"
    if isinstance(found, RegistrationError):
        return "defined"
    if isinstance(found, CommandBusError | ValidationError):
        text = str(found)
        refused = "cannot be sent" in text  # by who gave it
        unreadable = isinstance(found, BadResult) and "as this process knows it" in text and not refused
        return f"accepted and then unreadable: {text[:150]}" if unreadable else "given"
    came = shape(found)
    return "same" if wanted == came else f"another: {str(wanted)[:80]} -> {str(came)[:80]}"


@pytest.mark.parametrize("name", quick(WAYS, ["dispatch", "dispatch_batch", "schedule", "reply", "step", "signal"]))
async def test_182_a_value_arrives_as_it_was_sent_or_is_refused(name: str, tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/values.db", poolclass=NullPool)
    if name in ("inbox", "outbox", "outbox_event"):
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
    carriers, refused = _defined()
    arrived: dict[str, Any] = {}
    registry = HandlerRegistry()
    for carrier in carriers:
        for handler in (*_handlers(carrier, arrived, refused), *_database_handlers(carrier, arrived, refused, engine)):
            registry.add(handler)
    async with TestBus(registry) as bus:
        bench = Bench(bus, carriers, arrived, {}, engine=engine)
        await WAYS[name](bench)
    wanted = {carrier.row.name: carrier.wanted for carrier in carriers}
    found = refused | arrived | bench.outcomes
    wrong: list[str] = []
    for row in [row for row in ROWS if row.name not in bench.left_out]:
        verdict = _verdict(wanted.get(row.name), found.get(row.name, NOTHING))
        if verdict != row.outcome and not (row.outcome == "either" and verdict in ("same", "given")):
            wrong.append(f"{row.name}: {row.outcome}, but {verdict}")
    assert not wrong, f"{len(wrong)} of {len(ROWS)}:\n" + "\n".join(wrong)
