"""States of simulated entities: each says which commands have changed it, in their order; and the rule that it says so truly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgpack
from pydantic import Field

from command_bus import BusSettings, EntityState
from command_bus.serialization.states import StateCodec
from tests.simulation.history import History

__all__ = ["ItemState", "entity_states", "stored_runs"]

CHANGES = ("shared", "work", "once", "order", "sync", "run")
"""Kinds of commands whose handlers have the state."""


class ItemState(EntityState, entity="item"):
    """The state of an item."""

    runs: list[str] = Field(default_factory=list[str])
    """The commands that were settled as completed, each with the fence of its start."""


def stored_runs(states: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return what the stored states of items say, by entity."""
    codec, found = StateCodec(BusSettings(), None), dict[str, list[str]]()
    for mailbox, data in states.items():
        fields = msgpack.unpackb(codec.read(mailbox.decode(), data).payload)
        found[mailbox.decode().partition(":")[2]] = fields["runs"]
    return found


def _fence(run: str) -> int:
    return int(run.rpartition(" ")[2])


def entity_states(history: History) -> Iterator[tuple[str, str]]:
    """Find states that are not what the settled commands have made, each once and in order, or that a handler did not see so."""
    if history.kept_states is None:
        return
    yield from _strange_states(history, history.kept_states)
    for run in history.executions:
        settled = [each for each in history.kept_states.get(run.entity, []) if _fence(each) < run.fence]
        if run.saw is not None and [each for each in run.saw if _fence(each) != run.fence] != settled:
            yield run.entity, f"{run.id} saw {run.saw} under fence {run.fence}, and {settled} were settled"
    for sent in history.sent.values():
        is_told = sent.outcome == "value" and sent.kind in CHANGES
        if is_told and f"{sent.id} {sent.value}" not in history.kept_states.get(sent.entity, []):
            yield sent.entity, f"the caller of {sent.id} got {sent.value}, and the state does not have it"


def _strange_states(history: History, states: Mapping[str, list[str]]) -> Iterator[tuple[str, str]]:
    returned = {f"{run.id} {run.fence}" for run in history.executions if run.how == "returned"}
    for entity, kept in states.items():
        if sorted(kept, key=_fence) != kept or len({each.rpartition(" ")[0] for each in kept}) < len(kept):
            yield entity, f"its state was changed twice by one command, or out of order: {kept}"
        if strange := [each for each in kept if each not in returned]:
            yield entity, f"its state was changed by {strange}, which did not return"
