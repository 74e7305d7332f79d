"""`examine`: read the facts by which a server and a namespace are diagnosed. Changes nothing; leaves out what is not permitted."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

from command_bus.clock import mono
from command_bus.transport.redis.connection.clients import clients_of
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.credentials import with_tls_hint
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.scripts import MAILBOX_HEADS

_CONFIG = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "timeout", "stream-node-max-bytes", "maxclients")


@dataclass(slots=True)
class Examination:
    """Findings; None or empty where there is none.

    Attributes:
        label: The server, without password.
        round_trip: Seconds of one request, the quickest of three.
        skew: Seconds by which the server's clock is ahead of this one.
        skew_within: Margin of error of `skew`.
        info: As INFO gives it.
        config: As CONFIG GET gives it.
        user: As ACL WHOAMI gives it.
        denied: Requests that were tried and that this user may not send.
        scripts: Why scripts cannot be loaded and run; None if they can.
        meta: The namespace's record; empty if there is none.
        as_cluster: Whether the URL says that it is a cluster.
    """

    label: str
    round_trip: float = 0.0
    skew: float = 0.0
    skew_within: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    denied: list[str] = field(default_factory=list)
    scripts: str | None = None
    meta: dict[str, str] = field(default_factory=dict)
    as_cluster: bool = False


async def examine(url: str, namespace: str, options: dict[str, Any], patience: float) -> Examination:
    """Ask the server that has the namespace's first shard.

    Raises:
        TransportUnavailable: It cannot be reached within `patience` seconds.
        CommandBusError: It refuses the user.
    """
    connections = Connections(clients_of(url, options))
    shard = KeySpace(namespace, 1).shards[0]
    server = connections.at(shard.prefix)
    found = Examination(connections.label, as_cluster=getattr(connections.factory, "cluster", False))
    try:
        async with with_tls_hint(url):
            await server.retry_until(lambda: server.ask(lambda client: client.ping()), mono() + patience)
        await server.ask(_clock, found)
        found.info = await server.ask(_tried, "INFO", found, lambda client: client.info()) or {}
        for name in _CONFIG:
            found.config |= await server.ask(_tried, "CONFIG GET", found, lambda client, name=name: client.config_get(name)) or {}
        user = await server.ask(_tried, "ACL WHOAMI", found, lambda client: client.acl_whoami())
        found.user = user.decode() if isinstance(user, bytes) else user
        meta = await server.ask(_tried, "HGETALL of the namespace", found, lambda client: client.hgetall(shard.meta)) or {}
        found.meta = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in meta.items()}
        found.scripts = await server.ask(_scripts, shard.mailbox("~:doctor"))
    finally:
        await connections.close()
    return found


async def _clock(client: Redis, found: Examination) -> None:
    best = float("inf")
    for _ in range(3):
        began, wall = mono(), time.time()
        seconds, micros = await client.time()
        took = mono() - began
        if took < best:
            best = took
            found.round_trip, found.skew_within = took, took / 2
            found.skew = seconds + micros / 1e6 - (wall + took / 2)


async def _tried(client: Redis, what: str, found: Examination, request: Any) -> Any:
    """Return the answer; None if it is not permitted, or the server has no such command."""
    try:
        return await request(client)
    except NoPermissionError:
        if what not in found.denied:
            found.denied.append(what)
    except ResponseError as error:
        if "unknown" not in str(error).lower() and "disabled" not in str(error).lower():
            raise
    return None


async def _scripts(client: Redis, key: str) -> str | None:
    """Return why scripts do not run; None if they do. The script that is tried reads the length of a mailbox that no command has."""
    try:
        try:
            await client.evalsha(MAILBOX_HEADS.sha, 1, key)
        except NoScriptError:
            await client.script_load(MAILBOX_HEADS.text)
            await client.evalsha(MAILBOX_HEADS.sha, 1, key)
    except ResponseError as error:
        return str(error)
    return None
