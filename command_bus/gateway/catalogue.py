"""`Catalogue`: the commands that can be sent and the events that can be published, from the bus's own classes and from what the workers announce."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from command_bus.bus import CommandBus
from command_bus.clock import mono
from command_bus.errors import CommandBusError
from command_bus.messages.message import Event, Message, Query, is_internal
from command_bus.serialization.announcements import CommandInfo, read_description
from command_bus.serialization.json_fields import JsonFields, json_fields_of
from command_bus.worker.worker_bus import describe_message

_FRESH = 10.0
"""Seconds for which an announcement is believed."""
_MISSING = 1.0
"""Seconds between two looks for names that are not known: anybody may ask for such."""


@dataclass(frozen=True, slots=True)
class KnownCommand:
    """A command that can be sent, or an event that can be published.

    Attributes:
        name: The wire name.
        is_query: Whether it is a query, which is always called.
        info: As it is announced, or as its class says; None if JSON Schema cannot describe the class.
        fields: Reads its fields.
        kind: Its class, if this process has it.
        is_event: Whether it is an event.
    """

    name: str
    is_query: bool
    info: CommandInfo | None
    fields: JsonFields = field(compare=False)
    kind: type[Message[Any]] | None = None
    is_event: bool = False


class Catalogue:
    """The commands and events of a bus.

    Args:
        bus: Open, once it is asked.
    """

    def __init__(self, bus: CommandBus) -> None:
        self._bus = bus
        self._known: dict[str, KnownCommand] = {}
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def find(self, name: str, *, event: bool = False) -> KnownCommand | None:
        """Return a command, or else an event; None if there is none.

        Raises:
            TransportUnavailable: Nothing is known yet, and the server cannot be reached.
        """
        found = self._known.get(name)
        age = mono() - self._read_at
        if age > _FRESH or (found is None and age > _MISSING):
            await self._refresh()
            found = self._known.get(name)
        return found if found is not None and found.is_event is event else None

    async def all(self) -> Mapping[str, KnownCommand]:
        """Return all commands and events by name.

        Raises:
            TransportUnavailable: As for `find`.
        """
        if mono() - self._read_at > _MISSING:
            await self._refresh()
        return self._known

    async def _refresh(self) -> None:
        asked_at = mono()
        async with self._reading:
            if self._read_at > asked_at:
                return  # somebody else has read meanwhile
            kinds = {kind.spec().name: kind for kind in self._bus.registry.messages()}
            own = {name: self._own(kind) for name, kind in kinds.items() if not is_internal(name)}
            try:
                announced = [*await self._bus.fleet.commands(), *await self._bus.fleet.events()]
            except CommandBusError:
                if not self._known and not own:
                    raise
                self._known = {**self._known, **own}
            else:
                self._known = {each.name: self._announced(each) for each in announced} | own
            self._read_at = mono()

    def _own(self, kind: type[Message[Any]]) -> KnownCommand:
        """Return a command whose class is here."""
        name = kind.spec().name
        before = self._known.get(name)
        if before is not None and before.kind is kind:
            return before
        record = describe_message(kind, self._bus.settings)
        info = None if record is None else read_description(name, record, ())
        return KnownCommand(name, issubclass(kind, Query), info, json_fields_of(kind), kind, issubclass(kind, Event))

    def _announced(self, info: CommandInfo) -> KnownCommand:
        """Return a command that is announced; its schema is compiled once."""
        before = self._known.get(info.name)
        same = before is not None and before.kind is None and before.info is not None and before.info.schema == info.schema
        fields = before.fields if before is not None and same else JsonFields(info.schema)
        return KnownCommand(info.name, info.kind == "query", info, fields, is_event=info.kind == "event")
