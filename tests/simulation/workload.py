"""The simulated application: a few entities, handlers that follow a plan, producers and an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from command_bus import (
    Command,
    CommandBus,
    CommandBusError,
    CommandContext,
    CommandRejected,
    EntityId,
    Envelope,
    GiveUp,
    HandlerRegistry,
    Reject,
    RetryPolicy,
    Snooze,
    TransportUnavailable,
)
from command_bus.messages.policies import Priority
from tests.simulation.entity_states import ItemState
from tests.simulation.follow_up_load import planned_follow_ups
from tests.simulation.history import Execution, Sent
from tests.simulation.loop import LANE
from tests.simulation.threads import busy_for

if TYPE_CHECKING:
    from tests.simulation.loop import Process
    from tests.simulation.simulation import Simulation

__all__ = ["REGISTRY", "Operator", "Order", "Plan", "Producer", "Work", "current", "plan_of"]

_RETRY: Any = {"delay": 0.15, "factor": 2.0, "jitter": 0.3}


class Work(Command[int], entity="item", retry=RetryPolicy(attempts=3, **_RETRY)):
    item: EntityId
    tag: str


class Once(Command[int], entity="item", delivery="at_most_once"):
    item: EntityId
    tag: str


class Parking(Command[int], entity="item", retry=RetryPolicy(attempts=2, **_RETRY), on_poison="park"):
    item: EntityId
    tag: str


class Order(Command[int], entity="item", retry=RetryPolicy(attempts=3, **_RETRY)):
    """A command whose handler calls a command of another entity."""

    item: EntityId
    tag: str


class Threaded(Command[int], entity="item", retry=RetryPolicy(attempts=3, **_RETRY)):
    """A command with a handler in a thread."""

    item: EntityId
    tag: str


class Folded(Command[int], entity="item", retry=RetryPolicy(attempts=50, **_RETRY)):
    """A command that is sent with a unique key; it never becomes a dead letter, which an operator would replay beside another."""

    item: EntityId
    tag: str


class Shared(Command[int], entity="item", retry=RetryPolicy(attempts=3, **_RETRY), fair_by="tag"):
    """A command with a tenant: sent where the line is in use."""

    item: EntityId
    tag: str


class Batched(Command[int], entity="item", retry=RetryPolicy(attempts=3, **_RETRY)):
    """A command whose handler takes neighbours of one entity."""

    item: EntityId
    tag: str


class Weighed(Command[int], entity="item", retry=RetryPolicy(attempts=3, **_RETRY), fair_by="tenant"):
    """A command of one of two tenants that have weights."""

    item: EntityId
    tag: str
    tenant: str


KINDS: dict[str, Any] = {
    "shared": Shared, "work": Work, "once": Once, "park": Parking, "order": Order, "sync": Threaded, "fold": Folded,
    "run": Batched,
}  # fmt: skip
_PATIENCE = 5.0
"""Seconds that an order waits for what it calls."""
REGISTRY = HandlerRegistry()
current: list[Simulation] = []


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one attempt: after so many seconds the handler returns, fails or rejects, or its task is cancelled from outside."""

    seconds: float
    end: str


def plan_of(seed: int, tag: str, attempt: int) -> Plan:
    """Draw the plan from the seed alone, so that it is the same in every process."""
    random = Random(f"{seed} {tag} {attempt}")
    seconds = random.choice((0.0, 0.001, 0.005, 0.02, 0.05, 0.1, 0.3, 0.6, 1.5, 4.0, 9.0)) * random.uniform(0.5, 1.5)
    ends = ("return",) * 7 + ("fail", "fail", "reject", "shoot")
    return Plan(seconds, random.choice(ends))


def _put_off(simulation: Simulation, run: Execution) -> float | None:
    """Return for how long this start puts its command off, drawn from the seed as plans are; None: it does its work."""
    random = Random(f"{simulation.seed} {run.id} {run.attempt} put off")
    times = random.choice((1, 1, 2, 3)) if random.random() < _PUTS_OFF else 0
    before = sum(one.id == run.id and one.attempt == run.attempt for one in simulation.history.executions) - 1
    return random.choice((0.0, 0.02, 0.3, 0.8, 2.5)) if before < times else None


_PUTS_OFF, _GIVES_UP = 0.15, 0.3
"""How many attempts put their command off; how many of those that are to fail give it up."""
_HOW = {"return": "returned", "fail": "failed", "reject": "rejected", "shoot": "", "give up": "gave up", "put off": "put off"}


def _begin(command: Any, context: CommandContext, state: ItemState | None = None) -> tuple[Simulation, Execution, Plan]:
    """Record a start; return the plan of its handler."""
    simulation, lane = current[-1], LANE.get()
    assert lane is not None
    assert context.entity_id is not None
    began = simulation.loop.time()
    run = Execution(
        command.tag,
        context.entity_id,
        context.attempt,
        context.fence,
        context.worker,
        lane.process,
        began,
        command_id=context.command_id,
        saw=None if state is None else [*state.runs],
    )
    simulation.history.executions.append(run)
    simulation.history.calls(run.fence)
    plans = simulation.history.sent[command.tag].plan
    if plans:
        return simulation, run, plans[min(context.attempt, len(plans)) - 1]
    run.puts_off = _put_off(simulation, run)
    if run.puts_off is not None:
        return simulation, run, Plan(0.001, "put off")
    plan = plan_of(simulation.seed, command.tag, context.attempt)
    if plan.end == "fail" and Random(f"{simulation.seed} {command.tag} gives up").random() < _GIVES_UP:
        plan = Plan(plan.seconds, "give up")
    return simulation, run, plan


def _end(run: Execution, plan: Plan, context: CommandContext, state: ItemState | None = None) -> int:
    if state is not None:  # also where it fails then: what is written depends on its end
        state.runs.append(f"{run.id} {run.fence}")
    if plan.end == "put off":
        assert run.puts_off is not None
        raise Snooze(run.puts_off, most=1000)
    if plan.end == "give up":
        raise GiveUp("as planned")
    if plan.end == "fail":
        raise RuntimeError("as planned")
    if plan.end == "reject":
        raise Reject("as planned", code=str(context.fence))
    return context.fence


async def _handle(command: Any, context: CommandContext, state: ItemState | None = None) -> int:
    simulation, run, plan = _begin(command, context, state)
    now = simulation.loop.time
    try:
        for sent in planned_follow_ups(simulation, run):
            context.send(Work(item=sent.entity, tag=sent.id))
        if plan.seconds:
            await asyncio.sleep(plan.seconds)
        if isinstance(command, Order) and run.puts_off is None:
            run.how = "failed"
            await _call_inside(simulation, run.process, simulation.history.sent[run.id], context)
        run.how = _HOW[plan.end]
        if plan.end == "shoot":
            await _shot(run)
        return _end(run, plan, context, state)
    except asyncio.CancelledError:
        run.how = run.how if run.how == "shot" else "cancelled"
        raise
    finally:
        if current and current[-1] is simulation:
            run.ended = now()


async def _shot(run: Execution) -> None:
    """Cancel this handler's task as a library or the application might."""
    task = asyncio.current_task()
    assert task is not None
    run.how = "shot"
    task.cancel()
    await asyncio.sleep(0)


async def _call_inside(simulation: Simulation, process: Process, order: Sent, context: CommandContext) -> None:
    """Call a command of an entity that only this attempt knows."""
    name = f"{order.id}.{context.attempt}"
    sent = Sent(name, f"{name}x", "work", "call", process.name, simulation.loop.time(), timeout=_PATIENCE, within=order.within)
    sent.plan = (Plan(0.05, "return"),)
    simulation.history.sent[name] = sent
    sent.outcome = "cancelled"
    try:
        sent.value = await simulation.buses[process].call(Work(item=sent.entity, tag=name), timeout=_PATIENCE, command_id=name)
        sent.outcome = "value"
    except CommandBusError as error:
        sent.outcome = error.code
        raise
    finally:
        sent.answered = simulation.loop.time()


@REGISTRY.handles(Work)
async def work(command: Work, context: CommandContext, state: ItemState) -> int:
    return await _handle(command, context, state)


@REGISTRY.handles(Folded)
async def folded(command: Folded, context: CommandContext) -> int:
    return await _handle(command, context)


@REGISTRY.handles(Shared)
async def shared(command: Shared, context: CommandContext, state: ItemState) -> int:
    return await _handle(command, context, state)


@REGISTRY.handles(Weighed)
async def weighed(command: Weighed, context: CommandContext) -> int:
    return await _handle(command, context)


@REGISTRY.handles(Once)
async def once(command: Once, context: CommandContext, state: ItemState) -> int:
    return await _handle(command, context, state)


@REGISTRY.handles(Order)
async def order(command: Order, context: CommandContext, state: ItemState) -> int:
    return await _handle(command, context, state)


@REGISTRY.handles(Threaded)
def threaded(command: Threaded, context: CommandContext, state: ItemState) -> int:
    _, run, plan = _begin(command, context, state)
    if plan.end == "shoot":  # a thread has no task
        plan = Plan(plan.seconds, "fail")
    busy_for(run, plan.seconds, _HOW[plan.end])
    return _end(run, plan, context, state)


@REGISTRY.handles(Parking)
async def parking(command: Parking, context: CommandContext) -> int:
    return await _handle(command, context)


@REGISTRY.handles_many(Batched, of="entity", size=4)
async def batched(commands: Sequence[Batched], contexts: Sequence[CommandContext], state: ItemState) -> Sequence[int]:
    begun = [_begin(command, context, state) for command, context in zip(commands, contexts, strict=True)]
    simulation, runs, plans = begun[0][0], [run for _, run, _ in begun], [plan for _, _, plan in begun]
    try:
        for run, context in zip(runs, contexts, strict=True):
            run.beside = len(runs) - 1
            for sent in planned_follow_ups(simulation, run):
                context.send(Work(item=sent.entity, tag=sent.id))
        await asyncio.sleep(max(plan.seconds for plan in plans))
        is_halved = len(runs) > 1 and any(plan.end != "return" for plan in plans)
        _note(runs, "halved" if is_halved else _HOW[plans[0].end])
        if is_halved:
            raise RuntimeError("one of them is to fail")
        if plans[0].end == "shoot":
            await _shot(runs[0])
        return [_end(run, plan, context, state) for run, plan, context in zip(runs, plans, contexts, strict=True)]
    except asyncio.CancelledError:
        _note(runs, runs[0].how if runs[0].how == "shot" else "cancelled")
        raise
    finally:
        if current and current[-1] is simulation:
            for run in runs:
                run.ended = simulation.loop.time()


def _note(runs: Sequence[Execution], how: str) -> None:
    for run in runs:
        run.how = how


class Producer:
    """Sends its share of the commands, each in a task of its own, at times drawn from the seed."""

    def __init__(self, simulation: Simulation, bus: CommandBus, name: str, random: Random) -> None:
        self._simulation = simulation
        self._bus = bus
        self._name = name
        self._random = random
        self._counter = 0
        self._batches = 0
        self._given: list[Sent] = []

    def _sent(self, entity: str, how: str, *, given: bool = True) -> Sent:
        self._counter += 1
        line = self._simulation.line
        kind = self._random.choice(
            ("shared" if line else "work", "work", "sync", "order", "once", "run", "park" if self._simulation.parks else "run")
        )
        sent = Sent(f"{self._name}.{self._counter}", entity, kind, how, self._name, 0.0)
        self._simulation.history.sent[sent.id] = sent
        if given:
            self._given.append(sent)
        return sent

    @staticmethod
    def _command(sent: Sent) -> Any:
        return KINDS[sent.kind](item=sent.entity, tag=sent.id)

    def _priority(self, sent: Sent) -> Priority | None:
        if not self._simulation.line:
            return None
        return Random(f"priority {sent.id} {self._simulation.seed}").choice(("high", "normal", "low", None))

    async def run(self, commands: int, seconds: float) -> None:
        """Send so many commands in so much time."""
        random, tasks = self._random, []
        begin = self._simulation.loop.time()
        moments = sorted(random.random() * seconds for _ in range(commands))
        left = commands
        for moment in moments:
            if left <= 0:
                break
            await asyncio.sleep(max(0.0, begin + moment - self._simulation.loop.time()))
            action, cost = self._next(left)
            left -= cost
            tasks.append(asyncio.get_running_loop().create_task(action))
        for task in tasks:
            await task

    def _next(self, left: int) -> tuple[Any, int]:
        random = self._random
        entity = random.choice(self._simulation.entities)
        draw = random.random()
        if draw < 0.3:
            return self._dispatch(self._sent(entity, "dispatch", given=random.random() < 0.6)), 1
        if draw < 0.6:
            return self._call(self._sent(entity, "call")), 1
        if draw < 0.7:
            sent = self._sent(entity, "delayed")
            sent.delay = random.choice((0.05, 0.5, 1.5, 3.0)) * random.uniform(0.5, 1.0)
            return self._dispatch(sent), 1
        if draw < 0.75:
            sent = self._sent(entity, "dispatch")
            sent.expires = True
            return self._dispatch(sent), 1
        if draw < 0.85:
            count = min(left, random.randint(2, 6))
            return self._batch([self._sent(random.choice(self._simulation.entities), "batch") for _ in range(count)]), count
        if draw < 0.93 and self._given:
            return self._repeat(random.choice(self._given)), 0
        if self._given:
            return self._cancel(random.choice(self._given[-4:])), 0
        return self._dispatch(self._sent(entity, "dispatch")), 1

    async def _dispatch(self, sent: Sent) -> None:
        """Dispatch, and again under the same id while the outcome is unknown, as an application would."""
        given = sent in self._given
        sent.invoked = self._simulation.loop.time()
        for _ in range(3 if given else 1):
            try:
                receipt = await self._bus.dispatch(
                    self._command(sent),
                    command_id=sent.id if given else None,
                    delay=sent.delay,
                    expires=sent.delay + 1.0 if sent.expires else None,
                    priority=self._priority(sent),
                )
            except TransportUnavailable as error:
                sent.refused = "unknown" if error.outcome_unknown else "unavailable"
                sent.tries += 1
            except CommandBusError as error:
                sent.refused = error.code
                return
            else:
                self._accepted(sent, receipt.status)
                return

    def _accepted(self, sent: Sent, status: str) -> None:
        sent.admissions.append(status)
        sent.refused = ""
        if sent.acked is None:
            sent.acked = self._simulation.loop.time()

    async def _batch(self, batch: list[Sent]) -> None:
        self._batches += 1
        for position, sent in enumerate(batch):
            sent.invoked, sent.position, sent.batch = self._simulation.loop.time(), position, self._batches
        try:
            envelopes = [Envelope(self._command(sent), command_id=sent.id, priority=self._priority(sent)) for sent in batch]
            result = await self._bus.dispatch_batch(envelopes)
        except CommandBusError as error:
            for sent in batch:
                sent.refused = error.code
            return
        for sent, outcome in zip(batch, result.outcomes, strict=True):
            if outcome.status == "rejected":
                sent.refused = "unknown"
            else:
                self._accepted(sent, outcome.status)

    async def _call(self, sent: Sent) -> None:
        sent.invoked = self._simulation.loop.time()
        sent.timeout = self._random.choice((1.0, 35.0, 35.0, 35.0))
        try:
            sent.value = await self._bus.call(self._command(sent), timeout=sent.timeout, command_id=sent.id)
            sent.outcome = "value"
        except CommandRejected as refusal:
            sent.outcome, sent.value = "rejected", int(refusal.code)
        except CommandBusError as error:
            sent.outcome = error.code
            if isinstance(error, TransportUnavailable):
                sent.refused = "unknown"
        sent.answered = self._simulation.loop.time()

    async def _repeat(self, sent: Sent) -> None:
        """Send an id again with the same content."""
        if sent.how == "call" or not sent.admissions:
            return
        try:
            receipt = await self._bus.dispatch(self._command(sent), command_id=sent.id)
        except CommandBusError:
            return
        sent.tries += 1
        self._accepted(sent, receipt.status)

    async def _cancel(self, sent: Sent) -> None:
        self._simulation.history.note(sent.entity, f"{self._name}: cancel {sent.id}")
        sent.cancelled = True
        try:
            done = await self._bus.cancel(sent.id)
        except CommandBusError:
            return
        if done:
            sent.removed = self._simulation.loop.time()
        self._simulation.history.note(sent.entity, f"{self._name}: cancel {sent.id}: {done}")


class Operator:
    """Pauses and resumes entities while the producers work."""

    def __init__(self, simulation: Simulation, bus: CommandBus, random: Random) -> None:
        self._simulation = simulation
        self._bus = bus
        self._random = random

    async def run(self, pauses: int, seconds: float) -> None:
        for _ in range(pauses):
            await asyncio.sleep(self._random.random() * seconds / (pauses + 1))
            await self._pause(self._random.choice(self._simulation.entities), self._random.choice((0.05, 0.5, 2.0)))

    async def _pause(self, name: str, seconds: float) -> None:
        entity, now, history = self._bus.entity("item", name), self._simulation.loop.time, self._simulation.history
        try:
            await self._bus.entities.recount()  # what it writes must be right: see `state_rules`
            await entity.pause()
            began = now()
            await asyncio.sleep(seconds)
            history.pauses.append((name, began, now()))
        except CommandBusError:
            pass
        await self.retry_until(entity.resume)

    @staticmethod
    async def retry_until(request: Any) -> Any:
        """Ask until there is an answer."""
        while True:
            try:
                return await request()
            except TransportUnavailable:
                await asyncio.sleep(0.2)
