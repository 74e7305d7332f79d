"""`Performed`: what all operations of a durable handler have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from command_bus.clock import mono
from command_bus.durable.run import DurableRun
from command_bus.messages.durable import Durable

__all__ = ["Performed"]


class Performed(ABC):
    """An operation of a durable handler: it is in flight while it is awaited.

    Args:
        run: The run.
    """

    name: str = ""
    """What it is known by in all runs; empty: it only combines others."""

    def __init__(self, run: DurableRun) -> None:
        self.run = run
        self.awaits = 0
        self._in_flight = run.in_flight

    async def perform(self, durable: Durable[Any]) -> Any:
        """See `Operation`."""
        if self.run.suspension is not None or self._in_flight.is_over:
            await self._in_flight.refuse()
        self.run.check()
        self._in_flight.begin()
        self.awaits += 1
        try:
            cut_offs, which = self.run.cut_offs, self.name and f"{self.name}~{self.awaits}"
            await self.run.storing.end()
            await cut_offs.again(which)
            began = mono()
            try:
                return await self.performed(durable)
            except asyncio.CancelledError:
                self.leave()
                if not self._in_flight.is_over:
                    cut_offs.note(which, began)
                raise
        finally:
            self._in_flight.end()

    @abstractmethod
    async def performed(self, durable: Durable[Any]) -> Any:
        """Begin it, wait for it, and return what it came to."""

    def leave(self) -> None:  # noqa: B027 - most take nothing
        """Give back what it has taken: the handler goes on without it. It may be awaited later."""
