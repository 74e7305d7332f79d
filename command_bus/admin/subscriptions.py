"""`Subscriptions`: who gets the events that are published; reached as `bus.subscriptions`.

A subscription is a record; what it gets are commands in lines of its own, so pausing, parking, purging are those of every line. Workers put what
their code declares as they start. See `sending/publishing.py` for how a publisher comes to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from command_bus.admin.dead_letters import DeadLetters
from command_bus.admin.entities import Entities
from command_bus.admin.fleet import Fleet
from command_bus.errors import EntityTypeInUse, InvalidSettings, UnknownSubscription
from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.event import checked_pattern, checked_subscription
from command_bus.messages.policies import Delivery, parts_of_delivery
from command_bus.sending.publishing import FRESH, SubscriptionRecord, SubscriptionTable
from command_bus.session import OnSession, Session
from command_bus.spelling import several_names
from command_bus.transport.mailboxes import subscription_scope, type_of

_SETTLES: Final = FRESH + 0.5
"""Seconds after which no publisher uses an older table."""


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A subscription, and what stands in its lines.

    Attributes:
        name: Its name.
        events: Names of the events that it gets, and patterns of names.
        delivery: What an interruption of a delivery means.
        revision: Number of its declaration.
        since_ms: When it was put first.
        paused: Why it is paused or drained as a whole; None: it is not.
        waiting: Deliveries that are not settled.
        entities: The number of lines in which these stand.
        parked: Entities that wait for a decision about a dead letter.
        oldest_ms: When the oldest of these deliveries was accepted; None: there is none.
        workers: Names of the live workers that handle any of it.
    """

    name: str
    events: tuple[str, ...]
    delivery: Delivery
    revision: int
    since_ms: int
    paused: str | None = None
    waiting: int = 0
    entities: int = 0
    parked: int = 0
    oldest_ms: int | None = None
    workers: tuple[str, ...] = ()


class Subscriptions(OnSession):
    """The subscriptions of a namespace.

    Args:
        session: Connections and settings of the bus.
        table: What this bus knows of them as a publisher.
    """

    def __init__(self, session: Session, table: SubscriptionTable) -> None:
        super().__init__(session)
        self._table = table

    async def list(self) -> list[SubscriptionInfo]:
        """Return all subscriptions, by name.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        await self._table.refresh(0.0)
        found = {name: _info(name, record) for name, record in self._table.records.items() if not record.gone_ms}
        if not found:
            return []
        for shard in range(self._transport.shards):
            async for page in self._operator.entities.pages(shard, deliveries=True):
                for entity in page:
                    _, name = parts_of_delivery(type_of(entity.mailbox) or "")
                    if (known := found.get(name)) is not None and entity.depth:
                        oldest = min(known.oldest_ms or entity.oldest_ms, entity.oldest_ms) or known.oldest_ms
                        found[name] = replace(
                            known, waiting=known.waiting + entity.depth, entities=known.entities + 1,
                            parked=known.parked + (entity.state == "parked"), oldest_ms=oldest or None,
                        )  # fmt: skip
        holds = {hold.entity_type: hold.reason for hold in await self._operator.holds.wide()}
        live = [worker for worker in await Fleet(self._session).workers() if worker.alive]
        return [
            replace(
                each,
                paused=holds.get(f"@{name}"),
                workers=tuple(
                    worker.name for worker in live if any(parts_of_delivery(handled)[1] == name for handled in worker.commands)
                ),
            )
            for name, each in found.items()
        ]

    async def names(self) -> tuple[str, ...]:
        """Return the names of all subscriptions, without a look at what stands in their lines.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        await self._table.refresh(0.0)
        return tuple(sorted(name for name, record in self._table.records.items() if not record.gone_ms))

    async def get(self, name: str) -> SubscriptionInfo:
        """Return a subscription.

        Raises:
            UnknownSubscription: There is none of this name.
            TransportUnavailable: The server cannot be reached.
        """
        found = {each.name: each for each in await self.list()}
        if (info := found.get(checked_subscription(name))) is None:
            raise self._unknown(name)
        return info

    async def put(
        self, name: str, events: str | Collection[str], *, delivery: Delivery = "at_least_once", revision: int = 1
    ) -> bool:
        """Put a subscription, or change the one of this name; return whether anything changed. What is published once this has returned reaches it.

        Workers do it by themselves for what they declare, as they start, and do not wait until it holds everywhere, as this does.

        Args:
            name: What it is called.
            events: Names of events, in which `*` stands for any text.
            delivery: What an interruption of a delivery means.
            revision: A lower one than the one that is there changes nothing.

        Raises:
            InvalidSettings: Something of it is not what it may be, or there are 200 subscriptions already.
            TransportUnavailable: The server cannot be reached. Asking again is safe.
        """
        if delivery not in ("at_least_once", "at_most_once"):
            raise InvalidSettings(f"delivery is 'at_least_once' or 'at_most_once', not {delivery!r}")
        names = tuple(sorted({checked_pattern(each) for each in several_names("events", events)}))
        if not names or type(revision) is not int or revision < 1:
            raise InvalidSettings("a subscription has the name of an event at least, and a revision of at least 1")
        await self._table.refresh(0.0)
        wanted = SubscriptionRecord(names, delivery == "at_most_once", revision, await self._transport.notes.now_ms())
        changed = await self._table.put(checked_subscription(name), wanted)
        await asyncio.sleep(_SETTLES)
        return changed

    async def sync(self, registry: HandlerRegistry, *, prune: bool = False) -> tuple[str, ...]:
        """Put the subscriptions of a registry; with `prune` remove all others. Return the names of those that were removed.

        Raises:
            InvalidSettings: As `put`.
            TransportUnavailable: As `put`.
        """
        await self._table.declare(registry)
        await asyncio.sleep(_SETTLES)
        await self._table.refresh(0.0)
        others = set(self._table.records) - set(registry.subscriptions()) if prune else set[str]()
        gone = sorted(name for name in others if not self._table.records[name].gone_ms)
        for name in gone:
            await self.remove(name)
        return tuple(gone)

    async def remove(self, name: str) -> int:
        """Remove a subscription, all that waits in its lines, and its dead letters; return how many these were. What runs ends.

        Raises:
            UnknownSubscription: There is none of this name. One that was removed may be removed again.
            TransportUnavailable: The server cannot be reached. Asking again is safe.
        """
        now_ms = await self._transport.notes.now_ms()

        def gone(known: SubscriptionRecord | None) -> SubscriptionRecord | None:
            if known is None:
                raise self._unknown(name)
            return known if known.gone_ms else replace(known, gone_ms=now_ms)

        await self._table.refresh(0.0)
        await self._table.change(checked_subscription(name), gone)
        await asyncio.sleep(_SETTLES)
        lines = self._lines(name)
        removed = await lines.purge()
        if await lines.holds():
            await lines.resume()
        for kind in [each.name for each in await lines.types() if parts_of_delivery(each.name)[1] == name]:
            removed += await DeadLetters(self._session).purge(entity_type=kind)
            removed += await lines.of(kind).purge()  # what came behind a parked one
            try:
                await lines.forget_type(kind)
            except EntityTypeInUse:  # one of it runs
                continue
        return removed

    async def pause(self, name: str, reason: str = "", *, until: datetime | float | None = None) -> bool:
        """Start none of its deliveries until `resume`: they wait, each in its line. As `Entities.pause`.

        Raises:
            UnknownSubscription: There is none of this name.
        """
        await self._check(name)
        return await self._lines(name).pause(reason, until=until)

    async def resume(self, name: str) -> bool:
        """Take back `pause`. As `Entities.resume`.

        Raises:
            UnknownSubscription: There is none of this name.
        """
        await self._check(name)
        return await self._lines(name).resume()

    async def _check(self, name: str) -> None:
        await self._table.refresh(0.0)
        record = self._table.records.get(checked_subscription(name))
        if record is None or record.gone_ms:
            raise self._unknown(name)

    def _unknown(self, name: str) -> UnknownSubscription:
        there = ", ".join(sorted(each for each, record in self._table.records.items() if not record.gone_ms)) or "none"
        return UnknownSubscription(f"there is no subscription {name!r}; there are: {there}", name=name)

    def _lines(self, name: str) -> Entities:
        return Entities(self._session, subscription_scope(name))


def _info(name: str, record: SubscriptionRecord) -> SubscriptionInfo:
    delivery: Delivery = "at_most_once" if record.at_most_once else "at_least_once"
    return SubscriptionInfo(name, record.events, delivery, record.revision, record.since_ms)
