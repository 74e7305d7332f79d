"""Costs of the bus, beside the floor that Redis and Python allow and beside other libraries, measured in one run on this machine.

    python -m benchmarks                          the quick set: about four minutes
    python -m benchmarks --all                    everything: about half an hour
    python -m benchmarks --targets                what the targets compare: about ten minutes
    python -m benchmarks drain call --runs 5      only these groups, or cases with these words in their names
    python -m benchmarks --list                   what there is

Peers are installed into environments of their own under build/peers (pinned, once); --no-peers leaves them out.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.case import Case, chosen
from benchmarks.catalogue import GROUPS, catalogue
from benchmarks.ground import ground
from benchmarks.judging import asked
from benchmarks.peers.environments import EnvironmentFailed, install
from benchmarks.peers.field import PEERS
from benchmarks.report import report
from benchmarks.runner import run
from benchmarks.targets import TARGETS

__all__ = ["main", "plan"]


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help=f"groups ({', '.join(GROUPS)}) or words of names; by default the quick set")
    parser.add_argument("--all", action="store_true", help="everything instead of the quick set")
    parser.add_argument("--targets", action="store_true", help="only what the targets compare")
    parser.add_argument("--list", action="store_true", help="list the cases that were chosen and stop")
    parser.add_argument("--runs", type=int, help="how often each is measured (3; quick set: 2)")
    parser.add_argument("--scale", type=float, help="share of the full counts (1; quick set: 0.5)")
    parser.add_argument(
        "--server",
        default="auto",
        help="redis (redis-server on PATH), embedded (Valkey) or a URL, whose data IS FLUSHED; by default redis if it is there",
    )
    parser.add_argument("--no-peers", action="store_true", help="leave the peers out")
    parser.add_argument("--peers", metavar="NAMES", help="only these peers, as in bullmq,huey")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    given = parser.parse_args(words)
    quick = not (given.all or given.targets or given.cases)
    given.runs = given.runs or (2 if quick else 3)
    given.scale = given.scale or (0.5 if quick else 1.0)
    if given.runs < 1 or not 0 < given.scale <= 1:
        parser.error("--runs is at least 1, --scale above 0 and at most 1")
    given.peers = [] if given.no_peers else given.peers.split(",") if given.peers else [peer.name for peer in PEERS]
    unknown = set(given.peers) - {peer.name for peer in PEERS}
    if unknown:
        parser.error(f"no peer {', '.join(sorted(unknown))}: one of {', '.join(peer.name for peer in PEERS)}")
    return given


def plan(given: argparse.Namespace) -> list[Case]:
    """Return the cases that the command line chooses."""
    cases = chosen(catalogue(), given.cases, quick=not (given.all or given.targets))
    if given.targets:
        wanted = asked(TARGETS, given.peers)
        cases = [case for case in cases if case.name in wanted]
    return [case for case in cases if not case.peer or case.peer in given.peers]


def _installed(cases: list[Case]) -> list[Case]:
    """Return the cases whose peers are there or could be installed."""
    wanted, missing = {case.peer for case in cases if case.peer}, set[str]()
    for peer in PEERS:
        if peer.name in wanted:
            try:
                install(peer)
            except EnvironmentFailed as error:
                sys.stderr.write(f"benchmarks: {peer.name} is left out: {error}\n")
                missing.add(peer.name)
    return [case for case in cases if case.peer not in missing]


def main(words: list[str] | None = None) -> int:
    given = arguments(words)
    cases = plan(given)
    if given.list:
        print("\n".join(f"{case.group:10} {'quick' if case.quick else '':7}{case.name}" for case in cases))
        return 0
    if not cases:
        sys.exit("benchmarks: nothing has this name; see --list")
    cases = _installed(cases)
    with ground(given.server, given.scale) as where:
        results = run(where, cases, given.runs)
    kept = {case.peer for case in cases if case.peer}
    results.peers = {peer.name: peer.language for peer in PEERS if peer.name in kept}
    results.about["peers"] = {peer.name: peer.about() for peer in PEERS if peer.name in kept}
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(results.to_json(), indent=1) + "\n", encoding="utf-8")
    print(report(results))
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
