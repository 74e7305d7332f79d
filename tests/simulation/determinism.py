"""Determinism: replaces the clock, the randomness and the threads of the bus while a simulation runs in virtual time."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from command_bus import clock, randomness
from command_bus.sending.options import new_command_id
from command_bus.testing.clock import rebind
from command_bus.worker.threads import HandlerThreads
from command_bus.worker.worker_bus import describe_commands
from tests.simulation.loop import SimLoop
from tests.simulation.threads import SimThreads

__all__ = ["deterministic"]


class Unexpected(logging.Handler):
    """Takes what the periodic parts of a worker log of errors that no server and no network explains, as errors of the run.

    Args:
        loop: Where they are kept.
    """

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(logging.WARNING)
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        if record.exc_info and "trying again" in str(record.msg):
            self._loop.errors.append({"message": record.getMessage(), "exception": record.exc_info[1]})


@contextmanager
def deterministic(seed: int, loop: SimLoop) -> Iterator[None]:
    """Give the package virtual time and seeded randomness inside the `with` block."""
    tokens = Random(f"tokens {seed}")
    logger = logging.getLogger("command_bus")
    undo = [
        rebind("mono", time.monotonic, loop.time),
        rebind("wall_ms", clock.wall_ms, lambda: int((loop.time() + 1_700_000_000) * 1000)),
        rebind("HandlerThreads", HandlerThreads, SimThreads),
        rebind("describe_commands", describe_commands, _descriptions),
    ]
    before, level, propagates = randomness.token, logger.level, logger.propagate
    unexpected = Unexpected(loop)
    source = randomness._source
    randomness.use_tokens_from(tokens.randbytes)
    randomness.JITTER.seed(f"jitter {seed}")
    SimThreads.random.seed(f"threads {seed}")
    SimThreads.are_late = True
    new_command_id.begin()
    logger.addHandler(unexpected)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(unexpected)
        logger.setLevel(level)
        logger.propagate = propagates
        randomness.use_tokens_from(source)
        randomness.JITTER.seed()
        new_command_id.begin()
        for restore in undo:
            restore()
    assert before is randomness.token


_describe = describe_commands


_known: dict[int, dict[str, bytes]] = {}


def _descriptions(registry: Any, settings: Any) -> dict[str, bytes]:
    """Return the worker's descriptions from a cache: they are the same for every start."""
    if id(registry) not in _known:
        _known[id(registry)] = _describe(registry, settings)
    return _known[id(registry)]
