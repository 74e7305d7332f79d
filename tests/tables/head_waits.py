"""Ways in which a command waits at the head of its entity's line until a moment, and what happens meanwhile: rows and columns of
`test_head_waits.py`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    DurableContext,
    EntityId,
    HandlerRegistry,
    Limit,
    Rate,
    RetryPolicy,
    Snooze,
)
from command_bus.testing.simulated.live import LiveServer, Process
from command_bus.transport.redis.maintenance.due_work import DueWork
from tests.conformance.put_service import until

__all__ = ["MEANWHILE", "MINUTE", "WAITS", "Scene"]

MINUTE = 60.0


class Step(Command[None], entity="line"):
    line: EntityId
    n: int


class Snoozing(Step, entity="line"): ...


class Failing(Step, entity="line", retry=RetryPolicy(attempts=3, delay=MINUTE, jitter=0.0)): ...


class Sleeping(Step, entity="line", durable=True): ...


class Listening(Step, entity="line", durable=True): ...


class Limited(Step, entity="line", limits=(Limit("shop"),)): ...


class Held(Step, entity="line", limits=(Limit("bank"),)): ...


LIMITS = (Limit("shop", rate=Rate(1, per=MINUTE)), Limit("bank", concurrency=9))


class Scene:
    """A server whose clock a test sets, one line, and workers that come and go."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.server = LiveServer(time.monotonic)
        self.patch = patch
        self.tried: list[int] = []
        self.ran: list[tuple[int, float]] = []
        self.registry = HandlerRegistry()
        self._looks: set[DueWork] = set()
        self._live: list[tuple[Process, CommandBus, Any]] = []
        self._declare()
        promote: Any = DueWork.promote

        async def promoted(due: DueWork) -> None:
            self._looks.add(due)
            await promote(due)

        patch.setattr(DueWork, "promote", promoted)

    def now(self) -> float:
        return time.monotonic() + self.server.offset

    def jump(self, seconds: float) -> None:
        """Let the server's clock go on, and workers look at what is due."""
        self.server.jump(seconds)
        for each in self._looks:
            each.wake()

    def bus(self, process: Process | None = None) -> CommandBus:
        return CommandBus(
            "redis://unused", clients=process or Process(self.server), registry=self.registry, lease=5.0, grace=5.0, limits=LIMITS
        )

    async def start(self) -> None:
        """Start a worker."""
        process = Process(self.server)
        bus = self.bus(process)
        worker = bus.worker()
        await worker.__aenter__()
        self._live.append((process, bus, worker))

    async def stop(self) -> None:
        """Stop the workers as a deploy does."""
        while self._live:
            _, bus, worker = self._live.pop()
            await worker.__aexit__(None, None, None)
            await bus.close()

    def _declare(self) -> None:
        async def step(command: Step, context: CommandContext) -> None:
            if type(command) in MEETS:
                self.tried.append(command.n)
                if self.tried.count(command.n) == 1 or isinstance(command, DURABLE):
                    await MEETS[type(command)](context)
            self.ran.append((command.n, self.now()))

        kinds: tuple[type[Step], ...] = (Step, Limited, *MEETS)
        for kind in kinds:
            self.registry.handles(kind)(step)


async def _snooze(context: CommandContext) -> None:
    raise Snooze(MINUTE)


async def _hold(context: CommandContext) -> None:
    raise Snooze(MINUTE, hold="limit:bank")


async def _fail(context: CommandContext) -> None:
    raise RuntimeError("not yet")


async def _sleep(context: DurableContext) -> None:
    await context.sleep(MINUTE)


async def _listen(context: DurableContext) -> None:
    with pytest.raises(TimeoutError):
        await context.signal("never", timeout=MINUTE)


DURABLE = (Sleeping, Listening)
MEETS: dict[type[Step], Callable[[Any], Awaitable[None]]] = {
    Snoozing: _snooze, Failing: _fail, Sleeping: _sleep, Listening: _listen, Held: _hold,
}  # fmt: skip
"""What a command's handler does first: always, or the first time only."""


Begin = Callable[[Scene, CommandBus], Awaitable[None]]
"""Lets command 0 of the line wait for a minute from now; when it returns, it does."""


def _trying(kind: type[Step]) -> Begin:
    async def begin(scene: Scene, bus: CommandBus) -> None:
        await bus.dispatch(kind(line="a", n=0))
        await until(lambda: scene.tried == [0])

    return begin


async def limit_window(scene: Scene, bus: CommandBus) -> None:
    await bus.dispatch(Limited(line="other", n=99))
    await until(lambda: scene.ran)
    scene.ran.clear()
    await bus.dispatch(Limited(line="a", n=0))


async def pause(scene: Scene, bus: CommandBus) -> None:
    await bus.entities.of("line").pause(until=MINUTE)
    await bus.dispatch(Step(line="a", n=0))


WAITS: dict[str, Begin] = {
    "snooze": _trying(Snoozing),
    "retry": _trying(Failing),
    "sleep": _trying(Sleeping),
    "signal's timeout": _trying(Listening),
    "limit's window": limit_window,
    "limit that is held": _trying(Held),
    "pause": pause,
}
"""Each way to wait at the head of a line until a moment."""

Meanwhile = Callable[[Scene], Awaitable[None]]


async def nothing(scene: Scene) -> None:
    """Nothing happens."""


async def deploy(scene: Scene) -> None:
    """Let another worker go on where the first has stopped."""
    await scene.stop()
    await scene.start()


async def away(scene: Scene) -> None:
    """Leave the moment without a worker."""
    await scene.stop()


async def worker_clock_ahead(scene: Scene) -> None:
    await _wrong_clock(scene, 3600)


async def worker_clock_behind(scene: Scene) -> None:
    await _wrong_clock(scene, -3600)


async def _wrong_clock(scene: Scene, seconds: int) -> None:
    true = time.time_ns
    scene.patch.setattr(time, "time_ns", lambda: true() + seconds * 1_000_000_000)
    await deploy(scene)


MEANWHILE: dict[str, Meanwhile] = {
    each.__name__: each for each in (nothing, deploy, away, worker_clock_ahead, worker_clock_behind)
}
