"""A worker process of the run: its handlers record what they do, and act on the ledger under their fence.

Run as `python -m tests.chaos.worker_app PLAN URL NAME RELEASE`. The release is the handler set: only the `new` one knows `Late`.

What a command's plan makes its handler do: `` sleep a while; `block` the event loop; `fail` at the first two attempts; `poison` always
fail; `refuse` it; at the first attempt be `shot` (its task is cancelled, not by the bus) or end `mute` (by an exception that has no text).
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from command_bus import CommandBus, CommandBusError, CommandContext, HandlerRegistry, Reject
from tests.chaos.features import SUBSCRIPTIONS, declare, tick_number
from tests.chaos.flows import Shelve
from tests.chaos.history import Effect, Recorder
from tests.chaos.journey_app import declare_journeys
from tests.chaos.journeys import Errand, TakeBack
from tests.chaos.ledger import Fenced, Ledger
from tests.chaos.messages import (
    UNTIL_DONE,
    Applied,
    Apply,
    Deposit,
    Late,
    Move,
    Once,
    Order,
    Parcel,
    Poison,
    Steady,
    Tally,
    Tick,
    Total,
    Withdraw,
    expected_value,
)
from tests.chaos.plan import Plan, bus_options

__all__ = ["Handlers", "die_with_parent", "watch_for_gaps"]

_TICK, _GAP = 0.1, 0.3
_Asynchronous = (
    Apply | Applied | Once | Late | Withdraw | Deposit | Order | Parcel | Tick | Tally | Move | Errand | TakeBack | Shelve
)


class PlannedFailure(Exception):
    """The error of a handler that is planned to fail."""


class Wordless(BaseException):
    """Raised by an exception that is asked for its text."""


class Mute(Exception):
    """An exception without a text, raised as planned."""

    def __str__(self) -> str:
        raise Wordless


class Handlers:
    """The handlers of one worker, bound to its recorder, its ledger and its bus."""

    def __init__(self, recorder: Recorder, ledger: Ledger) -> None:
        self.recorder = recorder
        self.ledger = ledger
        self.bus: CommandBus | None = None
        self.publishes = False

    def registry(self, release: str, features: tuple[str, ...] = ()) -> HandlerRegistry:
        """Return the handlers of a release."""
        registry = HandlerRegistry()
        self._declare(registry, features)

        @registry.handles(Apply)
        async def apply(command: Apply, context: CommandContext) -> int:
            self._publish(command, context)
            return await self.run(command, context)

        @registry.handles(Once)
        async def once(command: Once, context: CommandContext) -> int:
            return await self.run(command, context)

        @registry.handles(Withdraw)
        async def withdraw(command: Withdraw, context: CommandContext) -> int:
            return await self.run(command, context)

        @registry.handles(Deposit)
        async def deposit(command: Deposit, context: CommandContext) -> int:
            return await self.run(command, context)

        @registry.handles(Order)
        async def order(command: Order, context: CommandContext) -> int:
            return await self.run(command, context)

        @registry.handles(Parcel)
        async def parcel(command: Parcel, context: CommandContext) -> int:
            return await self.run(command, context)

        @registry.handles(Steady)
        def steady(command: Steady, context: CommandContext) -> int:
            return self.run_in_thread(command, context)

        if release == "new":

            @registry.handles(Late)
            async def late(command: Late, context: CommandContext) -> int:
                return await self.run(command, context)

        return registry

    def _declare(self, registry: HandlerRegistry, features: tuple[str, ...]) -> None:
        declare(registry, features)
        if {"durable", "workflows"} & {*features}:
            declare_journeys(registry, self.recorder, self.ledger, self.run)
        self._declare_tallies(registry, features)
        if {"several", "across"} & {*features}:
            registry.handles(Move)(self.move)
        self.publishes = "publication" in features
        if self.publishes:
            self._declare_subscriptions(registry)

        @registry.handles(Tick)
        async def tick(command: Tick, context: CommandContext) -> int:
            return await self.run(command, context)

    def _declare_subscriptions(self, registry: HandlerRegistry) -> None:
        for name in SUBSCRIPTIONS:

            @registry.subscribes(name, Applied, retry=UNTIL_DONE)
            async def put(event: Applied, context: CommandContext) -> None:
                await self.run(event, context)

    def _publish(self, command: Apply, context: CommandContext) -> None:
        if not self.publishes:
            return
        event_id = context.publish(Applied(line=command.line, number=command.number))
        for name in SUBSCRIPTIONS:
            names = {"id": f"{event_id}@{name}", "entity": f"line@{name}:{command.line}", "number": command.number}
            self.recorder.note("ask", **names, kind="Applied", way="handler")

    def _declare_tallies(self, registry: HandlerRegistry, features: tuple[str, ...]) -> None:
        async def each(commands: Sequence[Tally], contexts: Sequence[CommandContext], total: Total) -> list[int | Exception]:
            found: list[int | Exception] = []
            for command, context in zip(commands, contexts, strict=True):
                try:
                    found.append(await self.run(command, context))
                except Reject as error:
                    found.append(error)
                else:
                    total.add(command.number)
            return found

        match "state" in features, "batches" in features:
            case True, True:
                registry.handles_many(Tally, of="entity", size=16)(each)
            case False, True:

                @registry.handles_many(Tally, of="entity", size=16)
                async def run(commands: Sequence[Tally], contexts: Sequence[CommandContext]) -> list[int | Exception]:
                    return await each(commands, contexts, Total())

            case True, False:

                @registry.handles(Tally)
                async def tally(command: Tally, context: CommandContext, total: Total) -> int:
                    value = await self.run(command, context)
                    total.add(command.number)
                    return value

            case _:
                pass

    async def run(self, command: _Asynchronous, context: CommandContext) -> int:
        """Record the start, do what is planned, record the end."""
        with self._recorded(command, context) as effect:
            if isinstance(command, Order):
                await self._order(command, context)
            elif isinstance(command, TakeBack):
                _fail_as_planned(command.plan, context.attempt)
            elif isinstance(command, Shelve):
                if await self.ledger.is_first_time(context.command_id):
                    raise Poison("until it is replayed")
            elif not isinstance(command, Deposit | Parcel | Tick | Applied):
                if command.plan == "block":
                    self._block(command.busy)
                elif command.busy:
                    await asyncio.sleep(command.busy)
                if command.plan == "shot" and context.attempt == 1:
                    await _shot()
                _fail_as_planned(command.plan, context.attempt)
            await self._act(command, effect)
            return _value(command, effect) or 0

    async def move(self, command: Move, context: CommandContext) -> int:
        """Run in the lines of both vaults: in that of the target it is recorded as a command of its own, which nobody sends."""
        place = Effect(f"{context.command_id}~", f"vault:{command.target}", command.also, context.fence)
        if command.target == command.vault:
            return await self.run(command, context)
        self.recorder.note("ask", id=place.id, entity=place.entity, number=place.number, kind="Place", way="handler")
        self._note_start(place, context)
        how = "raise"
        try:
            value = await self.run(command, context)
            how = "end"
        except asyncio.CancelledError:
            how = "shot" if command.plan == "shot" and context.attempt == 1 else "cancelled"
            raise
        except (Reject, Fenced) as error:
            how = "reject" if isinstance(error, Reject) else "fenced"
            raise
        finally:
            self.recorder.note("ended", id=place.id, fence=place.fence, how=how, value=None)
        return value

    def _note_start(self, effect: Effect, context: CommandContext, *, once: bool = False) -> None:
        names = {"id": effect.id, "entity": effect.entity, "number": effect.number, "fence": effect.fence}
        self.recorder.note("start", **names, attempt=context.attempt, once=once)

    def run_in_thread(self, command: Steady, context: CommandContext) -> int:
        """Run a handler in a thread."""
        with self._recorded(command, context) as effect:
            time.sleep(command.busy)
            _fail_as_planned(command.plan, context.attempt)
            if self.ledger.put_now(effect) == "fenced":
                self._fenced(effect)
            return expected_value(effect.number)

    @contextmanager
    def _recorded(self, command: Steady | _Asynchronous, context: CommandContext) -> Iterator[Effect]:
        number = _number_of(command, context)
        effect = Effect(context.command_id, context.entity or "", number, context.fence)
        self._note_start(effect, context, once=isinstance(command, Once))
        how, value = "raise", None
        try:
            yield effect
            how, value = "end", _value(command, effect)
        except asyncio.CancelledError:
            how = "shot" if getattr(command, "plan", "") == "shot" and context.attempt == 1 else "cancelled"
            raise
        except Reject:
            how = "reject"
            raise
        except Fenced:
            how = "fenced"
            raise
        finally:
            self.recorder.note("ended", id=effect.id, fence=effect.fence, how=how, value=value)

    def _block(self, seconds: float) -> None:
        began = time.monotonic()
        time.sleep(seconds)
        self.recorder.note("fault", kind="block", victim=self.recorder.who, start=began, end=time.monotonic())

    async def _act(self, command: _Asynchronous, effect: Effect) -> None:
        match command:
            case Deposit():
                answer = await self.ledger.move(effect, command.amount)
            case Withdraw():
                answer = await self.ledger.move(effect, -command.amount)
            case Move():
                target = Effect(f"{effect.id}~", f"vault:{command.target}", command.also, effect.fence)
                both = [effect] if command.target == command.vault else [effect, target]
                answer = await self.ledger.transfer(both, command.amount)
            case _:
                answer = await self.ledger.put(effect)
        if answer == "fenced":
            self._fenced(effect)
        if answer == "short":
            raise Reject("no money", code="short")
        if isinstance(command, Withdraw):
            await self._send_on(command, effect)

    async def _order(self, command: Order, context: CommandContext) -> None:
        """Call a line that only this attempt knows."""
        assert self.bus is not None
        second = f"{context.command_id}.{context.attempt}"
        line = f"{command.order}-{context.attempt}"
        names = {"id": second, "entity": f"line:{line}", "number": 0, "kind": "Apply", "way": "handler"}
        self.recorder.note("ask", **names, within=command.within)
        answer = "unknown"
        try:
            await self.bus.call(Apply(line=line, number=0), command_id=second, timeout=command.patience)
            answer = "accepted"
        finally:
            self.recorder.note("answer", id=second, answer=answer)

    def _fenced(self, effect: Effect) -> NoReturn:
        self.recorder.note("refused", id=effect.id, entity=effect.entity, fence=effect.fence)
        raise Fenced(effect.entity)

    async def _send_on(self, command: Withdraw, effect: Effect) -> None:
        assert self.bus is not None
        second = f"{effect.id}.in"
        entity = f"account:{command.to}"
        self.recorder.note("ask", id=second, entity=entity, number=-1, kind="Deposit", way="handler")
        try:
            receipt = await self.bus.dispatch(Deposit(account=command.to, amount=command.amount), command_id=second)
        except CommandBusError as error:
            unknown = getattr(error, "outcome_unknown", False)
            self.recorder.note("answer", id=second, answer="unknown" if unknown else "refused")
            raise
        self.recorder.note("answer", id=second, answer=receipt.status)


def _number_of(command: Steady | _Asynchronous, context: CommandContext) -> int:
    if isinstance(command, Tick):
        return tick_number(context.command_id)
    return -1 if isinstance(command, Deposit | Errand | TakeBack | Shelve) else command.number


def _value(command: Steady | _Asynchronous, effect: Effect) -> int | None:
    if isinstance(command, Applied):
        return None
    return effect.fence if isinstance(command, Errand | TakeBack | Shelve) else expected_value(effect.number)


async def _shot() -> None:
    """Cancel this handler's task as a library or the application might."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


def _fail_as_planned(plan: str, attempt: int) -> None:
    if plan == "refuse":
        raise Reject("told to", code="told")
    if plan == "poison":
        raise Poison("told to")
    if plan == "fail" and attempt <= 2:
        raise PlannedFailure("told to")
    if plan == "mute" and attempt == 1:
        raise Mute


def die_with_parent() -> None:
    """End with the harness, however it ends, even while stopped (if the kernel supports it)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def watch_for_gaps(recorder: Recorder) -> None:
    """Record when this process was given no processor: on a crowded machine that is a stop which the nemesis did not order."""

    def watch() -> None:
        before = time.monotonic()
        while True:
            time.sleep(_TICK)
            now = time.monotonic()
            if now - before > _TICK + _GAP:
                recorder.note("fault", kind="gap", victim=recorder.who, start=before, end=now)
            before = now

    threading.Thread(target=watch, name="gaps", daemon=True).start()


async def main() -> None:
    die_with_parent()
    plan_path, url, name, release = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING, format=f"%(asctime)s {name} %(name)s %(message)s")
    plan = Plan.read(plan_path)
    recorder = Recorder(plan.log("workers"), name)
    ledger = Ledger(plan.ledger)
    watch_for_gaps(recorder)
    while True:
        handlers = Handlers(recorder, ledger)
        bus = CommandBus(url, registry=handlers.registry(release, plan.features), **bus_options(plan))
        handlers.bus = bus
        try:
            await bus.open()
            worker = bus.worker()
            await worker.start()
        except CommandBusError as error:  # the server is down, or takes nothing in: try again, as a supervisor would
            recorder.note("not_up", why=str(error)[:200])
            await bus.close()
            await asyncio.sleep(0.2)
            continue
        recorder.note("up", release=release)
        await worker.run()
        await bus.close()
        await ledger.close()
        return


if __name__ == "__main__":
    asyncio.run(main())
