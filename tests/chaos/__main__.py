"""The command line: injects faults into a real bus for a while, and reports a verdict on the recorded history.

`plan` describes a run, `run` executes it: `fleet` starts the processes (`worker_app`, `producer_app`), each behind a `proxy`;
`nemesis` chooses `faults` and plays `scripted_loads`; `journeys` are durable commands (`journey_load` sends them, `journey_app` runs them);
`ledger` is the downstream; `survey` looks at what is left. All of it is recorded as a
`history`, of which `checker` (the `…_rules`, and `excuses`) decides what was broken, `recovery` measures how long things took, and
`report` tells it.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import signal
import sys
import time
from pathlib import Path

from tests.chaos import servers
from tests.chaos.checker import check
from tests.chaos.features import FEATURES
from tests.chaos.nemesis import FAMILIES
from tests.chaos.plan import Plan
from tests.chaos.report import Report
from tests.chaos.run import run


def main() -> int:
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # says where it is, if it seems to hang
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clears away, as Ctrl-C does
    arguments = parse()
    folder = Path(arguments.out) if arguments.out else Path("/tmp") / f"chaos-{arguments.server}-{arguments.seed}"
    plan = Plan(
        seed=arguments.seed,
        seconds=arguments.seconds,
        server=arguments.server,
        durability=arguments.durability,
        faults=FAMILIES if arguments.faults == "all" else tuple(arguments.faults.split(",")),
        folder=str(folder.resolve()),
        rate=arguments.rate,
        period=arguments.period,
        lease=arguments.lease,
        shards=arguments.shards,
        workers=arguments.workers,
        features=tuple(filter(None, arguments.features.split(","))),
    )
    beside = f", with {','.join(plan.features)}" if plan.features else ""
    print(
        f"chaos: seed {plan.seed}, {plan.seconds:.0f} s on {plan.server}, {plan.durability}, {','.join(plan.faults)}{beside}",
        flush=True,
    )
    history, missing = asyncio.run(run(plan))
    began = time.monotonic()
    report = Report(plan, history, check(history), missing)
    report.write(folder)
    print(report.text(), flush=True)
    print(f"chaos: checked and drawn in {time.monotonic() - began:.1f} s, report in {folder}/report.html", flush=True)
    return 1 if report.violations else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600.0, help="that faults are injected for; draining comes on top")
    parser.add_argument("--server", default="valkey", choices=servers.NAMES)
    parser.add_argument(
        "--durability", choices=["everysec", "always", "replicated"], help="by default everysec; of several servers replicated"
    )
    parser.add_argument(
        "--faults", default="all", help=f"all, or some of {','.join(FAMILIES)}; `power` needs --durability always"
    )
    parser.add_argument("--out", help="folder for the logs and the report; by default one below /tmp")
    parser.add_argument("--rate", type=float, default=280.0, help="commands a second")
    parser.add_argument("--period", type=float, default=0.45, help="seconds between two faults, on average")
    parser.add_argument("--lease", type=float, default=1.5)
    parser.add_argument("--shards", type=int, help="of the namespace; by default 4, of a cluster 6")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument(
        "--with", dest="features", default="", help=f"what is switched on beside plain commands, some of {','.join(FEATURES)}"
    )
    arguments = parser.parse_args()
    arguments.durability = arguments.durability or ("replicated" if arguments.server in ("sentinel", "cluster") else "everysec")
    arguments.shards = arguments.shards or (6 if arguments.server == "cluster" else 4)
    unknown = set(filter(None, arguments.features.split(","))) - {*FEATURES}
    if unknown:
        parser.error(f"no such features: {', '.join(sorted(unknown))}; there are {', '.join(FEATURES)}")
    unknown = set(arguments.faults.split(",")) - {"all", *FAMILIES}
    if unknown:
        parser.error(f"no such faults: {', '.join(sorted(unknown))}; there are {', '.join(FAMILIES)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
