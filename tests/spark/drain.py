"""A worker process that moves trucks: `python -m tests.spark.drain URL NAMESPACE`. It ends when its standard input closes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from command_bus import HandlerRegistry
from tests.spark.conftest import ROOT
from tests.spark.trucks import Move, Namespace

__all__ = ["draining"]

registry = HandlerRegistry()


@registry.handles(Move)
async def move(command: Move) -> int:
    """Return the number, so that outcomes show the order of execution."""
    return command.seq


@contextmanager
def draining(namespace: Namespace, processes: int) -> Iterator[None]:
    """Run so many worker processes."""
    running = [
        subprocess.Popen([sys.executable, "-m", __name__, namespace.url, namespace.name], cwd=ROOT, stdin=subprocess.PIPE)
        for _ in range(processes)
    ]
    try:
        yield
        assert all(process.poll() is None for process in running), "a worker process ended by itself"
    finally:
        for process in running:
            process.communicate()


def _stop_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


async def serve(namespace: Namespace) -> None:
    async with namespace.bus(registry=registry, concurrency=200) as bus:
        await bus.worker().run()


if __name__ == "__main__":
    threading.Thread(target=_stop_with_parent, name="stop-with-parent", daemon=True).start()
    asyncio.run(serve(Namespace(*sys.argv[1:])))
