"""A worker process for fault tests: its handlers write what they do to a log that outlives them, and to a fenced downstream.

Run as `python -m tests.integration.fault_app URL NAMESPACE LOG LEASE CONCURRENCY`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time

import redis.asyncio

from command_bus import Command, CommandBus, CommandContext, EntityId, HandlerRegistry, RetryPolicy

__all__ = ["Apply", "Block", "Once", "build", "downstream_key"]

registry = HandlerRegistry()

_APPLY_FENCED = """
local highest = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '0')
if tonumber(ARGV[2]) < highest then return 0 end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('RPUSH', KEYS[1], ARGV[3])
return 1
"""


class Apply(Command[None], entity="line", retry=RetryPolicy(attempts=50, delay=0.01, max_delay=0.05)):
    line: EntityId
    number: int
    fail: int = 0
    busy: float = 0.0


class Once(Command[None], entity="once", delivery="at_most_once"):
    line: EntityId
    number: int
    busy: float = 0.0


class Block(Command[None], entity="line"):
    line: EntityId
    number: int
    seconds: float


def downstream_key(namespace: str, line: str) -> str:
    return f"downstream:{namespace}:{line}"


class _Recorder:
    """Appends one line per event with one write, so that a SIGKILL leaves whole lines."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def event(self, what: str, line: str, number: int, context: CommandContext) -> None:
        record = {
            "ev": what,
            "line": line,
            "n": number,
            "try": context.attempt,
            "fence": context.fence,
            "pid": os.getpid(),
            "t": time.monotonic(),
        }
        os.write(self._file, json.dumps(record).encode() + b"\n")


def build(url: str, namespace: str, log: str, lease: float) -> CommandBus:
    recorder = _Recorder(log)
    client = redis.asyncio.Redis.from_url(url)
    fenced = client.register_script(_APPLY_FENCED)

    async def run(command: Apply | Once, context: CommandContext) -> None:
        line = str(command.line)
        recorder.event("start", line, command.number, context)
        try:
            if command.busy:
                await asyncio.sleep(command.busy * random.random())
            if isinstance(command, Apply) and context.attempt <= command.fail:
                recorder.event("raise", line, command.number, context)
                raise ValueError("planned")
            await fenced(
                keys=[downstream_key(namespace, line), f"downstream-fence:{namespace}"],
                args=[line, context.fence, command.number],
            )
        except asyncio.CancelledError:
            recorder.event("cancelled", line, command.number, context)
            raise
        recorder.event("end", line, command.number, context)

    @registry.handles(Apply)
    async def apply(command: Apply, context: CommandContext) -> None:
        await run(command, context)

    @registry.handles(Once)
    async def once(command: Once, context: CommandContext) -> None:
        await run(command, context)

    @registry.handles(Block)
    async def block(command: Block, context: CommandContext) -> None:
        recorder.event("start", str(command.line), command.number, context)
        time.sleep(command.seconds)
        recorder.event("end", str(command.line), command.number, context)

    return CommandBus(url, namespace=namespace, registry=registry, lease=lease)


async def main() -> None:
    url, namespace, log, lease, concurrency = sys.argv[1:]
    bus = build(url, namespace, log, float(lease))
    async with bus:
        await bus.worker(concurrency=int(concurrency)).run()


if __name__ == "__main__":
    asyncio.run(main())
