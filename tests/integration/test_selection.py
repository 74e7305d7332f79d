"""Commands that are chosen by filters, and acts on all of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from command_bus import Command, CommandBus, CommandCancelled, DurableContext, EntityId, HandlerRegistry, RetryPolicy, Unique
from command_bus.admin.ending import Cancelling
from command_bus.admin.selection import BulkStep, Selection
from command_bus.cli.commands.commands import until_stopped
from command_bus.embedded import EmbeddedServer
from command_bus.errors import CommandTimeout, InvalidCommand, InvalidSettings, TransportUnavailable
from command_bus.sending.waiting import WaitingCommands
from tests.program import run_program


class Ship(Command[None], entity="order"):
    order: EntityId
    carrier: str = "acme"
    parcels: int = 1
    price: Decimal = Decimal(0)
    fragile: bool = False
    note: str | None = None


class Bill(Command[None], entity="order", retry=RetryPolicy(attempts=5, delay=60)):
    order: EntityId


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with EmbeddedServer.start() as server:
        yield server.url


class Approve(Command[None], entity="order", durable=True):
    order: EntityId


class Toy:
    def encrypt(self, data: bytes, aad: bytes) -> bytes:
        return bytes(each ^ 7 for each in data)

    decrypt = encrypt


async def ids(selection: Selection) -> list[str]:
    return sorted([each.command_id async for each in selection])


async def last(steps: Any) -> BulkStep:
    *_, step = [each async for each in steps]
    return step


@pytest.mark.parametrize("shards", [1, 3])
async def test_filters_choose_commands(url: str, shards: int) -> None:
    async with CommandBus(url, namespace=f"choose-{shards}", shards=shards) as bus:
        for number in range(4):
            await bus.dispatch(Ship(order=f"o-{number}", parcels=number), command_id=f"s-{number}")
            await bus.dispatch(Bill(order=f"o-{number}"), command_id=f"b-{number}")
        await bus.dispatch(Ship(order="o-1", carrier="other", fragile=True, price=Decimal("1.50")), command_id="s-x")
        await bus.dispatch(Ship(order="o-9"), command_id="late", delay=600)
        select = bus.commands.select
        assert await ids(select()) == ["b-0", "b-1", "b-2", "b-3", "late", "s-0", "s-1", "s-2", "s-3", "s-x"]
        assert await ids(select(name="Bill")) == ["b-0", "b-1", "b-2", "b-3"]
        assert await ids(select(state="delayed")) == ["late"]
        assert await ids(select(where={"carrier": "other"})) == ["s-x"]
        assert await ids(select(where={"parcels": 2})) == await ids(select(where={"parcels": "2"})) == ["s-2"]
        assert await ids(select(where={"fragile": True})) == await ids(select(where={"price": "1.50"})) == ["s-x"]
        assert await ids(select(where={"note": None}, name="Ship", state="delayed")) == ["late"]
        assert await ids(select(where={"carriers": "other"})) == await ids(select(entity_type="account")) == []
        assert await ids(select(older_than=60)) == []
        assert "late" not in await ids(select(older_than=0))
        found = [each async for each in select(where={"fragile": "true"})]
        assert [(each.name, each.entity_id, each.state, each.payload["carrier"] if each.payload else "") for each in found] == [
            ("Ship", "o-1", "waiting", "other")
        ]
        few = select(scan=1)
        assert await ids(few)
        assert not few.complete


async def test_all_that_match_are_cancelled_and_the_others_run_in_order(url: str) -> None:
    registry, ran = HandlerRegistry(), list[tuple[str, int]]()

    @registry.handles(Ship)
    async def ship(command: Ship) -> None:
        ran.append((command.order, command.parcels))

    async with CommandBus(url, namespace="cancel", registry=registry) as bus:
        for number in range(60):
            await bus.dispatch(Ship(order=f"o-{number % 3}", parcels=number, carrier="acme" if number % 2 else "other"))
        for number in range(5):
            await bus.dispatch(Ship(order="o-7", carrier="other"), delay=600, command_id=f"late-{number}")
        call = asyncio.create_task(bus.call(Ship(order="o-1", carrier="other", parcels=99), timeout=20))
        await asyncio.sleep(0.2)
        selection = bus.commands.select(where={"carrier": "other"})
        assert await last(selection.cancel(dry_run=True)) == BulkStep(66, 36, 0, 0, complete=True)
        assert (await last(selection.cancel(limit=4))).done == 4
        step = await last(selection.cancel("the carrier is closed"))
        assert (step.done, step.left, step.complete) == (32, 0, True)
        with pytest.raises(CommandCancelled, match="the carrier is closed"):
            await call
        assert await last(selection.cancel()) == BulkStep(30, 0, 0, 0, complete=True)
        async with bus.worker():
            await bus.wait_idle(timeout=20)
        for entity in range(3):
            got = [parcels for order, parcels in ran if order == f"o-{entity}"]
            assert got == [number for number in range(60) if number % 3 == entity and number % 2], entity


async def test_what_has_started_is_ended_only_if_that_is_wanted(url: str) -> None:
    registry, began = HandlerRegistry(), asyncio.Event()

    @registry.handles(Ship)
    async def ship(command: Ship) -> None:
        began.set()
        await asyncio.sleep(30)

    @registry.handles(Bill)
    async def bill(command: Bill) -> None:
        raise RuntimeError("no")

    async with CommandBus(url, namespace="running", registry=registry) as bus, bus.worker():
        receipt = await bus.dispatch(Ship(order="o-1"), keep_result=True)
        await began.wait()
        await bus.dispatch(Ship(order="o-1"))
        await bus.dispatch(Bill(order="o-2"))
        for _ in range(100):
            if await ids(bus.commands.select(state="retrying")):
                break
            await asyncio.sleep(0.05)
        assert len(await ids(bus.commands.select(state="running"))) == 1
        step = await last(bus.commands.select().cancel())
        assert (step.matched, step.done, step.left) == (3, 2, 1)
        step = await last(bus.commands.select(state="running").cancel("enough", running=True))
        assert (step.done, step.left) == (1, 0)
        with pytest.raises(CommandCancelled):
            await receipt.result(timeout=10)


async def test_delayed_commands_get_another_time(url: str) -> None:
    async with CommandBus(url, namespace="delayed") as bus:
        for number in range(3):
            await bus.dispatch(Ship(order=f"o-{number}"), delay=600, command_id=f"d-{number}")
        later = datetime.now(UTC) + timedelta(hours=3)
        assert (await last(bus.commands.select(state="delayed").reschedule(at=later))).done == 3
        assert all([abs(each.due_at - later) < timedelta(seconds=1) async for each in bus.commands.delayed()])
        with pytest.raises(InvalidSettings, match="delayed"):
            await last(bus.commands.select().reschedule(delay=0))
        with pytest.raises(InvalidCommand, match="delay="):
            await last(bus.commands.select(state="delayed").reschedule())


@pytest.mark.parametrize(
    "filters",
    [{"state": "parked"}, {"state": "runing"}, {"entity_type": "a b"}, {"older_than": -1}, {"scan": 0}, {"type": "order"}],
)
async def test_wrong_filters_are_refused_at_once(url: str, filters: Any) -> None:
    async with CommandBus(url, namespace="wrong") as bus:
        with pytest.raises((InvalidSettings, InvalidCommand)):
            bus.commands.select(**filters)
        with pytest.raises(InvalidSettings, match="limit"):
            await last(bus.commands.select().cancel(limit=0))


async def test_who_stops_has_what_was_done_and_can_ask_again(url: str) -> None:
    async with CommandBus(url, namespace="stop") as bus:
        for start in range(0, 3000, 1000):
            await bus.dispatch_batch([Ship(order=f"o-{number}") for number in range(start, start + 1000)])
        step = BulkStep()
        async for step in bus.commands.select().cancel():
            if step.done:
                break
        assert 0 < step.done < 3000
        assert not step.complete
        assert (await last(bus.commands.select().cancel())).done == 3000 - step.done
        assert not (await bus.stats()).depth


async def test_of_several_who_cancel_the_same_each_counts_what_it_did(url: str) -> None:
    """hail 15120, camunda 30940 and 44841: counts that go wrong, acts on over 10,000, acts on nothing."""
    async with CommandBus(url, namespace="three") as bus:
        step = await last(bus.commands.select(name="Ship").cancel())
        assert (step.looked, step.matched, step.done, step.complete) == (0, 0, 0, True)
        await bus.dispatch_batch([Ship(order=f"o-{number % 3_000}") for number in range(12_000)])
        steps = await asyncio.gather(*(last(bus.commands.select(name="Ship").cancel()) for _ in range(3)))
        assert sum(step.done for step in steps) == 12_000
        assert all(step.complete and step.done + step.left == step.matched for step in steps)
        assert (await bus.stats()).depth == 0


async def test_a_unique_key_of_a_cancelled_command_is_free(url: str) -> None:
    async with CommandBus(url, namespace="unique") as bus:
        await bus.dispatch(Bill(order="o-1"), unique=Unique("once"))
        assert (await last(bus.commands.select(name="Bill").cancel())).done == 1
        again = await bus.dispatch(Bill(order="o-1"), unique=Unique("once"))
        assert again.status == "accepted"


async def test_what_cannot_be_read_matches_no_content(url: str) -> None:
    async with CommandBus(url, namespace="sealed", cipher=Toy()) as bus:
        await bus.dispatch(Ship(order="o-1"))
        assert len(await ids(bus.commands.select(where={"carrier": "acme"}))) == 1
    async with CommandBus(url, namespace="sealed") as blind:
        selection = blind.commands.select(where={"carrier": "acme"})
        assert await ids(selection) == []
        assert selection.unread == 1
        assert len(await ids(blind.commands.select(name="Ship"))) == 1


async def test_the_command_line(url: str) -> None:
    async def run(*words: str, code: int = 0) -> Any:
        done = await asyncio.to_thread(run_program, "commands", *words, "--url", url, "--namespace", "line")
        assert done.returncode == code, done.stderr
        return done

    async with CommandBus(url, namespace="line") as bus:
        for number in range(6):
            await bus.dispatch(
                Ship(order=f"o-{number}", carrier="acme" if number % 2 else "other"), delay=600 if number > 3 else None
            )
        listed = json.loads((await run("list", "--where", "carrier=acme", "--json")).stdout)
        assert [each["payload"]["carrier"] for each in listed["commands"]] == ["acme"] * 3
        assert listed["complete"]
        assert (
            "2 of 4 commands match" in (await run("cancel", "--where", "carrier=acme", "--state", "waiting", "--dry-run")).stdout
        )
        assert "FIELD=VALUE" in (await run("list", "--where", "carrier", code=2)).stderr
        assert "once for a field" in (await run("list", "--where", "carrier=a", "--where", "carrier=b", code=2)).stderr
        for nothing in ((), ("--command", "")):
            assert "--all" in (await run("cancel", "--yes", *nothing, code=2)).stderr
        assert "pass --yes" in (await run("cancel", "--command", "Ship", code=2)).stderr
        assert "Shipp" in (await run("cancel", "--command", "Shipp", "--dry-run")).stderr
        assert "parked" in (await run("list", "--state", "parked", code=2)).stderr
        assert (
            "2 cancelled"
            in (await run("cancel", "--where", "carrier=acme", "--state", "waiting", "--yes", "-m", "closed")).stdout
        )
        assert "2 promoted" in (await run("promote", "--yes")).stdout
        entries = (await bus.audit.page(limit=3)).acts()
        assert (entries[1].act, entries[1].target, entries[1].why) == (
            "Cancel commands",
            "state=waiting, where=carrier",
            "closed",
        )
        assert entries[1].outcome.startswith("2 of 2 that match")


@pytest.mark.parametrize("shards", [1, 2])
async def test_beside_workers_each_command_runs_once_in_order_or_is_cancelled(url: str, shards: int) -> None:
    registry, ran = HandlerRegistry(), list[tuple[str, int]]()

    @registry.handles(Ship)
    async def ship(command: Ship) -> None:
        ran.append((command.order, command.parcels))
        await asyncio.sleep(0.002)

    async with CommandBus(url, namespace=f"beside-{shards}", shards=shards, registry=registry) as bus:
        for start in range(0, 2000, 500):
            await bus.dispatch_batch([Ship(order=f"o-{each % 40}", parcels=each) for each in range(start, start + 500)])
        for number in range(100):
            await bus.dispatch(Ship(order=f"o-{number % 40}", parcels=2000 + number), delay=0.05 + number / 100)
        async with bus.worker(concurrency=20), asyncio.timeout(60):
            steps = await asyncio.gather(*(last(bus.commands.select(older_than=0, scan=500).cancel()) for _ in range(2)))
            for _ in range(5):
                steps.append(await last(bus.commands.select(state="delayed").cancel(limit=7)))
                steps.append(await last(bus.commands.select(where={"parcels": 1999}).cancel()))
                await asyncio.sleep(0.1)
            await bus.wait_idle(30)
        cancelled = sum(each.done for each in steps)
        assert cancelled > 50
        assert len(ran) + cancelled == 2100
        assert len(set(ran)) == len(ran)
        for entity in range(40):
            at_once = [parcels for order, parcels in ran if order == f"o-{entity}" and parcels < 2000]
            assert at_once == sorted(at_once), entity
        stats = await bus.stats()
        assert (stats.depth, stats.delayed) == (0, 0)


async def test_a_durable_command_that_has_begun_is_ended_by_running_alone(url: str) -> None:
    registry = HandlerRegistry()

    @registry.handles(Approve)
    async def approve(command: Approve, context: DurableContext) -> None:
        await context.signal("yes", timeout=600)

    async with CommandBus(url, namespace="durable", registry=registry) as bus, bus.worker():
        for number in range(3):
            await bus.dispatch(Approve(order=f"o-{number}"), command_id=f"a-{number}")
        await bus.dispatch(Approve(order="o-0"), command_id="behind")
        async with asyncio.timeout(20):
            while len(await ids(bus.commands.select(state="suspended"))) < 3:
                await asyncio.sleep(0.05)
        step = await last(bus.commands.select().cancel())
        assert (step.done, step.left) == (1, 3)
        step = await last(bus.commands.select(state="suspended").cancel("over", running=True))
        assert (step.done, step.left) == (3, 0)
        await bus.wait_idle(20)
        assert {(await bus.commands.status(f"a-{number}")).outcome for number in range(3)} == {"cancelled"}


async def test_a_server_that_goes_away_in_the_midst_says_what_was_done(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with CommandBus(url, namespace="away") as bus:
        await bus.dispatch_batch([Ship(order=f"o-{number}") for number in range(300)])
        cancel, calls = WaitingCommands.cancel_entries, 0

        async def fails(self: WaitingCommands, *arguments: Any) -> int:
            nonlocal calls
            calls += 1
            if calls == 100:
                raise TransportUnavailable("the server went away")
            return await cancel(self, *arguments)

        monkeypatch.setattr(WaitingCommands, "cancel_entries", fails)
        with pytest.raises(TransportUnavailable) as raised:
            await last(bus.commands.select().cancel())
        assert raised.value.message == "after 127 were cancelled: the server went away"
        assert (await bus.stats()).depth == 300 - 127, "what was under way beside it has ended before"


async def test_a_misspelt_filter_of_dead_letters_does_not_choose_all(url: str) -> None:
    async with CommandBus(url, namespace="misspelt") as bus:
        letters: Any = bus.dead_letters
        for act in (letters.purge, letters.replay_all, letters.count, letters.page):
            with pytest.raises(InvalidSettings, match="did you mean 'entity_type'"):
                await act(entity_typ="order")


async def test_a_durable_command_that_waits_to_go_on_is_ended_by_running(url: str) -> None:
    registry = HandlerRegistry()

    @registry.handles(Approve)
    async def approve(command: Approve, context: DurableContext) -> None:
        await context.signal("yes", timeout=600)

    async with CommandBus(url, namespace="goes-on", registry=registry) as bus:
        async with bus.worker(), asyncio.timeout(20):
            await bus.dispatch(Approve(order="o-1"), command_id="a-1")
            while not await ids(bus.commands.select(state="suspended")):
                await asyncio.sleep(0.05)
        await bus.commands.signal("a-1", "yes")
        assert await ids(bus.commands.select(state="waiting")) == ["a-1"]
        assert (await last(bus.commands.select().cancel())).left == 1
        assert (await last(bus.commands.select().cancel("over", running=True))).done == 1
        assert (await bus.commands.status("a-1")).cancelling == "over"


async def test_of_a_mailbox_whose_first_is_refused_the_others_count(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, began = HandlerRegistry(), asyncio.Event()

    @registry.handles(Ship)
    async def ship(command: Ship) -> None:
        began.set()
        await asyncio.sleep(30)

    async def gives_no_answer(*_: object) -> bool:
        raise CommandTimeout("no answer in time")

    monkeypatch.setattr(Cancelling, "end_in", gives_no_answer)
    async with CommandBus(url, namespace="refused", registry=registry, grace=0.1) as bus, bus.worker():
        for _ in range(5):
            await bus.dispatch(Ship(order="o-1"))
        await began.wait()
        step = await last(bus.commands.select().cancel(running=True))
        assert (step.matched, step.done, step.left) == (5, 4, 1)


async def test_who_ends_what_runs_does_not_look_for_it_among_all(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, began = HandlerRegistry(), asyncio.Event()

    @registry.handles(Ship)
    async def ship(command: Ship) -> None:
        began.set()
        await asyncio.sleep(30)

    looks, find = list[int | None](), WaitingCommands.find_unmarked

    async def noted(self: WaitingCommands, command_id: str, *, likely: str | None = None, most: int | None = None) -> list[str]:
        looks.append(most)
        return await find(self, command_id, likely=likely, most=most)

    monkeypatch.setattr(WaitingCommands, "find_unmarked", noted)
    async with CommandBus(url, namespace="among", registry=registry) as bus, bus.worker():
        await bus.dispatch(Ship(order="o-1"))
        await began.wait()
        assert (await last(bus.commands.select().cancel(running=True))).done == 1
    assert set(looks) <= {0}


async def test_ctrl_c_counts_what_was_under_way() -> None:
    began, told = asyncio.Event(), list[tuple[int, bool]]()

    async def act() -> AsyncIterator[BulkStep]:
        for done in range(1, 4):
            began.set()
            await asyncio.sleep(0.05)
            yield BulkStep(done=done)

    async def follow() -> None:
        async for step, stopped in until_stopped(act()):
            told.append((step.done, stopped))

    task = asyncio.create_task(follow())
    await began.wait()
    task.cancel()  # as asyncio does at Ctrl-C
    await task
    assert told == [(1, True)]


async def test_acts_on_one_entity_are_not_those_on_another(url: str) -> None:
    async with CommandBus(url, namespace="acts") as bus:
        for target in ("order:1.5", "order:1/2", "mail:ann@example.org", "letter 0-1-0 (Ship of order:7)", "order:8, order:9"):
            await bus.audit.write("ann", "Pause", target, "stock")
        for name in ("order:1", "mail:ann", "1", "order:", "ann"):
            assert not await bus.audit.about([name]), name
        for name in ("order:1.5", "mail:ann@example.org", "order:7", "order:8", "order:9"):
            assert len(await bus.audit.about([name])) == 1, name


@pytest.mark.parametrize("way", ["bus", "entity", "selection"])
async def test_a_caller_is_told_why_its_command_did_not_start(url: str, way: str) -> None:
    async with CommandBus(url, namespace=f"why-{way}") as bus:
        call = asyncio.create_task(bus.call(Ship(order="o-1"), command_id="c-1", timeout=20))
        async with asyncio.timeout(10):
            while not await bus.entity("order", "o-1").depth():
                await asyncio.sleep(0.02)
        if way == "bus":
            assert await bus.cancel("c-1", reason="the carrier is closed")
        elif way == "entity":
            assert await bus.entity("order", "o-1").cancel("c-1", "the carrier is closed")
        else:
            assert (await last(bus.commands.select(name="Ship").cancel("the carrier is closed"))).done == 1
        with pytest.raises(CommandCancelled, match="cancelled before it started: the carrier is closed"):
            await call
