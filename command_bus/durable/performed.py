"""`Performed`: what all operations of a durable handler have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from command_bus.clock import mono
from command_bus.durable.run import DurableRun
from command_bus.messages.durable import Durable


class Performed(ABC):
    """An `Operation` of a durable handler: it is in flight while it is awaited.

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
        run, in_flight = self.run, self._in_flight
        if run.suspension is not None or in_flight.is_over:
            await in_flight.refuse()
            run.check()
        task = in_flight.begin()
        self.awaits += 1
        try:
            cut_offs = run.cut_offs
            if run.storing.tasks:
                await run.storing.end()
            if cut_offs.are_stored:
                await cut_offs.again(self._which())
            began = mono()
            try:
                return await self.performed(durable)
            except asyncio.CancelledError:
                self.leave()
                if not in_flight.is_over:
                    cut_offs.note(self._which(), began)
                raise
        finally:
            in_flight.end(task)

    def _which(self) -> str:
        """Return its name and which of its awaits this is; empty for one that combines others."""
        return self.name and f"{self.name}~{self.awaits}"

    @abstractmethod
    async def performed(self, durable: Durable[Any]) -> Any:
        """Begin it, wait for it, and return what it came to."""

    def leave(self) -> None:  # noqa: B027 - most take nothing
        """Give back what it has taken: the handler goes on without it. It may be awaited later."""
