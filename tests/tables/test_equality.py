"""The table *pairs × places where values are compared*: equal values are equal everywhere, however they were written and in every
process, and different ones nowhere.

**A row** is a line of `tests/tables/equality.py`.

**A place** is a function here with `@place`: it gets rows, uses the first value of each and then the second where the first was, and
gives for each whether the two were taken for the same.

A command declares its value as what it is: pairs of different classes are commands of two releases.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Union

import httpx
import pytest
from pydantic import BaseModel, PydanticSchemaGenerationError, create_model

from command_bus import Command, CommandBus, DurableContext, EntityId, Envelope, HandlerRegistry, every
from command_bus.errors import CommandFailed, IdempotencyConflict, InvalidCommand
from command_bus.gateway import Grant, gateway, new_token, tokens
from command_bus.messages.outgoing import RawEnvelope
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.serialization.models import codec_for
from command_bus.testing import TestBus
from tests.tables.equality import NEWEST, ONLY_IN_STEPS, RELEASES, VALUES, Address, Point, Row, all_forms

CONFLICT = IdempotencyConflict


class Carry(Command[None], entity="box"):
    box: EntityId
    value: Any


class Follow(Command[None], entity="flow", durable=True):
    flow: EntityId


CONTAINERS = (dict, list, tuple, set, frozenset, deque)
Same = list[bool]
Place = Callable[[Sequence[Row]], Awaitable[Same]]
PLACES: dict[str, tuple[Place, tuple[Row, ...]]] = {}


def place(rows: tuple[Row, ...]) -> Callable[[Place], Place]:
    def register(function: Place) -> Place:
        PLACES[function.__name__] = function, rows
        return function

    return register


def typed(value: Any) -> Any:
    """Return the type that a value is declared as: its class, and those of its members."""
    kind: Any = type(value)
    if isinstance(value, BaseModel) or hasattr(value, "_fields") or not isinstance(value, CONTAINERS) or not value:
        return kind
    members: Any = Union[tuple(map(typed, value))]  # noqa: UP007 - of as many as there are
    if isinstance(value, Counter):
        return kind[members]
    if isinstance(value, dict):
        return kind[members, Union[tuple(map(typed, value.values()))]]  # noqa: UP007
    return kind[members, ...] if isinstance(value, tuple) else kind[members]


@cache
def carrying(kind: Any) -> Any:
    """Return a command class named `Carry` whose value has a type; the bus that reads it takes any."""
    base: Any = Command[None]
    keywords = {"entity": "box", "name": "Carry"}
    return create_model(
        "Carry", __base__=base, __cls_kwargs__=keywords, __module__=__name__, box=(EntityId, ...), value=(kind, ...)
    )


def command(made: Any, kind: Any = None) -> Any:
    return made if isinstance(made, Command) else carrying(kind or typed(made))(box="b", value=made)


def fields(made: Any) -> dict[str, Any]:
    return {"box": "b", "value": made}


SENT = tuple(row for row in VALUES if row.sent)
TEXTS = tuple(row for row in VALUES if row.text)
RECORDS = (BaseModel, Address, Point)
BARE = tuple(row for row in VALUES if not isinstance(row.one(), RECORDS))
"""What can be sent without a class: there defaults are not known."""
STORED = tuple(row for row in SENT if row in BARE or typed(row.one()) == typed(row.other()) or not row.equal)
"""What is stored is read by the class of the second: it must know the defaults of the first."""


@asynccontextmanager
async def opened(registry: HandlerRegistry | None = None) -> AsyncIterator[TestBus]:
    registry = registry or HandlerRegistry()
    kinds: tuple[type[Command[Any]], ...] = (Carry, *NEWEST)
    for kind in kinds:

        async def handle(command: Any) -> None:
            del command

        registry.handles(kind)(handle)
    async with TestBus(registry) as bus:
        yield bus


async def repeated(attempt: Awaitable[Any]) -> bool:
    """Return whether a repeat of a command id is taken for the same."""
    try:
        return bool((await attempt).status == "duplicate")
    except CONFLICT:
        return False


@place(SENT + RELEASES)
async def an_id_that_waits(rows: Sequence[Row]) -> Same:
    async with opened() as bus:
        for number, row in enumerate(rows):
            await bus.dispatch(command(row.one()), command_id=f"c{number}")
        return [await repeated(bus.dispatch(command(row.other()), command_id=f"c{number}")) for number, row in enumerate(rows)]


@place(SENT + RELEASES)
async def an_id_that_is_settled(rows: Sequence[Row]) -> Same:
    async with opened() as bus:
        for number, row in enumerate(rows):
            await bus.dispatch(command(row.one()), command_id=f"c{number}")
        await bus.run_until_idle()
        return [await repeated(bus.dispatch(command(row.other()), command_id=f"c{number}")) for number, row in enumerate(rows)]


@place(SENT + RELEASES)
async def an_id_that_was_cancelled(rows: Sequence[Row]) -> Same:
    async with opened() as bus:
        for number, row in enumerate(rows):
            await bus.dispatch(command(row.one()), command_id=f"c{number}")
            assert await bus.bus.cancel(f"c{number}")
        return [await repeated(bus.dispatch(command(row.other()), command_id=f"c{number}")) for number, row in enumerate(rows)]


@place(SENT + RELEASES)
async def a_batch(rows: Sequence[Row]) -> Same:
    async with opened() as bus:
        found = Same()
        for side in ("one", "other"):
            batch = [Envelope(command(getattr(row, side)()), command_id=f"c{number}") for number, row in enumerate(rows)]
            found = [each.status == "duplicate" for each in (await bus.bus.dispatch_batch(batch)).outcomes]
        return found


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


@place(tuple(row for row in BARE if row.sent))
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
    """Run a durable handler for each row: it acts with the first value until that is stored, and then with the second."""
    registry, runs, stored = HandlerRegistry(), Counter[int](), set[int]()

    @registry.handles(Follow)
    async def follow(command: Follow, context: DurableContext) -> None:
        number = int(command.flow)
        runs[number] += 1
        await act(context, rows[number].other() if number in stored else rows[number].one())
        stored.add(number)
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
        if "something else under this name" in error.message:
            return False
        raise
    return True


@place(SENT + RELEASES)
async def a_call(rows: Sequence[Row]) -> Same:
    return await two_runs(rows, lambda context, made: context.call(command(made)))


@place(SENT + RELEASES)
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
            one, other = row.one(), row.other()
            both = None if row.equal else typed(one) | typed(other)  # a class with one type would read the other value as its own
            await bus.bus.schedules.put(f"s{number}", command(one, both), every(3600))
            before = await template(bus, f"s{number}")
            await bus.bus.schedules.put(f"s{number}", command(other, both), every(3600))
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


def test_each_row_is_tried() -> None:
    cells = Counter(row.name for _, rows in PLACES.values() for row in rows)
    rows = (*VALUES, *RELEASES, *ONLY_IN_STEPS)
    print(cells.total(), "cells")
    assert sorted(cells) == sorted(row.name for row in rows), "each has a name of its own, and a place"
    assert {row.name for row in SENT + RELEASES if cells[row.name] < 7} == set()
    assert cells.total() >= 670


@pytest.mark.parametrize("row", [row for row in VALUES if not row.sent], ids=lambda row: row.name)
def test_what_no_command_has_is_refused(row: Row) -> None:
    with pytest.raises((InvalidCommand, PydanticSchemaGenerationError)):
        [codec_for(type(made)).encode(made) for made in map(command, (row.one(), row.other()))]


@pytest.fixture(autouse=True)
def two_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a bus have the classes of two releases, which have one name."""
    bind: Any = vars(EnvelopeBuilder)["_bind"]

    def rebind(self: Any, message: Any) -> Any:
        vars(self)["_names"].clear()
        return bind(self, message)

    monkeypatch.setattr(EnvelopeBuilder, "_bind", rebind)


DIGESTS = "from tests.tables.equality import all_forms; print(all_forms())"


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
