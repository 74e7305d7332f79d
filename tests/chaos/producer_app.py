"""A producer process of the run: it sends numbered commands, and asks again under the same id whenever it heard nothing.

Run as `python -m tests.chaos.producer_app PLAN URL NAME RESUME`. RESUME is a file with what an earlier process of this name, which was
killed, had asked without an answer, and how far its numbers had gone (see `resume`).

Each entity belongs to one writer of one producer, and a writer sends nothing new before the last request is answered: so the order of the
numbers is the order of acceptance, which the checker relies on.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from command_bus import (
    CommandBus,
    CommandBusError,
    CommandExpired,
    CommandFailed,
    CommandInterrupted,
    CommandRejected,
    CommandTimeout,
    Envelope,
    HandlerRegistry,
    NoHandler,
    QueueFull,
    TransportUnavailable,
    Unconfirmed,
)
from command_bus.messages.policies import Priority
from tests.chaos.features import LATEST, tallies
from tests.chaos.flows import FlowLoad
from tests.chaos.history import Recorder
from tests.chaos.journey_load import JourneyLoad
from tests.chaos.messages import Apply, Late, Move, Once, Steady, Tally, Withdraw
from tests.chaos.plan import Plan, bus_options
from tests.chaos.worker_app import die_with_parent, watch_for_gaps

__all__ = ["Item", "Writer"]

_WRITERS = 12
_LOOK_AGAIN = 0.05
_CALL_TIMEOUT = 30.0
_PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")
_OUTCOMES: dict[type[CommandBusError], str] = {
    CommandRejected: "rejected",
    CommandFailed: "failed",
    CommandInterrupted: "interrupted",
    CommandExpired: "expired",
    CommandTimeout: "timeout",
    NoHandler: "unhandled",
}


@dataclass(frozen=True, slots=True)
class Item:
    """One command to send, as it is recorded with its request, so that the next process of this name can send it again."""

    id: str
    entity: str
    number: int
    kind: str
    way: str
    plan: str = ""
    busy: float = 0.0
    to: str = ""
    amount: int = 0
    expires: float | None = None
    unique: bool = False
    priority: Priority | None = None
    also: Sequence[tuple[str, int]] = ()
    """Further entities in whose lines it stands, each with its number there."""
    turn: int = 0
    """Orders the moves of a producer, whose lines cross."""

    def message(self) -> Apply | Steady | Once | Late | Tally | Withdraw | Move:
        """Return the command."""
        name = self.entity.partition(":")[2]
        match self.kind:
            case "Withdraw":
                return Withdraw(account=name, number=self.number, to=self.to, amount=self.amount, plan=self.plan, busy=self.busy)
            case "Move":
                also = self.also[0][1] if self.also else self.number
                amount = self.amount
                return Move(
                    vault=name, target=self.to, number=self.number, also=also, amount=amount, plan=self.plan, busy=self.busy
                )
            case "Late":
                return Late(line=name, number=self.number, plan=self.plan, busy=self.busy)
            case "Once":
                return Once(line=name, number=self.number, plan=self.plan, busy=self.busy)
            case "Tally":
                return Tally(tally=name, number=self.number, plan=self.plan, busy=self.busy)
            case "Steady":
                return Steady(line=name, number=self.number, plan=self.plan, busy=self.busy)
            case _:
                return Apply(line=name, number=self.number, plan=self.plan, busy=self.busy)


class Pace:
    """Lets so many commands through per second, on average; none while there is a file of the name `quiet`."""

    def __init__(self, rate: float, quiet: Path) -> None:
        self._rate = rate
        self._quiet = quiet
        self._next = time.monotonic()

    async def wait(self, count: int) -> None:
        now = time.monotonic()
        self._next = max(self._next, now - 1.0) + count / self._rate
        await asyncio.sleep(self._next - now)
        while self._quiet.exists():
            await asyncio.sleep(_LOOK_AGAIN)


class Writer:
    """Sends for some entities, one request at a time.

    Args:
        bus: To send with.
        recorder: Notes every request and answer.
        plan: Of the run.
        rng: Decides what is sent.
        numbers: The next number of each entity.
        items: What was asked before without an answer.
    """

    def __init__(
        self, bus: CommandBus, recorder: Recorder, plan: Plan, rng: random.Random, numbers: dict[str, int], items: list[Item]
    ) -> None:
        self._bus = bus
        self._recorder = recorder
        self._plan = plan
        self._rng = rng
        self._numbers = numbers
        self.open = items

    async def run(self, pace: Pace, stopping: asyncio.Event) -> None:
        """Send until asked to stop; then wait until everything is answered."""
        while self.open or not stopping.is_set():
            if not self.open:
                self.open = self._fresh()
                await pace.wait(len(self.open))
            pause = await self._send()
            if pause:
                await asyncio.sleep(pause)

    def _fresh(self) -> list[Item]:
        draw = self._rng.random()
        if draw < 0.4:
            return [self._item("batch") for _ in range(self._rng.randint(2, 16))]
        return [self._item("call" if draw < 0.7 else "dispatch")]

    def _item(self, way: str) -> Item:
        rng = self._rng
        entity = rng.choice(list(self._numbers))
        number = self._numbers[entity]
        self._numbers[entity] += 1
        kind = {"account": "Withdraw", "late": "Late", "tally": "Tally", "vault": "Move"}.get(
            entity.partition(":")[0]
        ) or rng.choice(["Apply", "Steady", "Once"])
        item = Item(f"{entity.replace(':', '-')}.{number}", entity, number, kind, way)
        if kind == "Withdraw":
            to = rng.randrange(self._plan.accounts)
            item = replace(item, to=f"a{to}", amount=rng.randint(1, 60))
        if kind == "Move":
            item = self._move(item)
        busy = rng.choices([0.0, rng.uniform(0, 0.02), rng.uniform(0.05, 0.3)], [60, 37, 3])[0]
        plan = rng.choices(["", "fail", "poison", "refuse", "block", "long", "shot", "mute"], [9600, 150, 30, 80, 40, 3, 20, 20])[
            0
        ]
        if kind == "Withdraw" and plan == "poison":
            plan = ""
        if kind == "Tally" and plan == "shot":  # a call with several, cancelled by one of them, is called again in parts
            plan = ""
        if plan in ("block", "long"):
            busy = rng.uniform(0.1, 0.4) if plan == "block" else self._plan.lease * 1.3
            plan = "block"
        if kind == "Steady" and rng.random() < 0.01:
            busy = self._plan.lease * rng.uniform(0.5, 1.5)
        expires = rng.uniform(0.005, 0.3) if way != "call" and kind != "Withdraw" and rng.random() < 0.01 else None
        unique = "unique" in self._plan.features and kind == "Apply" and way == "dispatch" and rng.random() < 0.5
        priority = rng.choice(_PRIORITIES) if "priorities" in self._plan.features and way == "dispatch" else None
        return replace(item, plan=plan, busy=busy, expires=expires, unique=unique, priority=priority)

    def _move(self, item: Item) -> Item:
        """Let a move stand in the line of its target, too.

        Across shards it stands in the line of the later one once it heads that of the other: so all that enter the later line come from that one.
        """
        names = list(self._numbers)
        target = self._rng.choice(names)
        if "across" in self._plan.features:
            place = names.index(item.entity)
            target = names[place ^ 1] if place % 2 or self._rng.random() < 0.5 else item.entity
        item = replace(item, to=target.partition(":")[2], amount=self._rng.randint(1, 60), turn=time.monotonic_ns())
        if target == item.entity:
            return item
        self._numbers[target] += 1
        return replace(item, also=((target, self._numbers[target] - 1),))

    async def _send(self) -> float:
        """Ask for all that is open; what stays open, and how long to wait before it is asked again."""
        items, self.open = self.open, []
        for item in items:
            names = {"id": item.id, "entity": item.entity, "number": item.number, "kind": item.kind, "way": item.way}
            self._recorder.note("ask", **names, unique=item.unique, spec=asdict(item))
        if items[0].way == "call":
            return await self._call(items[0])
        if len(items) > 1:
            batch = await self._bus.dispatch_batch(
                Envelope(item.message(), command_id=item.id, expires=item.expires) for item in items
            )
            answers = zip(items, [outcome.error or outcome.status for outcome in batch.outcomes], strict=True)
            return max(self._answered(item, answer) for item, answer in answers)
        try:
            item = items[0]
            unique = LATEST if item.unique else None
            receipt = await self._bus.dispatch(
                item.message(), command_id=item.id, expires=item.expires, unique=unique, priority=item.priority
            )
        except CommandBusError as error:
            return self._answered(items[0], error)
        return self._answered(items[0], "accepted" if receipt.status == "replaced" else receipt.status)

    async def _call(self, item: Item) -> float:
        began = time.monotonic()
        value: int | None = None
        try:
            value = await self._bus.call(item.message(), command_id=item.id, timeout=_CALL_TIMEOUT)
        except CommandBusError as error:
            outcome = _OUTCOMES.get(type(error))
            if outcome is None:
                return self._answered(item, error)
        else:
            outcome = "completed"
        self._answered(item, "accepted")
        self._recorder.note("called", id=item.id, outcome=outcome, value=value, began=began)
        return 0.0

    def _answered(self, item: Item, answer: CommandBusError | str) -> float:
        """Note an answer; an item without a final one stays open. Seconds to wait."""
        if isinstance(answer, str):
            self._recorder.note("answer", id=item.id, answer=answer)
            return 0.0
        if not isinstance(answer, QueueFull | TransportUnavailable | Unconfirmed):
            self._recorder.note("answer", id=item.id, answer=f"error {type(answer).__name__}: {answer.message}")
            return 0.0
        unknown = isinstance(answer, Unconfirmed) or (isinstance(answer, TransportUnavailable) and answer.outcome_unknown)
        self._recorder.note("answer", id=item.id, answer="unknown" if unknown else "refused")
        self.open.append(item)
        return 0.2 if isinstance(answer, QueueFull) else 0.05


def entities_of(plan: Plan, producer: int) -> list[str]:
    """Return the entities of a producer."""
    names = [*(f"line:l{n}" for n in range(plan.lines)), *plan.funds, *(f"late:t{n}" for n in range(plan.late))]
    names += [f"tally:{name}" for name in tallies(plan.features)]
    return names[producer :: plan.producers]


async def main() -> None:
    die_with_parent()
    plan_path, url, name, resume = sys.argv[1:]
    plan = Plan.read(plan_path)
    recorder = Recorder(plan.log("producers"), name)
    watch_for_gaps(recorder)
    before: dict[str, Any] = json.loads(Path(resume).read_text())
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    bus = CommandBus(url, registry=HandlerRegistry(), **bus_options(plan))
    while True:
        try:
            await bus.open()
            break
        except CommandBusError as error:
            recorder.note("not_up", why=str(error)[:200])
            await asyncio.sleep(0.2)
    recorder.note("up")
    producer = int(name[1:].partition(".")[0])
    own = entities_of(plan, producer)
    asked: dict[str, list[Item]] = defaultdict(list)
    for spec in before["open"]:
        if spec["entity"].startswith(("journey:", "flow:")):
            continue
        asked[spec["entity"]].append(Item(**spec))
    rng = random.Random(f"{plan.seed} {name}")
    pace = Pace(plan.rate / plan.producers, plan.quiet)
    async with bus, asyncio.TaskGroup() as writers:
        for number in range(_WRITERS):
            mine = own[number::_WRITERS]
            numbers = {entity: before["numbers"].get(entity, 0) for entity in mine}
            again = [item for entity in mine for item in asked[entity]]
            writers.create_task(_run(Writer(bus, recorder, plan, rng, numbers, []), again, pace, stopping))
        if {"several", "across"} & {*plan.features}:
            mine = plan.vaults[producer * len(plan.vaults) // plan.producers :][: len(plan.vaults) // plan.producers]
            numbers = {entity: before["numbers"].get(entity, 0) for entity in mine}
            again = sorted((item for entity in mine for item in asked[entity]), key=lambda item: item.turn)
            writers.create_task(_run(Writer(bus, recorder, plan, rng, numbers, []), again, pace, stopping))
        if "durable" in plan.features:
            writers.create_task(JourneyLoad(bus, recorder, plan, name, before).run(stopping))
        if "workflows" in plan.features:
            writers.create_task(FlowLoad(bus, recorder, plan, name, before).run(stopping))


async def _run(writer: Writer, again: list[Item], pace: Pace, stopping: asyncio.Event) -> None:
    """Send first what an earlier process left open, each as it was asked then."""
    for item in again:
        writer.open = [item]
        while writer.open:
            await asyncio.sleep(await writer._send())
    await writer.run(pace, stopping)


if __name__ == "__main__":
    asyncio.run(main())
