"""The command line: each proof prints figures and claims, and fails if one does not hold."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from command_bus.embedded import EmbeddedServer
from tests.spark.cluster import HOST, Cluster
from tests.spark.proofs.claims import Proof
from tests.spark.trucks import Namespace

TWO_HOSTS = (HOST, "127.0.0.2")


def main() -> int:
    arguments = parse()
    if arguments.proof == "all":
        commands = [
            [sys.executable, "-m", __package__ or "", name]
            for name in ("connect", "ship", "order", "batches", "speculation", "lost-executor", "million", "effects")
        ]
        return max(subprocess.run(command, check=False).returncode for command in commands)
    proof = Proof()
    with tempfile.TemporaryDirectory(prefix="proof-") as text, EmbeddedServer.start(tcp=True) as server:
        folder, namespace = Path(text), Namespace(server.url)
        print(f"{arguments.proof}:", flush=True)
        with proof.timed("in all"):
            run(proof, arguments, folder, namespace)
    print(f"{arguments.proof}: {'FAILED: ' + '; '.join(proof.failed) if proof.failed else 'proved'}", flush=True)
    return 1 if proof.failed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.proofs", description=__doc__)
    proofs = parser.add_subparsers(dest="proof", required=True)
    proofs.add_parser("all", help="all of the below, one after the other: about a quarter of an hour")
    million = proofs.add_parser("million", help="a million rows through two standalone workers, drained and reconciled")
    million.add_argument("--rows", type=int, default=1_000_000)
    million.add_argument("--entities", type=int, default=100_000)
    million.add_argument("--workers", type=int, default=2, help="processes of ours that apply the commands")
    effects = proofs.add_parser("effects", help="rows to a PostgreSQL by the inbox, workers killed, reconciled with its table")
    effects.add_argument("--rows", type=int, default=200_000)
    effects.add_argument("--entities", type=int, default=20_000)
    speculation = proofs.add_parser(
        "speculation", help="the losing attempt of a task writes on after the commit, and adds nothing"
    )
    speculation.add_argument("--rows", type=int, default=20_000)
    lost = proofs.add_parser("lost-executor", help="an executor is killed in mid-write")
    lost.add_argument("--rows", type=int, default=300_000)
    ship = proofs.add_parser("ship", help="the ways in which the library travels to executors that have not got it")
    ship.add_argument("ways", nargs="*", help="some of zip, wheel, installed, archive, value; default: all")
    order = proofs.add_parser(
        "order", help="joins on the entity and skew, adaptive or not: every mailbox in order, and what handlers saw"
    )
    order.add_argument("--rows", type=int, default=200_000)
    proofs.add_parser("batches", help="streams with empty micro-batches, and with a checkpoint that is restored")
    proofs.add_parser("connect", help="the same API through Spark Connect")
    return parser.parse_args()


def run(proof: Proof, arguments: argparse.Namespace, folder: Path, namespace: Namespace) -> None:
    match arguments.proof:
        case "million":
            from tests.spark.proofs.million import prove

            with Cluster(folder) as cluster:
                prove(proof, cluster, namespace, rows=arguments.rows, entities=arguments.entities, workers=arguments.workers)
        case "effects":
            from tests.spark.proofs import effects

            with Cluster(folder) as cluster:
                effects.prove(proof, cluster, namespace, folder, rows=arguments.rows, entities=arguments.entities)
        case "speculation":
            from tests.spark.proofs.faults import speculation

            with Cluster(folder, TWO_HOSTS) as cluster:
                speculation(proof, cluster, namespace, rows=arguments.rows)
        case "lost-executor":
            from tests.spark.proofs.faults import lost_executor

            with Cluster(folder) as cluster:
                lost_executor(proof, cluster, namespace, rows=arguments.rows)
        case "order":
            from tests.spark.proofs.order import order

            with Cluster(folder) as cluster:
                order(proof, cluster, namespace, rows=arguments.rows)
        case "batches":
            from tests.spark.proofs.batches import batches

            with Cluster(folder, (HOST,)) as cluster:
                batches(proof, cluster, namespace, folder)
        case "ship":
            from tests.spark.proofs.ship import ship

            with Cluster(folder, (HOST,)) as cluster:
                ship(proof, cluster, namespace, arguments.ways)
        case _:
            from tests.spark.proofs.connect import connect

            connect(proof, folder, namespace)


if __name__ == "__main__":
    sys.exit(main())
