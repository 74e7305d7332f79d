"""One entity, as a scope: `bus.entity("account", "a-17")`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, TypeVar, Unpack
from uuid import UUID

from command_bus.admin.ending import Aborting
from command_bus.admin.entities import key_info
from command_bus.admin.entity_details import details_of
from command_bus.admin.entity_types import pause_end
from command_bus.admin.info import UniqueKeyPage
from command_bus.errors import InvalidCommand
from command_bus.messages.message import Message, canonical_entity_id, check_entity_type, checked_id
from command_bus.messages.options import DispatchOptions, FollowedCallOptions
from command_bus.messages.unique import Unique
from command_bus.sending.options import checked_priority
from command_bus.sending.sender import Sender
from command_bus.sending.waiting import WaitingCommands
from command_bus.session import OnSession, Session
from command_bus.transport.mailboxes import encoded

if TYPE_CHECKING:
    from command_bus.admin.info import AbortReport, EntityDetails
    from command_bus.messages.policies import Priority
    from command_bus.messages.receipts import Receipt

R = TypeVar("R")


class EntityScope(OnSession):
    """Sends to one entity and operates on it. With `lanes(n)` depth, pause, drain and resume concern the entity's whole lane.

    Raises:
        InvalidCommand: The type or id is not what it may be.
    """

    def __init__(self, session: Session, sender: Sender, entity_type: str, entity_id: str | int) -> None:
        self.type = check_entity_type(entity_type)
        self.id = canonical_entity_id(entity_id)
        super().__init__(session)
        self._sender = sender
        self._mailbox = sender.builder.mailbox_of(self.type, self.id)

    def __repr__(self) -> str:
        return f"<entity {self.type}:{self.id}>"

    async def dispatch(self, command: Message[R], **options: Unpack[DispatchOptions]) -> Receipt[R]:
        """Dispatch a command of this entity: see `CommandBus.dispatch`.

        Raises:
            InvalidCommand: The command names another entity.
        """
        return await self._sender.dispatch(self._own(command), options)

    async def call(self, command: Message[R], **options: Unpack[FollowedCallOptions]) -> R:
        """Call a command of this entity: see `CommandBus.call`.

        Raises:
            InvalidCommand: The command names another entity.
        """
        return await self._sender.call(self._own(command), **options)

    async def depth(self) -> int:
        """Return how many commands wait or run, delayed ones included."""
        return await self._operator.mailboxes.depth(self._mailbox)

    async def pause(self, reason: str = "", *, until: datetime | float | None = None) -> bool:
        """Start none of its commands until `resume`, across restarts; what runs is not touched. False if it was paused already.

        Args:
            reason: Why, for views.
            until: When the pause ends by itself: a moment with a time zone, or seconds from now. A later `pause` or `drain` replaces it.

        Raises:
            InvalidSettings: `until` is neither, or past.
        """
        return await self._operator.holds.pause(self._mailbox, reason, await pause_end(self._session, until))

    async def drain(self, reason: str = "") -> bool:
        """Refuse new commands for it (`Draining`) and work off what is there, until `resume`. False if it was drained already."""
        return await self._operator.holds.drain(self._mailbox, reason)

    async def resume(self) -> bool:
        """Go on after a pause or drain of this entity. False if there was none.

        A parked entity needs its dead letter replayed or discarded; one whose type or bus is paused waits for that.
        """
        return await self._operator.holds.resume(self._mailbox)

    async def prioritize(self, priority: Priority) -> bool:
        """Give all that waits in its line now another priority; False if nothing is there. Order in the line stays.

        What runs goes on; a retry of it, and the next command, count by the new priority, what comes later by its own. Delayed commands are
        left as they are: see `bus.commands.select(state="delayed")`. The first use switches priorities on.

        Raises:
            InvalidCommand: The priority is none.
            NewerState: The entity is in a state that only a later release knows.
            TransportUnavailable: The server cannot be reached. Asking again is safe.
        """
        return await self._operator.shares.prioritize(self._mailbox, checked_priority(priority)) > 0

    async def show(self, *, waiting: int = 20, scan: int | None = None) -> EntityDetails:
        """Return everything about the entity now: its holder, since when, its head, what waits behind it, what stops it.

        Args:
            waiting: How many of its commands to name at most.
            scan: Delayed commands of its shard that are looked at for its own, about; None: all.
        """
        return await details_of(self._session, self._mailbox, waiting, scan)

    async def cancel(self, command_id: str | UUID, reason: str = "") -> bool:
        """Cancel a command of this entity that has not started: see `CommandBus.cancel`. Only its own mailbox is searched."""
        return await WaitingCommands(self._session).cancel_in(self._mailbox, checked_id(command_id), reason)

    async def abort(self, reason: str = "", *, by: str = "", wait: float = 10.0, force: bool = False) -> AbortReport:
        """End the attempt that runs, even if its handler hangs: its command is settled as interrupted, by its contract.

        That is the next attempt (`at_least_once`), or after the last one, and for `at_most_once`, a dead letter `interrupted`. Pause the
        entity before if the command is not to be started again. An asynchronous handler is cancelled and ends within about a second.
        One in a thread cannot be stopped: its `context.cancelled` becomes true, and its entity waits for its end.

        Args:
            reason: Why, for the dead letter and the handler's context.
            by: Who wants it.
            wait: Seconds to wait for the end of the attempt. What was asked for stays asked for some minutes longer.
            force: Give the entity up even if its handler goes on a second later. **The handler may then run beside its
                successor**: what it still does through the bus is refused by its fence, what it does elsewhere is not.

        Raises:
            InvalidCommand: `wait` is not a positive number of seconds.
            TransportUnavailable: The server cannot be reached.
        """
        return await Aborting(self._session, self._mailbox, self.type, self.id).abort(reason, by=by, wait=wait, force=force)

    async def purge(self) -> int:
        """Remove all its waiting commands, not the one that runs; how many. Their callers get `CommandCancelled`."""
        return await WaitingCommands(self._session).purge(self._mailbox, self.type, self.id)

    async def forget(self, key: str) -> bool:
        """Release a unique key; False if no command held it. The next command with this key is accepted, whatever waits or runs.

        The command that held it stays in line. Its key is what `Unique(key)` says, by default the wire name.

        Raises:
            InvalidCommand: It is no unique key.
        """
        if Unique(key).key is None:
            raise InvalidCommand("name the unique key: what Unique(key) said, else the wire name of the command")
        return await self._operator.mailboxes.release_key(self._mailbox, f"{encoded(self.id)}:{key}")

    async def unique_keys(self, *, limit: int = 100, scan: int = 20_000) -> UniqueKeyPage:
        """Return the unique keys of this entity that are held, also those of settled commands whose window is open.

        Args:
            limit: Keys at most.
            scan: Keys of this entity's shard that are looked at, about: the keys of all its entities stand together.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        mailboxes = self._operator.mailboxes
        found, complete = await mailboxes.unique_keys(self._mailbox, encoded(self.id), scan)
        listed = [key_info(each, self.type, self.id) for each in sorted(found, key=lambda one: one.key)]
        return UniqueKeyPage(listed[:limit], complete and len(listed) <= limit)

    def _own(self, command: Message[R]) -> Message[R]:
        if type(command).spec().entity != self.type or command.entity_id() != self.id:
            raise InvalidCommand(
                f"{type(command).__name__} names {type(command).spec().entity}:{command.entity_id()}, this scope is {self.type}:{self.id}"
            )
        return command
