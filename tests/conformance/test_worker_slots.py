"""A worker's slots: no entity keeps one for ever while others wait, and a handler that waits for the bus lends its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    CommandRejected,
    CommandTimeout,
    EntityId,
    Receipt,
    Reject,
    RetryPolicy,
    SyncCommandBus,
    TransportUnavailable,
)
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until


class Spin(Command[None], entity="line"):
    line: EntityId


class Order(Command[int], entity="order", retry=RetryPolicy(attempts=1)):
    order: EntityId
    stocks: list[str]


class Stock(Command[int], entity="stock"):
    stock: EntityId


class Note(Command[None], entity="note"):
    note: EntityId


class Most:
    """Counts handlers that run at a time, without those that wait."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def __enter__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        self.now -= 1


@pytest.mark.promise("Hot entities hold up no others")
@pytest.mark.parametrize("shards", [1, 4, 16])
async def test_a_cold_entity_of_any_shard_gets_a_slot_of_hot_ones(sandbox: Sandbox, shards: int) -> None:
    """The hot ones are all of one shard, the cold ones of all: each begins before the hot ones have done half of their work."""
    started: dict[str, int] = {}
    ran = 0

    @sandbox.registry.handles(Spin)
    async def spin(command: Spin) -> None:
        nonlocal ran
        ran += 1
        started.setdefault(str(command.line), ran)
        await asyncio.sleep(0.005)

    async with sandbox.bus(shards=shards, quantum_time=0.05) as bus:
        names = [f"l{number}" for number in range(1000)]
        hot = [name for name in names if bus.session.redis.keys.shard_of(f"line:{name}") == 0][:4]
        async with bus.worker(concurrency=4):
            await bus.dispatch_batch(Spin(line=name) for name in hot * 400)
            await until(lambda: len(started) == 4)
            cold = {bus.session.redis.keys.shard_of(f"line:{name}"): name for name in names if name not in hot}
            await bus.dispatch_batch(Spin(line=name) for name in cold.values())
            await until(lambda: len(started) == 4 + len(cold))
            assert max(started[name] for name in cold.values()) < 800
            await bus.entities.purge()


async def ordering(sandbox: Sandbox, most: Most) -> Callable[[CommandBus], None]:
    """Register orders that ask for their stocks, by a bus that is given later."""
    buses: list[CommandBus] = []

    @sandbox.registry.handles(Stock)
    async def stock(command: Stock) -> int:
        with most:
            await asyncio.sleep(0.01)
        return 1

    @sandbox.registry.handles(Order)
    async def order(command: Order) -> int:
        with most:
            await asyncio.sleep(0.01)
        found = await asyncio.gather(*(buses[0].call(Stock(stock=name), timeout=20) for name in command.stocks))
        with most:
            await asyncio.sleep(0.01)
        return sum(found)

    return buses.append


@pytest.mark.promise("Waiting callers hold up nothing")
@pytest.mark.parametrize(("concurrency", "orders"), [(1, 1), (1, 20), (10, 10), (10, 100)])
async def test_handlers_that_wait_for_replies_take_no_slots(sandbox: Sandbox, concurrency: int, orders: int) -> None:
    most = Most()
    use = await ordering(sandbox, most)
    async with sandbox.bus() as bus:
        use(bus)
        async with bus.worker(concurrency=concurrency):
            began = time.monotonic()
            asked = (bus.call(Order(order=f"o{n}", stocks=[f"s{n}", "shared"]), timeout=30) for n in range(orders))
            assert await asyncio.gather(*asked) == [2] * orders
            assert time.monotonic() - began < 15
            assert most.most <= concurrency, "who goes on has a slot again"
            await bus.wait_idle(5)
            assert (await bus.stats()).in_flight == 0


@pytest.mark.promise("Waiting callers hold up nothing")
async def test_above_the_limit_callers_wait_and_their_calls_run(sandbox: Sandbox) -> None:
    """More orders than may wait, all before their stocks in the line of the ready."""
    most = Most()
    use = await ordering(sandbox, most)
    async with sandbox.bus(max_waiting=3) as bus:
        use(bus)
        await bus.dispatch_batch(Order(order=f"o{n}", stocks=[f"s{n}"]) for n in range(40))
        async with bus.worker(concurrency=2):
            await bus.wait_idle(30)
            stats = await bus.stats()
            assert (stats.completed, stats.dead_letters) == (80, 0)
            assert most.most <= 2


async def test_a_chain_of_calls_is_longer_than_the_bound(sandbox: Sandbox) -> None:
    class Link(Command[int], entity="link"):
        link: EntityId
        left: int

    buses: list[CommandBus] = []

    @sandbox.registry.handles(Link)
    async def link(command: Link) -> int:
        if command.left == 0:
            return 0
        return 1 + await buses[0].call(Link(link=f"{command.link}.", left=command.left - 1), timeout=20)

    async with sandbox.bus(max_waiting=2) as bus, bus.worker(concurrency=1):
        buses.append(bus)
        chains = (bus.call(Link(link=name, left=6), timeout=25) for name in "abcdef")
        assert await asyncio.gather(*chains) == [6] * 6


async def test_without_lending_each_handler_keeps_its_slot(sandbox: Sandbox) -> None:
    most = Most()
    use = await ordering(sandbox, most)
    async with sandbox.bus(max_waiting=0) as bus, bus.worker(concurrency=1):
        use(bus)
        with pytest.raises(CommandTimeout):
            await bus.call(Order(order="o", stocks=["s"]), timeout=1)
        await bus.entities.of("stock").purge()


async def test_stats_count_handlers_that_wait_for_a_reply(sandbox: Sandbox) -> None:
    may_end = asyncio.Event()
    buses: list[CommandBus] = []

    @sandbox.registry.handles(Stock)
    async def stock(command: Stock) -> int:
        await may_end.wait()
        return 1

    @sandbox.registry.handles(Order)
    async def order(command: Order) -> int:
        return await buses[0].call(Stock(stock="s"), timeout=20)

    async with sandbox.bus(lease=2.0) as bus, bus.worker(concurrency=1) as worker:
        buses.append(bus)
        call = asyncio.create_task(bus.call(Order(order="o", stocks=[]), timeout=20))

        async def told() -> bool:
            workers = (await bus.stats()).workers
            return [(info.running, info.awaiting_reply) for info in workers] == [(2, 1)]

        await until(told)
        assert worker.info().awaiting_reply == 1
        may_end.set()
        assert await call == 1
        assert worker.info().awaiting_reply == 0


async def test_a_call_that_fails_or_is_given_up_returns_its_slot(sandbox: Sandbox) -> None:
    """Each handler gives up or fails in its way; afterwards the only slot is free and no other was made."""
    most = Most()
    buses: list[CommandBus] = []

    @sandbox.registry.handles(Stock)
    async def stock(command: Stock) -> int:
        with most:
            await asyncio.sleep(0.02)
        if command.stock == "refused":
            raise Reject("no")
        return 1

    @sandbox.registry.handles(Order)
    async def order(command: Order) -> int:
        name = command.stocks[0]
        if name == "refused":
            with pytest.raises(CommandRejected):
                await buses[0].call(Stock(stock=name), timeout=10)
        elif name == "impatient":
            with pytest.raises((CommandTimeout, TransportUnavailable)):
                await buses[0].call(Stock(stock=name), timeout=0.001)
        elif name == "left":
            waiting = asyncio.create_task(buses[0].call(Stock(stock=name), timeout=10))
            await asyncio.sleep(0.005)
            left.append(waiting)
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(buses[0].call(Stock(stock=name), timeout=10), 0.005)
        with most:
            await asyncio.sleep(0.01)
        return 1

    left: list[asyncio.Task[int]] = []
    async with sandbox.bus() as bus, bus.worker(concurrency=1) as worker:
        buses.append(bus)
        ways = ["refused", "impatient", "left", "cancelled"] * 5
        done = (bus.call(Order(order=f"o{n}", stocks=[way]), timeout=20) for n, way in enumerate(ways))
        assert await asyncio.gather(*done) == [1] * 20
        await asyncio.gather(*left)
        await bus.wait_idle(10)
        assert worker.info().awaiting_reply == 0
        most.most = 0
        await asyncio.gather(*(bus.call(Stock(stock=f"s{n}"), timeout=10) for n in range(20)))
        assert most.most == 1


async def test_a_result_that_is_waited_for_lends_the_slot_too(sandbox: Sandbox) -> None:
    buses: list[CommandBus] = []

    @sandbox.registry.handles(Stock)
    async def stock(command: Stock) -> int:
        return 7

    @sandbox.registry.handles(Order)
    async def order(command: Order, context: CommandContext) -> int:
        receipt: Receipt = await buses[0].dispatch(Stock(stock="s"), command_id="given")
        return await buses[0].result(receipt.command_id, Stock, timeout=10)

    async with sandbox.bus() as bus, bus.worker(concurrency=1):
        buses.append(bus)
        assert await bus.call(Order(order="o", stocks=[]), timeout=15) == 7


@pytest.mark.promise("Waiting callers hold up nothing")
async def test_threads_that_wait_for_replies_are_replaced(sandbox: Sandbox) -> None:
    """Two threads and two slots, ten orders; the stocks need threads as well."""
    if sandbox.url is None:
        pytest.skip("a bus of another thread needs a server")
    lock, running = threading.Lock(), Most()
    blocking = await asyncio.to_thread(SyncCommandBus, sandbox.url, namespace=sandbox.namespace)

    def busy() -> None:
        with lock:
            running.__enter__()
        time.sleep(0.01)
        with lock:
            running.__exit__()

    @sandbox.registry.handles(Stock)
    def stock(command: Stock) -> int:
        busy()
        return 1

    @sandbox.registry.handles(Order)
    def order(command: Order) -> int:
        busy()
        return sum(blocking.call(Stock(stock=name), timeout=20) for name in command.stocks)

    try:
        async with sandbox.bus(threads=2) as bus, bus.worker(concurrency=2) as worker:
            orders = (bus.call(Order(order=f"o{n}", stocks=[f"s{n}", f"t{n}"]), timeout=30) for n in range(10))
            assert await asyncio.gather(*orders) == [2] * 10
            assert running.most <= 2
            assert (worker.info().awaiting_reply, worker.info().awaiting_thread) == (0, 0)
    finally:
        await asyncio.to_thread(blocking.close)


@pytest.mark.parametrize("concurrency", [2, 4])
async def test_calls_of_handlers_over_several_shards_never_stop(sandbox: Sandbox, concurrency: int) -> None:
    """Replies and slots come and go in one turn of the event loop, while readers of quiet shards wait for slots to spare."""
    most = Most()
    use = await ordering(sandbox, most)
    async with sandbox.bus(shards=2) as bus, bus.worker(concurrency=concurrency):
        use(bus)

        async def client(number: int) -> None:
            for count in range(25):
                assert await bus.call(Order(order=f"o{number}", stocks=[f"s{number}-{count}"]), timeout=20) == 1

        await asyncio.wait_for(asyncio.gather(*(client(number) for number in range(8))), 40)
        assert most.most <= concurrency


class Job(Command[int], entity="job", retry=RetryPolicy(attempts=1)):
    job: EntityId
    calls: bool


async def test_a_nested_call_runs_even_if_callers_are_ahead_of_it(sandbox: Sandbox) -> None:
    """The caller is deferred at the limit; since no handler goes on, it starts nevertheless."""
    buses: list[CommandBus] = []

    @sandbox.registry.handles(Job)
    async def job(command: Job) -> int:
        if not command.calls:
            return 1
        if command.job == "first":
            await may_call.wait()
        return await buses[0].call(Job(job="second" if command.job == "first" else "third", calls=False), timeout=20)

    may_call = asyncio.Event()
    async with sandbox.bus(max_waiting=1) as bus, bus.worker(concurrency=4) as worker:
        buses.append(bus)
        assert await bus.call(Job(job="zero", calls=True), timeout=10) == 1
        first = asyncio.create_task(bus.call(Job(job="first", calls=True), timeout=25))
        await until(lambda: worker.running == 1)
        may_call.set()
        await until(lambda: worker.info().awaiting_reply == 1 or first.done())
        assert await bus.call(Job(job="second", calls=True), timeout=20) == 1
        assert await first == 1


async def test_handlers_that_kept_all_slots_lend_them_later(sandbox: Sandbox) -> None:
    """Each is the first of its name, so none is known to call when it begins."""

    class One(Job, entity="job", name="One"): ...

    class Two(Job, entity="job", name="Two"): ...

    class Three(Job, entity="job", name="Three"): ...

    buses: list[CommandBus] = []
    began = asyncio.Barrier(3)

    async def calls(command: Job) -> int:
        await asyncio.wait_for(began.wait(), 10)
        return await buses[0].call(Stock(stock=str(command.job)), timeout=20)

    @sandbox.registry.handles(Stock)
    async def stock(command: Stock) -> int:
        return 1

    for kind in (One, Two, Three):
        sandbox.registry.handles(kind)(calls)
    async with sandbox.bus(max_waiting=1) as bus, bus.worker(concurrency=3):
        buses.append(bus)
        kinds = (bus.call(kind(job=f"j{number}", calls=True), timeout=20) for number, kind in enumerate((One, Two, Three)))
        assert await asyncio.gather(*kinds) == [1, 1, 1]
