"""Buses of the program under test, put over the server in memory, and given back as they were.

A bus is taken when it is opened, on the loop that opens it, not before: so it does not matter whether an application's lifespan, a
`TestClient`, a fixture or the test itself comes first. A bus that was open before is refused whatever it is asked: it talks to a
real server.
"""

from __future__ import annotations

# ruff: noqa: SLF001 - the kit is a part of the package
# pyright: reportPrivateUsage=false
import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, NoReturn

from command_bus.bus import CommandBus
from command_bus.middleware import around_dispatch
from command_bus.stand_in import OPEN, StandIn
from command_bus.testing.records import Recorder
from command_bus.testing.simulated.live import Process

__all__ = ["Claims"]

_ADVICE = (
    "{bus} was opened before the fixture `command_bus` of this test, so it talks to a real server: nothing is sent. Let what opens it "
    "ask for `command_bus` first, in a fixture of each test (`def client(command_bus): …`), or do without `command_bus` here"
)
_TAKEN = ("_clients", "_send", "_prepare", "middleware")


class Claims:
    """The buses that talk to one server in memory.

    Args:
        stand_in: Is asked when one of them opens.
        layer: Sees what they send.
    """

    def __init__(self, stand_in: StandIn, layer: Recorder) -> None:
        self.buses: list[CommandBus] = []
        self._stand_in: Any = stand_in
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
        before = vars(bus).get("_stand_in")
        bus._stand_in = self._stand_in
        self._undo.callback(setattr, bus, "_stand_in", before)

    def all(self) -> None:
        """Ask for every bus of this process, from now on; refuse those that are open."""
        before = CommandBus._stand_in
        CommandBus._stand_in = self._stand_in
        self._undo.callback(setattr, CommandBus, "_stand_in", before)
        for bus in list(OPEN):
            if bus._clients is None:  # else it lives in this process
                self._refuse(bus)

    def take(self, bus: CommandBus, process: Process) -> None:
        """Let a bus that is about to open talk to our server and be noted."""
        if bus not in self.buses:
            self.buses.append(bus)
            for name in _TAKEN:
                self._undo.callback(setattr, bus, name, getattr(bus, name))
            self._undo.callback(bus._renew)
            self._serve_results(bus)
            bus.middleware = layers = (self._layer, *bus.middleware)
            bus._send = around_dispatch(layers, bus._transmit)
            bus._prepare = around_dispatch(layers, bus._build)
        bus._clients = process

    def _serve_results(self, bus: CommandBus) -> None:
        """Let who waits for a result have workers, as who calls."""
        inside: Any = bus
        ask = bus.result

        async def result(*arguments: Any, timeout: float = 0.0, **options: Any) -> Any:
            work = ask(*arguments, timeout=timeout, **options)
            return await (self._layer.served(work) if timeout > 0 else work)

        inside.result = result
        self._undo.callback(delattr, bus, "result")

    def loop_of(self, bus: CommandBus) -> asyncio.AbstractEventLoop | None:
        """The loop on which a taken bus is open, or None."""
        process: Any = bus._clients
        if not bus.is_open or not isinstance(process, Process):
            return None
        loop = process.loop
        return None if loop is None or loop.is_closed() else loop

    def release(self) -> None:
        """Give all back as they were, closed."""
        self._undo.close()
        self.buses.clear()

    def _refuse(self, bus: CommandBus) -> None:
        transport: Any = bus._transport
        bus._transport = guard = _guard(transport, _ADVICE.format(bus=bus), self._refused.append)

        def give_back() -> None:
            if bus._transport is guard:
                bus._transport = transport

        self._undo.callback(give_back)


class _Guard:
    """Stands before the transport of a bus that must not be used."""

    def __init__(self, transport: Any, why: str, tell: Callable[[str], None]) -> None:
        self.close = transport.close
        self._why = why
        self._tell = tell

    def __getattr__(self, name: str) -> NoReturn:
        self._tell(self._why)
        raise RuntimeError(self._why)


def _guard(transport: Any, why: str, tell: Callable[[str], None]) -> Any:
    return _Guard(transport, why, tell)
