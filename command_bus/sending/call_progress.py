"""The progress of a call, for its caller while it waits."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

from command_bus.errors import BadResult, TransportUnavailable
from command_bus.messages.progress import OnProgress, ProgressInfo
from command_bus.serialization.reports import PROGRESS, Cipher, unpack_report
from command_bus.session import Session
from command_bus.transport.tasks import end_tasks

R = TypeVar("R")
_SHORTEST, _LONGEST, _GROWTH = 0.05, 1.0, 1.5


class LookPauses:
    """The seconds between two looks at how far a command is: they grow while nothing changes."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin with the shortest."""
        self._next = _SHORTEST

    async def wait(self) -> None:
        """Wait for the next look."""
        pause, self._next = self._next, min(self._next * _GROWTH, _LONGEST)
        await asyncio.sleep(pause)


def unsealer(session: Session, mailbox: str, command_id: str) -> Cipher:
    """Return what decrypts the reports of a command in a mailbox; it raises `BadResult` if this bus has no cipher."""

    def unseal(name: str, data: bytes) -> bytes:
        protection = session.protection
        if protection is None:
            raise BadResult("what the command reports is encrypted, and this bus has no cipher", command_id=command_id)
        return protection.unsealed(mailbox, command_id, name, data)

    return unseal


def progress_in(session: Session, mailbox: str, command_id: str, value: bytes | None) -> ProgressInfo:
    """Return the progress that a side record has.

    Raises:
        BadResult: It is encrypted, and this bus has no cipher.
    """
    parts = unpack_report(PROGRESS, value, unsealer(session, mailbox, command_id))
    return ProgressInfo() if parts is None else ProgressInfo(*parts)


async def call_with_progress(
    session: Session, exchange: Awaitable[R], command_id: str, mailbox: Callable[[], str], tell: OnProgress
) -> R:
    """Wait for the result of a call, and tell of its progress meanwhile.

    Args:
        session: Open.
        exchange: Sends the command, and waits for its reply.
        command_id: Of the command.
        mailbox: Names its mailbox, once it is sent.
        tell: Whom. An error of it ends the wait, not the command.

    Raises:
        CommandBusError: The outcome, or what keeps this bus from reading the progress.
    """
    loop = asyncio.get_running_loop()
    call = asyncio.ensure_future(exchange)
    telling = loop.create_task(_tell(session, command_id, mailbox, tell), name=f"command_bus.progress {command_id}")
    try:
        await asyncio.wait((call, telling), return_when=asyncio.FIRST_COMPLETED)
        if not call.done():
            telling.result()  # only an error ends it
        return await call
    finally:
        await end_tasks((call, telling))


async def _tell(session: Session, command_id: str, mailbox: Callable[[], str], tell: OnProgress) -> None:
    """Look until cancelled, and tell of what has changed. While the server is away there is nothing to tell."""
    last, pauses = ProgressInfo(), LookPauses()
    while True:
        await pauses.wait()
        try:
            (found,) = await session.transport.operator.suspensions.fields(mailbox(), command_id, [PROGRESS])
        except TransportUnavailable:
            continue
        now = progress_in(session, mailbox(), command_id, found)
        if now not in (last, ProgressInfo()):
            last = now
            pauses.begin()
            said = tell(now)
            if inspect.isawaitable(said):
                await said
