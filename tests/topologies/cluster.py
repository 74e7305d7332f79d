"""A Redis Cluster of three primaries with a replica each."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from redis import RedisError
from redis.crc import key_slot

from tests.topologies.node import HOST, Node, free_ports, until

__all__ = ["ClusterServers"]


class ClusterServers:
    """Six nodes.

    Args:
        folder: For their data.
        node_timeout: Milliseconds of silence after which a node is taken for dead.
        binary: Of the servers; by default `redis-server` from PATH.
    """

    def __init__(self, folder: Path, *, node_timeout: int = 2000, binary: Path | None = None) -> None:
        server = binary or Path(shutil.which("redis-server") or "redis-server")
        common = {
            "appendonly": "yes",
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": node_timeout,
            "cluster-require-full-coverage": "no",
            "cluster-replica-validity-factor": 0,
            "repl-diskless-sync-delay": 0,
            "repl-ping-replica-period": 1,
        }
        self.nodes = [Node(server, port, folder / f"node{index}", common) for index, port in enumerate(free_ports(6))]

    @property
    def url(self) -> str:
        """For a bus: two of the nodes, the others are found."""
        return f"redis+cluster://{','.join(f'{HOST}:{node.port}' for node in self.nodes[:2])}"

    def start(self) -> Self:
        """Start the nodes and make them a cluster."""
        for node in self.nodes:
            node.start()
        places = [f"{HOST}:{node.port}" for node in self.nodes]
        create = ["redis-cli", "--cluster", "create", *places, "--cluster-replicas", "1", "--cluster-yes"]
        subprocess.run(create, check=True, capture_output=True, timeout=60)
        self.settled()
        return self

    def primaries(self) -> list[Node]:
        """Return the nodes that have slots, as one that lives tells it."""
        return list(dict.fromkeys(self._at(int(answer[2][1])) for answer in self._slots()))

    def primary_of(self, key: str) -> Node:
        """Return the node that has a key."""
        slot = key_slot(key.encode())
        return next(self._at(int(answer[2][1])) for answer in self._slots() if answer[0] <= slot <= answer[1])

    def _slots(self) -> list[Any]:
        def ask() -> Any:
            for node in self.nodes:
                with suppress(RedisError, OSError):  # dead, or frozen
                    return node.ask("CLUSTER", "SLOTS")
            return None

        found: list[Any] = until(ask, "a node that answers")
        return found

    def _at(self, port: int) -> Node:
        return next(node for node in self.nodes if node.port == port)

    def kill_primary(self, key: str = "") -> Node:
        """SIGKILL the primary of a key, by default of the first slots; which it was."""
        victim = self.primary_of(key) if key else self.primaries()[0]
        victim.kill()
        return victim

    def freeze_primary(self, key: str = "") -> Node:
        """SIGSTOP; which it was."""
        victim = self.primary_of(key) if key else self.primaries()[0]
        victim.freeze()
        return victim

    def failed_over(self, before: Node, seconds: float = 60.0) -> None:
        """Wait until that node is no primary in anybody's eyes, and all slots are served."""
        others = [node for node in self.nodes if node is not before and node.alive]

        def done() -> bool:
            return all(int(answer[2][1]) != before.port for node in others for answer in node.ask("CLUSTER", "SLOTS")) and all(
                b"cluster_slots_ok:16384" in node.ask("CLUSTER", "INFO") for node in others
            )

        until(done, "a failover", seconds)

    def move_slot(self, key: str) -> tuple[Node, Node]:
        """Move the slot of a key, with all keys in it, to another primary: from where, and where to."""
        slot, source = key_slot(key.encode()), self.primary_of(key)
        target = next(node for node in self.primaries() if node is not source)
        here, there = source.ask("CLUSTER", "MYID"), target.ask("CLUSTER", "MYID")
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", here)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", there)
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 20):
            source.ask("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys)
        for node in (target, source, *(each for each in self.primaries() if each not in (target, source))):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", there)
        return source, target

    def revive(self) -> None:
        """Start what is dead, and wait until each primary has a replica again."""
        for node in self.nodes:
            if not node.alive:
                node.start()
        self.settled()

    def settled(self) -> None:
        """Wait until all slots are served and three replicas follow."""
        until(self._whole, "a whole cluster", 60)

    def _whole(self) -> bool:
        """Return whether all nodes see the same primaries, and each of them has a replica that follows."""
        views = [node.ask("CLUSTER", "SLOTS") for node in self.nodes]
        primaries = [{int(answer[2][1]) for answer in view} for view in views]
        if any(each != primaries[0] for each in primaries):
            return False
        roles = [node.info("replication") for node in self.nodes]
        followed = {facts["master_port"] for facts in roles if facts["role"] == "slave" and facts["master_link_status"] == "up"}
        return followed == primaries[0] and all(b"cluster_state:ok" in node.ask("CLUSTER", "INFO") for node in self.nodes)

    def stop(self) -> None:
        """End all; idempotent."""
        for node in self.nodes:
            node.stop()
