"""The desk, a process of its own: a person who approves orders, and a web server that hears of payments.

`python -m examples.checkout.desk 0`. It has no handlers. All that it does is send signals to commands that wait.
"""

from __future__ import annotations

import asyncio
import json

from command_bus import BusSettings, CommandBus, UnknownCommand
from examples.checkout.books import checkout_books
from examples.checkout.orders import APPROVAL
from examples.checkout.service import DESK_PORT, given
from examples.flights.worker import main
from examples.synchroniser.books import Books

__all__ = ["HABITS"]

HABITS = ("in time", "in time", "late", "in time", "twice", "declined", "never")
"""The acts of the person, order by order."""
_LOOKS_EACH = 0.2


class _Person:
    """Approves what was asked for. Asked twice, because a worker was killed, the person answers once."""

    def __init__(self, bus: CommandBus, books: Books) -> None:
        self._bus = bus
        self._books = books
        self._seen: set[str] = set()

    async def work(self) -> None:
        """Look at what was asked for, again and again."""
        async with asyncio.TaskGroup() as answers:
            while True:
                for order, command_id in self._books.rows("SELECT order_id, command_id FROM asked"):
                    if order not in self._seen:
                        self._seen.add(order)
                        answers.create_task(self._answer(order, command_id, HABITS[len(self._seen) % len(HABITS)]))
                await asyncio.sleep(_LOOKS_EACH)

    async def _answer(self, order: str, command_id: str, habit: str) -> None:
        if habit == "never":
            self._books.note("answered", order, habit)
            return
        await asyncio.sleep(APPROVAL + 2.0 if habit == "late" else 0.5)
        for _ in range(2 if habit == "twice" else 1):
            try:
                await self._bus.commands.signal(command_id, "approved", habit != "declined")
            except UnknownCommand:  # it has ended
                self._books.note("answered", order, f"{habit}, the order had ended")
            else:
                self._books.note("answered", order, habit)


class _Events:
    """Hears of payments. The provider tells the same twice: the event's id is the signal's, so one is taken."""

    def __init__(self, bus: CommandBus, books: Books) -> None:
        self._bus = bus
        self._books = books

    async def hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            event = json.loads(await reader.readexactly(length))
            await self._signal(event)
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the provider asks again
        finally:
            writer.close()

    async def _signal(self, event: dict[str, str]) -> None:
        command_id = event["reference"]
        try:
            taken = await self._bus.commands.signal(command_id, "paid", event["charge"], signal_id=event["event"])
        except UnknownCommand:
            self._books.note("answered", command_id, "paid, the order had ended")
        else:
            self._books.note("answered", command_id, "paid" if taken else "paid, told again")


async def serve(_concurrency: int) -> None:
    """Work until SIGTERM."""
    books = checkout_books()
    async with CommandBus(settings=BusSettings()) as bus:
        events = await asyncio.start_server(_Events(bus, books).hear, "127.0.0.1", int(given(DESK_PORT)))
        async with events:
            await _Person(bus, books).work()


if __name__ == "__main__":
    main(serve)
