"""All entities, or those of one type: list them, pause, resume, drain and purge them. Reached as `bus.entities`.

A listing is made by one look at everything that has work, keeping the first few in the order that was asked for: it needs no index
that the hot path would have to keep, and little memory. The cursor names the last entity that was shown; the next page is what comes
behind it when it is asked for, so nothing is kept for it either.

Unique keys as views show them, and pages of those of a whole namespace.
"""

from __future__ import annotations

import base64
import heapq
import json
import math
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from command_bus.admin.entity_types import forget_type, obliterate, pause_end, types_of
from command_bus.admin.info import (
    EntityInfo,
    EntityOrder,
    EntityPage,
    EntityTypeInfo,
    UniqueKeyInfo,
    UniqueKeyPage,
)
from command_bus.errors import InvalidSettings
from command_bus.messages.message import check_entity_type
from command_bus.messages.reports import OnDone
from command_bus.sending.waiting import WaitingCommands
from command_bus.serialization.json_forms import read_json
from command_bus.session import OnSession, Session
from command_bus.transport.mailboxes import EVERYTHING, mailbox_label, mailbox_parts, scopes_of, type_of, type_scope
from command_bus.transport.ports.limits import LimitWaitInfo
from command_bus.transport.ports.operator import OperatorSide
from command_bus.transport.records import EntityCondition, HoldInfo, Recount, StoredEntity, SuspensionInfo
from command_bus.transport.unique_keys import StoredKey, mailbox_of_key

SortKey = tuple[float, str]
"""The position of an entity in a listing: the smaller the earlier."""


class Entities(OnSession):
    """The entities of a bus, or of one type of it.

    Args:
        session: Connections and settings of the bus.
        scope: `*`, or all of a type.
    """

    def __init__(self, session: Session, scope: str = EVERYTHING) -> None:
        super().__init__(session)
        self._scope = scope

    def __repr__(self) -> str:
        return f"<entities {self._scope}>"

    def of(self, entity_type: str | None) -> Entities:
        """Return the entities of one type; None: commands without an entity.

        Raises:
            InvalidCommand: It is no entity type.
        """
        return Entities(self._session, type_scope(None if entity_type is None else check_entity_type(entity_type)))

    async def pause(self, reason: str = "", *, until: datetime | float | None = None) -> bool:
        """Start none of their commands until `resume`, across restarts; what runs is not touched. False if they were paused.

        That holds for entities that have no work yet, too, and with the next command that would start.

        Args:
            reason: Why, for views.
            until: When the pause ends by itself: a moment with a time zone, or seconds from now. A later `pause` or `drain` replaces it.

        Raises:
            InvalidSettings: `until` is neither, or past.
            TransportUnavailable: The server cannot be reached; with several shards some may be paused. Asking again is safe.
        """
        return await self._operator.holds.pause(self._scope, reason, await pause_end(self._session, until))

    async def drain(self, reason: str = "") -> bool:
        """Refuse their new commands (`Draining`) and work off what was accepted, until `resume`. False if they were drained.

        Retries, delayed commands and replayed dead letters were accepted before, and run. Handlers that dispatch to them are refused too.

        Raises:
            TransportUnavailable: As for `pause`.
        """
        return await self._operator.holds.drain(self._scope, reason)

    async def resume(self) -> bool:
        """Take back the `pause` or `drain` of exactly these; False if there was none.

        What was paused more narrowly (one entity) or widely (the bus) stays so, and what is parked.

        Raises:
            TransportUnavailable: As for `pause`.
        """
        return await self._operator.holds.resume(self._scope)

    async def purge(self, *, on_done: OnDone | None = None) -> int:
        """Remove all their waiting commands, not those that run; how many. Callers get `CommandCancelled`.

        Commands that arrive while this runs may stay: pause or drain first.

        Args:
            on_done: Is called after each page with how many were removed so far.
        """
        transport, waiting = self._transport, WaitingCommands(self._session)
        removed = 0
        for shard in range(transport.shards):
            async for page in transport.operator.entities.pages(shard):
                removed += await waiting.purge_mailboxes({each.mailbox: each.depth for each in page if self._has(each.mailbox)})
                if on_done is not None:
                    on_done(removed)
            removed += await waiting.purge_delayed(shard, self._has)
        return removed

    async def obliterate(self, *, confirm: str, force: bool = False) -> int:
        """Delete the whole namespace: every command, dead letter, id and outcome, and what its clients agreed on. Return how many keys it had.

        It cannot be undone. Callers that wait get no answer. Stop what sends to the namespace before: the next command of a process that still has
        the bus open begins a new one. This bus is closed afterwards. If it breaks off, ask again: until then the namespace is
        drained.

        Args:
            confirm: The name of the namespace.
            force: Do it although workers live. Their handlers are not ended, but can settle nothing any more: their leases are over at once. What
                such workers write of themselves (their group, a sign of life) stays until it is asked for again.

        Raises:
            InvalidSettings: Another name was given, or these are the entities of one type: `purge` empties a type.
            WorkersLive: Workers live, and there is no `force`.
            TransportUnavailable: The server cannot be reached.
        """
        if self._scope != EVERYTHING:
            raise InvalidSettings("obliterate deletes a whole namespace: bus.entities.obliterate(…); purge() empties a type")
        return await obliterate(self._session, confirm, force=force)

    async def holds(self) -> list[HoldInfo]:
        """Return what is paused or drained as a type or as a whole. `list(states={"paused"})` lists single entities."""
        found = await self._operator.holds.wide()
        return [hold for hold in found if self._scope in (EVERYTHING, type_scope(hold.entity_type)) or hold.what == "everything"]

    async def recount(self, *, correct: bool = True) -> Recount:
        """Compare the counters `depth` and those of delayed commands with what is there, of the whole bus, and set them right.

        Each shard is one step, so it is exact while commands come and go. Counters are wrong if somebody has deleted keys by hand, or the
        server has lost a part of its data.

        Args:
            correct: False to compare only.

        Raises:
            NewerState: An entity is in a state that only a later release knows.
            TransportUnavailable: The server cannot be reached, or entities came and went too quickly.
        """
        return await self._operator.statistics.recount(correct=correct)

    async def types(self) -> list[EntityTypeInfo]:
        """Return all entity types that the namespace knows, by name.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        return await types_of(self._session)

    async def forget_type(self, entity_type: str) -> bool:
        """Take back the record of a type of which nothing is stored; False if there is none.

        For a type that was a mistake, and for one that was recorded with other mailboxes than its clients have (`InvalidSettings`). The next
        sender records it again. Restart the processes that used the type with the old mailboxes: they remember them.

        Args:
            entity_type: As `types()` names it.

        Raises:
            EntityTypeInUse: It has entities with work or a state, dead letters, or is paused or drained.
            TransportUnavailable: The server cannot be reached.
        """
        return await forget_type(self._session, entity_type)

    async def list(
        self,
        *,
        states: Collection[EntityCondition] = (),
        order: EntityOrder = "depth",
        limit: int = 50,
        cursor: str | None = None,
        scan: int = 200_000,
    ) -> EntityPage:
        """List entities that have work or are paused or drained themselves, the hottest first.

        Args:
            states: Only those in one of these states; none means all.
            order: What comes first.
            limit: At most so many.
            cursor: As the page before gave it; None: the first page.
            scan: Look at no more entities than this.

        Raises:
            InvalidSettings: The cursor is not of this order, or a number is below 1.
            TransportUnavailable: The server cannot be reached.
        """
        if limit < 1 or scan < 1:
            raise InvalidSettings("limit and scan: at least 1")
        after = None if cursor is None else _read_cursor(cursor, order)
        seen = matching = 0
        best: list[tuple[SortKey, StoredEntity]] = []
        async for entity in self._walk():
            seen += 1
            if seen > scan:
                break
            if states and entity.state not in states:
                continue
            matching += 1
            key = _sort_key(entity, order)
            if after is None or key > after:
                best.append((key, entity))
                if len(best) >= 4 * limit + 1000:
                    best = heapq.nsmallest(limit + 1, best, key=_first)
        best = heapq.nsmallest(limit + 1, best, key=_first)
        shown = best[:limit]
        following = _write_cursor(order, shown[-1][0]) if len(best) > limit else None
        infos = await self._described([entity for _, entity in shown])
        return EntityPage(infos, following, matching, complete=seen <= scan)

    async def unique_keys(self, *, limit: int = 100, cursor: str | None = None, scan: int = 200_000) -> UniqueKeyPage:
        """Return a page of the unique keys that are held, by entity and key, also those of settled commands whose window is open.

        Each page looks at all keys again, so that nothing is kept for it: a key that is held throughout is in one page.

        Args:
            limit: At most so many.
            cursor: As the page before gave it; None: the first page.
            scan: Look at about so many keys at most.

        Raises:
            InvalidSettings: The cursor is not of this listing, or a number is below 1.
            TransportUnavailable: The server cannot be reached.
        """
        if limit < 1 or scan < 1:
            raise InvalidSettings("limit and scan: at least 1")
        after = "" if cursor is None else _read_cursor(cursor, "key")[1]
        found, complete = await keys_behind(self._transport.operator, self._transport.shards, self._scope, after, limit + 1, scan)
        shown = found[:limit]
        following = _write_cursor("key", (0.0, shown[-1].key)) if len(found) > limit else None
        return UniqueKeyPage([stored_info(each) for each in shown], complete, following)

    async def _walk(self) -> AsyncIterator[StoredEntity]:
        for shard in range(self._transport.shards):
            async for page in self._transport.operator.entities.pages(shard):
                for entity in page:
                    if self._has(entity.mailbox):
                        yield entity

    async def _described(self, entities: Sequence[StoredEntity]) -> tuple[EntityInfo, ...]:
        transport = self._transport
        reader = transport.operator.entities
        due = await reader.retry_times([entity.mailbox for entity in entities if entity.state in ("retrying", "snoozed")])
        delayed = await reader.first_delayed(entity.mailbox for entity in entities if entity.is_delayed)
        limited = [each.mailbox for each in entities if each.state == "limited"]
        limits = await transport.limits.waits(limited) if limited else {}
        waiting = [each.mailbox for each in entities if each.state == "suspended"]
        suspended = await transport.durable.suspended(waiting) if waiting else {}
        now = await reader.now_ms()
        waits = Waits(due, limits, suspended, delayed)
        return tuple(entity_info(each, transport.shard_of(each.mailbox), now, waits) for each in entities)

    def _has(self, mailbox: str) -> bool:
        return self._scope in scopes_of(mailbox)


class Waits(NamedTuple):
    """Retries, places and waits that entities wait for, by their mailboxes.

    Attributes:
        retries: When a retry is due or a snooze over.
        limits: Their places before a limit.
        suspended: The waits of their durable commands.
        delayed: When the first of their delayed commands takes its place.
    """

    retries: Mapping[str, int]
    limits: Mapping[str, LimitWaitInfo]
    suspended: Mapping[str, SuspensionInfo]
    delayed: Mapping[str, int | None]


def entity_info(entity: StoredEntity, shard: int, now_ms: int, waits: Waits) -> EntityInfo:
    """Return the public form of an entity."""
    mailbox = entity.mailbox
    kind, entity_id = mailbox_parts(mailbox)
    return EntityInfo(
        name=mailbox_label(mailbox),
        entity_type=kind,
        entity_id=entity_id,
        state=entity.state,
        depth=entity.depth,
        age=max(now_ms - entity.oldest_ms, 0) / 1000 if entity.oldest_ms else 0.0,
        attempt=entity.attempt,
        running_for=max(now_ms - entity.started_ms, 0) / 1000 if entity.started_ms else None,
        worker=entity.holder.partition("#")[0] or None,
        retry_at_ms=waits.retries.get(mailbox),
        hold=entity.hold,
        letter_id=f"{shard}-{entity.letter}" if entity.letter else None,
        due_ms=waits.delayed.get(mailbox),
        priority=entity.flow.priority,
        tenant=entity.flow.tenant or None,
        snoozes=entity.snoozes,
        failure=None if entity.letter else entity.failure,
        limit=waits.limits.get(mailbox),
        suspension=waits.suspended.get(mailbox),
        home=mailbox_label(entity.home) if entity.home else None,
    )


def _sort_key(entity: StoredEntity, order: EntityOrder) -> SortKey:
    match order:
        case "depth":
            return -float(entity.depth), entity.mailbox
        case "age":
            return float(entity.oldest_ms or math.inf), entity.mailbox
        case "attempt":
            return -float(entity.attempt), entity.mailbox
        case "name":
            return 0.0, entity.mailbox
        case _:
            raise InvalidSettings(f"order {order!r}: one of depth, age, attempt, name")


def _first(item: tuple[SortKey, Any]) -> SortKey:
    return item[0]


def _write_cursor(order: str, key: SortKey) -> str:
    return base64.urlsafe_b64encode(json.dumps([order, *key]).encode()).decode().rstrip("=")


def _read_cursor(cursor: str, order: str) -> SortKey:
    try:
        found, number, mailbox = read_json(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if found == order and isinstance(mailbox, str):
            return float(number), mailbox
    except (ValueError, TypeError, OverflowError):
        pass
    raise InvalidSettings(f"cursor {cursor!r} is not one of a listing by {order}")


def key_info(stored: StoredKey, entity_type: str, entity_id: str | None) -> UniqueKeyInfo:
    """Return the public form of a key of an entity; `stored` has it as the application gave it."""
    key, stander, state = stored
    return UniqueKeyInfo(
        key, state, stander.command_id, stander.name, stander.window_ms or None, stander.most_ms or None, entity_type, entity_id
    )


def stored_info(stored: StoredKey) -> UniqueKeyInfo:
    """Return the public form of a key under the name under which it is stored: type, perhaps a lane, encoded entity id, key."""
    kind, entity, key = stored.key.split(":", 2)
    entity_type = type_of(mailbox_of_key(stored.key)) or ""
    return key_info(stored._replace(key=key), entity_type, mailbox_parts(f"{kind}:{entity}")[1])


async def keys_behind(
    operator: OperatorSide, shards: int, scope: str, after: str, limit: int, scan: int
) -> tuple[Sequence[StoredKey], bool]:
    """Return the first held keys of a namespace behind one, at most so many, and whether all keys were looked at."""
    found: list[StoredKey] = []
    complete = True
    for shard in range(shards):
        page, whole = await operator.mailboxes.held_keys(shard, scope, after, limit, -(-scan // shards))
        found += page
        complete = complete and whole
    return sorted(found, key=lambda each: each.key)[:limit], complete
