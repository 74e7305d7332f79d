"""Buses of other services, as the settings name them. Reached as `bus.services`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Generic, TypeVar

from command_bus.session import OnSession, Session
from command_bus.settings import BusSettings

B = TypeVar("B")


class Services(OnSession, Generic[B]):
    """Other services: each has a bus, which is opened when it is first asked for, and closed with this one. Implements `SessionPart`.

    Args:
        session: The one of this bus; its settings name them in `services`.
        make: Makes a bus with these settings, which is not open.
    """

    def __init__(self, session: Session, make: Callable[[BusSettings], AbstractAsyncContextManager[B]]) -> None:
        super().__init__(session)
        self._make = make
        self._buses: dict[str, B] = {}
        self.renew()
        session.attach(self)

    async def get(self, name: str) -> B:
        """Return the open bus of a service: `await bus.services.get("warehouse")`. It has the cipher, keys and middleware of this one.

        Raises:
            BusClosed: This bus is not open.
            CommandBusError: As `CommandBus.open`, of the other bus; asking again tries again.
            UnknownService: No such service is configured.
        """
        settings = self._session.settings.service(name)
        async with self._opening:
            self._session.transport  # noqa: B018 - checks that this bus is open
            if name not in self._buses:
                self._buses[name] = await self._open.enter_async_context(self._make(settings))
            return self._buses[name]

    async def close(self) -> None:
        """Close them. The session does."""
        self._buses.clear()
        await self._open.aclose()

    def renew(self) -> None:
        """Forget them: their loop has ended, or they were closed. The session does."""
        self._buses.clear()
        self._open, self._opening = AsyncExitStack(), asyncio.Lock()
