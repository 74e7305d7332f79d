"""The progress of a call, for its caller while it waits."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from command_bus.errors import BadResult, CallCycle, TransportUnavailable
from command_bus.messages.context import Running
from command_bus.messages.durable import Suspended
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.messages.reports import OnProgress, ProgressInfo
from command_bus.serialization.outcome import PROGRESS, Cipher, unpack_report
from command_bus.session import Session
from command_bus.tasks import end_tasks
from command_bus.transport.mailboxes import mailbox_label

R = TypeVar("R")
_SHORTEST, _LONGEST, _GROWTH = 0.05, 1.0, 1.5
HOPS = "hops"
"""The header with the number of commands that led to one: text, which old workers pass over."""
_LONGEST_HOPS = 10  # digits; a header may say anything


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
        command_id: Id of the command.
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
            (found,) = await session.transport.durable.fields(mailbox(), command_id, [PROGRESS])
        except TransportUnavailable:
            continue
        now = progress_in(session, mailbox(), command_id, found)
        if now not in (last, ProgressInfo()):
            last = now
            pauses.begin()
            said = tell(now)
            if inspect.isawaitable(said):
                await said


def hops_in(headers: Mapping[str, str] | None) -> int:
    """Return how many commands led to one, as its headers say."""
    text = headers.get(HOPS, "") if headers else ""
    return int(text) if text.isdecimal() and len(text) < _LONGEST_HOPS else 0


def hops_of(out: OutgoingMessage, running: Running, most: int) -> int:
    """Return how many commands lead to one that the handler that runs here sends; with a delayed one the count begins again.

    Raises:
        CallCycle: They are too many.
    """
    hops = 0 if out.delay_ms else running.hops + 1
    if hops > most:
        raise CallCycle(
            f"the handler of {running.name} sends {out.name} at the end of a chain of {hops:,} commands, none delayed (max_hops={most:,}). If its "
            "handlers do not send each other commands for ever, let one of them begin again with a delay, or raise max_hops"
        )
    return hops


def check_running(out: OutgoingMessage, running: Running, mailbox: str, home: object) -> None:
    """Check what the handler that runs here sends.

    Raises:
        CallCycle: It is a call to the mailbox that the handler holds, to one of its batch, or to one whose handler waits for it.
        Suspended: The handler's run is over.
    """
    if running.suspended:
        raise Suspended
    if running.home is not home and running.home != home:  # mailboxes of another namespace
        return
    if out.inbox and (running.mailbox == mailbox or mailbox in running.chain):
        raise _cycle(out, running, mailbox)
    if out.inbox and mailbox in running.beside:
        raise CallCycle(
            f"the handler of {running.name} calls {out.name} on {mailbox_label(mailbox)}, which is in the same batch: the call would wait for its "
            "own handler. Send it instead"
        )


def _cycle(out: OutgoingMessage, running: Running, mailbox: str) -> CallCycle:
    if running.mailbox == mailbox:
        return CallCycle(
            f"the handler of {running.name} calls {out.name} on {mailbox_label(running.mailbox)}, which it holds itself: "
            "the call would wait for its own handler. Dispatch it instead, or do the work in place"
        )
    path = [*running.chain[running.chain.index(mailbox) :], running.mailbox, mailbox]
    return CallCycle(
        f"the handler of {running.name} calls {out.name} on {mailbox_label(mailbox)}, whose handler waits for it: "
        f"{' → '.join(map(mailbox_label, path))}. Dispatch it instead"
    )
