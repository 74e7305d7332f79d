"""`SyncCommandBus` operates a bus: its parts over a real server, iterators that are left, threads that wait while it is closed, forks."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from command_bus import (
    BusClosed,
    Command,
    CommandBus,
    CommandContext,
    CommandRejected,
    CommandTimeout,
    Draining,
    EntityId,
    HandlerRegistry,
    InvalidCommand,
    InvalidSettings,
    ProgressInfo,
    Reject,
    RetryPolicy,
    SyncCommandBus,
    UnknownDeadLetter,
)
from command_bus.admin.events import BEGINNING
from command_bus.embedded import EmbeddedServer
from command_bus.sync.thread import BusThread

pytestmark = pytest.mark.server


class Print(Command[int], entity="printer", retry=RetryPolicy(attempts=1)):
    printer: EntityId
    pages: int


class Copy(Command[int], entity="printer"):
    printer: EntityId


class Shop:
    """A namespace of its own, with a worker in a thread whose printers have paper or not."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.url, self.namespace = server.url, f"sync-{uuid.uuid4().hex[:8]}"
        self.paper = True
        self.heard = threading.Event()
        self.registry = HandlerRegistry()
        self._open: list[SyncCommandBus] = []

        @self.registry.handles(Print)
        async def print_(command: Print) -> int:
            if command.pages > 1000:
                raise Reject("too many", code="too_many")
            if not self.paper:
                raise OSError("no paper")
            return command.pages

        @self.registry.handles(Copy)
        def copy(command: Copy, context: CommandContext) -> int:
            context.progress(0.5, "half")
            self.heard.wait(20)
            return 1

        self.worker = BusThread(CommandBus(self.url, namespace=self.namespace, registry=self.registry))

    def works(self) -> None:
        self.worker.wait(self.worker.bus.worker(grace=0.5).start())

    def bus(self) -> SyncCommandBus:
        bus = SyncCommandBus(self.url, namespace=self.namespace)
        self._open.append(bus)
        return bus

    def close(self) -> None:
        for bus in self._open:
            bus.close()
        self.worker.close()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start(tcp=True) as server:
        yield server


@pytest.fixture
def shop(server: EmbeddedServer) -> Iterator[Shop]:
    shop = Shop(server)
    yield shop
    shop.close()


@pytest.fixture
def bus(shop: Shop) -> SyncCommandBus:
    return shop.bus()


def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return value


def reading(bus: SyncCommandBus) -> list[str]:
    """Return the tasks on its loop that read events."""
    running = bus._bus.open()

    async def names() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "command_bus.pages"]

    return running.wait(names())


class TestParts:
    def test_sending(self, shop: Shop, bus: SyncCommandBus) -> None:
        assert "not open" in repr(bus)
        shop.works()
        assert bus.call(Print(printer="p", pages=3), timeout=10) == 3
        assert bus.call_raw("printer", "p", "Print", {"printer": "p", "pages": 4}, timeout=10, command_id="four") == 4
        assert bus.result("four", Print) == bus.result("four") == 4
        with pytest.raises(CommandRejected, match="too many"):
            bus.call_raw("printer", "p", "Print", {"printer": "p", "pages": 2000}, timeout=10)
        assert (bus.url, bus.settings.namespace) == (shop.url, shop.namespace)
        assert "open" in repr(bus)

    def test_a_call_is_followed_in_the_thread_that_calls(self, shop: Shop, bus: SyncCommandBus) -> None:
        shop.works()
        heard: list[tuple[float | None, int]] = []

        def hear(progress: ProgressInfo) -> None:
            heard.append((progress.share, threading.get_ident()))
            shop.heard.set()

        assert bus.call(Copy(printer="p-1"), timeout=20, on_progress=hear) == 1
        shop.heard.clear()
        assert bus.entity("printer", "p-1").call(Copy(printer="p-1"), timeout=20, on_progress=hear) == 1
        assert heard == [(0.5, threading.get_ident())] * 2

        def stumble(progress: ProgressInfo) -> None:
            hear(progress)
            raise ZeroDivisionError

        async def waits(progress: ProgressInfo) -> None: ...

        shop.heard.clear()
        with pytest.raises(ZeroDivisionError):
            bus.call(Copy(printer="p-1"), timeout=20, on_progress=stumble)
        with pytest.raises(InvalidCommand, match="give a plain function"):
            bus.call(Copy(printer="p-1"), timeout=20, on_progress=waits)

    def test_an_entity(self, shop: Shop, bus: SyncCommandBus) -> None:
        printer = bus.entity("printer", "p")
        assert printer.dispatch(Print(printer="p", pages=1), command_id=uuid.UUID(int=1)).status == "accepted"
        assert bus.dispatch_raw("printer", "p", "Print", {"printer": "p", "pages": 2}, command_id="two").status == "accepted"
        assert (printer.depth(), repr(printer)) == (2, "<entity printer:p>")
        assert printer.cancel("two")
        assert printer.pause("jam")
        details = printer.show(waiting=5)
        assert (details.entity.state, details.entity.hold.reason if details.entity.hold else "") == ("paused", "jam")
        assert printer.resume()
        assert printer.drain()
        with pytest.raises(Draining):
            printer.dispatch(Print(printer="p", pages=1))
        assert printer.resume()
        assert printer.purge() == 1
        shop.works()
        assert printer.call(Print(printer="p", pages=7), timeout=10, command_id=uuid.UUID(int=7)) == 7
        with pytest.raises(InvalidCommand, match="names printer:q"):
            printer.dispatch(Print(printer="q", pages=1))
        with pytest.raises(InvalidCommand):
            bus.entity("pri nter", "p")

    def test_entities(self, bus: SyncCommandBus) -> None:
        bus.dispatch_batch(Print(printer=f"p{n}", pages=1) for n in range(5))
        first = bus.entities.list(order="name", limit=3)
        rest = bus.entities.list(order="name", limit=3, cursor=first.cursor)
        assert [each.entity_id for each in first.entities + rest.entities] == [f"p{n}" for n in range(5)]
        printers = bus.entities.of("printer")
        assert printers.pause("moving")
        assert [hold.reason for hold in bus.entities.holds()] == ["moving"]
        assert printers.list(states={"paused"}).matching == 5
        assert bus.entities.of("scanner").list().matching == 0
        assert printers.resume()
        assert not printers.resume()
        assert bus.entities.drain()
        assert bus.entities.resume()
        assert printers.purge() == 5
        assert bus.stats().depth == 0
        with pytest.raises(InvalidCommand):
            bus.entities.of("pri nter")

    def test_the_fleet(self, shop: Shop, bus: SyncCommandBus) -> None:
        assert bus.fleet.workers() == []
        shop.works()
        (worker,) = until(bus.fleet.workers)
        assert worker.alive
        assert [each.name for each in bus.fleet.commands()] == ["Copy", "Print"]
        found = bus.fleet.command("Print")
        assert found is not None
        assert found.key == "printer"
        assert bus.fleet.command("Scan") is None

    def test_dead_letters(self, shop: Shop, bus: SyncCommandBus) -> None:
        """More than a page of them."""
        shop.paper = False
        shop.works()
        bus.dispatch_batch(Print(printer=f"p{n}", pages=n) for n in range(250))
        bus.wait_idle(20)
        letters = list(bus.dead_letters.list(name="Print"))
        assert sorted(letter.payload["pages"] for letter in letters if letter.payload) == list(range(250))
        assert list(bus.dead_letters.list(entity_id="p7")) == [
            bus.dead_letters.get(next(letter.id for letter in letters if letter.entity_id == "p7"))
        ]
        assert bus.dead_letters.count() == {("failed", "Print"): 250}
        assert bus.dead_letters.oldest() is not None
        shop.paper = True
        for letter in bus.dead_letters.list():  # while they are read, they go
            assert bus.dead_letters.replay(letter.id) == letter.command_id
            if letter.entity_id == "p200":
                break
        bus.wait_idle(20)
        left = bus.dead_letters.count()["failed", "Print"]
        assert 0 < left < 250
        bus.dead_letters.discard(next(bus.dead_letters.list()).id)
        with pytest.raises(UnknownDeadLetter):
            bus.dead_letters.discard("0-1-0")
        last = [letter.entity_id for letter in bus.dead_letters.list()][-1]
        assert bus.dead_letters.purge(entity_id=last) == 1
        assert bus.dead_letters.replay_all() == left - 2
        until(lambda: reading(bus) == [])


class TestEvents:
    def test_they_are_watched_and_read(self, shop: Shop, bus: SyncCommandBus) -> None:
        bus.events.watch("printer", kept=5_000)
        assert bus.events.watched() == {"printer": 5_000}
        shop.works()
        bus.dispatch_batch(Print(printer="p", pages=n) for n in range(200))
        bus.wait_idle(20)
        kept = [event.kind for event in bus.events("printer", after=BEGINNING, follow=False)]
        assert (kept.count("accepted"), kept.count("completed")) == (200, 200)
        assert [event.kind for event in bus.events(kinds=["completed"], after=BEGINNING, follow=False)] == ["completed"] * 200
        with pytest.raises(InvalidSettings, match="kinds"):
            bus.events(kinds=["done"])  # type: ignore[list-item] # pyright: ignore[reportArgumentType] - a mistake, on purpose
        bus.events.unwatch("printer")
        assert bus.events.watched() == {}

    def test_events_arrive_as_they_happen_and_reading_ends_with_the_reader(self, shop: Shop, bus: SyncCommandBus) -> None:
        bus.events.watch()
        events = bus.events()
        assert reading(bus) == []  # it has not begun
        heard: list[str] = []

        def listen() -> None:
            for event in events:
                heard.append(event.command_id)
                if event.command_id == "last":
                    break
            events.close()

        listener = threading.Thread(target=listen)
        listener.start()
        until(lambda: bus.dispatch(Print(printer="p", pages=1)) and heard)  # it listens
        bus.dispatch(Print(printer="p", pages=1), command_id="second")
        until(lambda: heard[-1] == "second")  # at once, not when a page is full
        bus.dispatch(Print(printer="p", pages=1), command_id="last")
        listener.join(10)
        assert heard[-1] == "last"
        assert reading(bus) == []

    def test_one_that_is_forgotten_is_closed(self, shop: Shop, bus: SyncCommandBus) -> None:
        bus.events.watch()
        bus.dispatch(Print(printer="p", pages=1))
        assert next(bus.events(after=BEGINNING)).kind == "accepted"
        gc.collect()
        assert reading(bus) == []

    def test_closing_the_bus_ends_it(self, shop: Shop, bus: SyncCommandBus) -> None:
        bus.events.watch()
        with ThreadPoolExecutor() as pool:
            following = pool.submit(list, bus.events())
            until(lambda: reading(bus))
            bus.close()
            assert following.result(10) == []
        with pytest.raises(BusClosed):
            bus.events()


async def numbers(upto: int, log: list[str]) -> AsyncIterator[int]:
    try:
        for number in range(upto):
            log.append(str(number))
            yield number
            await asyncio.sleep(0)
    finally:
        log.append("closed")


async def turns(count: int) -> None:
    """Count turns of the loop in which `numbers` could go on."""
    for _ in range(count):
        await asyncio.sleep(0)


class TestIterating:
    def test_it_is_read_a_page_ahead_at_most(self, shop: Shop) -> None:
        log: list[str] = []
        taken = shop.worker.each(numbers(10_000, log))
        assert [next(taken) for _ in range(3)] == [0, 1, 2]
        until(lambda: len(log) >= 100)
        shop.worker.wait(turns(1000))
        assert len(log) <= 202
        taken.close()
        assert log[-1] == "closed"
        assert shop.worker.wait(asyncio.sleep(0, "works")) == "works"

    def test_all_of_it_is_read(self, shop: Shop) -> None:
        for count in (0, 1, 99, 100, 101, 1000):
            log: list[str] = []
            assert list(shop.worker.each(numbers(count, log))) == list(range(count))
            assert log[-1] == "closed"

    def test_what_it_raises_comes_behind_its_items(self, shop: Shop) -> None:
        async def failing() -> AsyncIterator[int]:
            yield 1
            yield 2
            raise OSError("torn")

        seen: list[int] = []
        with pytest.raises(OSError, match="torn"):
            seen.extend(shop.worker.each(failing()))
        assert seen == [1, 2]

    def test_one_that_never_began_leaves_nothing(self, shop: Shop) -> None:
        log: list[str] = []
        shop.worker.each(numbers(3, log)).close()
        assert log == []

    def test_the_garbage_collector_may_run_in_the_thread_of_the_bus(self, shop: Shop) -> None:
        log: list[str] = []
        held = [shop.worker.each(numbers(10_000, log))]
        next(held[0])

        async def forget() -> None:
            held.clear()

        shop.worker.wait(forget())
        until(lambda: log[-1] == "closed")


class TestClosing:
    def test_close_is_immediate_and_idempotent(self, shop: Shop, bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("command_bus.sync.thread._FAREWELL", 60.0)
        assert bus.entity("printer", "p").depth() == 0
        with pytest.raises(CommandTimeout):
            bus.call(Print(printer="p", pages=1), timeout=0.05)
        running = bus._bus.open()
        began = time.monotonic()
        bus.close()
        bus.close()
        running.close()
        assert time.monotonic() - began < 30
        for use in (bus.open, bus.ping, bus.dead_letters.count, bus.entity("printer", "p").depth, bus.fleet.workers):
            with pytest.raises(BusClosed):
                use()
        with pytest.raises(BusClosed):
            running.wait(running.bus.ping())

    def test_close_raises_in_waiting_callers(self, shop: Shop, bus: SyncCommandBus) -> None:
        bus.dispatch(Print(printer="p", pages=1), command_id="one")
        with ThreadPoolExecutor() as pool:
            waiting: list[Future[Any]] = [
                pool.submit(bus.call, Print(printer="p", pages=1), timeout=60),
                pool.submit(bus.result, "one", timeout=60),
                pool.submit(bus.wait_idle),
                pool.submit(bus._bus.open().wait, asyncio.Event().wait()),  # which would not end by itself
            ]
            until(lambda: bus.entity("printer", "p").depth() == 2)
            bus.close()
            for each in waiting:
                with pytest.raises(BusClosed):
                    each.result(10)

    def test_an_interrupted_wait_is_given_up(self, shop: Shop, bus: SyncCommandBus) -> None:
        """Ctrl-C in a notebook ends the wait, and the bus stays open."""
        running = bus._bus.open()

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        def when_it_waits() -> None:
            until(lambda: shop.bus().entity("printer", "p").depth() == 1)
            os.kill(os.getpid(), signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, interrupt)
        try:
            threading.Thread(target=when_it_waits).start()
            with pytest.raises(KeyboardInterrupt):
                bus.call(Print(printer="p", pages=1), timeout=60)
        finally:
            signal.signal(signal.SIGUSR1, before)
        until(lambda: running.transport.replies._waiting == {})
        assert bus.ping() > 0


def _in_child(bus: SyncCommandBus, begun: Iterator[Any], answers: Any) -> None:
    answers.put([bus.entity("printer", "p").depth(), bus.dead_letters.count(), len(bus.entities.list().entities)])
    try:
        next(begun)
    except RuntimeError as error:
        answers.put(str(error))
    del begun
    bus.close()
    os._exit(0)


def test_a_blocking_call_hands_its_priority_on(shop: Shop, bus: SyncCommandBus) -> None:
    shop.works()
    assert bus.call(Print(printer="p-1", pages=3), priority="high", timeout=10) == 3
    assert bus.call_raw("printer", "p-2", "Print", {"printer": "p-2", "pages": 4}, priority="low", timeout=10) == 4
    assert [(each.priority, each.started) for each in bus.stats().priorities] == [("high", 1), ("normal", 0), ("low", 1)]


def test_a_forked_child_operates_the_bus_over_connections_of_its_own(shop: Shop, bus: SyncCommandBus) -> None:
    bus.events.watch()
    bus.dispatch(Print(printer="p", pages=1))
    begun = bus.events(after=BEGINNING)
    assert next(begun).kind == "accepted"
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(bus, begun, answers))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    assert answers.get() == [1, {}, 1]
    assert "begin it again in the child" in answers.get()
    bus.dispatch(Print(printer="p", pages=2))
    assert next(begun).kind == "accepted"
    begun.close()


def _ping_in_child(bus: SyncCommandBus) -> None:
    bus.ping()
    bus.close()
    os._exit(0)


def test_a_fork_while_another_thread_opens_the_bus(shop: Shop, bus: SyncCommandBus) -> None:
    with bus._bus._lock:  # it is opening
        child = multiprocessing.get_context("fork").Process(target=_ping_in_child, args=(bus,))
        child.start()
    child.join(10)
    if child.exitcode is None:
        child.kill()
    assert child.exitcode == 0
