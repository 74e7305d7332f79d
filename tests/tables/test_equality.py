"""The table *pairs × places where values are compared*: equal values are equal everywhere, however they were written and in every
process, and different ones nowhere.

**A row** is a line of `tests/tables/equality.py`.

**A place** is a function here with `@place`: it gets rows, uses the first value of each and then the second where the first was, and
gives for each whether the two were taken for the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from command_bus import Command, CommandBus, DurableContext, EntityId, Envelope, HandlerRegistry, every
from command_bus.errors import CommandFailed, IdempotencyConflict
from command_bus.gateway import Grant, gateway, new_token, tokens
from command_bus.messages.outgoing import RawEnvelope
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.serialization.equality import canonical
from command_bus.testing import TestBus
from tests.tables.equality import NEWEST, ONLY_IN_STEPS, RELEASES, VALUES, Address, Point, Row

CONFLICT = IdempotencyConflict


class Carry(Command[None], entity="box"):
    box: EntityId
    value: Any


class Follow(Command[None], entity="flow", durable=True):
    flow: EntityId


Same = list[bool]
Place = Callable[[Sequence[Row]], Awaitable[Same]]
PLACES: dict[str, tuple[Place, tuple[Row, ...]]] = {}


def place(rows: tuple[Row, ...]) -> Callable[[Place], Place]:
    def register(function: Place) -> Place:
        PLACES[function.__name__] = function, rows
        return function

    return register


def command(made: Any) -> Command[Any]:
    return made if isinstance(made, Command) else Carry(box="b", value=made)


def fields(made: Any) -> dict[str, Any]:
    return {"box": "b", "value": made}


TEXTS = tuple(row for row in VALUES if row.text)
BARE = tuple(row for row in VALUES if not isinstance(row.one(), BaseModel | Address | Point))
"""What can be sent without a class: there defaults are not known."""
STORED = tuple(row for row in VALUES if row.equal is False or not isinstance(row.one(), BaseModel | Address | Point))
"""What is stored as it was sent: of a field that may be anything, the classes are not known any more."""


@asynccontextmanager
async def opened(registry: HandlerRegistry | None = None) -> AsyncIterator[TestBus]:
    registry = registry or HandlerRegistry()
    for kind in (Carry, *NEWEST):

        async def handle(command: Any) -> None:
            del command

        registry.handles(kind)(handle)
    async with TestBus(registry) as bus:
        yield bus


async def repeated(attempt: Awaitable[Any]) -> bool:
    """Return whether a repeat of a command id is taken for the same."""
    try:
        return (await attempt).status == "duplicate"
    except CONFLICT:
        return False


@place(VALUES + RELEASES)
async def an_id_that_waits(rows: Sequence[Row]) -> Same:
    async with opened() as bus:
        for number, row in enumerate(rows):
            await bus.dispatch(command(row.one()), command_id=f"c{number}")
        return [await repeated(bus.dispatch(command(row.other()), command_id=f"c{number}")) for number, row in enumerate(rows)]


@place(VALUES + RELEASES)
async def an_id_that_is_settled(rows: Sequence[Row]) -> Same:
    async with opened() as bus:
        for number, row in enumerate(rows):
            await bus.dispatch(command(row.one()), command_id=f"c{number}")
        await bus.run_until_idle()
        return [await repeated(bus.dispatch(command(row.other()), command_id=f"c{number}")) for number, row in enumerate(rows)]


@place(VALUES + RELEASES)
async def an_id_that_was_cancelled(rows: Sequence[Row]) -> Same:
    async with opened() as bus:
        for number, row in enumerate(rows):
            await bus.dispatch(command(row.one()), command_id=f"c{number}")
            assert await bus.bus.cancel(f"c{number}")
        return [await repeated(bus.dispatch(command(row.other()), command_id=f"c{number}")) for number, row in enumerate(rows)]


@place(VALUES + RELEASES)
async def a_batch(rows: Sequence[Row]) -> Same:
    async with opened() as bus:
        for side in ("one", "other"):
            batch = [Envelope(command(getattr(row, side)()), command_id=f"c{number}") for number, row in enumerate(rows)]
            outcomes = (await bus.bus.dispatch_batch(batch)).outcomes
        return [each.status == "duplicate" for each in outcomes]


@place(BARE)
async def an_id_without_a_class(rows: Sequence[Row]) -> Same:
    async with opened() as bus:
        for number, row in enumerate(rows):
            await bus.dispatch_raw("box", "b", "Carry", fields(row.one()), command_id=f"c{number}")
        found = Same()
        for number, row in enumerate(rows):
            turned = dict(reversed(fields(row.other()).items()))
            found.append(await repeated(bus.dispatch_raw("box", "b", "Carry", turned, command_id=f"c{number}")))
        return found


@place(BARE)
async def an_id_with_and_then_without_a_class(rows: Sequence[Row]) -> Same:
    async with opened() as bus:
        for number, row in enumerate(rows):
            await bus.dispatch(command(row.one()), command_id=f"c{number}")
        raw = [
            RawEnvelope("box", "b", "Carry", fields(row.other()), 1, {"command_id": f"c{number}"})
            for number, row in enumerate(rows)
        ]
        return [each.status == "duplicate" for each in (await bus.bus.dispatch_batch(raw)).outcomes]


@place(TEXTS)
async def an_idempotency_key(rows: Sequence[Row]) -> Same:
    async with opened() as bus:
        token = new_token()
        app = gateway(bus.bus, allow=tokens({"ops": Grant(token, ("*",))}))
        who, way = {"Authorization": f"Bearer {token}"}, httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=way, base_url="http://bus.example", headers=who, trust_env=False) as client:
            found = Same()
            for side in ("one", "other"):
                found.clear()
                for number, row in enumerate(rows):
                    answer = await client.post(
                        "/commands/Carry", json=fields(getattr(row, side)()), headers={"Idempotency-Key": f"c{number}"}
                    )
                    assert answer.status_code in (202, 200, 409), answer.text
                    found.append(answer.status_code != 409)
            return found


async def two_runs(rows: Sequence[Row], act: Callable[[DurableContext, Any], Awaitable[Any]]) -> Same:
    """Run a durable handler for each row: its first run acts with the first value, the next one with the second."""
    registry, runs = HandlerRegistry(), Counter[str]()

    @registry.handles(Follow)
    async def follow(command: Follow, context: DurableContext) -> None:
        runs[command.flow] += 1
        row = rows[int(command.flow)]
        await act(context, row.one() if runs[command.flow] == 1 else row.other())
        await context.signal("go")

    async with opened(registry) as bus:
        for number in range(len(rows)):
            await bus.dispatch(Follow(flow=str(number)), command_id=f"f{number}")
        await bus.run_until_idle()
        for number in range(len(rows)):
            await bus.bus.commands.signal(f"f{number}", "go")
        await bus.run_until_idle()
        assert min(runs.values()) > 1, "each row had two runs"
        return [await ended(bus.bus, f"f{number}") for number in range(len(rows))]


async def ended(bus: CommandBus, command_id: str) -> bool:
    try:
        await bus.result(command_id, timeout=1)
    except CommandFailed as error:
        return "something else under this name" not in error.message
    return True


@place(VALUES + RELEASES)
async def a_call(rows: Sequence[Row]) -> Same:
    return await two_runs(rows, lambda context, made: context.call(command(made)))


@place(VALUES + RELEASES)
async def a_compensation(rows: Sequence[Row]) -> Same:
    async def act(context: DurableContext, made: Any) -> None:
        context.compensate(command(made))
        await context.call(Carry(box="c", value=1), undo=Carry(box="c", value=2))  # stored behind it

    return await two_runs(rows, act)


@place(VALUES + RELEASES + ONLY_IN_STEPS)
async def an_argument_of_a_step(rows: Sequence[Row]) -> Same:
    return await two_runs(rows, lambda context, made: context.step("look", str, made))


@place(STORED + RELEASES[:-1])  # a put of another version stores that version
async def a_schedule(rows: Sequence[Row]) -> Same:
    async with opened() as bus:
        found = Same()
        for number, row in enumerate(rows):
            await bus.bus.schedules.put(f"s{number}", command(row.one()), every(3600))
            before = await template(bus, f"s{number}")
            await bus.bus.schedules.put(f"s{number}", command(row.other()), every(3600))
            found.append(await template(bus, f"s{number}") == before)
        return found


async def template(bus: TestBus, name: str) -> bytes | None:
    (raw,) = await bus.bus.session.transport.schedules.read([name])
    return raw


@pytest.mark.parametrize("name", PLACES)
async def test_the_table(name: str) -> None:
    compare, rows = PLACES[name]
    found = await compare(rows)
    assert len(found) == len(rows)
    assert {row.name: row.equal for row in rows} == {row.name: same for row, same in zip(rows, found, strict=True)}


@pytest.fixture(autouse=True)
def two_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a bus have the classes of two releases, which have one name."""
    bind: Any = vars(EnvelopeBuilder)["_bind"]

    def rebind(self: Any, message: Any) -> Any:
        vars(self)["_names"].clear()
        return bind(self, message)

    monkeypatch.setattr(EnvelopeBuilder, "_bind", rebind)


DIGESTS = "from tests.tables.test_equality import all_forms; print(all_forms())"


def all_forms() -> list[str]:
    """Return the canonical form of every value of the table."""
    rows = (*VALUES, *RELEASES, *ONLY_IN_STEPS)
    return [canonical(getattr(row, side)()).hex() for row in rows for side in ("one", "other")]


def test_a_form_is_the_same_in_every_process() -> None:
    told = {str(all_forms()) + "\n"}
    for seed in ("1", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-c", DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        told.add(done.stdout)
    assert len(told) == 1
