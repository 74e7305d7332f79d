"""Hunts all mutants: `python -m tests.mutants`. Ends with 1 if one survives."""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.mutants.breakages import MUTANTS
from tests.mutants.hunt import Verdict, hunt
from tests.mutants.mutant import Mutant


def main() -> int:
    """Hunt."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=600, help="simulated for each at most")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4), help="mutants at a time")
    parser.add_argument("words", nargs="*", help="only those whose name has one of these")
    given = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not given.words or any(word in mutant.name for word in given.words)]
    began = time.monotonic()

    def one(mutant: Mutant) -> Verdict:
        verdict = hunt(mutant, given.seeds)
        print(f"{'dead    ' if verdict.dead else 'SURVIVES'}  {mutant.name}   {verdict.by}"[:170], flush=True)
        return verdict

    with ThreadPoolExecutor(given.jobs) as pool:
        verdicts = list(pool.map(one, chosen))
    living = [verdict for verdict in verdicts if not verdict.dead]
    for verdict in living:
        print(f"\n{verdict.mutant.name} survives:\n{verdict.output[-600:]}")
    print(f"{len(verdicts) - len(living)} of {len(verdicts)} mutants are dead, in {time.monotonic() - began:.0f} s")
    return 1 if living else 0


if __name__ == "__main__":
    sys.exit(main())
