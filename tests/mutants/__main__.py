"""Hunts the mutants of the list, then those that mutmut makes: `python -m tests.mutants`. Ends with 1 if one of the list survives."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.mutants import pure
from tests.mutants.breakages import MUTANTS
from tests.mutants.hunt import Verdict, hunt
from tests.mutants.mutant import Mutant


def main() -> int:
    """Hunt."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=600, help="simulated for each at most")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4), help="mutants at a time")
    parser.add_argument("--pure", action="store_true", help="only those that mutmut makes of the pure modules")
    parser.add_argument("words", nargs="*", help="only those of the list whose name has one of these")
    given = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not given.words or any(word in mutant.name for word in given.words)]
    missed = 0 if given.pure else hunt_all(chosen, given.seeds, given.jobs)
    if given.words:
        return missed
    if not pure.is_installed():
        print("mutmut is not installed, so the pure modules are not mutated: `make mutants` installs it")
        return missed or int(given.pure)
    return pure.mutate(given.jobs) or missed


def hunt_all(chosen: list[Mutant], seeds: int, jobs: int) -> int:
    """Hunt these mutants; return 1 if one survives."""
    began = time.monotonic()

    def one(mutant: Mutant) -> Verdict:
        verdict = hunt(mutant, seeds)
        print(f"{'dead    ' if verdict.dead else 'SURVIVES'}  {mutant.name}   {verdict.by}"[:170], flush=True)
        return verdict

    with ThreadPoolExecutor(jobs) as pool:
        verdicts = list(pool.map(one, chosen))
    living = [verdict for verdict in verdicts if not verdict.dead]
    for verdict in living:
        print(f"\n{verdict.mutant.name} survives:\n{verdict.output[-600:]}")
    print(f"{len(verdicts) - len(living)} of {len(verdicts)} mutants are dead, in {time.monotonic() - began:.0f} s")
    return 1 if living else 0


if __name__ == "__main__":
    sys.exit(main())
