"""The handlers of journeys in a worker process: each run records what it begins, what it sees, and how it ends.

The function of a step acts on the ledger under the fence of its run, and returns which effect of its key that was: so a step that is done again
has another value, and all runs must see the one that was stored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn

from command_bus import (
    CommandCancelled,
    CommandContext,
    DurableContext,
    HandlerRegistry,
    Reject,
    RetryPolicy,
)
from command_bus.durable.run_tools import RunLost
from command_bus.errors import CommandOutcomeError
from command_bus.messages.durable import Suspended
from tests.chaos.flows import Shelve, told
from tests.chaos.history import Effect, Recorder
from tests.chaos.journeys import Errand, Journey, Stage, TakeBack, errand_for, route_of, take_back_for
from tests.chaos.ledger import Fenced, Ledger
from tests.chaos.messages import Poison, expected_value

__all__ = ["declare_journeys"]

_IN_PLACE = RetryPolicy(attempts=3, delay=0.01)
_HOWS: tuple[tuple[type[BaseException], str], ...] = (
    (Suspended, "suspended"),
    (asyncio.CancelledError, "cancelled"),
    (RunLost, "cancelled"),
    (CommandCancelled, "wished"),
    (Reject, "reject"),
    (Fenced, "fenced"),
    (Poison, "poison"),
)


class _Planned(Exception):
    """The error of a run that is planned to fail once."""


def declare_journeys(
    registry: HandlerRegistry, recorder: Recorder, ledger: Ledger, errand: Callable[..., Awaitable[int]]
) -> None:
    """Declare the handlers of journeys; `errand` runs the plain commands that they call."""

    def called(command: Errand | Shelve, context: CommandContext) -> None:
        recorder.note("errand", id=context.command_id, journey=command.journey, key=command.key, undoes=False)
        if command.got is not None:
            got = json.dumps(told(command.got))
            recorder.note("saw", id=command.journey, fence=context.fence, key=f"{command.key}<", value=got)

    @registry.handles(Journey)
    async def travel(command: Journey, context: DurableContext) -> int:
        return await _Traveller(recorder, ledger, command, context).run()

    @registry.handles(Errand)
    async def run_errand(command: Errand, context: CommandContext) -> int:
        called(command, context)
        return await errand(command, context)

    @registry.handles(Shelve)
    async def run_shelve(command: Shelve, context: CommandContext) -> int:
        called(command, context)
        return await errand(command, context)

    @registry.handles(TakeBack)
    async def take_back(command: TakeBack, context: CommandContext) -> int:
        recorder.note("errand", id=context.command_id, journey=command.journey, key=command.key, undoes=True)
        return await errand(command, context)


class _Traveller:
    """One run of the handler of a journey.

    Args:
        recorder: Of the worker.
        ledger: The downstream.
        command: The journey.
        context: Of the run.
    """

    def __init__(self, recorder: Recorder, ledger: Ledger, command: Journey, context: DurableContext) -> None:
        self._recorder = recorder
        self._ledger = ledger
        self._command = command
        self._context = context
        self._id = context.command_id
        self._effect = Effect(self._id, context.entity or "", command.number, context.fence)

    async def run(self) -> int:
        """Go through the route, and end as planned."""
        effect, route = self._effect, route_of(self._command.seed, self._id)
        names = {"id": self._id, "entity": effect.entity, "number": effect.number, "fence": effect.fence}
        self._recorder.note("start", **names, attempt=self._context.attempt, once=False)
        how, value = "", None
        try:
            for stage in route.stages:
                self._note("begun", stage.key)
                await _STAGES[stage.kind](self, stage)
            self._end_early()
            if await self._ledger.put(effect) == "fenced":
                self._fenced()
            how, value = "end", expected_value(effect.number)
        except BaseException as error:
            how = next((how for kind, how in _HOWS if isinstance(error, kind)), f"error {type(error).__name__}: {error}"[:300])
            how = "raise" if isinstance(error, _Planned) else how
            raise
        else:
            return value
        finally:
            self._recorder.note("ended", id=self._id, fence=effect.fence, how=how, value=value)

    def _end_early(self) -> None:
        """End the journey as planned, if that is not to return."""
        end = route_of(self._command.seed, self._id).end
        if end != "return":
            raise Reject("told to", code="told") if end == "reject" else Poison("told to")

    def _note(self, what: str, key: str, **more: Any) -> None:
        self._recorder.note(what, id=self._id, fence=self._effect.fence, key=key, **more)

    def _fenced(self) -> NoReturn:
        effect = self._effect
        self._recorder.note("refused", id=effect.id, entity=effect.entity, fence=effect.fence)
        raise Fenced(effect.entity)

    async def _seen(self, key: str, work: Awaitable[Any]) -> None:
        """Await something, and record what it came to. A cancellation goes through: it is no outcome of this."""
        try:
            value = await work
        except CommandCancelled:
            raise
        except CommandOutcomeError as error:
            value = f"{type(error).__name__} {getattr(error, 'code', '')}"
        except TimeoutError:
            value = "late"
        self._note("saw", key, value=value)

    # What stages are made of.

    def _step(self, stage: Stage) -> Coroutine[object, None, str]:
        context, retry = self._context, _IN_PLACE if stage.flaky else None

        async def effect() -> str:
            await asyncio.sleep(stage.seconds / 2)
            value = self._acted(stage, await self._ledger.step(self._effect, stage.key, context.step_key or ""))
            await asyncio.sleep(stage.seconds / 2)  # a worker that is lost here has done it, and has not stored it
            return value

        def effect_in_thread() -> str:
            return self._acted(stage, self._ledger.step_now(self._effect, stage.key, context.step_key or ""))

        return context.step("do", effect_in_thread if stage.seconds == 0.0 else effect, key=stage.key, retry=retry)

    def _acted(self, stage: Stage, value: str) -> str:
        if value == "fenced":
            self._fenced()
        self._note("acted", stage.key)
        if stage.flaky and value.endswith(" 1"):
            raise _Planned("once")
        return value

    def _unkeyed(self, stage: Stage, key: str) -> Coroutine[object, None, str]:
        context = self._context

        async def effect() -> str:
            await asyncio.sleep(stage.seconds / 4)
            value = await self._ledger.step(self._effect, key, context.step_key or "")
            if value == "fenced":
                self._fenced()
            self._note("acted", key)
            return value

        return context.step(f"do-{stage.key}", effect)

    def _call(self, stage: Stage, key: str, *, timeout: float | None = None) -> Coroutine[object, None, int]:
        seed = self._command.seed
        undo = take_back_for(seed, self._id, key) if stage.undone == key else None
        self._note("begun", key)
        limit: Any = {} if timeout is None else {"timeout": timeout}
        return self._context.call(errand_for(seed, self._id, key), undo=undo, **limit)

    def _signal(self, stage: Stage) -> Coroutine[object, None, str]:
        return self._context.signal(f"go-{stage.key}", timeout=stage.timeout, returns=str)

    # The kinds of stages.

    async def step(self, stage: Stage) -> None:
        await self._seen(stage.key, self._step(stage))

    async def call(self, stage: Stage) -> None:
        await self._seen(stage.calls[0], self._call(stage, stage.calls[0], timeout=stage.timeout))

    async def sleep(self, stage: Stage) -> None:
        await self._seen(stage.key, self._context.sleep(stage.seconds))

    async def signal(self, stage: Stage) -> None:
        for key in stage.signals:
            await self._seen(key, self._signal(stage))

    async def first(self, stage: Stage) -> None:
        """Wait for a signal, a call or a time; `winner` is what came first."""
        parts: dict[str, Coroutine[object, None, Any]] = {
            stage.signals[0]: self._context.signal(f"go-{stage.key}", returns=str),
            stage.calls[0]: self._call(stage, stage.calls[0]),
            f"{stage.key}.sleep": self._context.sleep(stage.timeout or 1.0),
        }
        winner = await self._context.first(*parts.values())
        key = next(key for key, part in parts.items() if part is winner)
        self._note("saw", f"{stage.key}.winner", value=key)
        await self._seen(key, winner)

    async def all(self, stage: Stage) -> None:
        first, second = stage.calls

        async def together() -> str:
            async with self._context.timeout(stage.timeout or 3.0):
                found = await self._context.all(self._call(stage, first), self._call(stage, second), self._step(stage))
            for key, value in zip((first, second, stage.key), found, strict=True):
                self._note("saw", key, value=value)
            return "all"

        await self._seen(f"{stage.key}.all", together())

    async def gather(self, stage: Stage) -> None:
        """Wait in tasks of their own: the command stays with its worker."""
        await asyncio.gather(
            *(self._seen(key, self._call(stage, key, timeout=stage.timeout)) for key in stage.calls),
            self._seen(stage.key, self._step(stage)),
        )

    async def compensate(self, stage: Stage) -> None:
        """Name what undoes a step, then do the step: both are stored, in this order."""
        self._context.compensate(take_back_for(self._command.seed, self._id, stage.key))
        await self.step(stage)

    async def named(self, stage: Stage) -> None:
        """Call, then name what undoes that, as one writes it: what took too long may still run."""
        await self.call(stage)
        await self.compensate(stage)

    async def torn(self, stage: Stage) -> None:
        """Wait for a call and a step beside a sibling that ends the journey as planned, or fails once: they are in flight then."""

        async def fails() -> None:
            await asyncio.sleep(stage.seconds / 4)
            self._end_early()
            await self.fail(stage)

        (key,) = stage.calls
        call = self._call(stage, key, timeout=stage.timeout)  # here, so that its number is the same in each run
        await asyncio.gather(self._seen(key, call), self.step(stage), fails())

    async def helpers(self, stage: Stage) -> None:
        """Do steps with one name and no key: in helpers, one after another, then side by side."""
        first, second, third, fourth = (f"{stage.key}h{number}" for number in range(4))

        async def helper(key: str) -> None:
            await self._seen(key, self._unkeyed(stage, key))

        await helper(first)
        await helper(second)
        await asyncio.gather(*(self._seen(key, self._unkeyed(stage, key)) for key in (third, fourth)))

    async def fail(self, stage: Stage) -> None:
        if await self._ledger.is_first_time(f"{self._id} {stage.key}"):
            raise _Planned("once")


_STAGES: dict[str, Callable[[_Traveller, Stage], Awaitable[None]]] = {
    "step": _Traveller.step,
    "call": _Traveller.call,
    "undo": _Traveller.call,
    "compensate": _Traveller.compensate,
    "named": _Traveller.named,
    "torn": _Traveller.torn,
    "helpers": _Traveller.helpers,
    "sleep": _Traveller.sleep,
    "signal": _Traveller.signal,
    "pair": _Traveller.signal,
    "first": _Traveller.first,
    "all": _Traveller.all,
    "gather": _Traveller.gather,
    "fail": _Traveller.fail,
}
