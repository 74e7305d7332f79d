"""One run, from an empty server to a recorded history."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from command_bus import CommandBus, HandlerRegistry
from command_bus.embedded import EmbeddedServer
from command_bus.tasks import end_tasks
from tests.chaos import servers
from tests.chaos.faults import FaultContext, lift_limit
from tests.chaos.features import tallies, tickers
from tests.chaos.fleet import Fleet
from tests.chaos.flows import replay_parked
from tests.chaos.history import Final, History, Recorder, read_events
from tests.chaos.journey_load import tell_the_rest
from tests.chaos.ledger import Ledger
from tests.chaos.nemesis import Nemesis
from tests.chaos.plan import Plan, bus_options
from tests.chaos.survey import survey
from tests.chaos.watch import progress, watch

__all__ = ["run"]

_DRAIN = 120.0


async def run(plan: Plan) -> tuple[History, dict[str, str]]:
    """Execute a run; return its history, and the faults that could not be injected, with reasons."""
    folder = Path(plan.folder)
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("workers", "producers", "faults"):
        plan.log(kind).unlink(missing_ok=True)
    plan.quiet.unlink(missing_ok=True)
    plan = replace(plan, namespace=f"chaos-{secrets.token_hex(3)}")
    with EmbeddedServer.start() as downstream:
        plan = replace(plan, ledger=downstream.url)
        plan.write()
        ledger = Ledger(plan.ledger)
        await ledger.fund(plan.funds)
        async with _attacked(plan) as context:
            nemesis = Nemesis(context)
            watchers = [
                asyncio.create_task(watch(context), name="chaos watch"),
                asyncio.create_task(progress(context, nemesis, plan.seconds), name="chaos progress"),
                asyncio.create_task(replay_parked(context.bus), name="chaos replays"),
            ]
            await nemesis.run(plan.seconds)
            final = await _settle(context)
            await end_tasks(watchers)
            missing = context.target.missing
        effects, total = await ledger.read()
        steps = await ledger.steps()
        await ledger.close()
    history = History(plan.lease, plan.features, plan.seed)
    for kind in ("producers", "workers", "faults"):
        history.add(read_events(plan.log(kind)))
    history.effects, history.steps = effects, steps
    history.final = replace(final, total=total, deposited=sum(plan.funds.values()))
    history.add_firings()
    history.add_errands()
    return history, missing


@asynccontextmanager
async def _attacked(plan: Plan) -> AsyncIterator[FaultContext]:
    target = await asyncio.to_thread(servers.start, plan.server, plan.durability, Path(plan.folder), plan.seed)
    fleet = Fleet(plan, target)
    try:
        await fleet.start()
        async with CommandBus(target.url, registry=HandlerRegistry(), **bus_options(plan)) as bus:
            yield FaultContext(plan, fleet, target, Recorder(plan.log("faults"), "nemesis"), random.Random(plan.seed), bus)
    finally:
        await fleet.stop()
        await target.stop()


async def _settle(context: FaultContext) -> Final:
    """Undo what is left of faults, let producers finish and the work drain, survey the server, and stop the workers."""
    fleet, target = context.fleet, context.target
    print("chaos: faults are over, draining", flush=True)
    await lift_limit(target)
    for seat in fleet.workers:
        if seat.release != "new":
            await fleet.retire(seat)
            seat.release = "new"
            fleet.begin(seat)
    await asyncio.gather(*(fleet.retire(seat) for seat in fleet.producers))
    async with CommandBus(
        target.url, registry=HandlerRegistry(), **bus_options(context.plan)
    ) as bus:  # the other one has seen servers fail
        await tell_the_rest(bus, context.recorder, fleet.requests.open())
        for name in tickers(context.plan.features):
            await bus.schedules.pause(name, "the run is over")
        final = await survey(bus, target, patience=_DRAIN, tallies=tallies(context.plan.features))
    fleet.look_after()
    await asyncio.gather(*(fleet.retire(seat) for seat in fleet.workers))
    return replace(final, crashes=tuple(fleet.crashes))
