"""Seeds that are always the same, and the proof that a seed is one run and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.selection import quick
from tests.simulation.simulation import Shape, Simulation, run

pytestmark = pytest.mark.timeout(180)  # the processor has to do all of it; a busy machine takes its time

ROOT = Path(__file__).resolve().parents[2]
DIGESTS = "from tests.simulation.simulation import run; print([run(seed).digest for seed in {0}])"
FAULTS = {
    "kill", "pause", "block", "partition", "connections dropped", "clock jump", "script flush", "server restart", "deploy",
    "lost request", "lost reply", "delay", "slow reply", "cut off",
}  # fmt: skip

ONCE_RED = {
    70225: "a worker woke while it readied what a command of a run sends: the command was settled without that",
    3002897: "a lease was taken over 0.07 s after a start under it: the clock had jumped",
    3002803: "the end was called stuck while a journey waited, in its worker, for what waited for a clock that had gone back",
    3001135: "a command was told to be limited after it was superseded: the clock had gone back",
}
"""Seeds that were red, with what was wrong; one for each kind that no table can hold as well."""


@pytest.mark.promise("Snoozes keep the place")
@pytest.mark.parametrize("first", quick(range(1, 361, 20), [1]))
def test_fixed_seeds_keep_every_promise(first: int) -> None:
    seen: set[str] = set()
    for seed in range(first, first + 20):
        done = run(seed)
        assert not done.broken, f"python -m tests.simulation --seed {seed} --seeds 1"
        seen |= done.faults.keys()
    assert seen >= FAULTS  # so that the seeds are worth something


@pytest.mark.parametrize("seed", ONCE_RED)
def test_a_seed_that_was_red_keeps_every_promise(seed: int) -> None:
    assert not run(seed).broken, ONCE_RED[seed]


@pytest.mark.slow
def test_a_larger_fleet_keeps_every_promise() -> None:
    for seed in range(1, 21):
        done = run(seed, Shape(commands=80, faults=30, seconds=8.0, producers=3, workers=4, entities=8))
        assert not done.broken, seed


def test_without_faults_every_command_starts_as_often_as_planned() -> None:
    done = run(3, Shape(faults=0))
    assert not done.broken
    assert not done.faults
    assert done.history is not None
    assert not done.history.claims


def test_what_is_due_at_once_or_while_no_worker_is_up_keeps_its_order() -> None:
    def due(simulation: Simulation) -> None:
        simulation.scripted_load = "due"

    for seed in range(1, 7):
        done = run(seed, Shape(commands=4, faults=0), prepare=due)
        assert not done.broken, seed
        assert done.started > 30


@pytest.mark.parametrize("last", quick([2, 12], [2]))
@pytest.mark.slow
def test_a_seed_is_the_same_run_in_any_process(last: int) -> None:
    """Whatever the hashes of strings, the addresses of objects and what ran before."""
    told, seeds = set(), [*range(1, last + 1)]
    for salt in ("0", "12345"):
        done = subprocess.run(
            [sys.executable, "-c", DIGESTS.format(seeds)],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": salt}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        told.add(done.stdout)
    run(77)
    told.add(f"{[run(seed).digest for seed in seeds]}\n")
    assert len(told) == 1
    assert run(1).digest != run(2).digest


def test_a_killed_process_runs_nothing_any_more() -> None:
    """Neither what it was at, nor its clean-up."""
    told: list[str] = []

    def kill_the_first(simulation: Simulation) -> None:
        async def never_ends() -> None:
            try:
                await simulation.loop.create_future()
            finally:
                told.append("cleaned up")

        process = simulation.process("victim")
        process.spawn(never_ends())
        simulation.loop.call_later(1.0, process.kill)
        simulation.loop.call_later(2.0, process.call, told.append, "called")
        simulation.loop.call_later(3.0, lambda: told.append("alive"))

    assert not run(5, Shape(commands=6, faults=0), prepare=kill_the_first).broken
    assert told[0] == "alive"
    assert "called" not in told
