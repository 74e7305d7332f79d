"""One seed: a server, a network, processes of producers and workers, and faults; then a drain, and a check of what is left."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any

import msgpack

from command_bus import BusSettings, CommandBus, CommandBusError
from command_bus import History as Kept
from command_bus.testing.simulated.server import Link, Server
from command_bus.testing.simulated.store import ZSet
from command_bus.testing.simulated.streams import Stream
from command_bus.transport.records import StoredEvent
from command_bus.transport.redis.admin.events import newest_events
from command_bus.transport.redis.keys import KeySpace
from tests.simulation.checker import check
from tests.simulation.client import SimClients
from tests.simulation.determinism import deterministic
from tests.simulation.durable_load import DurableLoad, bring_signals, outcomes_of
from tests.simulation.end_load import Ender
from tests.simulation.end_rules import ends_in, kept_of
from tests.simulation.entity_states import stored_runs
from tests.simulation.history import History, Told
from tests.simulation.limit_rules import LimitWatch, limits_of
from tests.simulation.loop import Livelock, Process, SimLoop, SimTask
from tests.simulation.nemesis import Nemesis
from tests.simulation.network import Network
from tests.simulation.publication_load import PublicationLoad
from tests.simulation.scheduling import Scheduler
from tests.simulation.scripted_loads import ScriptedLoads, scripted_load_of
from tests.simulation.several_load import SeveralLoad, SeveralOperator, crosses_shards
from tests.simulation.standing import tag_of
from tests.simulation.threads import SimThreads
from tests.simulation.unique_load import UniqueStorm
from tests.simulation.workload import REGISTRY, Operator, Producer, current
from tests.tables.ends import EXPIRES, GONE, STAYS

__all__ = ["Run", "Shape", "Simulation", "run"]

NAMESPACE = "sim"
PATIENCE = 25.0
"""Seconds without faults in which something must move: less than the sweep takes that repairs lost activations."""
LINE_PATIENCE = 5.0
"""Seconds in which an entity leaves the line while a worker idles: workers look once a second."""
_CALLERS_WAIT = 5.0
"""Seconds without a move after which an operator frees what is parked although other entities have work: they may wait for it."""
_WATCHED = b"100000"
_LIMIT_USE = (b"b\n", b"f\n", b"v\n")
"""Fields of limits that say how far they were used; all others are places that somebody has."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a scenario."""

    commands: int = 30
    faults: int = 10
    seconds: float = 5.0
    producers: int = 2
    workers: int = 2
    entities: int = 3


@dataclass(slots=True)
class Run:
    """Result of a seed."""

    seed: int
    broken: list[tuple[str, str, str]]
    """Invariant, entity, what happened."""
    digest: str
    faults: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    started: int = 0
    virtual: float = 0.0
    callbacks: int = 0
    requests: int = 0
    history: History | None = None


@lru_cache
def settings(lease: float, shards: int, history: Kept | None, waiting: int) -> BusSettings:
    """Return the settings, cached: reading the environment takes longer than some seeds."""
    return BusSettings(
        url="redis://simulated",
        namespace=NAMESPACE, lease=lease, shards=shards, grace=3.0, concurrency=2, threads=1, quantum=3, dispatch_timeout=6.0, quantum_time=0.2,
        history=history, max_waiting=waiting,
    )  # fmt: skip


class Simulation:
    """The simulation of one seed."""

    def __init__(self, seed: int, shape: Shape) -> None:
        random = Random(f"world {seed}")
        SimTask.numbers = __import__("itertools").count()
        Link.ids = __import__("itertools").count(1)
        self.seed = seed
        self.shape = shape
        self.random = random
        self.loop = SimLoop()
        self.history = History(self.loop.time)
        self.server = Server(self.loop.time, lambda at, call, *args: self.network.later(at - self.loop.now, call, *args))
        self.server.store.watch = self.history
        self.network = Network(self.loop, self.server, Random(f"network {seed}"))
        self.entities = [f"e{number}" for number in range(shape.entities)]
        self.scripted_load = scripted_load_of(seed)
        shards = 2 if random.random() < 0.15 or self.scripted_load == "hot" or crosses_shards(seed) else 1
        self.settings = settings(self.history.lease, shards, kept_of(seed), Random(f"waiting {seed}").choice((4, 1000)))
        self.parks = random.random() < 0.3
        self.jumps = random.random() < 0.35
        if Random(f"watched {seed}").random() < 0.5:
            self._watch()
        if limits := {} if self.scripted_load else limits_of(seed):
            self.history.limits = LimitWatch(limits, KeySpace(NAMESPACE, self.settings.shards))
            self.history.limits.put(self.server.store)
        self.line = Random(f"line {seed}").random() < 0.4
        if self.line:
            self._use_line()
        self.workers: list[Process] = []
        self.producers: list[Process] = []
        self.former: list[Process] = []
        self.buses: dict[Process, CommandBus] = {}
        """Of those workers that have come up."""
        self._asked: dict[Process, asyncio.Event] = {}
        self._grace: dict[Process, float] = {}
        self._tasks: dict[Process, asyncio.Task[Any]] = {}
        self._count = 0
        self._kept: set[str] = set()
        """Keys that durable commands with a dead letter leave for its replay."""

    def bus(self, process: Process) -> CommandBus:
        """Return a bus of a process."""
        return CommandBus(settings=self.settings, registry=REGISTRY, clients=SimClients(self.network, process.name))

    def _watch(self) -> None:
        """Switch events on without a request, so that the rest of the seed does not change."""
        for shard in KeySpace(NAMESPACE, self.settings.shards).shards:
            self.server.store.data[shard.watched.encode()] = {b"item": _WATCHED}
        self.history.told = []

    def _use_line(self) -> None:
        """Put the line into use, without a request, with so little room in the ready stream that entities wait in it."""
        most = b"%d" % Random(f"room {self.seed}").choice((1, 1, 2))
        for shard in KeySpace(NAMESPACE, self.settings.shards).shards:
            self.server.store.data[shard.flows.encode()] = {b"c0": b"0", b"most": most}

    async def between_lines(self, where: str) -> None:
        """Do nothing; called by durable handlers between two of their lines. A test may let their process die there."""

    # Workers.

    def process(self, name: str) -> Process:
        """Return a new process."""
        process = Process(self.loop, name)
        self.history.processes.append(process)
        return process

    def add_worker(self) -> Process:
        self._count += 1
        process = self.process(f"w{self._count}")
        self._asked[process] = asyncio.Event()
        self._tasks[process] = process.spawn(self._work(process))
        return process

    async def _work(self, process: Process) -> None:
        while True:
            bus = self.buses[process] = self.bus(process)
            try:
                await bus.open()
                worker = bus.worker()
                await worker.start()
            except CommandBusError:
                await bus.close()
                await asyncio.sleep(0.2)  # as a supervisor would restart it
                continue
            await self._asked[process].wait()
            await worker.stop(self._grace.get(process))
            await bus.close()
            return

    def stop(self, process: Process, grace: float) -> None:
        """Ask a worker to end."""
        self._grace[process] = grace
        process.call(self._asked[process].set)

    def replace(self, process: Process) -> None:
        """Another worker in its place."""
        if process in self.workers:
            self.workers[self.workers.index(process)] = self.add_worker()
            self.former.append(process)

    @asynccontextmanager
    async def night(self) -> AsyncIterator[None]:
        """Stop all workers; start as many again in the end."""
        workers = [*self.workers]
        for worker in workers:
            self.stop(worker, 1.0)
        await asyncio.wait([self._tasks[worker] for worker in workers])
        yield
        for worker in workers:
            self.replace(worker)

    # The phases of a run.

    async def run_phases(self) -> None:
        shape = self.shape
        self.workers = [self.add_worker() for _ in range(shape.workers)]
        sending = []
        for number in range(shape.producers):
            process = self.process(f"p{number + 1}")
            self.producers.append(process)
            sending.append((process, process.spawn(self._produce(process, shape.commands // shape.producers))))
        operating = self.process("op")
        operator = operating.spawn(self._operate(operating))
        scheduler = operating.spawn(self._schedule(operating)) if self.seed % 3 == 0 else None
        faults = self.random.randint(shape.faults // 2, shape.faults * 3 // 2) if shape.faults else 0
        nemesis = Nemesis(self, Random(f"nemesis {self.seed}"))
        await nemesis.run(faults, shape.seconds)
        await operator
        if scheduler is not None:
            await scheduler
        while living := [task for process, task in sending if not process.dead and not task.done()]:
            await asyncio.wait(living, timeout=1.0)
        for _, task in sending:
            if task.done():
                task.result()
        end = self.process("end")
        await end.spawn(self._drain(end))
        self.history.fired_in_the_end = self.fired()
        self._look()

    async def _produce(self, process: Process, commands: int) -> None:
        bus = self.bus(process)
        while True:
            try:
                await bus.open()
                break
            except CommandBusError:
                await asyncio.sleep(0.1)
        producer = Producer(self, bus, process.name, Random(f"{process.name} {self.seed}"))
        storm = UniqueStorm(self, bus, process.name)
        durable = DurableLoad(self, bus, process.name)
        published = PublicationLoad(self, bus, process.name)
        several = SeveralLoad(self, bus, process.name)
        others = [each.run(self.shape.seconds) for each in (storm, durable, published, several)]
        await asyncio.gather(producer.run(commands, self.shape.seconds), *others)
        await bus.close()

    async def _operate(self, process: Process) -> None:
        bus = self.bus(process)
        await Operator.retry_until(bus.open)
        random = Random(f"operator {self.seed}")
        pauses = Operator(self, bus, random).run(random.choice((0, 1, 2)), self.shape.seconds)
        ends, several = Ender(self, bus), SeveralOperator(self, bus)
        await asyncio.gather(pauses, ends.run(self.shape.seconds), several.run(self.shape.seconds))
        await bus.close()

    async def _schedule(self, process: Process) -> None:
        bus = self.bus(process)
        await Operator.retry_until(bus.open)
        await Scheduler(self, bus, Random(f"scheduler {self.seed}")).run(self.shape.seconds)
        await bus.close()

    def fired(self) -> int:
        """Return how many firings of schedules there were, read without a request."""
        shards = KeySpace(NAMESPACE, self.settings.shards).shards
        tables = [self.server.store.get(shard.stats.encode(), dict) or {} for shard in shards]
        return sum(int(table.get(b"fired", b"0")) for table in tables)

    async def _drain(self, process: Process) -> None:
        """Drain all work; then run the scripted load, if the seed has one, and drain again."""
        bus, history = self.bus(process), self.history
        await Operator.retry_until(bus.open)
        random = Random(f"drain {self.seed}")
        await bring_signals(self, bus)
        await self._work_off(bus, random)
        if self.scripted_load and not history.stuck:
            await asyncio.sleep(max(0.0, history.calm_from() - self.loop.time()))
            SimThreads.are_late = False
            await ScriptedLoads(self, bus, random).play(self.scripted_load)
            await self._work_off(bus, random)
        letters = [letter async for letter in bus.dead_letters.list()]
        history.letters = [letter for letter in letters if letter.entity_type == "item"]
        history.standing.letters = {tag_of(letter) for letter in letters}
        kept = {letter.command_id for letter in letters if letter.entity_type == "journey"}
        self._kept = {f"{kind}:{command_id}" for kind in "kx" for command_id in kept}
        await outcomes_of(self, bus)
        history.counters = {
            name: getattr(await bus.stats(), name) for name in ("accepted", "settled", "depth", "in_flight", "entities")
        }
        for worker in self.workers:
            self.stop(worker, 1.0)
        stopping = [task for worker, task in self._tasks.items() if not worker.dead]
        _, left = await asyncio.wait(stopping, timeout=40.0)
        if left:
            history.stuck = history.stuck or "a worker does not stop"
        await bus.close()

    async def _work_off(self, bus: CommandBus, random: Random) -> None:
        """Wait until nothing is left to do, with an operator who replays or discards what is parked."""
        history = self.history
        progress: tuple[int, int, bool] = (0, 0, False)
        moved = self.loop.time()
        while states := self._states():
            ended = sum(run.ended is not None for run in history.executions)
            ended += sum(run.ended is not None for run in history.standing.runs)
            waits = self._waits(states)
            started = len(history.executions) + len(history.standing.runs)
            if progress != (started, ended, waits):
                progress, moved = (started, ended, waits), self.loop.time()
            patience = LINE_PATIENCE if self._stands_in_line() else PATIENCE
            if waits:  # delays may have been set by a clock that has gone back since, and all who knew are gone
                patience += sum(-seconds for _, seconds in history.jumps if seconds < 0)
            if self.loop.time() > moved + patience:
                history.stuck = f"for {patience} s nothing happened, and there is still work: {states}"
                break
            if set(states) == {"s"} or ("s" in states and self.loop.time() > moved + _CALLERS_WAIT):
                await self._free(bus, random)
            await asyncio.sleep(0.2)

    def _waits(self, states: str) -> bool:
        """Return whether all waits for its time: nothing is ready or held, unless by a live journey, whose call may stand behind what waits."""
        runs = [run for journey in self.history.journeys.values() for run in journey.runs]
        return not set(states) & set("hrpq") or any(run.ended is None and not run.process.dead for run in runs)

    def _stands_in_line(self) -> bool:
        """Return whether there are entities in line, nothing is ready or held, and a worker is there."""
        store = self.server.store
        for shard in KeySpace(NAMESPACE, self.settings.shards).shards:
            states = {chr(value[0]) for value in (store.get(shard.active.encode(), dict) or {}).values()}
            if (
                "q" in states
                and not states & set("rohHO")
                and len(self.buses)
                and self.loop.time() > self.history.calm_from() + 2
            ):
                return True
        return False

    def _states(self) -> str:
        """Return the states of all entities with work, read without requests: `h`eld, `r`eady, `w`aiting, `s`topped, `d`ue later, `p`ending."""
        store, states = self.server.store, ""
        for shard in KeySpace(NAMESPACE, self.settings.shards).shards:
            table = store.get(shard.active.encode(), dict) or {}
            states += "".join(sorted(chr(value[0]) for value in table.values()))
            ready = store.get(shard.ready.encode(), Stream)
            if ready is not None and (ready.entries or any(group.pending for group in ready.groups.values())):
                states += "p"
            # what goes to another shard is due at once, but not where the clock has gone back since
            states += "d" * len([m for m in store.get(shard.due.encode(), ZSet) or () if m[:2] in (b"d:", b"o:")])
        return states + ("" if self.history.limits is None else self.history.limits.left(store))

    async def _free(self, bus: CommandBus, random: Random) -> None:
        history = self.history
        async for letter in bus.dead_letters.list():
            if not letter.parked:
                continue
            sent = self._sent_as(letter)
            replay = random.random() < 0.6 and (sent is None or sent.replays < 2)
            history.standing.decided(letter, replay=replay)
            if replay:
                self.history.note(letter.entity_id or "", f"operator: replay {letter.command_id}")
                if sent is not None:
                    sent.replays += 1
                await bus.dead_letters.replay(letter.id, payload=letter.payload if random.random() < 0.5 else None)
            else:
                self.history.note(letter.entity_id or "", f"operator: discard {letter.command_id}")
                if sent is not None:
                    sent.discarded = True
                await bus.dead_letters.discard(letter.id)

    def _sent_as(self, letter: Any) -> Any:
        return self.history.sent.get((letter.payload or {}).get("tag", ""))

    def _look(self) -> None:
        """Record keys left on the server that should be gone."""
        store = self.server.store
        self.history.ends = [] if self.settings.history else None
        self.history.kept_states = {}
        for key in store.names():
            name = key.partition(b"}:")[2].decode()
            if name == "stats" and self.history.told is not None:
                prefix = key.removesuffix(b"stats")
                streams = (_entries(store.data.get(prefix + stream)) for stream in (b"events", b"arrivals"))
                self.history.told += [_told(each) for each in reversed(newest_events(0, 1, *streams))]
            if name == "states":
                self.history.kept_states |= stored_runs(store.data[key])
            if name == "limits":
                self.history.leftovers += [f"limits {field!r}" for field in store.data[key] if field[:2] not in _LIMIT_USE]
            if name == "history" and self.settings.history:
                ids = store.get(key + b":ids", dict) or {}
                self.history.ends = [*(self.history.ends or ()), *ends_in(store.data[key].entries, ids)]
            how = next(how for pattern, how in STAYS if re.fullmatch(pattern, name))
            if how == GONE or (how == EXPIRES and key not in store.expires):
                self.history.leftovers += [name] if name not in self._kept else []


def _entries(stream: Any) -> Any:
    """Return the entries of a stream as XREVRANGE has them."""
    found = [] if stream is None else [*stream.entries.items()]
    return [(b"%d-%d" % entry, dict(zip(flat[::2], flat[1::2], strict=True))) for entry, flat in reversed(found)]


def _told(event: StoredEvent) -> Told:
    kind, attempt, fence, _, _ = event.facts
    names = msgpack.Unpacker()
    names.feed(event.names)
    command_id, _, _, entity_id = [*names] or [""] * 4
    return Told(kind, entity_id, command_id, int(attempt or 0), int(fence or 0))


def run(seed: int, shape: Shape | None = None, *, prepare: Callable[[Simulation], None] | None = None) -> Run:
    """Run one seed and judge it."""
    gc.disable()
    simulation = Simulation(seed, shape or Shape())
    if prepare is not None:
        prepare(simulation)
    current.append(simulation)
    broken: list[tuple[str, str, str]] = []
    try:
        with deterministic(seed, simulation.loop):
            simulation.loop.run(simulation.run_phases())
    except Livelock as error:
        broken.append(("ends", "", str(error)))
    finally:
        errors = list(simulation.loop.errors)
        current.clear()
        for process in simulation.history.processes:
            process.bury()
        gc.enable()
    history = simulation.history
    if not broken:  # a history without end says no more than that
        broken += check(history)
    broken += [("no error", "", f"{error.get('message')}: {error.get('exception')!r}") for error in errors]
    return Run(
        seed, broken, f"{history.digest()}-{simulation.loop.ran}", simulation.network.faults, len(history.sent), len(history.executions),
        simulation.loop.time() - 1000.0, simulation.loop.ran, simulation.server.requests, history,
    )  # fmt: skip
