"""Three servers and three Sentinels that watch the primary among them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Self

from tests.topologies.node import HOST, Node, free_ports, until

__all__ = ["SentinelServers"]

SERVICE = "bus"


class SentinelServers:
    """A primary with two replicas.

    Args:
        folder: For their data.
        down_after: Milliseconds of silence after which a Sentinel takes a server for dead.
        failover_timeout: Milliseconds; a second failover waits for twice as long.
        binary: Of the servers; by default `redis-server` from PATH.
    """

    def __init__(self, folder: Path, *, down_after: int = 2000, failover_timeout: int = 4000, binary: Path | None = None) -> None:
        server = binary or Path(shutil.which("redis-server") or "redis-server")
        ports = free_ports(6)
        common = {
            "appendonly": "yes",
            "repl-diskless-sync-delay": 0,
            "min-replicas-max-lag": 2,
            "repl-timeout": 5,
            "repl-ping-replica-period": 1,
        }
        self.nodes = [
            Node(server, port, folder / f"node{index}", {**common, **({"replicaof": f"{HOST} {ports[0]}"} if index else {})})
            for index, port in enumerate(ports[:3])
        ]
        watch = {
            f"sentinel monitor {SERVICE}": f"{HOST} {ports[0]} 2",
            f"sentinel down-after-milliseconds {SERVICE}": down_after,
            f"sentinel failover-timeout {SERVICE}": failover_timeout,
        }
        self.sentinels = [
            Node(server, port, folder / f"sentinel{index}", watch, sentinel=True) for index, port in enumerate(ports[3:])
        ]

    @property
    def url(self) -> str:
        """For a bus."""
        return f"redis+sentinel://{','.join(f'{HOST}:{each.port}' for each in self.sentinels)}/{SERVICE}"

    def start(self) -> Self:
        """Start all of them, and wait until replicas and Sentinels know each other."""
        for node in [*self.nodes, *self.sentinels]:
            node.start()
        self.settled()
        until(lambda: all(self._sees(each) for each in self.sentinels), "Sentinels that know each other")
        return self

    @staticmethod
    def _sees(sentinel: Node) -> bool:
        answer = sentinel.ask("SENTINEL", "MASTER", SERVICE)
        facts = dict(zip(answer[::2], answer[1::2], strict=True))
        return int(facts[b"num-other-sentinels"]) == 2 and int(facts[b"num-slaves"]) == 2

    def primary(self) -> Node:
        """Return the server that the Sentinels name."""
        _, port = next(each for each in self.sentinels if each.alive).ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(node for node in self.nodes if node.port == int(port))

    def kill_primary(self) -> Node:
        """SIGKILL; which it was."""
        victim = self.primary()
        victim.kill()
        return victim

    def freeze_primary(self) -> Node:
        """SIGSTOP; which it was."""
        victim = self.primary()
        victim.freeze()
        return victim

    def failover(self) -> None:
        """Ask for another primary, without any fault."""
        before = self.primary()
        self.sentinels[0].ask("SENTINEL", "FAILOVER", SERVICE)
        until(lambda: self.primary() is not before, "another primary")
        self.settled()

    def failed_over(self, before: Node, seconds: float = 60.0) -> None:
        """Wait until another server than that is the primary."""
        until(
            lambda: self.primary() is not before and self.primary().info("replication")["role"] == "master", "a failover", seconds
        )

    def revive(self) -> None:
        """Start what is dead, and wait until all replicas follow again."""
        for node in self.nodes:
            if not node.alive:
                node.start()
        self.settled()

    def settled(self) -> None:
        """Wait until two replicas follow the primary."""
        until(self._followed, "replicas that follow", 60)

    def _followed(self) -> bool:
        facts = self.primary().info("replication")
        followers = [facts.get(f"slave{index}", {}) for index in range(2)]
        return facts["role"] == "master" and all(each.get("state") == "online" for each in followers)

    def stop(self) -> None:
        """End all; idempotent."""
        for node in [*self.sentinels, *self.nodes]:
            node.stop()
