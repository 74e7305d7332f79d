"""Commands of several entities in the simulator, in some seeds: a few entities, many of whose commands stand in two or more lines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

from command_bus import (
    Command,
    CommandBus,
    CommandBusError,
    CommandContext,
    EntityId,
    EntityOf,
    Envelope,
    GiveUp,
    Reject,
    RetryPolicy,
    Snooze,
    TransportUnavailable,
)
from command_bus.transport.redis.keys import KeySpace
from tests.simulation.loop import LANE
from tests.simulation.standing import LineRun, Stander, tag_of
from tests.simulation.workload import REGISTRY, current

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

__all__ = ["SeveralLoad", "SeveralOperator", "takes_part"]

_PART = 0.3
_COMMANDS = 14
_RETRY: Any = {"attempts": 3, "delay": 0.15, "jitter": 0.3}
_PURSES = 4


class Put(Command[None], entity="purse", retry=RetryPolicy(**_RETRY)):
    purse: EntityId
    tag: str


class Move(Command[None], entity="purse", retry=RetryPolicy(**_RETRY), across_shards=True):
    source: EntityId
    target: EntityId
    tag: str


class Hold(Command[None], entity="purse", retry=RetryPolicy(**_RETRY), on_poison="park", across_shards=True):
    source: EntityId
    target: EntityId
    tag: str


class Settle(Command[None], entity="purse", delivery="at_most_once", across_shards=True):
    source: EntityId
    target: EntityId
    tag: str


class Buy(Command[None], entity="shop", retry=RetryPolicy(**_RETRY), fair_by="shop", across_shards=True):
    """A command of entities of two types, with a tenant."""

    shop: EntityId
    purse: Annotated[str, EntityOf("purse")]
    tag: str


class Balance(Command[None], entity="purse", retry=RetryPolicy(**_RETRY), across_shards=True):
    one: EntityId
    two: EntityId
    three: EntityId
    four: EntityId
    five: EntityId
    six: EntityId
    seven: EntityId
    eight: EntityId
    tag: str


def takes_part(seed: int) -> bool:
    """Return whether a seed has such commands."""
    return Random(f"several {seed}").random() < _PART


def crosses_shards(seed: int) -> bool:
    """Return whether a seed has such commands, of entities in two shards."""
    return takes_part(seed) and Random(f"across {seed}").random() < 0.5


async def _handle(command: Any, context: CommandContext) -> None:
    """Record a run, which fails or lasts as drawn from the seed."""
    simulation, lane, now = current[-1], LANE.get(), current[-1].loop.time
    assert lane is not None
    runs = simulation.history.standing.runs
    random = Random(f"{simulation.seed} {command.tag} {context.attempt} {sum(run.tag == command.tag for run in runs)}")
    run = LineRun(command.tag, context.fence, context.attempt, context.worker, lane.process, now())
    runs.append(run)
    how, seconds = random.random(), random.choice((0.0, 0.0, 0.001, 0.02, 0.1, 0.4, 3.0))
    try:
        await asyncio.sleep(seconds)
        if how < 0.2:
            run.how = "failed"
            raise GiveUp("as planned") if how < 0.03 else RuntimeError("as planned")
        if how < 0.24:
            run.how = "put off"
            raise Snooze(random.choice((0.0, 0.05, 0.7)), most=1000)
        run.how = "rejected" if how < 0.28 else "returned"
        if run.how == "rejected":
            raise Reject("as planned")
    except asyncio.CancelledError:
        run.how = "cancelled"
        raise
    finally:
        if current and current[-1] is simulation:
            run.ended = now()


for _kind in (Put, Move, Hold, Settle, Buy, Balance):
    REGISTRY.handles(_kind)(_handle)


class _Names:
    """Entities, as many of each shard."""

    def __init__(self, simulation: Simulation) -> None:
        self._keys = KeySpace("sim", simulation.settings.shards)
        self.purses, self.shops = self._of("purse", _PURSES), self._of("shop", 1)

    def _of(self, kind: str, count: int) -> list[str]:
        names = [f"{kind[0]}{number}" for number in range(100)]
        shards, each = range(self._keys.count), -(-count // self._keys.count)
        by_shard = ([name for name in names if self._keys.shard_of(f"{kind}:{name}") == shard] for shard in shards)
        return [name for found in by_shard for name in found[:each]]

    def last_of(self, lines: tuple[str, ...]) -> tuple[str, ...]:
        """Return the lines of the last shard: where a command runs, the first of them is its home."""
        last = max(map(self._keys.shard_of, lines))
        return tuple(line for line in lines if self._keys.shard_of(line) == last)

    def first_of(self, lines: tuple[str, ...]) -> tuple[str, ...]:
        """Return the lines of the first shard, in which it stands from its acceptance on."""
        first = min(map(self._keys.shard_of, lines))
        return tuple(line for line in lines if self._keys.shard_of(line) == first)

    @property
    def mailboxes(self) -> list[str]:
        return [f"purse:{name}" for name in self.purses] + [f"shop:{name}" for name in self.shops]


class SeveralLoad:
    """Sends for one process."""

    def __init__(self, simulation: Simulation, bus: CommandBus, name: str) -> None:
        self._simulation, self._bus, self._name = simulation, bus, name
        self._random = Random(f"several {name} {simulation.seed}")
        self._names = _Names(simulation)
        self._counter = self._batches = 0
        self._sent: list[Any] = []

    async def run(self, seconds: float) -> None:
        if not takes_part(self._simulation.seed):
            return
        now, tasks = self._simulation.loop.time, []
        begin = now()
        for moment in sorted(self._random.random() * seconds for _ in range(_COMMANDS)):
            await asyncio.sleep(max(0.0, begin + moment - now()))
            tasks.append(asyncio.get_running_loop().create_task(self._next()))
        for task in tasks:
            await task

    def _command(self) -> Any:
        """Return the next command: half of them stand in one line."""
        random, purses = self._random, self._names.purses
        self._counter += 1
        tag = f"{self._name}.s{self._counter}"
        kind: Any = random.choice((Put, Put, Put, Move, Move, Hold, Settle, Buy, Balance))
        one, two = random.choice(purses), random.choice(purses)  # at times the same
        if kind is Put:
            return Put(purse=one, tag=tag)
        if kind is Buy:
            return Buy(shop=random.choice(self._names.shops), purse=one, tag=tag)
        if kind is Balance:
            few = random.sample(purses, random.randint(2, len(purses)))
            fields = ("one", "two", "three", "four", "five", "six", "seven", "eight")
            return Balance(**{name: random.choice(few) for name in fields}, tag=tag)
        return kind(source=one, target=two, tag=tag)

    def _stander(self, command: Any, kind: str) -> Stander:
        home = f"{type(command).spec().entity}:{command.entity_id()}"
        lines = (home, *(":".join(each) for each in command.entity_ids()))
        most = 1 if isinstance(command, Settle) else 3
        stander = Stander(command.tag, lines, self._name, self._simulation.loop.time(), kind, most)
        stander.first, stander.last = self._names.first_of(lines), self._names.last_of(lines)
        self._simulation.history.standing.standers[command.tag] = stander
        for line in lines:
            self._simulation.history.note(line, f"{self._name}: {kind} {command!r}")
        return stander

    def _priority(self, tag: str) -> Any:
        return (
            Random(f"priority {tag} {self._simulation.seed}").choice(("high", "normal", "low", None))
            if self._simulation.line
            else None
        )

    async def _next(self) -> None:
        draw = self._random.random()
        if draw < 0.55:
            await self._dispatch(self._command(), 0.0)
        elif draw < 0.7:
            await self._dispatch(self._command(), self._random.choice((0.05, 0.5, 1.5)))
        elif draw < 0.85:
            await self._batch([self._command() for _ in range(self._random.randint(2, 5))])
        elif self._sent:
            await self._cancel(self._random.choice(self._sent[-4:]))

    async def _dispatch(self, command: Any, delay: float) -> None:
        stander = self._stander(command, "delayed" if delay else "dispatch")
        self._sent.append(stander)
        for _ in range(3):
            try:
                await self._bus.dispatch(command, command_id=command.tag, delay=delay, priority=self._priority(command.tag))
            except TransportUnavailable as error:
                stander.refused, stander.tries = "unknown" if error.outcome_unknown else "unavailable", stander.tries + 1
            except CommandBusError as error:
                stander.refused = error.code
                return
            else:
                stander.acked, stander.refused = self._simulation.loop.time(), ""
                return

    async def _batch(self, commands: list[Any]) -> None:
        self._batches += 1
        standers = [self._stander(command, "batch") for command in commands]
        for position, stander in enumerate(standers):
            stander.batch, stander.position = self._batches, position
        envelopes = [Envelope(each, command_id=each.tag, priority=self._priority(each.tag)) for each in commands]
        try:
            outcomes = (await self._bus.dispatch_batch(envelopes)).outcomes
        except CommandBusError as error:
            for stander in standers:
                stander.refused = "unknown" if isinstance(error, TransportUnavailable) else error.code
            return
        for stander, outcome in zip(standers, outcomes, strict=True):
            if outcome.status == "rejected":
                stander.refused = "unknown"
            else:
                stander.acked = self._simulation.loop.time()

    async def _cancel(self, stander: Stander) -> None:
        stander.removable = True
        try:
            done = await self._bus.cancel(stander.tag)
        except CommandBusError:
            return
        if done:
            stander.removed = self._simulation.loop.time()
        self._simulation.history.note(stander.lines[0], f"{self._name}: cancel {stander.tag}: {done}")


class SeveralOperator:
    """Pauses, resumes, purges and aborts at any of the lines, and decides letters."""

    def __init__(self, simulation: Simulation, bus: CommandBus) -> None:
        self._simulation, self._bus = simulation, bus
        self._random = Random(f"several operator {simulation.seed}")
        self._lines = _Names(simulation).mailboxes

    async def run(self, seconds: float) -> None:
        if not takes_part(self._simulation.seed):
            return
        count = self._random.randint(0, 8)
        acts = (self._pause, self._pause, self._pause_type, self._purge, self._abort, self._decide, self._decide)
        for _ in range(count):
            await asyncio.sleep(self._random.random() * 2 * seconds / count)
            act, line = self._random.choice(acts), self._random.choice(self._lines)
            self._simulation.history.note("", f"operator: {act.__name__} {line}")
            try:
                await act(line)
            except CommandBusError as error:
                self._simulation.history.note("", f"operator: {act.__name__} {line}: {error}")

    def _entity(self, line: str) -> Any:
        kind, _, name = line.partition(":")
        return self._bus.entity(kind, name)

    async def _pause(self, line: str) -> None:
        await self._hold(line, self._entity(line))

    async def _pause_type(self, line: str) -> None:
        kind = line.partition(":")[0]
        await self._hold(kind, self._bus.entities.of(kind))

    async def _hold(self, scope: str, held: Any) -> None:
        now = self._simulation.loop.time
        try:
            await held.pause()
            began = now()
            await asyncio.sleep(self._random.choice((0.05, 0.5, 2.0)))
            self._simulation.history.standing.pauses.append((scope, began, now()))
        finally:
            await self._until_answered(held.resume)

    async def _purge(self, line: str) -> None:
        for stander in self._simulation.history.standing.standers.values():
            stander.removable = stander.removable or line in stander.lines
        try:
            await self._entity(line).purge()
        finally:
            for stander in self._simulation.history.standing.standers.values():
                stander.removable = stander.removable or line in stander.lines

    async def _abort(self, line: str) -> None:
        began = self._simulation.loop.time()
        try:
            await self._entity(line).abort("as drawn", wait=1.0)
        finally:
            self._simulation.history.standing.aborts.append((line, began, self._simulation.loop.time()))

    async def _decide(self, _: str) -> None:
        """Replay or discard a letter, also of a command that left its lines."""
        letters = [letter async for letter in self._bus.dead_letters.list()]
        own = [letter for letter in letters if tag_of(letter) in self._simulation.history.standing.standers]
        if not own:
            return
        letter, replay = self._random.choice(own), self._random.random() < 0.7
        stander = self._simulation.history.standing.standers[tag_of(letter)]
        stander.rejoined = stander.rejoined or not letter.parked
        self._simulation.history.standing.decided(letter, replay=replay)
        self._simulation.history.note(stander.lines[0], f"operator: {'replay' if replay else 'discard'} {stander.tag}")
        await (self._bus.dead_letters.replay(letter.id) if replay else self._bus.dead_letters.discard(letter.id))

    async def _until_answered(self, request: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await request()
                return
            except CommandBusError:
                await asyncio.sleep(0.2)
