"""Durable commands in the simulation: journeys of steps, calls, sleeps and signals, drawn from the seed, in some of the seeds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from command_bus import (
    Command,
    CommandBus,
    CommandBusError,
    CommandCancelled,
    CommandContext,
    DurableContext,
    EntityId,
    Reject,
    RetryPolicy,
    TransportUnavailable,
    UnknownCommand,
)
from command_bus.errors import CommandOutcomeError, CommandTimeout
from command_bus.messages.durable import Suspended
from tests.simulation.history import Act, Journey, JourneyRun, Sent
from tests.simulation.loop import LANE
from tests.simulation.workload import REGISTRY, Plan, Work, current

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

__all__ = ["DurableLoad", "Stage", "Travel", "bring_signals", "outcomes_of"]

_RETRY: Any = {"delay": 0.1, "factor": 2.0, "jitter": 0.3}
_KINDS = (
    "step",
    "step",
    "call",
    "call",
    "call",
    "undo",
    "sleep",
    "signal",
    "first",
    "all",
    "gather",
    "compensate",
    "named",
    "torn",
    "torn",
    "declined",
    "helpers",
    "fail",
    "slow",
)


class Travel(Command[str], entity="journey", durable=True, retry=RetryPolicy(attempts=5, **_RETRY)):
    journey: EntityId
    tag: str


class GoBack(Command[None], entity="undo", retry=RetryPolicy(attempts=1000, **_RETRY)):
    undo: EntityId
    tag: str


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a journey; its key names it in the records."""

    kind: str
    key: str
    seconds: float
    timeout: float | None


def stages_of(seed: int, tag: str) -> tuple[list[Stage], str]:
    """Return the plan of a journey, the same in each of its runs, and how it ends."""
    random = Random(f"{seed} {tag} stages")
    stages = []
    for number in range(random.randint(2, 9)):
        seconds = random.choice((0.0, 0.001, 0.03, 0.1, 0.4, 1.5)) * random.uniform(0.5, 1.5)
        timeout = random.choice((None, None, 0.05, 0.3, 2.0))
        stages.append(Stage(random.choice(_KINDS), f"{tag}.{number}", seconds, timeout))
    return stages, random.choice(("return", "return", "return", "reject", "fail"))


@REGISTRY.handles(Travel)
async def travel(command: Travel, context: DurableContext) -> str:
    simulation, lane = current[-1], LANE.get()
    assert lane is not None
    journey = simulation.history.journeys[command.tag]
    run = JourneyRun(context.fence, context.attempt, context.worker, lane.process, simulation.loop.time())
    journey.runs.append(run)
    simulation.history.calls(run.fence)
    try:
        stages, end = journey.plan or stages_of(simulation.seed, command.tag)
        for stage in stages:
            await simulation.between_lines(stage.key)
            await _STAGES[stage.kind](_Traveller(simulation, journey, run, context), stage)
        await simulation.between_lines("end")
        context.send(Work(item="f0", tag=_follow_up(simulation, journey)))
        run.how = end
        if end == "reject":
            raise Reject("as planned")
        if end == "fail":
            raise RuntimeError("as planned")
        return command.tag
    except Suspended:
        run.how = "suspended"
        raise
    finally:
        if current and current[-1] is simulation:
            run.ended = simulation.loop.time()


@REGISTRY.handles(GoBack)
async def go_back(command: GoBack, context: CommandContext) -> None:
    history = current[-1].history
    tag, _, key = command.tag.partition("/")
    journey = history.journeys[tag]
    journey.undone.append((key, context.command_id))
    if journey.undone_at is None:
        journey.undone_at = current[-1].loop.time()


def _follow_up(simulation: Simulation, journey: Journey) -> str:
    sent = Sent(f"{journey.tag}.f", "f0", "work", "follow-up", "", simulation.loop.time(), plan=(Plan(0.001, "return"),))
    return simulation.history.sent.setdefault(sent.id, sent).id


class _Traveller:
    """One run of a handler: does a stage, and records what it saw."""

    def __init__(self, simulation: Simulation, journey: Journey, run: JourneyRun, context: DurableContext) -> None:
        self._simulation, self._journey, self._run, self._context = simulation, journey, run, context

    def _see(self, key: str, value: Any) -> None:
        self._run.saw.append((key, str(value)))

    async def _raising(self, key: str, work: Awaitable[Any]) -> None:
        """Await something, and record what it came to; raise its error. A cancellation is no outcome of this."""
        try:
            self._see(key, await work)
        except CommandCancelled:
            raise
        except CommandOutcomeError as error:
            self._see(key, f"{type(error).__name__} {getattr(error, 'code', '')}")
            raise
        except TimeoutError:
            self._see(key, "late")
            raise

    async def _seen(self, key: str, work: Awaitable[Any]) -> None:
        """Await something, and record what it came to."""
        try:
            await self._raising(key, work)
        except CommandCancelled:
            raise
        except (CommandOutcomeError, TimeoutError):
            pass

    def _stepped(
        self, stage: Stage, key: str = "", *, name: str = "", stubborn: bool = False, declines: bool = False
    ) -> Coroutine[object, None, str]:
        key, journey, run = key or stage.key, self._journey, self._run

        async def effect() -> str:
            if declines:
                journey.failures.append(key)
                if journey.failures.count(key) % 2:
                    raise LookupError(key)
            try:
                await asyncio.sleep(stage.seconds)
            except asyncio.CancelledError:
                if not stubborn:
                    raise
                await asyncio.sleep(0.2)
            effects = journey.effects.setdefault(key, [])
            effects.append(f"{key} {len(effects)}")
            journey.acts.append(Act(key, run.fence, self._simulation.loop.time()))
            return effects[-1]

        return self._context.step(name or key, effect)

    def _called(self, stage: Stage, number: int = 0, *, undone: bool = False) -> Coroutine[object, None, int]:
        key = f"{stage.key}.{number}"
        random = Random(f"{self._simulation.seed} {key} called")
        entity = random.choice((*self._simulation.entities, "c0", "c1"))
        plan = Plan(random.choice((0.0, 0.01, 0.08, 0.4, 2.0)), random.choice(("return", "return", "return", "reject", "fail")))
        sent = Sent(key, entity, "work", "follow-up", "", self._simulation.loop.time(), plan=(plan,))
        sent.cancelled = True  # perhaps: a caller that waits no more takes it out of line
        self._simulation.history.sent.setdefault(key, sent)
        self._journey.calls.add(key)
        undo = GoBack(undo=entity, tag=f"{self._journey.tag}/{key}") if undone else None
        if undone:
            self._name_undo(key)
        timeout: Any = {} if stage.timeout is None else {"timeout": stage.timeout}
        return self._context.call(Work(item=entity, tag=key), undo=undo, **timeout)

    def _name_undo(self, key: str) -> None:
        if key not in self._journey.undos:
            self._journey.undos.append(key)

    async def step(self, stage: Stage) -> None:
        await self._seen(stage.key, self._stepped(stage))

    async def call(self, stage: Stage) -> None:
        await self._seen(f"{stage.key}.0", self._called(stage))

    async def undo(self, stage: Stage) -> None:
        await self._seen(f"{stage.key}.0", self._called(stage, undone=True))

    async def sleep(self, stage: Stage) -> None:
        await self._seen(stage.key, self._context.sleep(stage.seconds))

    async def signal(self, stage: Stage) -> None:
        await self._seen(stage.key, self._context.signal("s", timeout=stage.timeout))

    async def first(self, stage: Stage) -> None:
        signal, call, sleep = self._context.signal("s"), self._called(stage), self._context.sleep(stage.seconds)
        winner: Any = await self._context.first(signal, call, sleep)
        self._see(stage.key, "signal" if winner is signal else "call" if winner is call else "sleep")
        await self._seen(f"{stage.key}.0" if winner is call else f"{stage.key} winner", winner)

    async def all(self, stage: Stage) -> None:
        async def both() -> str:
            async with self._context.timeout(3.0 if stage.timeout is None else stage.timeout):
                found = await self._context.all(self._called(stage, 0, undone=True), self._called(stage, 1), self._stepped(stage))
            return str(found)

        await self._seen(stage.key, both())

    async def gather(self, stage: Stage) -> None:
        await asyncio.gather(
            self._seen(f"{stage.key}.0", self._called(stage, 0)),
            self._seen(f"{stage.key}.1", self._called(stage, 1, undone=True)),
            self._seen(stage.key, self._stepped(stage)),
        )

    async def compensate(self, stage: Stage) -> None:
        self._context.compensate(GoBack(undo="c0", tag=f"{self._journey.tag}/{stage.key}"))
        self._journey.compensations.add(stage.key)
        self._name_undo(stage.key)

    async def named(self, stage: Stage) -> None:
        """Call, then name what undoes that, as one writes it: what was late may still run."""
        await self._seen(f"{stage.key}.0", self._called(stage))
        await self.compensate(stage)

    async def declined(self, stage: Stage) -> None:
        """Catch the error of a step, and take another. The error is known to be stored once the other has ended."""
        try:
            await self._seen(stage.key, self._stepped(stage, declines=True))
        except LookupError:
            other = f"{stage.key}.other"
            await self._seen(other, self._stepped(stage, other))
            self._see(stage.key, "declined")

    async def torn(self, stage: Stage) -> None:
        """Await a call and a step beside a sibling that raises: the run ends while they are in flight."""
        random = Random(f"{self._simulation.seed} {stage.key} torn")
        most, seconds, stubborn = random.choice((1, 2, 9)), random.choice((0.0, 0.02, 0.3)), random.random() < 0.4

        async def raises() -> None:
            await asyncio.sleep(seconds)
            self._fail(stage, most)

        await asyncio.gather(
            self._raising(f"{stage.key}.0", self._called(stage, undone=True)),
            self._raising(stage.key, self._stepped(stage, stubborn=stubborn)),
            raises(),
        )

    async def helpers(self, stage: Stage) -> None:
        """Await helpers whose steps have one name and no key: one after another, then steps of them side by side."""

        async def helper(number: int) -> None:
            for part in range(2):
                key = f"{stage.key}.h{number}{part}"
                await self._seen(key, self._stepped(stage, key, name=f"{stage.key}.h"))

        for number in range(2):
            await helper(number)
        keys = [f"{stage.key}.g{number}" for number in range(2)]
        await asyncio.gather(*(self._seen(key, self._stepped(stage, key, name=f"{stage.key}.h")) for key in keys))

    async def fail(self, stage: Stage) -> None:
        self._fail(stage, 1 + (stage.timeout is None))

    def _fail(self, stage: Stage, most: int) -> None:
        if self._journey.failures.count(stage.key) < most:
            self._journey.failures.append(stage.key)
            self._run.how = "failed"
            raise RuntimeError("as planned")

    async def slow(self, stage: Stage) -> None:
        await asyncio.sleep(stage.seconds)


_STAGES: dict[str, Callable[[_Traveller, Stage], Awaitable[None]]] = {kind: getattr(_Traveller, kind) for kind in _KINDS}


class DurableLoad:
    """Sends the journeys of one process, the signals that they wait for, and cancels some."""

    def __init__(self, simulation: Simulation, bus: CommandBus, name: str) -> None:
        self._simulation, self._bus, self._name = simulation, bus, name
        self._random = Random(f"durable {name} {simulation.seed}")
        self._count = self._random.choice((0, 1, 2, 3)) if Random(f"durable {simulation.seed}").random() < 0.5 else 0

    async def run(self, seconds: float) -> None:
        """Send them, each in a task of its own."""
        loop = asyncio.get_running_loop()
        sending = [loop.create_task(self._send(f"{self._name}.d{number}", seconds)) for number in range(self._count)]
        for task in sending:
            await task

    async def _send(self, tag: str, seconds: float) -> None:
        simulation, random = self._simulation, Random(f"{self._simulation.seed} {tag} sent")
        journey = Journey(tag, random.choice(("j0", "j1")))
        waits = [stage for stage in stages_of(simulation.seed, tag)[0] if stage.kind in ("signal", "first")]
        journey.signals = [f"{tag} signal {number}" for number in range(len(waits))]
        simulation.history.journeys[tag] = journey
        await asyncio.sleep(random.random() * seconds)
        for _ in range(5):
            try:
                await self._bus.dispatch(Travel(journey=journey.entity, tag=tag), command_id=tag)
            except TransportUnavailable:
                await asyncio.sleep(0.2)
            else:
                journey.acked = True
                break
        if not journey.acked:
            return
        tasks = [self._signal(journey, number, random.random() * 4) for number in range(len(journey.signals))]
        if random.random() < 0.15:
            tasks.append(self._cancel(journey, random.random() * 4))
        await asyncio.gather(*tasks)

    async def _signal(self, journey: Journey, number: int, delay: float) -> None:
        """Bring a signal until it is taken; its id makes that safe."""
        value = journey.signals[number]
        await asyncio.sleep(delay)
        for again in range(2):
            await _until_told(lambda: self._bus.commands.signal(journey.tag, "s", value, signal_id=value))
            if number + again != 1:
                return

    async def _cancel(self, journey: Journey, delay: float) -> None:
        await asyncio.sleep(delay)
        journey.cancelled = True
        await _until_told(lambda: self._bus.commands.cancel(journey.tag, running=True))


async def _until_told(tell: Callable[[], Awaitable[Any]]) -> None:
    while True:
        try:
            await tell()
        except TransportUnavailable:
            await asyncio.sleep(0.2)
        except (UnknownCommand, CommandTimeout):
            return
        else:
            return


async def bring_signals(simulation: Simulation, bus: CommandBus) -> None:
    """Bring all signals: those that a killed process did not bring, too."""
    for journey in simulation.history.journeys.values():
        for value in journey.signals:
            await _until_told(lambda tag=journey.tag, value=value: bus.commands.signal(tag, "s", value, signal_id=value))  # type: ignore[misc]


async def outcomes_of(simulation: Simulation, bus: CommandBus) -> None:
    """Record how all journeys ended."""
    for journey in simulation.history.journeys.values():
        if journey.acked:
            try:
                journey.outcome = f"value {await bus.result(journey.tag, Travel, timeout=3.0)}"
            except CommandBusError as error:
                journey.outcome = error.code
