"""A look at one entity, with what it waits for: in as few round trips as can be."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from command_bus.session import Session
from command_bus.transport.durable import StoredSuspension
from command_bus.transport.limits import LimitWait
from command_bus.transport.records import StoredEntity


class EntityLook(NamedTuple):
    """An entity, and the one thing that it waits for.

    Attributes:
        stored: The entity.
        retry_ms: When its retry is due or its snooze over; also while it is paused.
        wait: Its place before a limit.
        suspended: The wait of its durable command.
    """

    stored: StoredEntity
    retry_ms: int | None
    wait: LimitWait | None
    suspended: StoredSuspension | None


async def look_at(session: Session, mailbox: str) -> EntityLook:
    """Read a mailbox and what it may wait for at the same time; what has changed meanwhile is read again."""
    operator = session.transport.operator
    stored, due, suspended = await asyncio.gather(
        operator.entities.look(mailbox), operator.entities.retry_times([mailbox]), operator.suspensions.read([mailbox])
    )
    if stored.state in ("retrying", "snoozed") and not due:
        due = await operator.entities.retry_times([mailbox])
    if stored.state == "suspended" and not suspended:
        suspended = await operator.suspensions.read([mailbox])
    waits = await session.transport.limits.waits([mailbox]) if stored.state == "limited" else {}  # a transport may have none
    return EntityLook(
        stored, due.get(mailbox), waits.get(mailbox), suspended.get(mailbox) if stored.state == "suspended" else None
    )
