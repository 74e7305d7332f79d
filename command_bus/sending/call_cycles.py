"""Calls of handlers: they say who waits for them, and a call to an entity that waits for its caller is refused."""

from __future__ import annotations

from typing import Any

from command_bus.errors import CallCycle
from command_bus.messages.context import Running
from command_bus.messages.durable import Suspended
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.messages.policies import Priority
from command_bus.sending.priorities import options_of
from command_bus.serialization.callers_option import CALLERS
from command_bus.serialization.chain_option import CHAIN, with_mailbox
from command_bus.transport.mailboxes import mailbox_label


def check_running(out: OutgoingMessage, running: Running, mailbox: str) -> None:
    """Check what the handler that runs here sends.

    Raises:
        CallCycle: It is a call to the mailbox that the handler holds, or to one whose handler waits for it.
        Suspended: The handler's run is over.
    """
    if running.suspended:
        raise Suspended
    if out.inbox and (running.mailbox == mailbox or mailbox in running.chain):
        raise _cycle(out, running, mailbox)


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


def with_waiting(out: OutgoingMessage, priority: Priority, running: Running | None) -> dict[str, Any] | None:
    """Return what is asked for a message alone; for a call also who waits for it, if they have places of limits."""
    waiting: dict[str, Any] = {}
    if running is not None and out.inbox:
        waiting[CHAIN] = with_mailbox(running.chain, running.mailbox)
        if running.callers:
            waiting[CALLERS] = dict(running.callers)
    if priority == "normal" and not waiting:
        return out.options or None
    return {**out.options, **(options_of(priority) or {}), **waiting}
