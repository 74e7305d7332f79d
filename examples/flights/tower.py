"""The dashboard at the end of a run (`--dashboard`): pages over the bus that the run filled, for as long as somebody looks.

A run that came out right leaves nothing to look into. So a few aircraft follow that need somebody: one with a wrong time, one that is
held, one whose command no worker knows. The state that the run was compared by is not touched.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress

from rich.console import Console

from command_bus import CommandBus, InvalidSettings, every
from command_bus.dashboard import dashboard, hash_password, passwords
from command_bus.integrations.serving import serve_until_stopped
from examples.flights.commands import Arrive, Depart

__all__ = ["PORT", "leave_trouble", "watch_from_tower"]

PORT = 8089
_NOON = 23_000_000  # minutes since the epoch: a day of September 2013
_ROUTE = ("EWR", "IAH", "LGA", "ATL", "JFK", "MIA")


async def watch_from_tower(bus: CommandBus, console: Console) -> None:
    """Serve the dashboard on this machine, with a password for this time only, until Ctrl-C."""
    await leave_trouble(bus)
    password = secrets.token_urlsafe(9)
    app = dashboard(bus, users=passwords({"demo": (hash_password(password), "admin")}), title="flights")

    def tell(address: str) -> None:
        console.print(f"Dashboard: {address}  user: demo  password: {password}  (Ctrl-C ends it)", soft_wrap=True)

    try:
        await serve_until_stopped(app, "127.0.0.1", PORT, tell, extra="dashboard")
    except InvalidSettings:  # somebody else has the port
        await serve_until_stopped(app, "127.0.0.1", 0, tell, extra="dashboard")
    await _forget_interrupt()


async def leave_trouble(bus: CommandBus) -> None:
    """Send what keeps an operator busy: see the head of this module."""
    await bus.events.watch()
    for number in range(12):
        here, there = _ROUTE[number % 6], _ROUTE[(number + 1) % 6]
        tail = f"DEMO-{number:02}"
        await bus.dispatch(Depart(tail=tail, seq=1, airport=here, ts=_NOON + number, delay=number), history="1 hour")
        await bus.dispatch(
            Arrive(tail=tail, seq=2, airport=there, ts=_NOON + 200, delay=0, minutes=180, distance=1400), history="1 hour"
        )
    await bus.entity("aircraft", "DEMO-HELD").pause("a tyre is being changed")
    await bus.dispatch(Depart(tail="DEMO-HELD", seq=1, airport="JFK", ts=_NOON, delay=35))
    await bus.dispatch(Depart(tail="DEMO-LATER", seq=1, airport="LGA", ts=_NOON, delay=0), delay=3600)
    await bus.dispatch_raw("aircraft", "DEMO-NEW", "flights.inspect", {"tail": "DEMO-NEW", "engine": 2})
    wrong = {"tail": "DEMO-WRONG", "seq": 1, "airport": "EWR", "ts": "at noon", "delay": 0}
    await bus.dispatch_raw("aircraft", "DEMO-WRONG", "flights.depart", wrong)
    await bus.schedules.put("shuttle", Depart(tail="DEMO-SHUTTLE", seq=1, airport="LGA", ts=_NOON, delay=0), every(3600))


async def _forget_interrupt() -> None:
    """Take the Ctrl-C that ended the dashboard as its end, and not as an interruption of what follows.

    The server passes the signal on when it has stopped; asyncio cancels this task for it, which takes effect here.
    """
    task = asyncio.current_task()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task is not None and task.cancelling():
        task.uncancel()
