"""`WebhookStore`: the records of webhooks and how far their pumps are, as notes beside the bus; with the bus's cipher encrypted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from command_bus.bus import CommandBus
from command_bus.clock import mono
from command_bus.errors import InvalidSettings, UnknownWebhook
from command_bus.serialization.odd_values import pass_over
from command_bus.transport.ports.extensions import Notes
from command_bus.webhooks.record import PumpState, WebhookRecord

_RECORDS: Final = "webhooks"
_STATES: Final = "webhook-pumps"
_FRESH: Final = 1.0
"""Seconds for which a process takes a record for what it was."""
_TRIES: Final = 20


class WebhookStore:
    """Reads and changes webhooks.

    Args:
        bus: Keeps them on its server.
    """

    def __init__(self, bus: CommandBus) -> None:
        self._bus = bus
        self._seen: dict[str, tuple[float, WebhookRecord | None]] = {}

    @property
    def notes(self) -> Notes:
        """The notes of the bus, which must be open."""
        return self._bus.transport.notes

    async def all(self) -> dict[str, WebhookRecord]:
        """Return all webhooks by name; one that cannot be read is left out."""
        found: dict[str, WebhookRecord] = {}
        for name, data in (await self.notes.all(_RECORDS)).items():
            try:
                found[name] = self._open(name, data)
            except InvalidSettings as error:
                if data[:1] != b"\0":  # else this bus lacks the cipher
                    pass_over("note:webhooks", name, error.message)
        return found

    async def get(self, name: str) -> WebhookRecord:
        """Return a webhook.

        Raises:
            UnknownWebhook: There is none of this name.
        """
        data = await self.notes.read(_RECORDS, name)
        if data is None:
            raise unknown(name)
        return self._open(name, data)

    async def recent(self, name: str) -> WebhookRecord | None:
        """Return a webhook as it is, or was a second ago; None if there is none."""
        until, record = self._seen.get(name, (0.0, None))
        if mono() >= until:
            data = await self.notes.read(_RECORDS, name)
            record = None if data is None else self._open(name, data)
            self._seen[name] = mono() + _FRESH, record
        return record

    async def change(self, name: str, change: Callable[[WebhookRecord | None], WebhookRecord | None]) -> WebhookRecord | None:
        """Change a webhook, also while others do; return what it was before."""
        for _ in range(_TRIES):
            before = await self.notes.read(_RECORDS, name)
            known = None if before is None else self._open(name, before)
            after = change(known)
            if await self.notes.change(_RECORDS, name, before, None if after is None else self._sealed(after)):
                self._seen.pop(name, None)
                return known
        raise InvalidSettings(f"webhook {name!r} is changed by others again and again: try it once more")

    async def remove(self, name: str) -> bool:
        """Remove a webhook and how far its pump is, whether they can be read or not; return whether there was one."""
        was_there = await self._remove(_RECORDS, name)
        await self._remove(_STATES, name)
        self._seen.pop(name, None)
        return was_there

    async def _remove(self, book: str, name: str) -> bool:
        while (before := await self.notes.read(book, name)) is not None:
            if await self.notes.change(book, name, before, None):
                return True
        return False

    async def states(self) -> dict[str, PumpState]:
        """Return how far all pumps are; one whose state cannot be read is left out."""
        found: dict[str, PumpState] = {}
        for name, data in (await self.notes.all(_STATES)).items():
            try:
                found[name] = PumpState.unpack(data)
            except InvalidSettings as error:
                pass_over("note:webhook-pumps", name, error.message)
        return found

    async def state(self, name: str) -> tuple[bytes | None, PumpState | None]:
        """Return how far a pump is, with the bytes that `set_state` expects."""
        data = await self.notes.read(_STATES, name)
        return data, None if data is None else PumpState.unpack(data)

    async def set_state(self, name: str, before: bytes | None, after: PumpState | None) -> bool:
        """Write how far a pump is, unless another did so meanwhile."""
        return await self.notes.change(_STATES, name, before, None if after is None else after.pack())

    def _sealed(self, record: WebhookRecord) -> bytes:
        data = record.pack()
        return data if self._bus.cipher is None else b"\0" + self._bus.cipher.encrypt(data, self._aad(record.name))

    def _open(self, name: str, data: bytes) -> WebhookRecord:
        if data[:1] != b"\0":
            return WebhookRecord.unpack(data)
        if self._bus.cipher is None:
            raise InvalidSettings(f"webhook {name!r} is encrypted: give this bus the cipher that the others have")
        try:
            clear = self._bus.cipher.decrypt(data[1:], self._aad(name))
        except Exception as error:
            raise InvalidSettings(f"webhook {name!r} cannot be decrypted with this bus's cipher") from error
        return WebhookRecord.unpack(clear)

    def _aad(self, name: str) -> bytes:
        return b"command_bus webhook\0" + self._bus.settings.namespace.encode() + b"\0" + name.encode()


def unknown(name: str) -> UnknownWebhook:
    """Return the error that says that there is no such webhook."""
    return UnknownWebhook(f"there is no webhook {name!r}: `command-bus webhooks list` names all", name=name)
