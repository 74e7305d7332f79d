"""Two faults that need a cluster: a speculative attempt that loses and writes on after the commit; an executor killed while it writes."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from redis import Redis

from command_bus.spark import dispatch_dataframe
from tests.spark.cluster import Cluster, executors, session
from tests.spark.proofs.claims import Proof
from tests.spark.trucks import Move, Namespace, journeys, until

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["lost_executor", "speculation"]

TRUCKS = 100


def speculation(proof: Proof, cluster: Cluster, namespace: Namespace, *, rows: int) -> None:
    """Let one task's first attempt sleep half-way; its twin on the other host wins; the loser wakes up after the commit."""
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.multiplier": "1.2",
        "spark.python.task.killTimeout": "60s",  # else Spark would end the loser's process before it could do any harm
        "spark.sql.execution.arrow.maxRecordsPerBatch": "200",
    }
    each = rows // TRUCKS
    with session(cluster, "speculation", **settings) as spark:
        report = dispatch_dataframe(
            journeys(spark, TRUCKS, each), None, mapper=sleeper(namespace, each), entity="truck", key=["truck", "seq"],
            order_by="seq", dispatch_id="d", partitions=4, batch_size=100, **namespace.options,
        )  # fmt: skip
        print(f"  {report}")
        with Redis.from_url(namespace.url, decode_responses=True) as client:
            claim_all(proof, namespace, each, "when save() returned")
            proof.claim("an attempt fell asleep", client.exists("asleep"), client.get("asleep"))
            proof.claim("its twin was faster", report.partitions and report.resent > 0, f"{report.resent:,} rows sent again")
            until(lambda: int(client.get("chunks after the commit") or 0) > 0, 60)
            before = -1
            while before != (now := int(client.get("chunks after the commit") or 0)):
                before = now
                time.sleep(1)
            proof.claim(
                "the loser wrote on after the commit", now > 0, f"{now} chunks, {client.get('added after the commit') or 0} added"
            )
        claim_all(proof, namespace, each, "a while later")


def sleeper(namespace: Namespace, each: int) -> Callable[[dict[str, Any]], Move]:
    """Return a mapper whose first attempt of task 0 stops half-way until the dispatch is committed, and counts what is sent then."""
    url, name = namespace.url, namespace.name

    def command_of(row: dict[str, Any]) -> Move:
        from pyspark import TaskContext

        context = TaskContext.get()
        if row["seq"] >= each // 2 and context is not None and (context.partitionId(), context.attemptNumber()) == (0, 0):
            with Redis.from_url(url) as client:
                if client.set("asleep", f"partition 0, attempt 0, process {os.getpid()}", nx=True):
                    deadline = time.monotonic() + 120
                    while not client.hexists(f"{{{name}:0}}:b:d", "done") and time.monotonic() < deadline:
                        time.sleep(0.01)
                    count_sends(url)
        return Move(truck=row["truck"], seq=row["seq"])

    return command_of


def count_sends(url: str) -> None:
    """Count from now on what this process's dispatchers send."""
    from command_bus.spark.writing.partition import PartitionDispatcher

    load: Any = PartitionDispatcher._load

    def counted(self: PartitionDispatcher, *arguments: Any) -> Any:
        before = self.result.added
        answer = load(self, *arguments)
        with Redis.from_url(url) as client:
            client.incrby("added after the commit", self.result.added - before)
            client.incr("chunks after the commit")
        return answer

    patched: Any = PartitionDispatcher
    patched._load = counted


def lost_executor(proof: Proof, cluster: Cluster, namespace: Namespace, *, rows: int) -> None:
    """Kill one of two executors (SIGKILL) when a third of the rows is in mailboxes."""
    each = rows // TRUCKS
    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": "1000"}
    with session(cluster, "lost-executor", **settings) as spark:
        killed: list[tuple[int, int]] = []
        killer = threading.Thread(target=lambda: killed.append(_kill_one(cluster, namespace, rows // 3)))
        killer.start()
        with proof.timed("dispatched"):
            report = dispatch_dataframe(
                journeys(spark, TRUCKS, each, partitions=8), Move, key=["truck", "seq"], order_by="seq", dispatch_id="d",
                partitions=8, **namespace.options,
            )  # fmt: skip
        killer.join()
        print(f"  {report}")
        proof.claim(
            "an executor was killed in mid-write",
            killed,
            *(f"process {pid} when {depth:,} rows had landed" for pid, depth in killed),
        )
        proof.claim("its half-written tasks were sent again", report.resent > 0, f"{report.resent:,} rows")
        claim_all(proof, namespace, each, "when save() returned")


def _kill_one(cluster: Cluster, namespace: Namespace, landed: int) -> tuple[int, int]:
    depth = until(lambda: (now := namespace.depth()) >= landed and now, 300)
    pid = executors(cluster)[0]
    os.kill(pid, signal.SIGKILL)
    return pid, depth


def claim_all(proof: Proof, namespace: Namespace, each: int, when: str) -> None:
    """Check that every row is in its mailbox, once and in order."""
    rows = TRUCKS * each
    landed = namespace.landed()
    proof.claim(
        f"{when}: nothing twice, nothing missing",
        len({one.command_id for one in landed}) == len(landed) == rows,
        f"{len(landed):,}",
    )
    proof.claim(f"{when}: in order", namespace.seqs() == {f"t{truck}": list(range(each)) for truck in range(TRUCKS)})
