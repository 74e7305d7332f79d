"""The simulated processes of a test bus: senders, and workers that can crash, on every event loop that uses the bus.

Buses of the program under test are connected to the in-memory server, and restored at the end. A bus is connected when it is opened, on the
loop that opens it. So the order of an application's lifespan, a `TestClient`, a fixture and the test itself does not matter. A bus that was
opened before refuses every request: it talks to a real server.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from command_bus.admin.statistics import Statistics
from command_bus.bus import BusOptions, CommandBus
from command_bus.errors import EntitiesStopped
from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.middleware import Middleware
from command_bus.session import OPEN_SESSIONS, LoopGuard, Session, SessionHook
from command_bus.testing.clock import VirtualClock
from command_bus.testing.crashes import Crash, Crashing
from command_bus.testing.records import Recorder
from command_bus.testing.simulated.live import PROCESS, LiveServer, Process, Witness
from command_bus.testing.simulated.store import ZSet
from command_bus.transport.redis.mailbox_record import parse_record
from command_bus.worker.worker import Worker

_ADVICE = (
    "{bus} was opened before the fixture `command_bus` of this test, so it talks to a real server: nothing is sent. Let what opens it "
    "ask for `command_bus` first, in a fixture of each test (`def client(command_bus): …`), or do without `command_bus` here"
)


class ClaimedBuses:
    """The buses that talk to one in-memory server.

    Args:
        hook: Called when one of them opens.
        layer: Middleware that records what they send.
    """

    def __init__(self, hook: SessionHook, layer: Recorder) -> None:
        self.buses: list[CommandBus] = []
        self._hook = hook
        self._layer = layer
        self._undo = contextlib.ExitStack()
        self._refused: list[str] = []

    @property
    def refused(self) -> list[str]:
        """Reasons why requests were refused."""
        return self._refused

    def claim(self, bus: CommandBus) -> None:
        """Connect this bus when it opens.

        Raises:
            TypeError: It is open already.
        """
        if bus.is_open:
            raise TypeError(f"the bus must not be open yet: {_ADVICE.format(bus=bus)}")
        before, bus.session.hook = bus.session.hook, self._hook
        self._undo.callback(setattr, bus.session, "hook", before)

    def claim_all(self) -> None:
        """Connect every bus of this process that opens from now on; refuse requests of those that are open already."""
        before, Session.every_hook = Session.every_hook, self._hook
        self._undo.callback(setattr, Session, "every_hook", before)
        for session in list(OPEN_SESSIONS):
            if session.clients is None:  # else its server is in this process
                self._refuse(session)

    def connect(self, bus: CommandBus, process: Process) -> None:
        """Connect a bus that is about to open to the in-memory server, and record what it sends."""
        if bus not in self.buses:
            self.buses.append(bus)
            session = bus.session
            self._undo.callback(setattr, session, "clients", session.clients)
            self._undo.callback(setattr, bus, "middleware", bus.middleware)
            self._undo.callback(session.renew)
            bus.middleware = (self._layer, *bus.middleware)
        bus.session.clients = process

    def loop_of(self, bus: CommandBus) -> asyncio.AbstractEventLoop | None:
        """Return the loop on which a connected bus is open, or None."""
        process = bus.session.clients
        if not bus.is_open or not isinstance(process, Process):
            return None
        loop = process.loop
        return None if loop is None or loop.is_closed() else loop

    def release(self) -> None:
        """Restore all buses, closed."""
        self._undo.close()
        self.buses.clear()

    def _refuse(self, session: Session) -> None:
        refusal = _Refusal(_ADVICE.format(bus=session.owner), self._refused.append)
        before = session.exchange_guard(refusal)
        if before is not None:
            refusal.before = before
            self._undo.callback(refusal.withdraw, session)


class _Refusal(LoopGuard):
    """The guard of a session that must not be used."""

    before: LoopGuard

    def __init__(self, why: str, report: Callable[[str], None]) -> None:
        self._why = why
        self._report = report

    def check(self) -> NoReturn:
        self._report(self._why)
        raise RuntimeError(self._why)

    def is_lost(self) -> bool:
        return self.before.is_lost()

    def withdraw(self, session: Session) -> None:
        """Let the session be used again, unless it was closed in between."""
        if session.is_open:
            session.exchange_guard(self.before)


@dataclass(eq=False, slots=True)
class _StartedWorker:
    """A worker, its bus and its simulated process."""

    bus: CommandBus
    worker: Worker
    process: Process

    async def start(self) -> None:
        await self.bus.open()
        await self.worker.start()

    async def stop(self, grace: float | None = None) -> None:
        await self.worker.stop(grace=grace)
        await self.bus.close()


class LoopWorkers:
    """Starts, replaces and stops the workers on the running loop.

    Args:
        shared: What the workers of all loops share.
    """

    def __init__(self, shared: BusProcesses) -> None:
        self.loop = asyncio.get_running_loop()
        self.stays = False
        """Whether the test itself runs on this loop, not only an application."""
        self._shared = shared
        self._context = contextvars.copy_context()
        self._started: dict[str, list[_StartedWorker]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._starting = asyncio.Lock()

    @property
    def buses(self) -> list[CommandBus]:
        """One worker's bus per namespace."""
        return [group[0].bus for group in self._started.values() if group]

    async def start(self, app_bus: CommandBus, handlers: HandlerRegistry, layers: Sequence[Any]) -> None:
        """Start the workers of a bus's namespace; idempotent."""
        async with self._starting:
            group = self._started.setdefault(app_bus.settings.namespace, [])
            while len(group) < self._shared.workers:
                await self._add(group, app_bus, handlers, layers)

    async def close(self) -> None:
        """Stop running workers, and wait for the clean-up of crashed ones."""
        started, self._started = self._started, {}
        for group in started.values():
            for started_worker in group:
                await started_worker.stop()
        if self._background:
            await asyncio.wait(self._background)

    async def _add(
        self, group: list[_StartedWorker], app_bus: CommandBus, handlers: HandlerRegistry, layers: Sequence[Any]
    ) -> None:
        shared = self._shared
        process = Process(shared.server, works=True)

        def replace_it() -> None:
            self._replace(group, process, lambda: self.start(app_bus, handlers, layers))

        process.replace = replace_it
        crashing = Crashing(shared.recorder, shared.crashes, process, lambda: bus.session.redis.keys)
        bus = CommandBus(
            settings=app_bus.settings,
            registry=handlers,
            middleware=(crashing, *layers),
            lifespan=app_bus.lifespan,
            cipher=app_bus.cipher,
            clients=process,
        )
        bus.session.hook = shared  # lets time leap over what its handlers wait for
        started_worker = _StartedWorker(bus, bus.worker(), process)
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        await self.loop.create_task(started_worker.start(), name="command_bus.testing", context=context)
        group.append(started_worker)
        process.witness = shared.witness

    def _replace(self, group: list[_StartedWorker], process: Process, replace: Callable[[], Any]) -> None:
        """Clean up after a crashed process, and start another worker in its place."""
        self._shared.crashed += 1
        for started_worker in list(group):
            if started_worker.process is process:
                group.remove(started_worker)
                self._run_in_background(started_worker.stop(grace=0))
                self._run_in_background(replace())

    def _run_in_background(self, work: Any) -> None:
        context = self._context.copy()  # not that of the handler that was killed
        task = self.loop.create_task(work, name="command_bus.testing", context=context)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


_RESTING = frozenset({"s", "u", "U", "w"})


_CLOSE_TIMEOUT = 20.0  # seconds for closing what runs in another thread
_LOGGERS = ("command_bus.worker", "command_bus.transport")


class BusProcesses(SessionHook):
    """Opens buses, and starts and stops their workers. Implements `SessionHook`.

    Args:
        clock: Their clock.
        registry: Handlers, or None for those of the buses.
        bus: The application's, or None.
        workers: Number of workers per namespace.
        options: For a bus of our own.

    Raises:
        TypeError: The bus is open, or comes with options.
    """

    def __init__(
        self, clock: VirtualClock, registry: HandlerRegistry | None, bus: CommandBus | None, workers: int, options: BusOptions
    ) -> None:
        if bus is not None and options:
            raise TypeError("a bus of your own brings its options: give a bus, or options")
        self.bus = bus or CommandBus("redis://in-memory", registry=registry, **options)
        self.recorder = Recorder()
        self.crashes: list[Crash] = []
        self.claims = ClaimedBuses(self, self.recorder)
        self.claims.claim(self.bus)
        self.server = LiveServer(clock.time)
        self.workers = workers
        self.crashed = 0
        self.witness: Witness | None = None
        self._registry = registry if bus is None or registry is not None else bus.registry
        self._layers: dict[CommandBus, tuple[Middleware, ...]] = {self.bus: self.bus.middleware}
        self._clock = clock
        self._loop_workers: dict[asyncio.AbstractEventLoop, LoopWorkers] = {}
        self._declared: set[str] = set()
        self._twins: dict[asyncio.AbstractEventLoop, CommandBus] = {}
        self._started = False
        self._undo = contextlib.ExitStack()

    def is_async(self, name: str) -> bool:
        """Return whether a command's handler runs on the loop."""
        found = (self._registry_for(bus).lookup(name) for bus in self._layers)
        handler = next((handler for handler in found if handler is not None), None)
        return handler is None or handler.is_async

    async def busy(self) -> bool:
        """Return whether work is left that does not wait for an operator."""
        for bus in self._workers_here().buses:
            standing = self._rest(bus)
            if not standing[0]:
                return True  # without a request: nothing else is asked as often
            session = self.bus.session if self._looks_at(bus) else bus.session
            with contextlib.suppress(EntitiesStopped):
                if await Statistics(session).busy() and standing != (True, None):
                    return True
        return False

    def _looks_at(self, bus: CommandBus) -> bool:
        """Return whether the test's own bus, whose process does not die, is open here and sees what this one sees."""
        here = self.claims.loop_of(self.bus) is asyncio.get_running_loop()
        return here and self.bus.settings.namespace == bus.settings.namespace

    def next_due_ms(self) -> float | None:
        """Return the server's time when the next thing is due, where nothing is ready or runs until then; else None."""
        found = [self._rest(bus) for bus in self._workers_here().buses]
        times = [next_ms for _, next_ms in found if next_ms is not None]
        return min(times) if times and all(rests for rests, _ in found) else None

    def _rest(self, bus: CommandBus) -> tuple[bool, float | None]:
        """Return whether nothing is ready and nothing runs, and when the next thing is due, by the server's clock; None if nothing is.

        What is left then is suspended until somebody acts, paused or parked.
        """
        store, rests, due = self.server.store, True, list[float]()
        for shard in bus.session.redis.keys.shards:
            records = (store.get(shard.active.encode(), dict) or {}).values()
            rests = rests and all(parse_record(record).state in _RESTING for record in records)
            due += (store.get(shard.due.encode(), ZSet) or {}).values()
        return rests, min(due, default=None)

    async def sender(self) -> CommandBus:
        """Return the bus, open on this loop; or a copy, if it is open on another loop. Idempotent."""
        loop = asyncio.get_running_loop()
        if self.claims.loop_of(self.bus) in (None, loop):
            await self.bus.open()
            return self.bus
        if loop not in self._twins:
            given = self.bus
            layers = self._layers[given]
            twin = self._twins[loop] = CommandBus(
                settings=given.settings, registry=given.registry, middleware=layers, cipher=given.cipher
            )
            self.claims.claim(twin)
        await self._twins[loop].open()
        return self._twins[loop]

    async def start(self, *, stays: bool = True) -> None:
        """Start all workers on this loop; idempotent.

        Args:
            stays: Run until `close`, not only until the last bus of this loop is closed.
        """
        self._take_over_clock()
        if stays:
            await self.sender()
        workers = self._workers_here()
        workers.stays |= stays
        self.server.let_work(workers.loop)
        seen: set[str] = set()
        for bus in list(self._layers):
            if bus.settings.namespace not in seen:
                seen.add(bus.settings.namespace)
                await workers.start(bus, self._registry_for(bus), self._layers[bus])

    async def close(self) -> None:
        """Stop the workers of this loop, and close the test's own bus if it is open here."""
        loop = asyncio.get_running_loop()
        workers = self._loop_workers.pop(loop, None)
        if workers is not None:
            await workers.close()
        twin = self._twins.pop(loop, None)
        if twin is not None:
            await twin.close()
        if self.claims.loop_of(self.bus) is loop:
            await self.bus.close()

    def release(self) -> None:
        """Restore the buses and the package. Loops of other threads go on running without them."""
        loops = dict.fromkeys([*self._loop_workers, *(self.claims.loop_of(bus) for bus in self.claims.buses)])
        loops.pop(asyncio._get_running_loop(), None)  # noqa: SLF001 - as `get_running_loop`, or None
        for loop in loops:
            if loop is not None and loop.is_running():
                asyncio.run_coroutine_threadsafe(self._leave(), loop).result(_CLOSE_TIMEOUT)
        self.claims.release()
        self._undo.close()
        self._loop_workers.clear()

    async def opening(self, session: Session) -> None:
        bus = session.owner
        if not isinstance(bus, CommandBus) or (session.clients is not None and bus not in self.claims.buses):
            return  # its server is in this process already
        self._take_over_clock()
        if bus not in self._twins.values():
            self._layers.setdefault(bus, bus.middleware)
        self.claims.connect(bus, Process(self.server))

    async def closed(self, session: Session) -> None:
        """Stop the workers of an application's loop with its last bus."""
        loop = asyncio.get_running_loop()
        workers = self._loop_workers.get(loop)
        if workers is None or workers.stays or any(self.claims.loop_of(other) is loop for other in self.claims.buses):
            return
        del self._loop_workers[loop]
        await workers.close()

    async def awaited(self, result: Awaitable[Any]) -> Any:
        """Let workers run, and time leap over the waits."""
        return await self.recorder.served(result)

    async def publishing(self, session: Session, event: OutgoingMessage) -> None:
        """Note the event, once under its id, and let it reach what the handlers of the test subscribe to."""
        self.recorder.published.setdefault(event.command_id, self.recorder.note_of(event, accepted=True))
        bus, namespace = session.owner, session.settings.namespace
        if isinstance(bus, CommandBus) and namespace not in self._declared:
            self._declared.add(namespace)
            await bus.sender.subscriptions.declare(self._registry_for(bus))

    async def _leave(self) -> None:
        for bus in self.claims.buses:
            if self.claims.loop_of(bus) is asyncio.get_running_loop():
                await bus.close()
        await self.close()

    def _take_over_clock(self) -> None:
        """Put this loop and the package on the virtual clock."""
        self._clock.start()
        if self._started:
            return
        self._started = True
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_hide_crashed_workers)
            self._undo.callback(logging.getLogger(name).removeFilter, _hide_crashed_workers)

    def _workers_here(self) -> LoopWorkers:
        loop = asyncio.get_running_loop()
        if loop not in self._loop_workers:
            self._loop_workers[loop] = LoopWorkers(self)
        return self._loop_workers[loop]

    def _registry_for(self, bus: CommandBus) -> HandlerRegistry:
        """Return the handlers for the namespace of a bus: as given, else those of its buses."""
        if self._registry is not None and bus.settings.namespace == self.bus.settings.namespace:
            return self._registry
        ours = [other.registry for other in self._layers if other.settings.namespace == bus.settings.namespace]
        filled = list({id(registry): registry for registry in ours if len(registry)}.values())
        if len(filled) < 2:
            return filled[0] if filled else bus.registry
        joined = HandlerRegistry()
        for registry in filled:
            joined.include(registry)
        return joined


def _hide_crashed_workers(_record: logging.LogRecord) -> bool:
    """Drop log records of a crashed worker's remaining tasks."""
    process = PROCESS.get()
    return process is None or not process.dead
