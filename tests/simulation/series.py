"""Many seeds, on several cores. A module of its own, because the processes of the pool import it by name."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

from tests.simulation.simulation import Run, Shape, run

__all__ = ["BITE", "runs_of"]

BITE = 25


def _bite(work: tuple[int, int, Shape]) -> list[Run]:
    first, count, shape = work
    runs = []
    for seed in range(first, first + count):
        done = run(seed, shape)
        if not done.broken:
            done.history = None
        runs.append(done)
    for done in runs:
        if done.history is not None:
            for process in done.history.processes:
                process.strip()
    return runs


def runs_of(first: int, count: int, shape: Shape, jobs: int) -> Iterator[Run]:
    bites = [(at, min(BITE, first + count - at), shape) for at in range(first, first + count, BITE)]
    if jobs == 1:
        for bite in bites:
            yield from _bite(bite)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for runs in pool.imap(_bite, bites):
            yield from runs
