"""Chooses faults by a seed and lets them happen, several at a time, but one at a time to each victim."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace

from command_bus import IdleTimeout, TransportUnavailable
from tests.chaos.calm import AFTERMATH, BACKLOG, LOAD
from tests.chaos.faults import FAULTS, FaultContext, Kind, deploy, lift_limit
from tests.chaos.fleet import Seat
from tests.chaos.resume import Busy
from tests.chaos.scripted_loads import SCRIPTED_LOADS

__all__ = ["FAMILIES", "Nemesis"]

_ALONE = 0.15
_SCRIPTED = 0.1
_STUCK, _EMPTY = 11.0, 180.0
"""Seconds in which no command is settled once only stuck ones are left: a handler hangs for eight at most, and a command that no worker takes is
offered again after ten. And the longest that is waited for the queues to drain.
"""
_CATCHING_UP = 10
"""Commands that workers settle in each second while they catch up. With fewer the time counts again: what waits then has no excuse."""
_QUIET = "producers pause"
_MOST_OLD = 120.0
"""Seconds for which only workers of the older release may run: much less than `unknown_grace`."""

KINDS = (*FAULTS, *SCRIPTED_LOADS)
FAMILIES = tuple(dict.fromkeys(kind.family for kind in KINDS))


class Nemesis:
    """Injects faults until its time is over.

    The seed decides what is done to whom and when, not what comes of it: real processes do not replay. Two runs of one seed differ, but meet
    the same sequence of faults.

    Args:
        context: What it acts on.

    Attributes:
        injected: How many faults and loads are over.
        phase: What it does now, in words for the line of progress; while no producer sends it says so.
    """

    def __init__(self, context: FaultContext) -> None:
        self._context = context
        able = context.target.supports
        self._kinds = [kind for kind in KINDS if kind.family in context.plan.faults and kind.family in (LOAD, *able)]
        if any(seat.proxy is None for seat in context.fleet.seats):
            self._kinds = [kind for kind in self._kinds if kind.family != "net"]
        if not any(seat.clock for seat in context.fleet.seats):
            self._kinds = [kind for kind in self._kinds if kind.family != "clock"]
        self._nobody = Seat("server", None, "")
        self._deploying = Seat("deploy", None, "")
        self._load_seat = Seat("scripted", None, "")
        self._under_way: set[asyncio.Task[None]] = set()
        self._new_at = time.monotonic()  # when a worker of the newer release was last there
        self.injected = 0
        self.phase = ""

    async def run(self, seconds: float) -> None:
        """Do it; returns when all is undone.

        Then each scripted load runs alone at least once, which may take longer than its share of the time. The last part is for single
        faults, far from each other: how long does it take to go on?
        """
        loads = [kind for kind in self._kinds if kind.family == LOAD]
        self.phase = "storm"
        await self._storm(seconds * (1 - _ALONE - (_SCRIPTED if loads else 0.0)))
        await self._play(loads, seconds * _SCRIPTED)
        self.phase = "single faults"
        await self._alone("kill a worker", self._context.plan.lease + 1.5, seconds * _ALONE * 2 / 3)
        await self._alone("kill the server", 1.5, seconds * _ALONE / 3)

    async def _play(self, loads: list[Kind], seconds: float) -> None:
        """Run loads alone: all workers are of the newer release, which knows every command, and the producers pause."""
        if not loads:
            return
        context = self._context
        await lift_limit(context.target)
        if any(seat.release == "old" for seat in context.fleet.workers):
            await deploy(context, self._deploying)
        self.phase = _QUIET
        context.plan.quiet.touch()
        await self._catch_up()
        until = time.monotonic() + seconds
        while True:
            await asyncio.sleep(context.plan.lease + AFTERMATH)
            for kind in loads:
                await self._empty(kind.name)
                self.phase = f"{_QUIET}, '{kind.name}' alone"
                await self._inject(kind, self._load_seat, context)
            if time.monotonic() > until:
                break
        await self._empty("the end of the loads")
        context.plan.quiet.unlink()

    async def _catch_up(self) -> None:
        """Record the time behind the storm, and the seconds in which many commands are settled: they had waited for the others."""
        began = time.monotonic()
        await asyncio.sleep(self._context.plan.lease + AFTERMATH)
        self.phase = f"{_QUIET}, the workers catch up"
        settled, until = await self._settled(), time.monotonic() + _EMPTY
        while time.monotonic() < until:
            self._context.note(BACKLOG, "server", began)
            before, began = settled, time.monotonic()
            await asyncio.sleep(1.0)
            settled = await self._settled()
            if settled - before < _CATCHING_UP:
                break

    async def _settled(self) -> int:
        """Return how many commands were settled so far."""
        while True:
            try:
                return (await self._context.bus.stats()).settled
            except TransportUnavailable:  # a primary is being found
                await asyncio.sleep(0.2)

    async def _empty(self, before: str) -> None:
        """Wait until no work is left, or none of it gets done: the final survey reports stuck work."""
        self.phase = f"{_QUIET}, waiting for the queues to drain before {before}"
        until = time.monotonic() + _EMPTY
        while True:
            settled = await self._settled()
            try:
                return await self._context.bus.wait_idle(_STUCK)
            except IdleTimeout as error:
                if time.monotonic() > until or await self._settled() == settled:
                    print(f"chaos: before {before} {error.depth} commands were left", flush=True)
                    return None
            except TransportUnavailable:  # a primary is being found
                await asyncio.sleep(0.2)

    async def _alone(self, name: str, quiet: float, seconds: float) -> None:
        kind = next((kind for kind in self._kinds if kind.name == name), None)
        if kind is None:
            return
        until = time.monotonic() + seconds
        await asyncio.sleep(self._context.plan.lease)
        busy = Busy(self._context.plan.log("workers"))
        while time.monotonic() + quiet < until:
            victims = self._victims(kind)
            if kind.victims == "worker":  # one that runs something: else there is nothing to go on with
                victims = [seat for seat in victims if seat.who in busy.now()]
            if victims:
                await self._inject(kind, self._context.rng.choice(victims), self._context)
            await asyncio.sleep(quiet if victims else 0.01)

    async def _storm(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        rng = self._context.rng
        chosen = 0
        while self._kinds and time.monotonic() < until:
            await asyncio.sleep(self._context.plan.period * rng.uniform(0.3, 1.7))
            self._context.fleet.look_after()
            kind = rng.choices(self._kinds, [kind.weight for kind in self._kinds])[0]
            kind = self._overdue_deploy() or kind
            free = [seat for seat in self._victims(kind) if not seat.busy and self._may_suffer(kind, seat)]
            if free:
                seat = rng.choice(free)
                seat.busy = True
                chosen += 1
                context = replace(self._context, rng=random.Random(f"{self._context.plan.seed} {chosen}"))
                task = asyncio.create_task(self._inject(kind, seat, context), name=f"chaos {kind.name}")
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
        if not self._kinds:
            await asyncio.sleep(seconds)
        await asyncio.gather(*self._under_way)

    def _overdue_deploy(self) -> Kind | None:
        """Return the deploy of the newer release, if only the older one has run for long: what it does not know would be given up."""
        if any(seat.release == "new" for seat in self._context.fleet.workers):
            self._new_at = time.monotonic()
        if time.monotonic() - self._new_at < _MOST_OLD:
            return None
        return next((kind for kind in self._kinds if kind.family == "deploy"), None)

    def _victims(self, kind: Kind) -> list[Seat]:
        fleet = self._context.fleet
        match kind.victims:
            case "worker":
                return fleet.workers
            case "producer":
                return fleet.producers
            case "process":
                return fleet.seats
            case "deploy":
                return [self._deploying]
            case "load":
                return [self._load_seat]
            case _:
                return [self._nobody]

    def _may_suffer(self, kind: Kind, seat: Seat) -> bool:
        """Return whether a fault may hit a seat: only a process that is up is killed, and a deploy needs all workers up."""
        fleet = self._context.fleet
        match kind.family:
            case "kill":
                return fleet.is_up(seat)
            case "deploy":
                return all(map(fleet.is_up, fleet.workers))
            case _:
                return True

    async def _inject(self, kind: Kind, seat: Seat, context: FaultContext) -> None:
        try:
            await kind.act(context, seat)
            self.injected += 1
        finally:
            seat.busy = False
