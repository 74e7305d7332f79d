"""What is asked of a server before anything is entrusted to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from command_bus.clock import mono
from command_bus.errors import InvalidCommand, InvalidSettings, TooManyEntityTypes, TransportUnavailable, UnsuitableServer
from command_bus.messages.message import check_entity_type
from command_bus.messages.policies import EntityPolicy, Mailbox, PerEntity, mailbox_from_text
from command_bus.settings import BusSettings
from command_bus.transport.redis.admin.type_records import MAILBOXES
from command_bus.transport.redis.connection.clients import FollowingClients, clients_of
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import is_of_a_replica
from command_bus.transport.redis.connection.tls_probe import telling_tls
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.ready_stream import ensure_ready

__all__ = ["Namespace", "ServerFacts", "inspect_server", "judge", "open_namespace", "recorded_choices"]

PROTOCOL = 1
"""Version of keys and scripts. A client of another version is refused: see "Upgrading" in the docs."""

_log = logging.getLogger("command_bus")
_warned: set[str] = set()
_OWN_FIELDS = frozenset({"protocol", "shards"})
_OLDEST = (6, 2)
_BITES = (7, 0)
_REPLICA = "{} is a read-only replica: connect to its primary"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server says of itself; None where it does not say (a user without INFO, fakeredis).

    Attributes:
        name: `redis` or `valkey`.
        version: As the server compares itself with Redis.
        eviction: The maxmemory policy.
        append_only: Whether append-only files are on.
        disposable: Whether it is the development server of this library, which forgets on purpose.
        role: `master` or `slave`.
        cluster: Whether it is a node of a cluster.
        as_cluster: Whether the URL says so.
        sentinel: Whether it is a Sentinel.
        fsync: When the append-only file is written to disk.
        replicas: How many follow it.
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
    def bites(self) -> bool:
        """Whether BLMPOP exists."""
        return self.version is not None and self.version >= _BITES


async def inspect_server(connections: Connections) -> ServerFacts:
    """Ask the server what it is.

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
    """Warnings about a server that may be used.

    Raises:
        UnsuitableServer: It may not.
    """
    if facts.sentinel:
        raise UnsuitableServer(
            f"{label} is a Sentinel, not a Redis server: write redis+sentinel://host:port/NAME with the name of the primary that it watches"
        )
    if facts.cluster and not facts.as_cluster:
        raise UnsuitableServer(f"{label} is a node of a Redis Cluster: write redis+cluster:// instead of redis://")
    if facts.role == "slave":
        raise UnsuitableServer(_REPLICA.format(label))
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
    """Warnings about what the settings ask of the server's durability.

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
            f"{label} does not tell appendfsync (CONFIG GET is not permitted): see that it is always, as durability = 'always' asks"
        ]
    if wanted == "replicated" and facts.replicas is not None and facts.replicas < settings.wait_replicas:
        text = f"{label} has {facts.replicas} replicas, {settings.wait_replicas} must confirm (wait_replicas): till then dispatch raises "
        return [text + "Unconfirmed and no at_most_once command starts"]
    return []


class Namespace:
    """What the clients of a namespace must agree on, recorded in Redis by the first of them.

    Raises:
        InvalidSettings: From its methods, if this client disagrees.
    """

    def __init__(self, connections: Connections, keys: KeySpace, settings: BusSettings) -> None:
        self._connections = connections.at(keys.shards[0].prefix)
        self._settings = settings
        self._key = keys.shards[0].meta
        self._agreed: dict[str, Mailbox] = {}
        self._recorded: dict[str, Mailbox] = {}
        self._agreeing = asyncio.Lock()
        self._in_line = 0

    async def open(self) -> None:
        """Record or compare the protocol version and the shard count."""
        recorded = await self._record({"protocol": str(PROTOCOL), "shards": str(self._settings.shards)})
        if recorded["protocol"] != str(PROTOCOL):
            raise InvalidSettings(
                f"namespace {self._settings.namespace!r} was created with protocol {recorded['protocol']}, this library speaks {PROTOCOL}: "
                "drain it with the version that created it, or use another namespace"
            )
        if recorded["shards"] != str(self._settings.shards):
            raise InvalidSettings(
                f"namespace {self._settings.namespace!r} has {recorded['shards']} shards, these settings say {self._settings.shards}: "
                "all its clients must agree; the count changes only when the namespace is drained and its keys are deleted"
            )
        if self._settings.entities:
            await self._agree(*self._settings.entities)

    def agreed(self, entity_type: str) -> Mailbox | None:
        """The mailbox policy of an entity type, if it was agreed on before; None while others wait for one, so as not to overtake them."""
        return None if self._in_line else self._agreed.get(entity_type)

    def recorded(self, entity_type: str) -> Mailbox | None:
        """The mailbox policy that the namespace recorded for an entity type, if this process knows it."""
        return self._agreed.get(entity_type) or self._recorded.get(entity_type)

    async def learn(self, entity_type: str) -> None:
        """Read the mailbox policy of an entity type, whatever these settings say; one that is not recorded (yet) stays unknown.

        Raises:
            CommandBusError: The server cannot be asked, or the policy is of a newer version.
        """
        field = [f"mailbox:{entity_type}"]
        (found,) = await self._connections.ask(lambda client: client.hmget(self._key, field))  # no role may HGET here
        if found is not None:
            self._recorded[entity_type] = mailbox_from_text(found.decode())

    async def agree(self, entity_type: str, deadline: float = 0.0) -> Mailbox:
        """Record or compare the mailbox policy of an entity type, once, or again and again until a monotonic deadline.

        Whoever asks meanwhile waits behind: what is dispatched first must not be overtaken because its agreement was lost on the way.
        """
        self._in_line += 1
        try:
            async with (  # a burst of first commands asks once, and goes on in its order: the lock is first in, first out
                asyncio.timeout(max(deadline - mono(), 0.001) if deadline else None),
                self._agreeing,
            ):
                if (agreed := self._agreed.get(entity_type)) is not None:
                    return agreed
                if not deadline:
                    return await self._agree(entity_type)
                return await self._connections.insist(lambda: self._agree(entity_type), deadline)
        except TimeoutError as error:
            raise TransportUnavailable(f"no answer from {self._connections.label} in time") from error
        finally:
            self._in_line -= 1

    def forget(self, entity_type: str) -> None:
        """Agree on this type again before its next command."""
        self._agreed.pop(entity_type, None)

    async def _agree(self, *entity_types: str) -> Mailbox:
        """Record or compare the mailbox policies of entity types, all of them with one question; gives the last one's."""
        mine = {each: self._settings.entity(each).mailbox for each in entity_types}
        recorded = await self._record({f"mailbox:{each}": str(mailbox) for each, mailbox in mine.items()})
        for each, mailbox in mine.items():
            theirs = mailbox_from_text(recorded[f"mailbox:{each}"])
            if theirs != mailbox:
                raise InvalidSettings(
                    f"entity type {each!r} has mailboxes {theirs} in namespace {self._settings.namespace!r}, these settings say {mailbox}: "
                    "all its clients must agree, or two of them would run one entity's commands at once. If nobody uses it as recorded, "
                    f"`command-bus types forget {each}` takes that back"
                )
        self._agreed |= mine
        return mine[entity_types[-1]]

    async def _refuse_too_many(self, new: int) -> None:
        """Refuse further entity types in a namespace that has as many as it may have.

        Counted are the fields of the record, which is one look at their number: a type that was paused before its first command counts twice.

        Raises:
            TooManyEntityTypes: It has.
        """

        async def count(client: Redis) -> int:
            try:
                return int(await client.hlen(self._key))
            except NoPermissionError:  # a user whose ACL is of an earlier release
                return 0

        limit = self._settings.max_entity_types
        if await self._connections.ask(count) - len(_OWN_FIELDS) + new > limit:
            raise TooManyEntityTypes(
                f"namespace {self._settings.namespace!r} has {limit:,} entity types, no more may be added: a type is a kind of thing, as `order`, "
                "and what tells one thing from another is its id. `command-bus types list` shows them, `command-bus types forget TYPE` takes one "
                "back of which nothing is stored, and max_entity_types allows more",
                limit=limit,
            )

    async def _record(self, values: dict[str, str]) -> dict[str, str]:
        """Write what nobody wrote yet, and give what is written. A server at its memory limit refuses writes: it is read first."""

        async def write(client: Redis) -> Any:
            pipeline = client.pipeline(transaction=False)
            for name, value in values.items():
                pipeline.hsetnx(self._key, name, value)
            await pipeline.execute()

        found: list[bytes | None] = await self._connections.ask(lambda client: client.hmget(self._key, list(values)))
        if None in found:
            if not values.keys() & _OWN_FIELDS:
                await self._refuse_too_many(found.count(None))
            await self._connections.ask(write)
            found = await self._connections.ask(lambda client: client.hmget(self._key, list(values)))
        return {name: (value or b"").decode() for name, value in zip(values, found, strict=True)}


async def recorded_choices(url: str, namespace: str, patience: float, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a namespace was made with, as arguments for `BusSettings`: for clients that have no choice of their own. Empty if it is new.

    `options` are further arguments of the connections, as for `UrlClients`.

    Raises:
        TransportUnavailable: The server cannot be reached within `patience` seconds.
    """
    connections = Connections(clients_of(url, options))
    first = KeySpace(namespace, 1).shards[0]
    place = connections.at(first.prefix)
    try:
        async with telling_tls(url):
            meta: dict[bytes, bytes] = await place.insist(
                lambda: place.ask(lambda client: client.hgetall(first.meta)), mono() + patience
            )
    finally:
        await connections.close()
    if b"shards" not in meta:
        return {}
    return {"shards": int(meta[b"shards"]), "entities": _policies(meta)}


def _policies(meta: Mapping[bytes, bytes]) -> dict[str, EntityPolicy]:
    """The policies that are not the default. One that cannot be read, or of a type that cannot be one, is left to whoever sends to it."""
    found: dict[str, EntityPolicy] = {}
    for field, value in meta.items():
        if not field.startswith(MAILBOXES):
            continue
        with contextlib.suppress(InvalidCommand, InvalidSettings):
            name = check_entity_type(field.removeprefix(MAILBOXES).decode(errors="replace"))
            mailbox = mailbox_from_text(value.decode(errors="replace"))
            if mailbox != PerEntity():
                found[name] = EntityPolicy(mailbox=mailbox)
    return found


async def open_namespace(connections: Connections, keys: KeySpace, settings: BusSettings) -> tuple[ServerFacts, Namespace]:
    """Check the server, agree on the namespace and make its groups.

    Raises:
        UnsuitableServer: The server may lose work.
        InvalidSettings: The namespace was made with other settings.
        TransportUnavailable: The server cannot be reached within `dispatch_timeout`.
    """
    places = [connections.at(shard.prefix) for shard in keys.shards]
    found = [await inspect_server(place) for place in dict.fromkeys(places)]
    for facts in found:
        for warning in judge(facts, connections.label, settings):
            if warning not in _warned:  # once per process: a test suite opens many buses
                _warned.add(warning)
                _log.warning(warning)
    namespace = Namespace(connections, keys, settings)
    try:
        await namespace.open()
        await asyncio.gather(*(ensure_ready(place, shard) for place, shard in zip(places, keys.shards, strict=True)))
    except TransportUnavailable as error:
        if is_of_a_replica(error) and not isinstance(
            connections.factory, FollowingClients
        ):  # which a user without INFO meets here
            raise UnsuitableServer(_REPLICA.format(connections.label)) from error
        raise
    return min(found, key=lambda facts: facts.version or (0,)), namespace
