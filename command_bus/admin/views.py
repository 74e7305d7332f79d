"""Views for a person who looks: what is stuck, and entities by a part of their names. Reached as `bus.views`.

`bus.entities.list` looks at every entity, to sort them exactly. These look at a bounded number, in a few round trips, however much
waits: what is stuck is found by the keys that the server keeps for it anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from command_bus.admin.dead_letters import DeadLetters
from command_bus.admin.entities import Entities, Waits, entity_info
from command_bus.admin.info import DeadLetter, EntityInfo, Stats
from command_bus.admin.search import FoundEntities, find_entities
from command_bus.admin.statistics import Statistics
from command_bus.errors import InvalidSettings
from command_bus.messages.event import handles
from command_bus.serialization.envelope import unpack_envelope
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.protection import readable_payload
from command_bus.session import OnSession
from command_bus.transport.ports.limits import LimitWaitInfo
from command_bus.transport.ports.operator import NO_GROUP, GroupName, NamedGroup
from command_bus.transport.records import HoldInfo, StoredEntity

StandingState = Literal["parked", "no_handler", "paused", "retrying", "snoozed", "limited", "suspended", "running", "waiting"]
"""Why an entity makes no progress: as `EntityInfo.state`, or no live worker handles the command at its head."""

STANDING_STATES: tuple[StandingState, ...] = get_args(StandingState)
_COUNTED: tuple[Literal["parked", "limited", "suspended"], ...] = ("parked", "limited", "suspended")
_MAY_LACK_HANDLER = ("waiting", "retrying", "draining", "running")
_FOUND_IN: Mapping[StandingState, tuple[GroupName, ...]] = {
    "no_handler": ("waiting", "retrying", "running"),
    "paused": ("paused",),
    "retrying": ("retrying",),
    "snoozed": ("retrying",),
    "running": ("running",),
    "waiting": ("waiting",),
}
"""The groups in which the states are found that the server does not count."""


@dataclass(frozen=True, slots=True)
class StandingEntity:
    """An entity that makes no progress.

    Attributes:
        state: Why.
        since_ms: Since when, by the server's clock, as far as that is known: of what is parked, paused, limited or suspended since then, of what
            runs since its start, of the rest since its oldest command was accepted.
        entity: As in a listing.
        command_id: Id of the command at its head; empty if there is none, or it cannot be read.
        command: Its wire name.
        handlers: Live workers that handle it; None if its name is not known.
        letter: The dead letter that parks it, if it is parked.
        payload: Fields of that command if it has failed before, and this bus can read them; else None.
    """

    state: StandingState
    since_ms: int
    entity: EntityInfo
    command_id: str
    command: str
    handlers: int | None
    letter: DeadLetter | None
    payload: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Standstill:
    """The entities that are stuck at a moment.

    Attributes:
        entities: The longest standing first; of each state about as many as were asked for.
        totals: How many there are that are parked, limited and suspended; of the other states how many were found.
        holds: Types that are paused or drained, or the whole bus.
        stats: Read at the same time.
        now_ms: The server's time.
        complete: Whether these are all.
        at_least: States of which there may be more than `totals` says: not all was looked at.
    """

    entities: tuple[StandingEntity, ...]
    totals: Mapping[StandingState, int]
    holds: tuple[HoldInfo, ...]
    stats: Stats
    now_ms: int
    complete: bool
    at_least: frozenset[StandingState] = frozenset()


_Groups = Mapping[GroupName, NamedGroup]


class _Facts(NamedTuple):
    """The facts that are read of entities, by their mailboxes."""

    entities: Mapping[str, StoredEntity]
    firsts: Mapping[str, tuple[str, bytes]]
    waits: Waits


class Views(OnSession):
    """Views of a namespace whose cost does not grow with it.

    Args:
        session: Connections and settings of the bus.
    """

    async def standing_still(
        self, *, states: Collection[StandingState] = (), patience: float = 5.0, limit: int = 100
    ) -> Standstill:
        """Return what is stuck, the longest stuck first.

        Args:
            states: Only those; none means all.
            patience: Seconds for which an entity may run or wait for a worker before it counts.
            limit: About so many of each state are looked at.

        Raises:
            InvalidSettings: A state is none, or the limit is below 1.
            TransportUnavailable: The server cannot be reached.
        """
        if unknown := sorted(set(states) - set(STANDING_STATES)):
            raise InvalidSettings(f"states: {', '.join(unknown)}: one of {', '.join(STANDING_STATES)}")
        if limit < 1:
            raise InvalidSettings("limit: at least 1")
        asked = {group for state in states or STANDING_STATES for group in _FOUND_IN.get(state, (state,))}
        stats, holds, now_ms, (merged, facts, letters) = await asyncio.gather(
            Statistics(self._session).stats(),
            Entities(self._session).holds(),
            self._operator.entities.now_ms(),
            self._stopped(asked, limit),
        )
        found = [self._standing(facts, name, stats, now_ms, letters.get(name)) for name in facts.entities]
        shown = [each for each in found if (not states or each.state in states) and _is_long(each, now_ms, patience)]
        return Standstill(
            tuple(sorted(shown, key=lambda each: (each.since_ms, each.entity.name))),
            _totals(merged, found),
            tuple(holds),
            stats,
            now_ms,
            complete=not any(each.cut for group, each in merged.items() if group in asked),
            at_least=_cut_states(merged, holds),
        )

    async def _stopped(self, asked: Collection[str], limit: int) -> tuple[_Groups, _Facts, dict[str, DeadLetter]]:
        """Return the groups, what is known of the entities in those that are asked for, and by them the letters that park them."""
        parts = await asyncio.gather(
            *(self._transport.operator.views.groups(shard, limit) for shard in range(self._transport.shards))
        )
        merged: dict[GroupName, NamedGroup] = {name: _merged([each.get(name, NO_GROUP) for each in parts]) for name in parts[0]}
        names = [name for group, each in merged.items() if group in asked for name in each.names]
        limited = merged["limited"].names if "limited" in asked else ()
        suspended = merged["suspended"].names if "suspended" in asked else ()
        parked = merged["parked"].names if "parked" in asked else ()
        facts, letters = await asyncio.gather(self._facts(names, limited, suspended), self._parking(parked))
        return merged, facts, letters

    async def _parking(self, names: Sequence[str]) -> dict[str, DeadLetter]:
        """Return the letters that park entities."""
        found = await self._transport.operator.views.look(names)
        ids = {name: f"{self._transport.shard_of(name)}-{each.letter}" for name, each in found.items() if each.letter}
        letters = await DeadLetters(self._session).several(ids.values())
        return {name: letters[each] for name, each in ids.items() if each in letters}

    async def find(
        self, text: str = "", *, entity_type: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> FoundEntities:
        """Return entities with work whose ids contain a text, in no order, page by page; without a text any.

        A page looks at about twenty thousand entities at most: it may be empty although there are more.

        Args:
            text: Part of an id, or `type:part`.
            entity_type: Only those of this type.
            limit: About so many.
            cursor: As the page before gave it, with the same text; None: the first page.

        Raises:
            InvalidCommand: It is no entity type.
            InvalidSettings: The cursor is none, or the limit is below 1.
            TransportUnavailable: The server cannot be reached.
        """
        names, following, looked = await find_entities(self._session, text, entity_type, limit, cursor)
        facts, now_ms = await asyncio.gather(self._facts(names, names, ()), self._operator.entities.now_ms())
        infos = tuple(self._info(facts, name, now_ms) for name in facts.entities)
        return FoundEntities(infos, following, looked)

    async def _facts(self, names: Sequence[str], limited: Sequence[str], suspended: Sequence[str]) -> _Facts:
        """Read entities, what is first in them, and what they wait for."""
        if not names:
            return _Facts({}, {}, Waits({}, {}, {}, {}))
        transport = self._transport
        operator = transport.operator
        entities, firsts, limits, due, waiting = await asyncio.gather(
            operator.views.look(names),
            operator.views.first_commands(names),
            transport.limits.waits(limited) if limited else _nothing(),
            operator.entities.retry_times(names),
            transport.durable.suspended(suspended),
        )
        retries = {name: at for name, at in due.items() if entities[name].state in ("retrying", "snoozed")}
        limits = {name: wait for name, wait in limits.items() if entities[name].state == "limited"}
        return _Facts(entities, firsts, Waits(retries, limits, waiting, {}))

    def _info(self, facts: _Facts, name: str, now_ms: int) -> EntityInfo:
        return entity_info(facts.entities[name], self._transport.shard_of(name), now_ms, facts.waits)

    def _standing(self, facts: _Facts, name: str, stats: Stats, now_ms: int, letter: DeadLetter | None) -> StandingEntity:
        stored, info = facts.entities[name], self._info(facts, name, now_ms)
        command_id, command = self._first(facts, name)
        handlers = sum(handles(worker.commands, command) for worker in stats.workers) if command else None
        state = _state(info, handlers)
        since = _since(stored, info, now_ms)
        payload = None
        if info.failure is not None and command:
            payload = readable_payload(facts.firsts[name][1], self._limits, self._session.protection)
        return StandingEntity(state, since, info, command_id, command, handlers, letter, payload)

    def _first(self, facts: _Facts, name: str) -> tuple[str, str]:
        """Return id and wire name of the first command; empty if there is none, or it cannot be read."""
        try:
            envelope = unpack_envelope(facts.firsts[name][1], self._limits)
        except (KeyError, Undecodable):
            return "", ""
        return envelope.command_id, envelope.name


async def _nothing() -> dict[str, LimitWaitInfo]:
    return {}


def _merged(groups: Sequence[NamedGroup]) -> NamedGroup:
    totals = [each.total for each in groups if each.total is not None]
    names = tuple(dict.fromkeys(name for each in groups for name in each.names))
    return NamedGroup(names, sum(totals) if totals else None, any(each.cut for each in groups))


def _state(info: EntityInfo, handlers: int | None) -> StandingState:
    if handlers == 0 and info.state in _MAY_LACK_HANDLER:
        return "no_handler"
    return "waiting" if info.state == "draining" or info.state == "blocked" else info.state  # noqa: PLR1714 - as type checkers need it


def _since(stored: StoredEntity, info: EntityInfo, now_ms: int) -> int:
    if info.state == "parked":
        return _leading_ms(stored.letter) or stored.oldest_ms
    if info.state == "paused" and info.hold is not None:
        return info.hold.since_ms
    if info.limit is not None:
        return info.limit.since_ms
    if info.suspension is not None:
        return info.suspension.since_ms
    return (stored.started_ms if info.state == "running" else stored.oldest_ms) or now_ms


def _leading_ms(letter: str) -> int:
    number = letter.partition("-")[0]
    return int(number) if number.isdigit() else 0


def _is_long(each: StandingEntity, now_ms: int, patience: float) -> bool:
    """Return whether an entity is stuck: not what has just started to run or to wait for a worker, or has no work."""
    if each.state == "paused":
        return True
    if each.entity.depth == 0 or not (each.entity.age or each.command_id):  # all that it has is delayed
        return False
    return each.state not in ("running", "waiting") or now_ms - each.since_ms >= patience * 1000


def _totals(groups: Mapping[GroupName, NamedGroup], found: Sequence[StandingEntity]) -> dict[StandingState, int]:
    """Return how many there are of each state, or of those that the server does not count how many were found."""
    totals: dict[StandingState, int] = {state: sum(each.state == state for each in found) for state in STANDING_STATES}
    for state in _COUNTED:
        totals[state] = groups[state].total or 0
    return totals


def _cut_states(groups: Mapping[GroupName, NamedGroup], holds: Sequence[HoldInfo]) -> frozenset[StandingState]:
    """Return the states of which there may be more than were found. What waits may be paused with its type, or with the bus."""
    cut = {group for group, each in groups.items() if each.cut}
    found: set[StandingState] = {state for state, sources in _FOUND_IN.items() if cut.intersection(sources)}
    if holds and "waiting" in cut:
        found.add("paused")
    return frozenset(found)
