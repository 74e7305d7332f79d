"""Runs seeds: `python -m tests.simulation --seeds 20000`. A seed that fails is printed with what broke, and replays exactly.

python -m tests.simulation --seed 4711 --seeds 1      one seed, with the timeline of what is wrong
python -m tests.simulation --first                    stop at the first that fails
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

from tests.simulation.series import BITE, runs_of
from tests.simulation.simulation import Run, Shape


def _explain(done: Run) -> None:
    print(f"\nseed {done.seed} (digest {done.digest}) breaks:", flush=True)
    entities = []
    for invariant, entity, text in done.broken:
        print(f"  {invariant}: {entity + ': ' if entity else ''}{text}")
        name = entity.removeprefix("item:")
        if name and name not in entities:
            entities.append(name)
    if done.history is not None:
        for entity in entities[:1]:
            print(f"  the timeline of {entity}:")
            print("\n".join(f"    {line}" for line in done.history.timeline(entity)))
    print(f"  replay: python -m tests.simulation --seed {done.seed} --seeds 1", flush=True)


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=2000, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8), help="processes that simulate")
    parser.add_argument("--commands", type=int, default=30, help="of a seed")
    parser.add_argument("--faults", type=int, default=10, help="of a seed, on average; lost messages are not counted")
    parser.add_argument("--producers", type=int, default=2, help="simulated processes that send")
    parser.add_argument("--workers", type=int, default=2, help="simulated processes that work")
    parser.add_argument("--entities", type=int, default=3)
    parser.add_argument("--first", action="store_true", help="stop at the first seed that fails")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    shape = Shape(given.commands, given.faults, 5.0, given.producers, given.workers, given.entities)
    began = time.monotonic()
    faults: Counter[str] = Counter()
    figures: Counter[str] = Counter()
    broken: list[int] = []
    virtual = 0.0
    for done in runs_of(given.seed, given.seeds, shape, 1 if given.seeds <= BITE else given.jobs):
        faults.update(done.faults)
        figures.update(seeds=1, commands=done.sent, starts=done.started, requests=done.requests, callbacks=done.callbacks)
        virtual += done.virtual
        if done.broken:
            broken.append(done.seed)
            _explain(done)
            if given.first:
                break
    seconds = time.monotonic() - began
    print(
        f"{figures['seeds']} seeds in {seconds:.1f} s ({figures['seeds'] / seconds:.0f}/s): {figures['commands']} commands, "
        f"{figures['starts']} starts, {virtual / 3600:.1f} simulated hours, {sum(faults.values())} faults"
    )
    print("  " + ", ".join(f"{name} {count}" for name, count in faults.most_common()))
    print(f"verdict: {'clean' if not broken else f'{len(broken)} seeds fail: {broken[:20]}'}", flush=True)
    if given.json is not None:
        told = {**figures, "faults": dict(faults), "simulated_hours": virtual / 3600, "seconds": seconds, "failed": broken}
        given.json.write_text(json.dumps(told, indent=2), encoding="utf-8")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
