"""`LimitHolds`: hold the limit that a handler names when it puts its command off, as after a partner's 429."""

from __future__ import annotations

import logging

from command_bus.errors import CommandBusError, InvalidSettings
from command_bus.messages.put_off import Snooze
from command_bus.serialization.text import printable
from command_bus.transport.interfaces import Transport
from command_bus.worker.limit_keys import scope_name
from command_bus.worker.runnable import Runnable

_log = logging.getLogger("command_bus.worker")
_PREFIX = "limit:"


class LimitHolds:
    """Holds limits for handlers.

    Args:
        transport: Where limits are kept.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def apply(self, run: Runnable, snooze: Snooze) -> Exception | None:
        """Hold the limit that a snooze names; return the error of a name that means none.

        A server that does not answer is a warning: the command itself waits in any case.
        """
        scope = _scope(run, snooze.hold or "")
        if scope is None:
            names = ", ".join(_names(run))
            return InvalidSettings(f"Snooze(hold={snooze.hold!r}): {run.envelope.name} may hold {names}")
        try:
            if not await self._transport.limits.hold(scope, snooze.seconds):
                _log.warning(
                    "%s holds %s, which has no limit that could be held: declare one in BusSettings(limits=…), or put it",
                    printable(run.envelope.name),
                    scope,
                )
        except CommandBusError as error:
            _log.warning("%s could not hold %s: %s", printable(run.envelope.name), scope, error)
        return None


def _scope(run: Runnable, hold: str) -> str | None:
    """Return the bucket that a name means to this command."""
    if hold not in _names(run):
        return None
    name = hold.removeprefix(_PREFIX)
    return next((scope_name(limit, run.message) for limit in run.handler.spec.limits if limit.name == name), name)


def _names(run: Runnable) -> list[str]:
    named = [f"{_PREFIX}{limit.name}" for limit in run.handler.spec.limits]
    entity_type = run.handler.spec.entity
    return [*named, *([] if entity_type is None else [f"{_PREFIX}type:{entity_type}"]), f"{_PREFIX}bus"]
