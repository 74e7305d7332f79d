"""Chains, groups and chords: each way a node can end, under both policies, with undo, retries, parking and crashes. Over every server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest
from pydantic import BaseModel, Field

from command_bus import (
    Command,
    CommandCancelled,
    CommandContext,
    CommandRejected,
    EntityId,
    Event,
    InvalidCommand,
    Query,
    Reject,
    RetryPolicy,
    Unique,
)
from command_bus.sending.command_location import unserved
from command_bus.workflows import GroupCounts, NodeFailed, chain, group, node
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until


class Page(BaseModel):
    number: int
    text: str


class Render(Command[Page], entity="page", retry=RetryPolicy(attempts=2, delay=0.01)):
    page: EntityId
    number: int


class Bind(Command[str], entity="book", retry=RetryPolicy(attempts=1)):
    book: EntityId
    pages: list[Page] = Field(default_factory=list[Page])
    before: str = ""


class Reserve(Command[str], entity="stock", on_poison="park", retry=RetryPolicy(attempts=1)):
    stock: EntityId
    how: str = "return"


class Release(Command[None], entity="stock"):
    stock: EntityId


class Ask(Query[int], entity="stock"):
    stock: EntityId


Seen = dict[str, list[Any]]


@pytest.fixture
def seen(sandbox: Sandbox) -> Seen:
    got: Seen = defaultdict(list)

    @sandbox.registry.handles(Render)
    async def render(command: Render, context: CommandContext) -> Page:
        got["render"].append(command.number)
        if command.number == 99 or (command.number < 0 and context.attempt == 1):
            raise ValueError("as planned")
        if command.number == 13:
            raise Reject("unlucky", code="unlucky", details={"number": 13})
        return Page(number=command.number, text=f"page {command.number}")

    @sandbox.registry.handles(Bind)
    async def bind(command: Bind) -> str:
        got["bind"].append(command.book)
        return f"{command.book}: {command.before}{' '.join(each.text for each in command.pages)}"

    @sandbox.registry.handles(Reserve)
    async def reserve(command: Reserve) -> str:
        got["reserve"].append(command.stock)
        if command.how == "fail" and not got["repaired"]:
            raise ValueError("empty")
        return f"reserved {command.stock}"

    @sandbox.registry.handles(Release)
    async def release(command: Release) -> None:
        got["release"].append(command.stock)

    return got


async def test_a_chain_runs_in_order_and_replies_as_its_last(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        work = chain(Reserve(stock="s-1"), node(Bind(book="b-1"), takes="before"))
        assert await bus.call(work, timeout=20) == "b-1: reserved s-1"
        receipt = await bus.dispatch(chain(Bind(book="b-2"), Render(page="p", number=-1)), command_id="c-1")
        assert await receipt.result(timeout=20) == Page(number=-1, text="page -1")
        again = await bus.dispatch(chain(Bind(book="b-2"), Render(page="p", number=-1)), command_id="c-1")
        assert again.status == "duplicate"
        await bus.wait_idle(10)
    assert seen["bind"] == ["b-1", "b-2"]
    assert seen["render"] == [-1, -1]


async def test_a_group_replies_in_its_order_and_a_chord_takes_that(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus(shards=2) as bus, bus.worker():
        pages = [Render(page=str(number), number=number) for number in range(6)]
        found = await bus.call(group(pages), timeout=20)
        assert found == [Page(number=number, text=f"page {number}") for number in range(6)]
        bound = await bus.call(group(pages[:2]).then(Bind(book="b-1"), takes="pages"), timeout=20)
        assert bound == "b-1: page 0 page 1"
        counted = await bus.call(group(pages, results=False), timeout=20)
        assert counted == GroupCounts(completed=6, failed=0)
        nested = await bus.call(chain(group(pages), group([chain(Bind(book="x")), Bind(book="y")])), timeout=20)
        assert nested == ["x: ", "y: "]
    assert seen["bind"][0] == "b-1"


async def test_a_group_that_ignores_failures_has_them_in_their_places(sandbox: Sandbox, seen: Seen) -> None:
    del seen
    async with sandbox.bus(unknown_grace=0) as bus, bus.worker():

        class Unknown(Command[None], entity="page"):
            page: EntityId

        given: list[Any] = [
            Render(page="1", number=1),
            Render(page="2", number=13),
            Render(page="3", number=99),
            Unknown(page="4"),
        ]
        one, refused, failed, unknown = await bus.call(group(given, failures="ignore"), timeout=20)
        assert one == Page(number=1, text="page 1")
        assert isinstance(refused, NodeFailed)
        assert (refused.command, refused.entity, refused.code) == ("Render", "page:2", "unlucky")
        assert isinstance(failed, NodeFailed)
        assert failed.code == "failed"
        assert isinstance(unknown, NodeFailed)
        assert unknown.code == "no_handler"


@pytest.mark.parametrize("kind", ["chain", "group"])
async def test_what_was_done_is_undone_in_reverse(sandbox: Sandbox, seen: Seen, kind: str) -> None:
    done = [node(Reserve(stock=f"s-{number}"), undo=Release(stock=f"s-{number}")) for number in range(3)]
    async with sandbox.bus() as bus, bus.worker():
        for bad, code in ((Render(page="1", number=13), "unlucky"), (Render(page="2", number=99), "node_failed")):
            seen["release"].clear()
            work: Command[Any] = chain(*done, bad, Bind(book="never")) if kind == "chain" else group([*done, bad])
            with pytest.raises(CommandRejected) as caught:
                await bus.call(work, timeout=20)
            assert caught.value.code == code
            assert caught.value.details.get("number" if code == "unlucky" else "entity") in (13, "page:2")
            assert seen["release"] == ["s-2", "s-1", "s-0"]
    assert seen["bind"] == []


def _done(name: str, how: str = "return") -> Any:
    return node(Reserve(stock=name, how=how), undo=Release(stock=name))


NESTED: dict[str, tuple[Any, list[str]]] = {
    "a chain in a chain": (
        chain(_done("a"), chain(_done("b"), _done("c")), _done("d"), Render(page="1", number=13)),
        ["d", "c", "b", "a"],
    ),
    "a group in a chain": (chain(_done("a"), group([_done("b"), _done("c")]), Render(page="1", number=13)), ["c", "b", "a"]),
    "a chain in a group": (group([chain(_done("a"), _done("b")), Render(page="1", number=13)]), ["b", "a"]),
    "with an undo of its own": (
        chain(_done("a"), node(chain(_done("b"), _done("c")), undo=Release(stock="both")), Render(page="1", number=13)),
        ["both", "a"],
    ),
    "two deep": (chain(chain(_done("a"), chain(_done("b"))), _done("c"), Render(page="1", number=13)), ["c", "b", "a"]),
}


@pytest.mark.parametrize("how", NESTED)
async def test_what_nested_workflows_did_is_undone(sandbox: Sandbox, seen: Seen, how: str) -> None:
    work, undone = NESTED[how]
    async with sandbox.bus() as bus, bus.worker():
        with pytest.raises(CommandRejected, match="unlucky"):
            await bus.call(work, timeout=20)
    assert seen["release"] == undone


async def test_a_workflow_that_lasts_is_not_said_to_have_no_handler(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus, bus.worker(registry=type(sandbox.registry)()):
        live: list[Any] = []
        while not live:
            live = [worker for worker in await bus.fleet.workers() if worker.alive]
            await asyncio.sleep(0.02)
        for name in ("command_bus.Chain", "command_bus.Group", "command_bus.Publish"):
            assert unserved(name, live, "here") is None
        assert unserved("Other", live, "here") is not None


async def test_a_node_that_is_parked_holds_the_chain_until_it_is_replayed(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(chain(Reserve(stock="s-1", how="fail"), Bind(book="b-1")), command_id="c-1")
        letters: list[Any] = []
        while not letters:
            letters = [each async for each in bus.dead_letters.list()]
            await asyncio.sleep(0.02)
        await until(lambda: _is_suspended(bus))
        tree = await bus.commands.tree("c-1")
        assert [each.status.name for each in tree.calls] == ["Reserve"]
        seen["repaired"].append(True)
        await bus.dead_letters.replay(letters[0].id)
        assert await receipt.result(timeout=20) == "b-1: "


async def test_a_node_that_is_discarded_or_purged_ends_the_chain(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        receipt = await bus.dispatch(chain(Reserve(stock="s-1", how="fail"), Bind(book="b-1")), command_id="c-1")
        await until(lambda: _letters(bus))
        async for letter in bus.dead_letters.list():
            await bus.dead_letters.discard(letter.id)
        with pytest.raises(CommandRejected) as caught:
            await receipt.result(timeout=20)
        assert caught.value.code == "node_failed"
        assert caught.value.details["code"] == "begun"
        await bus.entity("stock", "s-2").pause("closed")
        waiting = await bus.dispatch(chain(Reserve(stock="s-2"), Bind(book="b-1")), command_id="c-2")
        await until(lambda: _depth(bus))
        await bus.entity("stock", "s-2").purge()
        with pytest.raises(CommandRejected) as caught:
            await waiting.result(timeout=20)
        assert caught.value.details["code"] == "cancelled"
    assert seen["bind"] == []


async def _is_suspended(bus: Any) -> bool:
    return bool((await bus.commands.status("c-1")).state == "suspended")


async def _letters(bus: Any) -> list[Any]:
    return [each async for each in bus.dead_letters.list()]


async def _depth(bus: Any) -> int:
    return int(await bus.entity("stock", "s-2").depth())


async def test_a_cancelled_chain_ends_and_undoes(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.entity("stock", "s-2").pause("closed")
        work = chain(node(Reserve(stock="s-1"), undo=Release(stock="s-1")), Reserve(stock="s-2"), Bind(book="b-1"))
        receipt = await bus.dispatch(work, command_id="c-1")
        await until(lambda: _depth(bus))
        assert await bus.cancel("c-1", running=True)
        with pytest.raises(CommandCancelled):
            await receipt.result(timeout=20)
        assert seen["release"] == ["s-1"]
        assert await _depth(bus) == 0


async def test_a_large_group_goes_in_pages(sandbox: Sandbox, seen: Seen) -> None:
    pages = [Render(page=str(number), number=number + 1000) for number in range(600)]
    async with sandbox.bus(concurrency=64) as bus, bus.worker():
        found = await bus.call(group(pages), timeout=60)
    assert [each.number for each in found] == [*range(1000, 1600)]
    assert len(seen["render"]) == 600


def test_205_what_is_no_workflow_is_refused() -> None:
    class Happened(Event, entity="page"):
        page: EntityId

    class Folded(Command[None], entity="page", unique=Unique("k")):
        page: EntityId

    good = Bind(book="b")
    refused: list[tuple[Any, str]] = [
        (chain, "0 nodes: 1 to 4,000"),
        (lambda: group(Render(page="1", number=1) for _ in range(4_001)), "4,001 nodes"),
        (lambda: chain(good, "x"), "node 2: 'x' is no command"),  # type: ignore[call-overload]
        (lambda: chain(good, Happened(page="1")), "node 2: .*Happened is an event"),
        (lambda: chain(Folded(page="1")), "node 1: 'Folded' has a unique key"),
        (lambda: chain(node(good, takes="nope")), "node 1: Bind has no field 'nope'"),
        (lambda: group([good]).then(good, takes="nope"), "the chord: Bind has no field 'nope'"),
        (lambda: chain(node(Ask(stock="1"), undo=Release(stock="1"))), "is a query"),
        (lambda: group([good], failures="x"), "failures is 'fail' or 'ignore'"),  # type: ignore[call-overload]
        (lambda: chain(group([_done("a")], failures="ignore"), good), "node 1: it is a group with failures"),
        (lambda: chain(node(good, priority="x")), "node 1: priority"),  # type: ignore[arg-type]
    ]
    for make, text in refused:
        with pytest.raises(InvalidCommand, match=text):
            make()
