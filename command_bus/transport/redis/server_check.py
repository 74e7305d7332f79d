"""Check whether a server suits: read what it is, and judge it by the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from command_bus.errors import UnsuitableServer
from command_bus.settings import BusSettings
from command_bus.transport.redis.connection.connections import Connections

READ_ONLY = "{} is a read-only replica: connect to its primary"
_OLDEST = (6, 2)
_BLMPOP = (7, 0)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts from INFO and CONFIG; None where the server gives none (a user without INFO, fakeredis).

    Attributes:
        name: `redis` or `valkey`.
        version: Release of Redis that the server is compatible with.
        eviction: The maxmemory policy.
        append_only: Whether append-only files are on.
        disposable: Whether it is the development server of this library, which keeps nothing on purpose.
        role: `master` or `slave`.
        cluster: Whether it is a node of a cluster.
        as_cluster: Whether the URL says that it is a node of a cluster.
        sentinel: Whether it is a Sentinel.
        fsync: When the append-only file is written to disk.
        replicas: How many replicas it has.
    """

    name: str = "redis"
    version: tuple[int, ...] | None = None
    eviction: str | None = None
    append_only: bool | None = None
    disposable: bool = False
    role: str | None = None
    cluster: bool = False
    as_cluster: bool = False
    sentinel: bool = False
    fsync: str | None = None
    replicas: int | None = None

    @property
    def has_blmpop(self) -> bool:
        """Whether the server has BLMPOP."""
        return self.version is not None and self.version >= _BLMPOP


async def inspect_server(connections: Connections) -> ServerFacts:
    """Read the facts of a server.

    Raises:
        TransportUnavailable: It cannot be reached.
        UnsuitableServer: It refuses the user.
    """

    async def info(client: Redis) -> dict[str, Any]:
        await client.ping()
        try:
            return dict(await client.info())
        except NoPermissionError:
            return {}
        except ResponseError as error:
            if "unknown command" in str(error).lower():
                return {}
            raise

    answer: dict[str, Any] = await connections.ask(info)
    if not answer:
        return ServerFacts()
    fsync = await _fsync(connections)
    mode = answer.get("redis_mode") or answer.get("server_mode")  # Valkey's name for it
    version = tuple(int(part) for part in str(answer.get("redis_version", "0")).split(".")[:3] if part.isdecimal())
    return ServerFacts(
        name=str(answer.get("server_name", "redis")),
        version=version,
        eviction=answer.get("maxmemory_policy"),
        append_only=bool(answer.get("aof_enabled")),
        disposable="/command_bus-" in str(answer.get("config_file", "")),
        role=answer.get("role"),
        cluster=mode == "cluster",
        as_cluster=getattr(connections.factory, "cluster", False),
        fsync=fsync,
        replicas=answer.get("connected_slaves"),
        sentinel=mode == "sentinel",
    )


async def _fsync(connections: Connections) -> str | None:
    async def read(client: Redis) -> Any:
        try:
            return await client.config_get("appendfsync")
        except ResponseError:  # not permitted, or renamed
            return {}

    found: dict[str, str] = await connections.ask(read)
    return found.get("appendfsync")


def judge(facts: ServerFacts, label: str, settings: BusSettings) -> list[str]:
    """Return warnings about a server that may be used.

    Raises:
        UnsuitableServer: It may not be used.
    """
    if facts.sentinel:
        raise UnsuitableServer(
            f"{label} is a Sentinel, not a Redis server: write redis+sentinel://host:port/NAME with the name of the primary that it watches"
        )
    if facts.cluster and not facts.as_cluster:
        raise UnsuitableServer(f"{label} is a node of a Redis Cluster: write redis+cluster:// instead of redis://")
    if facts.role == "slave":
        raise UnsuitableServer(READ_ONLY.format(label))
    if facts.version is not None and facts.version < _OLDEST:
        shown = ".".join(map(str, facts.version))
        raise UnsuitableServer(f"{label} is Redis {shown}: this library needs 6.2 or newer, or Valkey")
    if facts.eviction is not None and facts.eviction.startswith("allkeys") and not settings.allow_eviction:
        raise UnsuitableServer(
            f"{label} has maxmemory-policy {facts.eviction}, which deletes queued commands when memory is short: "
            "set it to noeviction (CONFIG SET maxmemory-policy noeviction), or pass allow_eviction=True if commands may be lost"
        )
    warnings = []
    if facts.eviction is not None and facts.eviction.startswith("volatile"):
        warnings.append(
            f"{label} has maxmemory-policy {facts.eviction}: when memory is short it forgets command ids and replies that wait to be read, "
            "so that a repeated command may run twice; set it to noeviction"
        )
    warnings += _durability(facts, label, settings)
    if facts.append_only is False and not facts.disposable and settings.durability == "server":
        warnings.append(
            f"{label} keeps no append-only file: queued commands that were accepted are lost with the server "
            "(and an at_most_once command may start twice); set appendonly yes"
        )
    return warnings


def _durability(facts: ServerFacts, label: str, settings: BusSettings) -> list[str]:
    """Return warnings about what the settings ask of the server's durability.

    Raises:
        UnsuitableServer: It has not got it.
    """
    wanted = settings.durability
    if wanted in ("aof", "always", "replicated") and facts.append_only is False:
        raise UnsuitableServer(
            f"{label} keeps no append-only file, which durability = {wanted!r} needs: set appendonly yes (CONFIG SET appendonly yes)"
        )
    if wanted == "always" and facts.fsync not in (None, "always"):
        raise UnsuitableServer(
            f"{label} has appendfsync {facts.fsync}, durability = 'always' needs appendfsync always (CONFIG SET appendfsync always)"
        )
    if wanted == "always" and facts.fsync is None:
        return [
            f"{label} does not report appendfsync (CONFIG GET is not permitted): see that it is always, as durability = 'always' asks"
        ]
    if wanted == "replicated" and facts.replicas is not None and facts.replicas < settings.wait_replicas:
        text = f"{label} has {facts.replicas} replicas, {settings.wait_replicas} must confirm (wait_replicas): till then dispatch raises "
        return [text + "Unconfirmed and no at_most_once command starts"]
    return []
