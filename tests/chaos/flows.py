"""Workflows of the workload: the plan of each, drawn from the seed and its id, and what sends them.

Their nodes and what undoes these are the errands of journeys, so the rules for calls hold for them, too. A node of a shelf fails once, parks its
entity, and is replayed. Each node gets what came to be before it, and records that.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

from command_bus import Command, CommandBus, CommandBusError, EntityId, QueueFull, TransportUnavailable, Unconfirmed
from command_bus.workflows import chain, group, node
from tests.chaos.history import Recorder
from tests.chaos.journeys import errand_for, take_back_for
from tests.chaos.messages import UNTIL_DONE
from tests.chaos.plan import Plan

__all__ = ["FLOW", "Flow", "FlowLoad", "Shelve", "flow_of", "replay_parked", "told"]

FLOW: Final = "Flow"
"""The kind of their requests."""
_SHELVES, _RATE, _AGAIN, _TWICE = 3, 2.0, 0.1, 0.3


class Shelve(Command[int], entity="shelf", retry=UNTIL_DONE, on_poison="park"):
    """A node that is parked at first. It returns the fence of its run."""

    shelf: EntityId
    journey: str
    key: str
    got: Any = None


@dataclass(frozen=True, slots=True)
class Flow:
    """The plan of a workflow.

    Attributes:
        stages: The keys of its nodes: those of one stage run side by side, one stage after another.
        is_group: Whether the first stage is a group, and what follows its chord; else it is a chain.
        ignores: Whether a node of the group may fail.
        undone: The keys of the nodes that have an `undo`.
        shelved: The keys of the nodes that park.
    """

    stages: tuple[tuple[str, ...], ...]
    is_group: bool
    ignores: bool
    undone: frozenset[str]
    shelved: frozenset[str]

    @property
    def keys(self) -> list[str]:
        """All nodes, in the order in which they are called."""
        return [key for stage in self.stages for key in stage]


def flow_of(seed: int, flow: str) -> Flow:
    """Return the plan of a workflow."""
    random = Random(f"{seed} {flow} flow")
    kind, keys = random.choice(("chain", "group", "chord")), [str(number) for number in range(random.randint(2, 5))]
    stages: tuple[tuple[str, ...], ...] = tuple((key,) for key in keys) if kind == "chain" else (tuple(keys),)
    if kind == "chord":
        stages += (("chord",),)
    every = [key for stage in stages for key in stage]
    undone, shelved = (frozenset(key for key in every if random.random() < share) for share in (0.6, 0.04))
    return Flow(stages, kind != "chain", kind != "chain" and random.random() < 0.4, undone, shelved)


def _command_of(seed: int, flow: str) -> Command[Any]:
    plan = flow_of(seed, flow)

    def made(key: str, takes: str | None = None) -> Any:
        shelf = f"s{Random(f'{seed} {flow} {key}').randrange(_SHELVES)}"
        command = Shelve(shelf=shelf, journey=flow, key=key) if key in plan.shelved else errand_for(seed, flow, key)
        return node(command, undo=take_back_for(seed, flow, key) if key in plan.undone else None, takes=takes)

    if not plan.is_group:
        return chain(*(made(key, "got" if place else None) for place, key in enumerate(plan.keys)))
    work: Any = group([made(key) for key in plan.stages[0]], failures="ignore" if plan.ignores else "fail")
    chord: Command[Any] = work.then(made("chord", "got")) if len(plan.stages) > 1 else work
    return chord


def told(result: Any) -> Any:
    """Return the result of a stage as it is compared: of a node that failed, its id."""
    if isinstance(result, list):
        return [told(each) for each in result]  # pyright: ignore[reportUnknownVariableType]
    return result["command_id"] if isinstance(result, dict) else result  # pyright: ignore[reportUnknownVariableType]


@dataclass(frozen=True, slots=True)
class _Sent:
    id: str
    entity: str
    number: int = 0
    kind: str = FLOW
    way: str = "dispatch"


class FlowLoad:
    """Sends the workflows of one producer process: each until it is accepted, and some once more.

    Args:
        bus: To send with.
        recorder: Notes every request and answer.
        plan: Of the run.
        name: Of this process.
        before: What the process before this one left: see `Requests`.
    """

    def __init__(self, bus: CommandBus, recorder: Recorder, plan: Plan, name: str, before: dict[str, Any]) -> None:
        self._bus, self._recorder, self._plan = bus, recorder, plan
        self._rng = Random(f"{plan.seed} {name} flows")
        self._own = f"flow:{name.partition('.')[0]}-"
        self._open = [_Sent(**spec) for spec in before["open"] if spec["entity"].startswith(self._own)]

    async def run(self, stopping: asyncio.Event) -> None:
        """Send until asked to stop; then wait until all is answered."""
        for sent in self._open:
            await self._send(sent)
        while not stopping.is_set():
            await asyncio.sleep(self._plan.producers / _RATE * self._rng.uniform(0.3, 1.7))
            if not self._plan.quiet.exists() and not stopping.is_set():
                name = f"{self._own}{self._rng.getrandbits(40):x}"
                sent = _Sent(name.replace(":", "-"), name)
                await self._send(sent)
                if self._rng.random() < _TWICE:
                    await asyncio.sleep(self._rng.choice((0.0, 0.1, 1.0)))
                    await self._send(sent)

    async def _send(self, sent: _Sent) -> None:
        """Dispatch a workflow, again until there is an answer."""
        message, answer = _command_of(self._plan.seed, sent.id), "refused"
        while answer in ("refused", "unknown"):
            self._recorder.note("ask", **asdict(sent), spec=asdict(sent))
            try:
                answer = (await self._bus.dispatch(message, command_id=sent.id)).status
            except (QueueFull, TransportUnavailable, Unconfirmed) as error:
                is_unknown = isinstance(error, Unconfirmed) or getattr(error, "outcome_unknown", False)
                answer = "unknown" if is_unknown else "refused"
            except CommandBusError as error:
                answer = f"error {type(error).__name__}: {error.message}"
            self._recorder.note("answer", id=sent.id, answer=answer)
            if answer in ("refused", "unknown"):
                await asyncio.sleep(_AGAIN)


async def replay_parked(bus: CommandBus) -> None:
    """Replay the nodes that are parked, until cancelled."""
    while True:
        await asyncio.sleep(5 * _AGAIN)
        try:
            await bus.dead_letters.replay_all(name="Shelve", parked=True)
        except CommandBusError:
            continue
