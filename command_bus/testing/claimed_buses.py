"""Buses of the program under test: connected to the in-memory server, and restored at the end.

A bus is connected when it is opened, on the loop that opens it. So the order of an application's lifespan, a `TestClient`, a fixture and
the test itself does not matter. A bus that was opened before refuses every request: it talks to a real server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import NoReturn

from command_bus.bus import CommandBus
from command_bus.session import OPEN_SESSIONS, LoopGuard, Session, SessionHook
from command_bus.testing.records import Recorder
from command_bus.testing.simulated.live import Process

_ADVICE = (
    "{bus} was opened before the fixture `command_bus` of this test, so it talks to a real server: nothing is sent. Let what opens it "
    "ask for `command_bus` first, in a fixture of each test (`def client(command_bus): …`), or do without `command_bus` here"
)


class ClaimedBuses:
    """The buses that talk to one in-memory server.

    Args:
        hook: Called when one of them opens.
        layer: Middleware that records what they send.
    """

    def __init__(self, hook: SessionHook, layer: Recorder) -> None:
        self.buses: list[CommandBus] = []
        self._hook = hook
        self._layer = layer
        self._undo = contextlib.ExitStack()
        self._refused: list[str] = []

    @property
    def refused(self) -> list[str]:
        """Reasons why requests were refused."""
        return self._refused

    def claim(self, bus: CommandBus) -> None:
        """Connect this bus when it opens.

        Raises:
            TypeError: It is open already.
        """
        if bus.is_open:
            raise TypeError(f"the bus must not be open yet: {_ADVICE.format(bus=bus)}")
        before, bus.session.hook = bus.session.hook, self._hook
        self._undo.callback(setattr, bus.session, "hook", before)

    def claim_all(self) -> None:
        """Connect every bus of this process that opens from now on; refuse requests of those that are open already."""
        before, Session.every_hook = Session.every_hook, self._hook
        self._undo.callback(setattr, Session, "every_hook", before)
        for session in list(OPEN_SESSIONS):
            if session.clients is None:  # else its server is in this process
                self._refuse(session)

    def connect(self, bus: CommandBus, process: Process) -> None:
        """Connect a bus that is about to open to the in-memory server, and record what it sends."""
        if bus not in self.buses:
            self.buses.append(bus)
            session = bus.session
            self._undo.callback(setattr, session, "clients", session.clients)
            self._undo.callback(setattr, bus, "middleware", bus.middleware)
            self._undo.callback(session.renew)
            bus.middleware = (self._layer, *bus.middleware)
        bus.session.clients = process

    def loop_of(self, bus: CommandBus) -> asyncio.AbstractEventLoop | None:
        """Return the loop on which a connected bus is open, or None."""
        process = bus.session.clients
        if not bus.is_open or not isinstance(process, Process):
            return None
        loop = process.loop
        return None if loop is None or loop.is_closed() else loop

    def release(self) -> None:
        """Restore all buses, closed."""
        self._undo.close()
        self.buses.clear()

    def _refuse(self, session: Session) -> None:
        refusal = _Refusal(_ADVICE.format(bus=session.owner), self._refused.append)
        before = session.exchange_guard(refusal)
        if before is not None:
            refusal.before = before
            self._undo.callback(refusal.withdraw, session)


class _Refusal(LoopGuard):
    """The guard of a session that must not be used."""

    before: LoopGuard

    def __init__(self, why: str, report: Callable[[str], None]) -> None:
        self._why = why
        self._report = report

    def check(self) -> NoReturn:
        self._report(self._why)
        raise RuntimeError(self._why)

    def is_lost(self) -> bool:
        return self.before.is_lost()

    def withdraw(self, session: Session) -> None:
        """Let the session be used again, unless it was closed in between."""
        if session.is_open:
            session.exchange_guard(self.before)
