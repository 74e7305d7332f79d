"""The plan of a run, for all its processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.chaos.features import kept, policies, vaults

__all__ = ["QUANTUM_TIME", "Plan", "bus_options"]

QUANTUM_TIME = 0.2


@dataclass(frozen=True, slots=True)
class Plan:
    """One run, for all its processes.

    Attributes:
        seed: Of the nemesis and the workload.
        seconds: That faults are injected for; draining comes on top.
        server: `valkey`, `redis`, or a topology.
        durability: `everysec`, `always` or `replicated`.
        faults: Names of the faults.
        rate: Commands a second, of all producers.
        period: Seconds between two faults.
        lease: Of the workers.
        shards: Of the namespace.
        concurrency: Entities that a worker holds at a time.
        threads: For its synchronous handlers.
        folder: For logs and the report.
        ledger: URL of the downstream.
        namespace: Of the bus.
        journeys: Durable commands a second, of all producers, with the feature `durable`.
        features: What is switched on beside plain commands; see `features`.
    """

    seed: int
    seconds: float
    server: str
    durability: str
    faults: tuple[str, ...]
    folder: str
    ledger: str = ""
    namespace: str = "chaos"
    rate: float = 280.0
    period: float = 0.45
    lease: float = 1.5
    shards: int = 4
    concurrency: int = 8
    threads: int = 4
    workers: int = 3
    producers: int = 2
    lines: int = 48
    accounts: int = 12
    late: int = 4
    journeys: float = 1.5
    features: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: str) -> Plan:
        """Read the plan that `write` wrote."""
        values: dict[str, Any] = json.loads(Path(path).read_text())
        return cls(**{**values, "faults": tuple(values["faults"]), "features": tuple(values["features"])})

    def write(self) -> Path:
        """Leave the plan for the processes."""
        path = Path(self.folder) / "plan.json"
        path.write_text(json.dumps(asdict(self)))
        return path

    @property
    def slots(self) -> int:
        """Number of entities that all workers together hold at a time."""
        return self.workers * self.concurrency

    @property
    def quiet(self) -> Path:
        """While this file is there, producers send nothing new."""
        return Path(self.folder) / "quiet"

    @property
    def funds(self) -> dict[str, int]:
        """Initial sums of the accounts."""
        return {f"account:a{number}": 1_000 for number in range(self.accounts)}

    @property
    def vaults(self) -> list[str]:
        """All vaults, which begin with nothing: a move may leave one with less."""
        return [f"vault:{name}" for producer in range(self.producers) for name in vaults(self.features, producer, self.shards)]

    def log(self, kind: str) -> Path:
        """Return the file of the events of a kind of process."""
        return Path(self.folder) / f"{kind}.log"


def bus_options(plan: Plan) -> dict[str, Any]:
    """Return the settings of every bus of the run. Marks outlive the run: the checker reads the outcomes from them."""
    window = plan.seconds * 2 + 600.0
    options: dict[str, Any] = {
        "namespace": plan.namespace,
        "lease": plan.lease,
        "grace": 10.0,
        "dedup_window": window,
        "reply_ttl": window,
        "unknown_grace": 300.0,
        "dispatch_timeout": 5.0,
        "max_total_depth": 8_000,
        "max_depth": 400,
        "shards": plan.shards,
        "concurrency": plan.concurrency,
        "threads": plan.threads,
        "quantum_time": QUANTUM_TIME,
        "entities": policies(plan.features),
        "history": kept(plan.features),
    }
    options["durability"] = {"everysec": "aof"}.get(plan.durability, plan.durability)
    if plan.server == "sentinel":
        options["wait_replicas"] = 2  # all: a failover may choose either
    return options
