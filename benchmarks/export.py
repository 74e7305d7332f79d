"""The speed of an export: `python -m benchmarks.export [--rows N] [--payload BYTES] [--rounds N]`.

Ends are put into the history as workers put them there. Then they are exported in turns, to Parquet and to JSON lines, beside a bare read of the
same pages; medians are printed, and the most memory that the process had.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

from command_bus import CommandBus
from command_bus.embedded import EmbeddedServer
from command_bus.export import Export
from command_bus.serialization.envelope import WireEnvelope, pack_envelope
from command_bus.serialization.msgpack import pack
from command_bus.serialization.outcome import OutcomeRecord
from command_bus.serialization.reply import Completed, pack_reply

_BATCH = 5_000


async def fill(bus: CommandBus, rows: int, payload: int) -> None:
    """Put ends into the history."""
    keys, redis = bus.session.redis.keys.shards[0], bus.session.redis
    text = pack({"text": "x" * payload})
    for start in range(0, rows, _BATCH):

        async def put(client: Any, numbers: range = range(start, min(start + _BATCH, rows))) -> None:
            pipeline = client.pipeline(transaction=False)
            for number in numbers:
                name = f"c-{number}"
                envelope = pack_envelope(WireEnvelope(name, "Pay", "account", f"a-{number % 997}", text)) if payload else None
                reply = pack_reply(name, Completed(pack({"left": number})))
                record = OutcomeRecord(
                    "completed", "Pay", "account", f"a-{number % 997}", 1, "worker-1", 1_795_000_000_000, 1_795_000_000_001, number,
                    f"1-{number}", reply, envelope=envelope,
                )  # fmt: skip
                pipeline.xadd(keys.history, {"i": name, "a": 86_400_000, "n": 10_000_000, "r": record.pack()})
            await pipeline.execute()

        await redis.connections.at(keys.prefix).ask(put)


async def measured(url: str, rows: int, payload: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each case."""
    seconds: dict[str, list[float]] = {}
    async with CommandBus(url, namespace="bench") as bus:
        await fill(bus, rows, payload)
        kept = bus.transport.operator.kept

        async def read(_: str) -> None:
            after, page = "", (await kept.page("history", 0, "", "+", _BATCH))
            while page[0]:
                after = page[0][-1].decode()
                page = await kept.page("history", 0, after, "+", _BATCH)

        async def parquet(folder: str) -> None:
            await Export(bus, folder).run()

        async def jsonl(folder: str) -> None:
            await Export(bus, folder, format="jsonl").run()

        cases: dict[str, Callable[[str], Awaitable[None]]] = {"pages alone": read, "parquet": parquet, "jsonl": jsonl}
        for _ in range(rounds):
            for name, case in cases.items():
                with tempfile.TemporaryDirectory() as folder:
                    began = time.process_time()
                    await case(folder)
                    seconds.setdefault(name, []).append(time.process_time() - began)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--payload", type=int, default=0, help="bytes of a payload that the history keeps")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with EmbeddedServer.start() as server:
        seconds = asyncio.run(measured(server.url, arguments.rows, arguments.payload, arguments.rounds))
    for name, each in seconds.items():
        print(f"{name:12} {arguments.rows / statistics.median(each):>9,.0f} ends a second of one core")
    print(f"memory       {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:>9,.0f} MiB at most")
    return 0


if __name__ == "__main__":
    sys.exit(main())
