"""The cost and the gain of compression, without a server: `python -m benchmarks.compression`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from command_bus.serialization.envelope import WireEnvelope, pack_envelope, unpack_envelope
from command_bus.serialization.msgpack import pack

__all__ = ["Cost", "costs", "records"]

SIZES = (1_000, 10_000, 100_000)
_SEED = 7
_RUNS = 5


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of an envelope, and microseconds for packing and for reading it, best of five.

    Attributes:
        payload: Bytes of its payload.
        plain: Bytes of the envelope without compression.
        smaller: Bytes with it.
        packing: Microseconds more for packing with it.
        reading: Microseconds more for reading with it.
    """

    payload: int
    plain: int
    smaller: int
    packing: float
    reading: float


def records(size: int) -> dict[str, Any]:
    """Return fields like those of an order: lines with names, numbers and random ids, of so many bytes when packed."""
    chance = random.Random(_SEED)
    lines: list[dict[str, Any]] = []
    packed = 0
    while packed < size:
        line = {
            "article_id": f"{chance.getrandbits(64):016x}",
            "title": f"article {chance.choice(['red', 'green', 'blue', 'white'])} {chance.randrange(1000)}",
            "pieces": chance.randrange(100),
            "price": round(chance.random() * 100, 2),
            "currency": "EUR",
            "in_stock": chance.random() < 0.9,
        }
        lines.append(line)
        packed += len(pack(line))
    return {"order_id": "o-1", "lines": lines}


def costs(rounds: int = 200) -> list[Cost]:
    """Measure payloads of each size."""
    return [_cost(pack(records(size)), rounds) for size in SIZES]


def _cost(payload: bytes, rounds: int) -> Cost:
    plain, smaller = (WireEnvelope("c-1", "Order", "order", "o-1", payload, compressed=each) for each in (False, True))
    packed, compressed = pack_envelope(plain), pack_envelope(smaller)
    return Cost(
        len(payload),
        len(packed),
        len(compressed),
        _micros(lambda: pack_envelope(smaller), rounds) - _micros(lambda: pack_envelope(plain), rounds),
        _micros(lambda: unpack_envelope(compressed), rounds) - _micros(lambda: unpack_envelope(packed), rounds),
    )


def _micros(work: Callable[[], object], rounds: int) -> float:
    """Return the microseconds of one round, best of five runs."""
    took: list[float] = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        for _ in range(rounds):
            work()
        took.append(time.perf_counter() - began)
    return min(took) / rounds * 1e6


def main() -> None:
    """Print a table."""
    print(f"{'payload':>10} {'plain':>10} {'compressed':>10} {'packing':>12} {'reading':>12}")
    for cost in costs():
        sizes = f"{cost.payload:>8,} B {cost.plain:>8,} B {cost.smaller:>8,} B"
        print(f"{sizes} {cost.packing:>9,.0f} µs {cost.reading:>9,.0f} µs")


if __name__ == "__main__":
    main()
