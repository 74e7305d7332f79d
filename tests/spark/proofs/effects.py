"""From a row of a DataFrame to a row of a database: workers write effects to PostgreSQL by the inbox, and are killed all the while."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812
from sqlalchemy import Engine, create_engine, select

from command_bus.spark import dispatch_dataframe, reconcile
from command_bus.sql import metadata
from scripts.postgres import postgres, programs
from tests.spark import posting
from tests.spark.cluster import Cluster, session
from tests.spark.conftest import ROOT
from tests.spark.proofs.claims import Proof
from tests.spark.trucks import Move, Namespace, journeys

__all__ = ["prove"]

REFUSED = 3


def prove(proof: Proof, cluster: Cluster, namespace: Namespace, folder: Path, *, rows: int, entities: int) -> None:
    found = programs()
    if found is None:
        raise SystemExit("this proof needs a PostgreSQL: pip install 'command-bus[dev]', or apt install postgresql")
    with postgres(found) as database, session(cluster, "effects") as spark:
        engine = create_engine(database)
        metadata.create_all(engine)
        posting.metadata.create_all(engine)
        heavy = F.when((F.col("seq") == 1) & F.col("truck").isin("t0", "t1", "t2"), 100.0).otherwise(F.col("load"))
        frame = journeys(spark, entities, rows // entities, partitions=8).withColumn("load", heavy)
        with killed(namespace, database, 2) as kills:
            report = dispatch_dataframe(
                frame, Move, key=["truck", "seq"], order_by="seq", dispatch_id="effects", outcomes="1 day", **namespace.options
            )
            print(f"  {report}")
            with proof.timed("settled, and reconciled by outcomes alone"):
                reconcile(report, timeout=rows / 500 + 60)
        proof.figure("workers killed", len(kills))
        effects = copied(engine, folder / "effects.csv")
        with proof.timed("reconciled with effects"):
            ledger = reconcile(report, effects=spark.read.csv(str(effects), schema="command_id string"))
        print(ledger)
        counts = {name: count for name, count in ledger.counts.items() if count}
        done = rows - REFUSED
        proof.claim("each row has one effect", ledger.ok and counts == {"completed": done, "rejected": REFUSED, "effects": done})
        plant = [
            "DELETE FROM effect WHERE truck = 't5' AND seq = 0",
            "INSERT INTO effect SELECT * FROM effect WHERE seq = 1 AND truck = 't6'",
        ]
        with engine.begin() as connection:
            for statement in plant:
                connection.exec_driver_sql(statement)
        wrong = reconcile(report, effects=spark.read.csv(str(copied(engine, folder / "wrong.csv")), schema="command_id string"))
        proof.claim(
            "a lost effect and a double one are found",
            [wrong.frame(name).select("order_by").first()[0] for name in ("effect_missing", "effect_twice")] == [0, 1],
            wrong.verdict,
        )


def copied(engine: Engine, path: Path) -> Path:
    """Write the ids of all effects to a file, as a job that exports a table does."""
    with engine.connect() as connection:
        ids = connection.execute(select(posting.EFFECT.c.command_id)).scalars()
        path.write_text("".join(f"{each}\n" for each in ids), encoding="utf-8")
    return path


@contextmanager
def killed(namespace: Namespace, database: str, processes: int) -> Iterator[list[int]]:
    """Run so many worker processes, and kill and replace one of them every ten seconds or so."""
    command = [sys.executable, "-m", "tests.spark.posting", namespace.url, namespace.name, database]
    running = [subprocess.Popen(command, cwd=ROOT) for _ in range(processes)]
    kills, ends, chance = list[int](), threading.Event(), random.Random(1)

    def kill() -> None:
        while not ends.wait(chance.uniform(5.0, 15.0)):
            at = chance.randrange(processes)
            if running[at].poll() is not None:
                return  # by itself: the rows will not settle in time, and its error is printed
            running[at].kill()
            kills.append(running[at].wait())
            running[at] = subprocess.Popen(command, cwd=ROOT)

    killer = threading.Thread(target=kill, name="killer")
    killer.start()
    try:
        yield kills
    finally:
        ends.set()
        killer.join()
        for process in running:
            process.kill()
            process.wait()
