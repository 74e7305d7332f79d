"""A storm of triggers with one unique key for each entity, beside the other commands; in some of the seeds."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from command_bus import CommandBus, CommandBusError, TransportUnavailable, Unique
from tests.simulation.history import Sent, Trigger
from tests.simulation.workload import Folded, Plan

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

__all__ = ["UniqueStorm"]

_MODES = (Unique("k", wins="latest"), Unique("k", until="started"), Unique("k", wins="latest", debounce=0.3))


class UniqueStorm:
    """Sends triggers of one process. All processes of a seed use the same mode."""

    def __init__(self, simulation: Simulation, bus: CommandBus, name: str) -> None:
        self._simulation, self._bus, self._name = simulation, bus, name
        random = Random(f"unique {simulation.seed}")
        self._unique = random.choice(_MODES)
        self._count = random.choice((0, 0, 6, 12))
        self._random = Random(f"unique {name} {simulation.seed}")

    async def run(self, seconds: float) -> None:
        """Send them, each in a task of its own."""
        tasks = []
        now = self._simulation.loop.time
        begin = now()
        for number, moment in enumerate(sorted(self._random.random() * seconds for _ in range(self._count))):
            await asyncio.sleep(max(0.0, begin + moment - now()))
            tasks.append(asyncio.get_running_loop().create_task(self._send(number)))
        for task in tasks:
            await task

    async def _send(self, number: int) -> None:
        simulation, random = self._simulation, self._random
        entity, delay = random.choice(simulation.entities), self._unique.debounce or 0.0
        how = "delayed" if delay else "unique"
        sent = Sent(f"{self._name}.u{number}", entity, "fold", how, self._name, simulation.loop.time(), delay=delay)
        sent.plan = tuple(Plan(random.choice((0.0, 0.02, 0.5)), end) for end in random.choice((("return",), ("fail", "return"))))
        sent.cancelled = True  # perhaps: another may replace it whose answer is lost
        simulation.history.sent[sent.id] = sent
        trigger = Trigger(entity, sent.id, sent.invoked)
        simulation.history.triggers.append(trigger)
        for _ in range(3):
            try:
                command = Folded(item=entity, tag=sent.id)
                receipt = await self._bus.dispatch(command, command_id=sent.id, unique=self._unique)
            except TransportUnavailable as error:
                sent.refused = "unknown" if error.outcome_unknown else "unavailable"
                sent.tries += 1
            except CommandBusError as error:
                sent.refused = error.code
                return
            else:
                break
        else:
            return
        trigger.acked, sent.refused = simulation.loop.time(), ""
        if receipt.status != "duplicate":
            sent.admissions.append("accepted")
            sent.acked = trigger.acked
        if receipt.status == "replaced" and receipt.other is not None:
            simulation.history.sent[receipt.other].removed = trigger.acked
