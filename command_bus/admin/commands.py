"""Single commands that wait, whatever their entity. Reached as `bus.commands`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from command_bus.clock import checked_seconds, milliseconds_of, time_of
from command_bus.errors import InvalidCommand, InvalidSettings
from command_bus.serialization.envelope import names_of
from command_bus.session import Session

__all__ = ["Commands", "DelayedCommand"]


class _Wanted(NamedTuple):
    entity_type: str | None
    before: int | None


@dataclass(frozen=True, slots=True)
class DelayedCommand:
    """A command that takes its place in line later.

    Attributes:
        command_id: Its id.
        name: Its wire name; empty if its envelope cannot be read.
        entity_type: Of its entity; None without one.
        entity_id: Of its entity.
        due_ms: When it takes its place, by the server's clock.
    """

    command_id: str
    name: str
    entity_type: str | None
    entity_id: str | None
    due_ms: int

    @property
    def due_at(self) -> datetime:
        """When it takes its place, in UTC."""
        return time_of(self.due_ms)


class Commands:
    """Single commands.

    Args:
        session: Of the bus.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def reschedule(self, command_id: str, *, delay: float | None = None, at: datetime | None = None) -> bool:
        """Give a delayed command another time; False: it is not delayed any more. It joins the end of its line then.

        Args:
            command_id: Of the command.
            delay: Seconds from now; 0 promotes it now.
            at: The moment, with a time zone, instead of `delay`.

        Raises:
            InvalidCommand: Neither a delay nor a moment, or both.
            TransportUnavailable: The server cannot be reached. Asking again is safe.
        """
        if (delay is None) == (at is None):
            raise InvalidCommand("reschedule: give delay= (seconds from now, 0 is at once) or at= (a datetime with a time zone)")
        try:
            at_ms = None if at is None else milliseconds_of("at", at)
        except InvalidSettings as error:
            raise InvalidCommand(error.message) from None
        delay_ms = 0 if delay is None else int(checked_seconds("delay", delay, zero=True) * 1000)
        mailboxes = self._session.transport.operator.mailboxes
        found = await mailboxes.find_delayed(command_id)
        return found is not None and await mailboxes.reschedule(found[0], command_id, at_ms, delay_ms)

    async def delayed(self, *, entity_type: str | None = None, before: datetime | None = None) -> AsyncIterator[DelayedCommand]:
        """Yield the delayed commands, in no order; of an entity type, and due before a moment, if those are given.

        Raises:
            InvalidSettings: `before` has no time zone.
            TransportUnavailable: The server cannot be reached.
        """
        wanted = _Wanted(entity_type, None if before is None else milliseconds_of("before", before))
        transport, seen = self._session.transport, set[str]()
        for shard in range(transport.shards):
            async for page in transport.operator.mailboxes.delayed(shard):
                fresh = [(mailbox, each) for mailbox, each in page if each.id not in seen]
                if not fresh:
                    continue
                seen.update(each.id for _, each in fresh)
                # All are of one shard, which is all that the mailbox decides here.
                times = await transport.operator.entities.delayed_times(fresh[0][0], [each.id for _, each in fresh])
                for _, each in fresh:
                    if each.id in times and (found := _delayed(each.id, each.envelope, times[each.id], wanted)) is not None:
                        yield found


def _delayed(command_id: str, envelope: bytes, due_ms: int, wanted: _Wanted) -> DelayedCommand | None:
    """Return a delayed command, if it is one of those wanted."""
    _, name, entity_type, entity_id = names_of(envelope[2:])
    if wanted.entity_type not in (None, entity_type) or (wanted.before is not None and due_ms >= wanted.before):
        return None
    return DelayedCommand(command_id, name, entity_type or None, entity_id or None, due_ms)
