"""Several servers on this machine's loopback, started and killed by tests: a primary behind Sentinels, and a Redis Cluster."""

from __future__ import annotations

from tests.topologies.cluster import ClusterServers
from tests.topologies.node import Node, free_ports
from tests.topologies.sentinel import SentinelServers

__all__ = ["ClusterServers", "Node", "SentinelServers", "free_ports"]
