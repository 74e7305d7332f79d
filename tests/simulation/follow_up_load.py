"""Follow-ups in the simulation: some handlers send commands with their settlement, drawn from the seed."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.simulation.history import Execution, Sent

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

__all__ = ["planned_follow_ups"]

_SENDS = 0.3
"""How many commands have follow-ups; those of follow-ups have none."""


def planned_follow_ups(simulation: Simulation, run: Execution) -> list[Sent]:
    """Return what the handler of a run sends: the same in each attempt."""
    history, random = simulation.history, Random(f"{simulation.seed} {run.id} sends")
    if ".f" in run.id or history.sent[run.id].plan or random.random() >= _SENDS:
        return []
    sent = []
    for number in range(random.choice((1, 1, 2, 4))):
        entity = random.choice((*simulation.entities, f"f{number % 2}"))
        one = Sent(f"{run.id}.f{number}", entity, "work", "follow-up", str(run.process.name), simulation.loop.time())
        sent.append(history.sent.setdefault(one.id, one))
    history.follow_ups[run.id] = [one.id for one in sent]
    return sent
