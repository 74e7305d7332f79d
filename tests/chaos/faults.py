"""Faults of the nemesis: each is a coroutine that injects it into a victim, undoes it, and records its time.

Workers and producers have the names of their processes (`w1.3`), so that a fault explains only the troubles of that process. `*` is all
of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from redis.exceptions import RedisError

from command_bus import CommandBus
from tests.chaos.fleet import Fleet, Seat
from tests.chaos.history import Fault, Recorder
from tests.chaos.plan import Plan
from tests.chaos.proxy import Mode
from tests.chaos.servers import Target

__all__ = ["FAULTS", "Act", "FaultContext", "Kind", "deploy", "lift_limit", "stop"]


@dataclass
class FaultContext:
    """Objects that faults act on."""

    plan: Plan
    fleet: Fleet
    target: Target
    recorder: Recorder
    rng: random.Random
    bus: CommandBus

    def note(self, kind: str, victim: str, start: float, detail: str = "") -> None:
        """Record a fault that is over."""
        end = time.monotonic()
        fault = Fault(kind, victim, start, end, detail)
        self.recorder.note("fault", kind=fault.kind, victim=fault.victim, start=fault.start, end=fault.end, detail=fault.detail)


Act = Callable[[FaultContext, Seat], Awaitable[None]]


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        family: Its name for `--faults`.
        weight: Relative frequency.
        victims: `worker`, `producer`, `process` (any), `server`, `deploy` (all workers in turn) or `load` (none: see `scripted_loads`).
        act: Injects it.
    """

    name: str
    family: str
    weight: float
    victims: str
    act: Act


async def _kill(context: FaultContext, seat: Seat) -> None:
    start = time.monotonic()
    who = seat.who
    context.fleet.kill(seat)
    context.note("kill", who, start)
    context.fleet.begin(seat)


async def stop(context: FaultContext, seat: Seat, seconds: float, kind: str) -> None:
    """Send SIGSTOP, and SIGCONT after so many seconds."""
    start = time.monotonic()
    context.fleet.pause(seat, stop=True)
    await asyncio.sleep(seconds)
    context.fleet.pause(seat, stop=False)
    context.note(kind, seat.who, start)


async def _zombie(context: FaultContext, seat: Seat) -> None:
    """Stop it beyond its lease: when it wakes, another worker has its entities."""
    await stop(context, seat, context.plan.lease * context.rng.uniform(1.2, 2.2), "stop")


async def _short_stop(context: FaultContext, seat: Seat) -> None:
    await stop(context, seat, context.rng.uniform(0.05, 0.4), "short_stop")


async def _cut(context: FaultContext, seat: Seat) -> None:
    start = time.monotonic()
    assert seat.proxy is not None
    seat.proxy.reset()
    context.note("cut", seat.who, start)


def _network(mode: Mode, shortest: float, longest: float, kind: str) -> Act:
    async def act(context: FaultContext, seat: Seat) -> None:
        proxy, rng = seat.proxy, context.rng
        assert proxy is not None
        start = time.monotonic()
        amount = {"chop": float(rng.randint(1, 40)), "delay": rng.uniform(0.01, 0.15)}.get(mode, 0.0)
        proxy.set(mode, amount)
        await asyncio.sleep(rng.uniform(shortest, longest) * context.plan.lease)
        proxy.set("pass")
        if mode.startswith("blackhole") and rng.random() < 0.5:
            proxy.reset()  # else what was held back arrives now, late
        context.note(kind, seat.who, start, f"{mode} {amount:.3g}")

    return act


async def _client_kill(context: FaultContext, _seat: Seat) -> None:
    """Disconnect one client, or all of them."""
    start = time.monotonic()
    everyone = context.rng.random() < 0.3
    for admin in context.target.admins():
        with contextlib.suppress(RedisError):
            if everyone:
                await admin.client_kill_filter(_type="normal", skipme=True)
            else:
                clients = await admin.client_list()
                await admin.client_kill_filter(_id=context.rng.choice(clients)["id"], skipme=True)
    context.note("client_kill", "server", start, "all" if everyone else "one")


async def _script_flush(context: FaultContext, _seat: Seat) -> None:
    start = time.monotonic()
    for admin in context.target.admins():
        with contextlib.suppress(RedisError):
            await admin.script_flush()
    context.note("script_flush", "server", start)


async def _oom(context: FaultContext, _seat: Seat) -> None:
    """Put the server at its memory limit for a while."""
    start = time.monotonic()
    with contextlib.suppress(RedisError):
        for admin in context.target.admins():
            await admin.config_set("maxmemory", 1)
        await asyncio.sleep(context.rng.uniform(0.3, 1.2))
    await lift_limit(context.target)
    context.note("oom", "server", start)


async def lift_limit(target: Target) -> None:
    """Let the server use memory again; retry until it does."""
    for admin in target.admins():
        while True:
            try:
                await admin.config_set("maxmemory", 0)
                break
            except RedisError:
                await asyncio.sleep(0.05)


def _server(kind: str) -> Act:
    async def act(context: FaultContext, _seat: Seat) -> None:
        start = time.monotonic()
        await context.target.kill(power=kind == "power")
        await asyncio.sleep(context.rng.uniform(0.0, 0.6))
        await context.target.revive()
        context.note(kind if context.target.address is not None else "failover", "*", start)

    return act


async def _clock(context: FaultContext, seat: Seat) -> None:
    start = time.monotonic()
    if seat.clock is None:
        return
    offset = context.rng.choice([-3600.0, -60.0, -2.0, 0.0, 2.0, 60.0, 3600.0])
    seat.clock.step(offset)
    context.note("clock", seat.who, start, f"{offset:+g} s")


async def deploy(context: FaultContext, _seat: Seat) -> None:
    """Stop every worker in turn, and replace it by one of the other release."""
    releases = {seat.release for seat in context.fleet.workers}
    release = "old" if releases == {"new"} else "new"
    for seat in context.fleet.workers:
        while seat.busy:
            await asyncio.sleep(0.05)
        seat.busy = True
        try:
            start, who = time.monotonic(), seat.who
            await context.fleet.retire(seat)
            context.note("deploy", who, start, release)
            seat.release = release
            context.fleet.begin(seat)
        finally:
            seat.busy = False


FAULTS = (
    Kind("kill a worker", "kill", 5, "worker", _kill),
    Kind("kill a producer", "kill", 1.5, "producer", _kill),
    Kind("stop a worker beyond its lease", "stop", 4, "worker", _zombie),
    Kind("stop a process shortly", "stop", 7, "process", _short_stop),
    Kind("cut connections", "net", 10, "process", _cut),
    Kind("cut replies", "net", 6, "process", _network("cut_reply", 0.05, 0.4, "cut_reply")),
    Kind("cut in the middle of a reply", "net", 6, "process", _network("chop", 0.05, 0.4, "chop")),
    Kind("swallow everything", "net", 4, "process", _network("blackhole", 0.2, 1.6, "stall")),
    Kind("swallow replies", "net", 4, "process", _network("blackhole_reply", 0.2, 1.6, "stall")),
    Kind("refuse connections", "net", 2, "process", _network("refuse", 0.1, 0.3, "refuse")),
    Kind("delay", "net", 6, "process", _network("delay", 0.2, 0.8, "delay")),
    Kind("client kill", "client_kill", 10, "server", _client_kill),
    Kind("script flush", "script_flush", 8, "server", _script_flush),
    Kind("kill the server", "server", 2.5, "server", _server("server")),
    Kind("power loss", "power", 2, "server", _server("power")),
    Kind("memory limit", "oom", 2, "server", _oom),
    Kind("step a worker's clock", "clock", 6, "worker", _clock),
    Kind("deploy", "deploy", 0.8, "deploy", deploy),
)
