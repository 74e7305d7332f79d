"""Buses of the program under test, put over the server in memory, and given back as they were.

A bus is taken when it is opened, on the loop that opens it, not before: so it does not matter whether an application's lifespan, a
`TestClient`, a fixture or the test itself comes first. A bus that was open before is refused whatever it is asked: it talks to a
real server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import NoReturn

from command_bus.bus import CommandBus
from command_bus.session import OPEN_SESSIONS, Guard, Session, SessionHook
from command_bus.testing.records import Recorder
from command_bus.testing.simulated.live import Process

__all__ = ["Claims"]

_ADVICE = (
    "{bus} was opened before the fixture `command_bus` of this test, so it talks to a real server: nothing is sent. Let what opens it "
    "ask for `command_bus` first, in a fixture of each test (`def client(command_bus): …`), or do without `command_bus` here"
)


class Claims:
    """The buses that talk to one server in memory.

    Args:
        hook: Is called when one of them opens.
        layer: Sees what they send.
    """

    def __init__(self, hook: SessionHook, layer: Recorder) -> None:
        self.buses: list[CommandBus] = []
        self._hook = hook
        self._layer = layer
        self._undo = contextlib.ExitStack()
        self._refused: list[str] = []

    @property
    def refused(self) -> list[str]:
        """Why something was not sent."""
        return self._refused

    def one(self, bus: CommandBus) -> None:
        """Ask for this bus.

        Raises:
            TypeError: It is open.
        """
        if bus.is_open:
            raise TypeError(f"the bus must not be open yet: {_ADVICE.format(bus=bus)}")
        before, bus.session.hook = bus.session.hook, self._hook
        self._undo.callback(setattr, bus.session, "hook", before)

    def all(self) -> None:
        """Ask for every bus of this process, from now on; refuse those that are open."""
        before, Session.every_hook = Session.every_hook, self._hook
        self._undo.callback(setattr, Session, "every_hook", before)
        for session in list(OPEN_SESSIONS):
            if session.clients is None:  # else it lives in this process
                self._refuse(session)

    def take(self, bus: CommandBus, process: Process) -> None:
        """Let a bus that is about to open talk to our server and be noted."""
        if bus not in self.buses:
            self.buses.append(bus)
            session = bus.session
            self._undo.callback(setattr, session, "clients", session.clients)
            self._undo.callback(setattr, bus, "middleware", bus.middleware)
            self._undo.callback(session.renew)
            bus.middleware = (self._layer, *bus.middleware)
        bus.session.clients = process

    def loop_of(self, bus: CommandBus) -> asyncio.AbstractEventLoop | None:
        """The loop on which a taken bus is open, or None."""
        process = bus.session.clients
        if not bus.is_open or not isinstance(process, Process):
            return None
        loop = process.loop
        return None if loop is None or loop.is_closed() else loop

    def release(self) -> None:
        """Give all back as they were, closed."""
        self._undo.close()
        self.buses.clear()

    def _refuse(self, session: Session) -> None:
        refusal = _Refusal(_ADVICE.format(bus=session.owner), self._refused.append)
        before = session.exchange_guard(refusal)
        if before is not None:
            refusal.before = before
            self._undo.callback(refusal.withdraw, session)


class _Refusal:
    """The guard of a session that must not be used."""

    before: Guard

    def __init__(self, why: str, tell: Callable[[str], None]) -> None:
        self._why = why
        self._tell = tell

    def check(self) -> NoReturn:
        """See `Guard`."""
        self._tell(self._why)
        raise RuntimeError(self._why)

    def is_lost(self) -> bool:
        """See `Guard`."""
        return self.before.is_lost()

    def withdraw(self, session: Session) -> None:
        """Let the session be used again, unless it was closed meanwhile."""
        if session.is_open:
            session.exchange_guard(self.before)
