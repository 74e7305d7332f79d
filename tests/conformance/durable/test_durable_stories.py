"""Stories: what a durable command did, kept with its end in the history. Over every server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import CommandBus, CommandRejected, DurableContext, GiveUp, HandlerRegistry, History, HistoryEntry, Reject
from command_bus.durable import run_tools
from command_bus.serialization.story import MOST_STORY_BYTES, StoryStep
from tests.conformance.conftest import Sandbox
from tests.conformance.durable.durable_shop import Flow, Mirror, ParkedFlow, Refund, Reserve, Shop
from tests.conformance.put_service import until

KEPT = History("1 h", steps=True)


@pytest.fixture
def shop(sandbox: Sandbox) -> Shop:
    return Shop(sandbox)


def told(entry: HistoryEntry | None) -> list[tuple[Any, ...]]:
    """Return what a story says, shortly: kind, name, and the result or error."""
    assert entry is not None
    assert entry.steps is not None
    return [(each.kind, each.name, each.error or each.result) for each in entry.steps]


async def state_is(bus: CommandBus, state: str) -> bool:
    return (await bus.commands.status("c-1")).state == state


async def end_of(bus: CommandBus, status: str) -> HistoryEntry:
    """Return the end of the command, once it ended so."""

    async def has_ended() -> bool:
        entry = await bus.history.get("c-1")
        return entry is not None and entry.status == status

    await until(has_ended)
    entry = await bus.history.get("c-1")
    assert entry is not None
    return entry


DONE = ("step", "charge#1", "CHARGE")
RESERVED = ("call", "Reserve@stock:s-1#1", 1)
UNDONE = ("undo", "Reserve@stock:s-1#1", None)
ENDS: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "return": ("completed", [DONE, RESERVED]),
    "reject": ("rejected", [DONE, RESERVED, UNDONE]),
    "fail": ("dead_lettered", [DONE, RESERVED, UNDONE]),
    "park": ("parked", [DONE, RESERVED]),
    "cancel": ("cancelled", [DONE, RESERVED, ("cancel", "", "wrong day"), UNDONE]),
    "late": ("completed", [DONE, RESERVED, ("wait", "go#1", "it has not come in time")]),
}
"""What the handler does last: how the command ends, and its story."""


@pytest.mark.parametrize("end", list(ENDS))
async def test_every_end_has_its_story(sandbox: Sandbox, shop: Shop, end: str) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.step("charge", shop.effect, "charge")
        await context.call(Reserve(sku="s-1"), undo=None if end == "park" else Refund(account="a-1"))
        match end:
            case "reject":
                raise Reject("no stock")
            case "fail" | "park":
                raise GiveUp("broken")
            case "cancel":
                await context.signal("go")
            case "late":
                with pytest.raises(TimeoutError):
                    await context.signal("go", timeout=0.01)
            case _:
                pass

    status, story = ENDS[end]
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch((ParkedFlow if end == "park" else Flow)(order="o-1"), command_id="c-1", history=KEPT)
        if end == "cancel":
            await until(lambda: state_is(bus, "suspended"))
            assert await bus.cancel("c-1", running=True, reason="wrong day")
        entry = await end_of(bus, status)
        assert sorted(told(entry), key=str) == sorted(story, key=str)
        assert entry.steps is not None
        if end != "cancel":  # its handler ran to its last line, in the run that ended it
            assert [each.kind for each in entry.steps][:2] == ["step", "call"]
        (reserve,) = (each for each in entry.steps if each.kind == "call")
        assert reserve.command_id


async def test_without_it_nothing_is_kept(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.step("charge", shop.effect, "charge")

    async with sandbox.bus(history=History("1 h")) as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="c-1")
        await bus.dispatch(Reserve(sku="s-1"), command_id="c-2", history=KEPT)
        await bus.wait_idle(20)
        plain, of_no_durable = await bus.history.get("c-1"), await bus.history.get("c-2")
    assert plain is not None
    assert of_no_durable is not None
    assert (plain.steps, of_no_durable.steps) == (None, None)


async def test_the_order_is_that_of_the_handler(sandbox: Sandbox, shop: Shop) -> None:
    """A large hash of a server has no order of its own."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        for number in range(40):
            await context.step("page", lambda: "x" * 100, key=f"p-{39 - number}")
            await context.step("next", str, number)
        await context.sleep(0.1)
        first = await context.first(context.sleep(0, key="s"), context.signal("go"))
        assert first is not None

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="c-1", history=KEPT)
        entry = await end_of(bus, "completed")
    assert entry.steps is not None
    expected = [name for number in range(40) for name in (f"page=p-{39 - number}", f"next#{number + 1}")]
    assert [each.name for each in entry.steps] == [*expected, "sleep#1", "sleep=s", "first#1"]
    assert [each.until_ms > 0 for each in entry.steps[-3:]] == [True, True, False]
    assert entry.steps[-1].result == "sleep=s"


async def test_a_retried_attempt_and_a_replay_tell_all(sandbox: Sandbox, shop: Shop) -> None:
    runs: list[int] = []

    @shop.script
    async def order(context: DurableContext) -> Any:
        runs.append(1)
        await context.step("one", lambda: 1)
        try:
            await context.step("two", _fails)
        except ValueError:
            await context.step("other", lambda: 2)
        if len(runs) < 5:
            raise RuntimeError(f"attempt {len(runs)}")

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="c-1", history=KEPT)
        entry = await end_of(bus, "dead_lettered")
        story = [("step", "one#1", 1), ("step", "two#1", "ValueError: too much"), ("step", "other#1", 2)]
        assert told(entry) == story
        (letter,) = [each async for each in bus.dead_letters.list()]
        await bus.dead_letters.replay(letter.id)
        assert told(await end_of(bus, "completed")) == story, "the side record was kept with the letter"
        assert len(runs) > 3


def _fails() -> None:
    raise ValueError("too much")


async def test_what_an_operator_ends_has_no_story(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.step("one", lambda: 1)
        raise GiveUp("no")

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="c-1", history=KEPT)
        assert told(await end_of(bus, "dead_lettered")) == [("step", "one#1", 1)]
        (letter,) = [each async for each in bus.dead_letters.list()]
        await bus.dead_letters.discard(letter.id)
        assert (await end_of(bus, "discarded")).steps is None


async def test_calls_that_were_late_and_signals_that_did_not_fit(sandbox: Sandbox, shop: Shop) -> None:
    shop.gates["gate"] = gate = asyncio.Event()

    @shop.script
    async def order(context: DurableContext) -> Any:
        with pytest.raises(TimeoutError):
            await context.call(Reserve(sku="gate"), timeout=0.01)
        with pytest.raises(TimeoutError):
            async with context.timeout(0.01, key="t"):
                await context.signal("never")
        return await context.signal("go", returns=int)

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="c-1", history=KEPT)
        await shop.suspended()
        await bus.commands.signal("c-1", "go", "odd")
        await bus.commands.signal("c-1", "go", 7)
        entry = await end_of(bus, "completed")
        gate.set()
        await bus.wait_idle(20)
    late = "it had not ended in time"
    assert entry.reply == 7
    assert sorted(told(entry), key=str) == sorted(
        [
            ("call", "Reserve@stock:gate#1", late),
            ("limit", "timeout=t", None),
            ("cut_off", "signal:never#1~1", "cut off by t:timeout=t"),
            ("signal", "go#1", "left out: its value does not fit"),
            ("signal", "go#2", 7),
        ],
        key=str,
    )


@pytest.mark.parametrize("has_cipher", [True, False])
async def test_encrypted_values_stay_sealed(sandbox: Sandbox, shop: Shop, has_cipher: bool) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.step("secret", lambda: {"pan": "4711"})
        try:
            await context.step("two", _fails)
        except ValueError:
            await context.call(Reserve(sku="s-1", pieces=47))
        with pytest.raises(CommandRejected):
            await context.call(Reserve(sku="s-2", end="reject"))

    async with sandbox.bus(cipher=Mirror()) as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="c-1", history=KEPT)
        await end_of(bus, "completed")
        async with sandbox.bus(**({"cipher": Mirror()} if has_cipher else {})) as reader:
            entry = await reader.history.get("c-1")
    story = told(entry)
    names = ["secret#1", "two#1", "Reserve@stock:s-1#1", "Reserve@stock:s-2#1"]
    assert [name for _, name, _ in story] == names
    found = [value for _, _, value in story]
    if has_cipher:
        assert found == [{"pan": "4711"}, "ValueError: too much", 47, "sold out"]
    else:
        assert found == [None, None, None, "sold out"]
        assert entry is not None
        assert [each.encrypted for each in entry.steps or ()] == [True, True, True, False]


async def test_what_has_no_room_is_cut_and_says_so(sandbox: Sandbox, shop: Shop) -> None:
    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.step("large", lambda: "x" * 70_000)
        await context.step("small", lambda: 1)
        await context.all(*(context.sleep(0, key=f"{number}{'-' * 190}") for number in range(400)))

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="c-1", history=KEPT)
        entry = await end_of(bus, "completed")
        (stored,) = await bus.session.transport.operator.history.find("c-1")
    assert len(stored.record) < MOST_STORY_BYTES + 2000
    assert entry.steps is not None
    large, small, *sleeps, last = entry.steps
    assert (large.cut, large.result) == (True, None)
    assert (small.cut, small.result) == (True, None), "names come before values"
    assert last == StoryStep("left_out", f"{400 - len(sleeps)} fields", cut=True)
    assert len(sleeps) > 250


async def test_it_goes_on_where_no_worker_knows_the_command(sandbox: Sandbox, shop: Shop) -> None:
    """Its handler is gone with a deploy: the worker that gives it up has its side record."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.step("one", lambda: 1)
        await context.signal("go")

    async with sandbox.bus() as bus:
        async with bus.worker():
            await bus.dispatch(Flow(order="o-1"), command_id="c-1", history=KEPT)
            await shop.suspended()
        async with sandbox.bus(registry=HandlerRegistry(), unknown_grace=0) as other, other.worker():
            await bus.commands.signal("c-1", "go", 1)
            entry = await end_of(bus, "dead_lettered")
    assert sorted(told(entry)) == [("signal", "go#1", 1), ("step", "one#1", 1)]


async def test_signals_that_nobody_takes_push_nothing_out(sandbox: Sandbox, shop: Shop) -> None:
    """As histories of others fill up with events that nobody waits for: Azure/azure-functions-durable-extension#29."""

    @shop.script
    async def order(context: DurableContext) -> Any:
        await context.step("one", lambda: 1)
        await context.signal("go")
        await context.step("two", lambda: 2)

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="c-1", history=KEPT)
        await shop.suspended()
        for number in range(30):
            await bus.commands.signal("c-1", f"a-{number}", "x" * 4000)
        await bus.commands.signal("c-1", "go", 1)
        entry = await end_of(bus, "completed")
    assert told(entry)[:3] == [("step", "one#1", 1), ("signal", "go#1", 1), ("step", "two#1", 2)]
    cut = [each.cut for each in entry.steps or ()][3:]
    assert cut == [False] * 16 + [True] * 14


async def test_what_undoes_is_told_in_its_order(sandbox: Sandbox, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last run begins with what is stored, and has no handler."""
    monkeypatch.setattr(run_tools, "LONG_LINGER", 0.05)
    numbers = [7, 3, 12, *range(20, 60)]

    @shop.script
    async def order(context: DurableContext) -> Any:
        for number in numbers:
            await context.step("page", lambda: "x" * 100, key=str(number))
        context.compensate(Refund(account="a-2"))
        await context.call(Reserve(sku="s-9"), undo=Refund(account="a-9", fails=1))
        context.compensate(Refund(account="a-5"))
        raise Reject("no")

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Flow(order="o-1"), command_id="c-1", history=KEPT)
        await end_of(bus, "parked")
        (letter,) = [each async for each in bus.dead_letters.list() if each.command_id == "c-1"]
        await bus.dead_letters.replay(letter.id)
        entry = await end_of(bus, "rejected")
    story = told(entry)
    assert [name for kind, name, _ in story if kind == "step"] == [f"page={number}" for number in sorted(numbers)]
    undone = [(name, error is not None) for kind, name, error in story if kind == "undo"]
    target = "Reserve@stock:s-9#1"
    assert undone == [("Refund@account:a-5#1", False), (target, True), (f"{target}~2", False), ("Refund@account:a-2#1", False)]
    assert [kind for kind, _, _ in story][-4:] == ["undo"] * 4
