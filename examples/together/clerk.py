"""A worker: takes orders, tells three subscriptions, moves money, paints. `python -m examples.together.clerk CONCURRENCY`.

What a subscription does is a line in a file, written at once: the proof counts them.
"""

from __future__ import annotations

import os
import struct
import zlib
from hashlib import sha256
from pathlib import Path

from pydantic import Field

from command_bus import BusSettings, Command, CommandBus, CommandContext, EntityId, Event, HandlerRegistry, RawEvent, RetryPolicy
from examples.flights.worker import main
from examples.together.bank import FILE, Transfer, move

__all__ = ["ACROSS", "OUT", "STUCK", "Frame", "Paint", "Place", "Placed", "painted", "picture", "registry_for"]

OUT = "TOGETHER_OUT"
"""The variable with the folder for what is written."""
STUCK = "c-7"
"""The customer whose invoices fail until somebody has repaired his address."""
ACROSS, _SIDE, _DEPTH = 8, 32, 200
_PATIENT = RetryPolicy(attempts=1_000, delay=0.05, max_delay=0.2)


class Placed(Event, entity="customer", name="order.placed"):
    customer: EntityId
    number: int


class Place(Command[None], entity="customer", retry=_PATIENT):
    customer: EntityId
    number: int


class Paint(Command[bytes], entity="tile", retry=_PATIENT):
    tile: EntityId
    number: int


class Frame(Command[str], entity="sheet", retry=_PATIENT):
    sheet: EntityId
    tiles: list[bytes] = Field(default_factory=list[bytes])


def registry_for(folder: Path) -> HandlerRegistry:
    """Return the handlers, which write into a folder."""
    registry = HandlerRegistry()

    def note(context: CommandContext, customer: object, number: int) -> None:
        line = f"{customer} {number} {context.event_id}\n"
        descriptor = os.open(folder / context.subscription, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(descriptor, line.encode())
        os.close(descriptor)

    @registry.handles(Place)
    async def place(command: Place, context: CommandContext) -> None:
        context.publish(Placed(customer=command.customer, number=command.number))

    @registry.subscribes("stock", Placed, retry=_PATIENT)
    async def take(event: Placed, context: CommandContext) -> None:
        note(context, event.customer, event.number)

    @registry.subscribes(
        "invoice", Placed, on_poison="park", retry=RetryPolicy(attempts=50, delay=0.01, give_up_on=(LookupError,))
    )
    async def invoice(event: Placed, context: CommandContext) -> None:
        if event.customer == STUCK and not (folder / "repaired").exists():
            raise LookupError(f"{STUCK} has no address")
        note(context, event.customer, event.number)

    @registry.subscribes("mail", "order.*", retry=_PATIENT)
    async def mail(event: RawEvent, context: CommandContext) -> None:
        note(context, event.entity_id(), event.fields["number"])

    @registry.handles(Transfer)
    def transfer(command: Transfer, context: CommandContext) -> None:
        move(folder / FILE, command, context)

    registry.handles(Paint, runs_in="process")(paint)

    @registry.handles(Frame)
    def frame(command: Frame) -> str:
        sheet = picture(command.tiles)
        (folder / f"{command.sheet}.png").write_bytes(sheet)
        return sha256(sheet).hexdigest()

    return registry


def paint(command: Paint) -> bytes:
    """Paint a tile, in a process of its own."""
    return painted(command.number)


def painted(number: int) -> bytes:
    """Return a tile of the Mandelbrot set, a byte for each of its points."""
    row, column = divmod(number, ACROSS)
    whole, points = ACROSS * _SIDE, bytearray()
    for y in range(row * _SIDE, (row + 1) * _SIDE):
        for x in range(column * _SIDE, (column + 1) * _SIDE):
            start, z, steps = complex(3 * x / whole - 2.2, 3 * y / whole - 1.5), 0j, 0
            while abs(z) < 2 and steps < _DEPTH:
                z, steps = z * z + start, steps + 1
            points.append(255 - 255 * steps // _DEPTH)
    return bytes(points)


def picture(tiles: list[bytes]) -> bytes:
    """Return a PNG of all tiles."""
    whole, lines = ACROSS * _SIDE, bytearray()
    for y in range(whole):
        lines.append(0)
        for column in range(ACROSS):
            at = y % _SIDE * _SIDE
            lines += tiles[y // _SIDE * ACROSS + column][at : at + _SIDE]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", whole, whole, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(lines))) + chunk(b"IEND", b"")


async def serve(concurrency: int) -> None:
    """Run a worker until SIGTERM."""
    async with CommandBus(settings=BusSettings(), registry=registry_for(Path(os.environ[OUT]))) as bus:
        await bus.worker(concurrency=concurrency).run()


if __name__ == "__main__":
    main(serve)
