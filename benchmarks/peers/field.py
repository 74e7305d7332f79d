"""The peers: what they are, how they run, and what each can say about order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.programs import ROOT

__all__ = ["PEERS", "Peer"]

_REQUIREMENTS = Path(__file__).resolve().parent / "requirements"


@dataclass(frozen=True, slots=True)
class Peer:
    """Another library.

    Attributes:
        name: Its package.
        language: Python or Node.
        settings: How it is run: what its own documentation calls fast.
        order: What it offers for one entity at a time in order.
        quick: Whether it is in the quick set.
        concurrent: Whether one thread of it can have many dispatches under way.
        jobs: How many it drains at scale 1. What Node compiles while it runs needs more of them than what CPython does.
        calls: How many are made of it at scale 1, one in flight; three times as many with 50 in flight.
        package: The package that has its version; by default its name.
        server: The file with what npm installs besides; empty: nothing.
        durable: Whether it is compared with durable handlers, and with nothing else.
    """

    name: str
    language: str
    settings: str
    order: str
    quick: bool = False
    concurrent: bool = False
    jobs: int = 10_000
    calls: int = 1_000
    package: str = ""
    server: str = ""
    durable: bool = False

    @property
    def folder(self) -> Path:
        """The folder of its environment."""
        return ROOT / "build" / "peers" / self.name

    @property
    def requirements(self) -> Path:
        """The requirements of its environment."""
        return _REQUIREMENTS / ("package.json" if self.language == "Node" else f"{self.name}.txt")

    @property
    def server_requirements(self) -> Path | None:
        """The file with what npm installs for a peer in Python; None: nothing."""
        return _REQUIREMENTS / self.server if self.server else None

    def command(self) -> Sequence[str]:
        """Return the command that starts its program, without arguments."""
        if self.language == "Node":
            return ["node", str(ROOT / "benchmarks" / "peers" / "programs" / f"{self.name}.mjs")]
        return [str(self.folder / "bin" / "python"), "-m", f"benchmarks.peers.programs.{self.name}_peer"]

    def about(self) -> dict[str, str]:
        """Describe it for the JSON."""
        return {"version": self.version(), "language": self.language, "settings": self.settings, "order": self.order}

    def version(self) -> str:
        """Return the pinned version."""
        text = self.requirements.read_text(encoding="utf-8")
        if self.language == "Node":
            return text.partition(f'"{self.name}": "')[2].partition('"')[0]
        return text.partition(f"{self.package or self.name}==")[2].split(maxsplit=1)[0]


PEERS = (
    Peer(
        "bullmq",
        "Node",
        "concurrency 100, addBulk, removeOnComplete",
        "none (groups are in the Pro edition)",
        quick=True,
        concurrent=True,
        jobs=100_000,
        calls=5_000,
    ),
    Peer("dramatiq", "Python", "one process, 32 threads, no results when draining", "none", quick=True, calls=500),
    Peer(
        "faststream",
        "Python",
        "a stream with a group, 10 workers, types not validated, uvloop, replies by pub/sub",
        "none",
        quick=True,
        concurrent=True,
    ),
    Peer(
        "taskiq",
        "Python",
        "RedisStreamBroker, 100 at a time, msgpack, uvloop, no results when draining",
        "none",
        quick=True,
        concurrent=True,
    ),
    Peer("arq", "Python", "max_jobs 100, no results when draining, uvloop", "none", concurrent=True),
    Peer("streaq", "Python", "concurrency 100, uvloop, results expire at once when draining", "none", concurrent=True, calls=100),
    Peer("huey", "Python", "4 threads, blocking reads, no results when draining", "none", quick=True),
    Peer(
        "restate",
        "Python",
        "its server with its defaults, a virtual object on Hypercorn with uvloop, HTTP/2 between them",
        "exclusive handlers of a virtual object, per key",
        package="restate-sdk",
        server="restate.json",
        durable=True,
    ),
    Peer(
        "dbos",
        "Python",
        "workflows beside their caller in one process, SQLite or Postgres 15 with defaults",
        "none",
        durable=True,
        calls=300,
    ),
    Peer("celery", "Python", "threads pool of 8, prefetch 100, no results when draining", "none"),
)
"""Who is measured."""
