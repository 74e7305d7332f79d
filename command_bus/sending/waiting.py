"""Takes waiting commands out of line: cancel one by its id, purge all of an entity."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from command_bus.errors import NewerState
from command_bus.serialization.envelope import WireEnvelope, unpack_envelope
from command_bus.serialization.envelope_options import DURABLE, OTHERS
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.reply import Cancelled, cancelled_midway
from command_bus.session import OnSession, Session
from command_bus.transport.marks import mailbox_in
from command_bus.transport.ports.operator import Mailboxes
from command_bus.transport.records import WaitingEntry
from command_bus.transport.retention import Retention
from command_bus.transport.steps import Removal

_log = logging.getLogger("command_bus")
_PURGED = "its entity was purged"
_TOGETHER = 64
"""Commands that are read at once, of several mailboxes: as many as the first page of one has."""


def grouped(depths: Mapping[str, int]) -> Iterator[list[str]]:
    """Group mailboxes that have at most `_TOGETHER` commands together, or are one mailbox."""
    group: list[str] = []
    commands = 0
    for mailbox, depth in depths.items():
        if group and commands + max(depth, 1) > _TOGETHER:
            yield group
            group, commands = [], 0
        group.append(mailbox)
        commands += max(depth, 1)
    if group:
        yield group


class WaitingCommands(OnSession):
    """The commands that wait in mailboxes: cancel one, purge many."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._retention = Retention.of(session.settings)

    @property
    def _mailboxes(self) -> Mailboxes:
        return self._operator.mailboxes

    async def cancel(self, command_id: str, reason: str = "") -> bool:
        """Remove one waiting command; False if it runs, has run or is unknown. Its caller gets the reason.

        A mark says where a given id waits, and delayed commands are found by their id. For any other all lines are gone through.
        """
        return any([await self.cancel_in(mailbox, command_id, reason) for mailbox in await self.find(command_id)])

    async def find(self, command_id: str, *, likely: str | None = None, most: int | None = None) -> list[str]:
        """Return the mailboxes in which a command may wait or run: by its marks, else as `find_unmarked`; that goes through all lines."""
        marks = await self._transport.locations.marks(command_id)
        if marks:
            return [mailbox for mailbox in map(mailbox_in, marks) if mailbox is not None]
        return await self.find_unmarked(command_id, likely=likely, most=most)

    async def find_unmarked(self, command_id: str, *, likely: str | None = None, most: int | None = None) -> list[str]:
        """Return the mailbox in which a command without a mark waits or runs, or none.

        Args:
            command_id: Its id.
            likely: A mailbox that is looked through as a whole before all others.
            most: About how many commands of all mailboxes are looked at; None: all.
        """
        delayed = await self._mailboxes.find_delayed(command_id)
        if delayed is not None:
            return [delayed[0]]
        if likely is not None and await self.place_of(likely, command_id) is not None:
            return [likely]
        part, looked = command_id.encode(), 0
        for shard in range(self._transport.shards if most != 0 else 0):
            async for lot in self._mailboxes.contents(shard):
                for entity, entries in lot:
                    if any(part in each.envelope and self._id_in(each.envelope) == command_id for each in entries):
                        return [entity.mailbox]
                    looked += len(entries)
                if most is not None and looked >= most:
                    return []
        return []

    async def cancel_in(self, mailbox: str, command_id: str, reason: str = "", *, fresh: bool = False) -> bool:
        """Remove one command that waits in this mailbox; False if it does not, or with `fresh` if it was started before."""
        delayed = await self._mailboxes.find_delayed(command_id, mailbox)
        entry = None if delayed is None else WaitingEntry(command_id, delayed[1], delayed=True)
        if entry is not None and await self.cancel_entries(mailbox, [entry], reason, fresh=fresh):
            return True
        entry = await self._lined_up(mailbox, command_id)
        return entry is not None and await self.cancel_entries(mailbox, [entry], reason, fresh=fresh) > 0

    async def place_of(self, mailbox: str, command_id: str) -> str | None:
        """Return the message id of a command in a mailbox; None if it is not there."""
        command = await self._lined_up(mailbox, command_id)
        return None if command is None else command.id

    async def _lined_up(self, mailbox: str, command_id: str) -> WaitingEntry | None:
        async for page in self._mailboxes.lined_up(mailbox):
            for command in page:
                if self._envelope(command).command_id == command_id:
                    return command
        return None

    async def cancel_entries(
        self, mailbox: str, commands: Iterable[WaitingEntry], reason: str = "", *, fresh: bool = False
    ) -> int:
        """Take these commands of a mailbox out of line, except what runs and durable ones that have begun; how many.

        With `fresh` only those never started.
        """
        why = f": {reason}" if reason else ""
        texts = (f"cancelled before it started{why}", f"cancelled{why}")
        removals = [self._removal(each, self._envelope(each), *texts) for each in commands]
        return await self._mailboxes.remove(mailbox, removals, fresh=fresh)

    def _removal(self, command: WaitingEntry, envelope: WireEnvelope, text: str, begun_text: str = "") -> Removal:
        """Return the removal of a command, with a text for who asks how it ended, and one for the case that it had started."""
        begun = cancelled_midway(begun_text or text, durable=DURABLE.of(envelope.options))
        ends = (self._retention.settlement(envelope, outcome, message=command.message) for outcome in (Cancelled(text), begun))
        return Removal(command, *ends)

    async def purge(self, mailbox: str, entity_type: str, entity_id: str) -> int:
        """Remove all of an entity that waits, page by page; how many. Others of its lane are left alone."""
        entity = (entity_type, entity_id)
        removed, homes = 0, dict[str, None]()
        async for page in self._mailboxes.waiting(mailbox):
            homes |= dict.fromkeys(each.home for each in page if each.home)
            read = [(command, self._envelope(command)) for command in page if not command.home]
            batch = [
                self._removal(command, envelope, _PURGED)
                for command, envelope in read
                if (envelope.entity_type, envelope.entity_id) in (entity, (None, None)) or entity in OTHERS.of(envelope.options)
            ]
            if batch:
                removed += await self._mailboxes.remove(mailbox, batch)
        return removed + await self._purge_places(mailbox, homes, entity)

    async def _purge_places(self, mailbox: str, homes: Iterable[str], entity: tuple[str, str] | None = None) -> int:
        """Remove the commands of several entities that stand in a mailbox, and have their home in others; with an entity only its own."""
        removed = 0
        for home in homes:
            async for page in self._mailboxes.lined_up(home) if entity is None else self._mailboxes.waiting(home):
                stands = [each for each in page if mailbox in each.lines]
                wanted = [each for each in stands if entity is None or entity in OTHERS.of(self._envelope(each).options)]
                removed += await self._remove(home, wanted)
        return removed

    async def purge_mailboxes(self, depths: Mapping[str, int]) -> int:
        """Remove all that waits in mailboxes now, whosever it is; how many. What is delayed is left, and entities in states of a later release.

        Small ones together: each takes two round trips. A deep one alone, so that no more commands are read at once than of one.

        Args:
            depths: The mailboxes, and about how many commands each has.
        """
        removed = 0
        for group in grouped(depths):
            removed += sum(await asyncio.gather(*map(self._purge_mailbox, group)))
        return removed

    async def _purge_mailbox(self, mailbox: str) -> int:
        removed, homes = 0, dict[str, None]()
        async for page in self._mailboxes.lined_up(mailbox):
            homes |= dict.fromkeys(each.home for each in page if each.home)
            removed += await self._remove(mailbox, [each for each in page if not each.home])
        return removed + await self._purge_places(mailbox, homes)

    async def purge_delayed(self, shard: int, wanted: Callable[[str], bool]) -> int:
        """Remove the delayed commands of these mailboxes of a shard; how many."""
        removed = 0
        async for page in self._mailboxes.delayed(shard):
            by_mailbox: dict[str, list[WaitingEntry]] = {}
            for mailbox, command in page:
                if any(map(wanted, [mailbox, *command.lines])):
                    by_mailbox.setdefault(mailbox, []).append(command)
            for mailbox, commands in by_mailbox.items():
                removed += await self._remove(mailbox, commands)
        return removed

    async def _remove(self, mailbox: str, commands: Iterable[WaitingEntry]) -> int:
        batch = [self._removal(command, self._envelope(command), _PURGED) for command in commands]
        try:
            return await self._mailboxes.remove(mailbox, batch) if batch else 0
        except NewerState as error:  # the others can still be purged
            _log.warning("%s", error)
            return 0

    def _id_in(self, envelope: bytes) -> str | None:
        try:
            return unpack_envelope(envelope, self._limits).command_id
        except Undecodable as error:
            return error.command_id

    def _envelope(self, command: WaitingEntry) -> WireEnvelope:
        try:
            return unpack_envelope(command.envelope, self._limits)
        except Undecodable:
            return WireEnvelope(f"undecodable:{command.id}", "", None, None, b"")
