"""Determinism: replaces the clock, the randomness and the threads of the bus while a simulation runs in virtual time."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from command_bus import clock, randomness
from command_bus.sending.command_ids import new_command_id
from command_bus.testing.simulated.patching import rebind
from command_bus.worker.descriptions import describe_commands
from command_bus.worker.threads import HandlerThreads
from tests.simulation.loop import SimLoop
from tests.simulation.threads import SimThreads

__all__ = ["deterministic"]


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
    before, level = randomness.token, logger.level
    source = randomness._source
    randomness.use_tokens_from(tokens.randbytes)
    randomness.JITTER.seed(f"jitter {seed}")
    SimThreads.random.seed(f"threads {seed}")
    SimThreads.are_late = True
    new_command_id.begin()
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
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
