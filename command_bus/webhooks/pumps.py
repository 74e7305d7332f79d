"""`Pumps`: the pumps of one process. Each process tries to get each webhook's lease; those that have none look again now and then."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from command_bus.bus import CommandBus
from command_bus.errors import BusClosed, CommandBusError
from command_bus.randomness import JITTER, token
from command_bus.tasks import end_tasks
from command_bus.webhooks.pump import LEASE, Pump
from command_bus.webhooks.store import WebhookStore

_LOOK: Final = 2.0
"""Seconds between looks for webhooks whose pump has no process."""
_log = logging.getLogger("command_bus.webhooks")


class Pumps:
    """Runs the pumps that this process has the lease of.

    Args:
        bus: It must be open while they run.
        store: Reads and changes webhooks.
        lease: Seconds of a lease.
    """

    def __init__(self, bus: CommandBus, store: WebhookStore, *, lease: float = LEASE) -> None:
        self._bus = bus
        self._store = store
        self._lease = lease
        self._holder = token(6).hex()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look for webhooks."""
        self._looking = asyncio.get_running_loop().create_task(self._look(), name="command_bus.webhooks")

    async def stop(self) -> None:
        """End all pumps, and give up their leases."""
        if self._looking is not None:
            await end_tasks([self._looking])
        names = list(self._running)
        await end_tasks(self._running.values())
        self._running.clear()
        for name in names:
            try:
                await self._pump(name).release()
            except CommandBusError:  # its lease ends by itself
                continue

    async def _look(self) -> None:
        while True:
            try:
                for name in await self._store.all():
                    if name not in self._running:
                        self._running[name] = asyncio.create_task(self._run(name), name=f"command_bus.webhook {name}")
            except BusClosed:
                return
            except CommandBusError as error:
                _log.warning("webhooks cannot be read, trying again: %s", error)
            except Exception:  # noqa: BLE001 - whatever it is, this must go on
                _log.exception("webhooks cannot be read, trying again")
            await asyncio.sleep(min(_LOOK, self._lease / 3) * JITTER.uniform(0.5, 1.0))

    async def _run(self, name: str) -> None:
        try:
            await self._pump(name).run()
        except CommandBusError as error:
            _log.warning("the pump of webhook %s begins again: %s", name, error)
        except Exception:  # noqa: BLE001 - the next look begins it again
            _log.exception("the pump of webhook %s begins again", name)
        finally:
            self._running.pop(name, None)

    def _pump(self, name: str) -> Pump:
        return Pump(self._bus, self._store, name, self._holder, lease=self._lease)
