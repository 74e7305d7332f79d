"""Waiting for outcomes: the reply of a call, the stored result of a command."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from command_bus.clock import mono
from command_bus.errors import BadResult, CommandTimeout, InvalidCommand, TransportUnavailable, UnknownCommand
from command_bus.serialization.models import reply_codec_for
from command_bus.serialization.msgpack import Limits, Undecodable
from command_bus.serialization.protection import Protection
from command_bus.serialization.reply import Completed, raise_or_value, unpack_reply
from command_bus.transport.redis.rpc import reply_in
from command_bus.transport.redis.wiring import RedisTransport

__all__ = ["Outcomes", "checked_timeout"]

_POLL_FIRST, _POLL_LAST = 0.01, 0.5


def checked_timeout(timeout: float) -> float:
    """A timeout in seconds.

    Raises:
        InvalidCommand: It is not a positive, finite number.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not math.isfinite(timeout) or timeout <= 0:
        raise InvalidCommand(f"timeout is a positive number of seconds, not {timeout!r}")
    return float(timeout)


class Outcomes:
    """Reads outcomes of one open bus.

    Args:
        transport: Of the bus.
        limits: Of replies.
        protection: Decrypts them, or None.
    """

    def __init__(self, transport: RedisTransport, limits: Limits, protection: Protection | None = None) -> None:
        self._protection = protection
        self._transport = transport
        self._limits = limits

    def value_of(self, record: bytes, reply_type: Any, command_id: str) -> Any:
        """The result in a reply record.

        Raises:
            CommandBusError: The outcome that it tells.
        """
        try:
            _, outcome = unpack_reply(record, self._limits)
        except Undecodable as error:
            raise BadResult(f"the reply cannot be read: {error}", command_id=command_id) from error
        if self._protection is not None and isinstance(outcome, Completed):
            outcome = self._protection.result(command_id, outcome)
        return raise_or_value(outcome, reply_codec_for(reply_type), command_id, self._limits)

    async def polled(self, command_id: str, deadline: float) -> bytes | None:
        """The reply of a command that somebody else sent, read from its mark with growing pauses; None if it is not there in time."""
        pause = _POLL_FIRST
        while True:
            left = deadline - mono()
            try:
                for _, mark in await self._transport.operations.marks(command_id):
                    if (record := reply_in(mark)) is not None:
                        return record
            except TransportUnavailable:
                if left <= 0:
                    raise
            if left <= 0:
                return None
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, _POLL_LAST)

    async def result(self, command_id: str, reply_type: Any, timeout: float) -> Any:
        """See `CommandBus.result`."""
        marks = await self._transport.operations.marks(command_id)
        record = next((reply for _, mark in marks if (reply := reply_in(mark)) is not None), None)
        if record is None and marks and timeout > 0:
            record = await self.polled(command_id, mono() + timeout)
            marks = await self._transport.operations.marks(command_id)
        if record is not None:
            return self.value_of(record, reply_type, command_id)
        if any(mark[:1] == b"q" for _, mark in marks):
            raise CommandTimeout(f"command {command_id} is accepted and not settled yet", command_id=command_id)
        raise UnknownCommand(
            f"no result of command {command_id!r} is kept: it is unknown, was dispatched without an id of yours, or its time is over"
        )
