"""`Namespace`: what all clients of a namespace must agree on; the first one records it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from command_bus.clock import mono
from command_bus.errors import InvalidCommand, InvalidSettings, TooManyEntityTypes, TransportUnavailable, UnsuitableServer
from command_bus.messages.message import check_entity_type
from command_bus.messages.policies import EntityPolicy, MailboxPolicy, PerEntity, mailbox_from_text
from command_bus.serialization.odd_values import stored_text
from command_bus.settings import BusSettings
from command_bus.transport.ports.sender import Agreements
from command_bus.transport.redis.admin.type_records import MAILBOXES
from command_bus.transport.redis.connection.clients import FollowingClients, clients_of
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.credentials import with_tls_hint
from command_bus.transport.redis.connection.errors import is_of_a_replica
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.ready_stream import ensure_ready
from command_bus.transport.redis.server_check import READ_ONLY, ServerFacts, inspect_server, judge

PROTOCOL = 3
"""The format of a namespace: version of its keys and scripts. A client of another format is refused: see "Upgrading" in the docs."""

_log = logging.getLogger("command_bus")
_warned: set[str] = set()
_OWN_FIELDS = frozenset({"protocol", "shards"})


class Namespace(Agreements):
    """Choices that all clients of a namespace share: its format, shard count and mailbox policies. The first client records them in Redis.

    Raises:
        InvalidSettings: From its methods, if this client disagrees.
    """

    def __init__(self, connections: Connections, keys: KeySpace, settings: BusSettings) -> None:
        self._connections = connections.at(keys.shards[0].prefix)
        self._settings = settings
        self._key = keys.shards[0].meta
        self._agreed: dict[str, MailboxPolicy] = {}
        self._recorded: dict[str, MailboxPolicy] = {}
        self._agreeing = asyncio.Lock()
        self._in_line = 0
        self._shared = 0

    async def open(self) -> None:
        """Record or compare the format and the shard count."""
        recorded = await self._record({"protocol": str(PROTOCOL), "shards": str(self._settings.shards)})
        _refuse_other_format(self._settings.namespace, recorded["protocol"])
        if recorded["shards"] != str(self._settings.shards):
            raise InvalidSettings(
                f"namespace {self._settings.namespace!r} has {recorded['shards']} shards, these settings say {self._settings.shards}: "
                "all its clients must agree; the count changes only when the namespace is drained, its schedules are exported "
                "and its keys are deleted"
            )
        if self._settings.entities:
            await self._agree(*self._settings.entities)

    def agreed(self, entity_type: str) -> MailboxPolicy | None:
        """Return the mailbox policy of an entity type if it was agreed on before.

        None while other callers wait for an agreement: a command must not overtake theirs.
        """
        return None if self._in_line else self._agreed.get(entity_type)

    def recorded(self, entity_type: str) -> MailboxPolicy | None:
        """Return the mailbox policy that the namespace recorded for an entity type, if this process knows it."""
        return self._agreed.get(entity_type) or self._recorded.get(entity_type)

    async def learn(self, entity_type: str) -> None:
        """Read the recorded mailbox policy of an entity type, whatever these settings say. One that is not recorded yet stays unknown.

        Raises:
            CommandBusError: The server cannot be asked, or the policy is of a newer version.
        """
        field = [f"mailbox:{entity_type}"]
        (found,) = await self._connections.ask(lambda client: client.hmget(self._key, field))  # no role may HGET here
        if found is not None:
            self._recorded[entity_type] = mailbox_from_text(stored_text(found))

    async def agree(self, entity_type: str, deadline: float = 0.0) -> MailboxPolicy:
        """Record or compare the mailbox policy of an entity type, once, or repeatedly until a monotonic deadline.

        Other callers wait in order: a command must not be overtaken because the answer to its agreement was lost.
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
                return await self._connections.retry_until(lambda: self._agree(entity_type), deadline, sends=True)
        except TimeoutError as error:
            raise TransportUnavailable(f"no answer from {self._connections.label} in time") from error
        finally:
            self._in_line -= 1

    def forget(self, entity_type: str) -> None:
        """Agree on this type again before its next command."""
        self._agreed.pop(entity_type, None)

    async def shared(self, name: str, value: bytes) -> bytes:

        async def read(client: Redis) -> Any:
            return (await client.hmget(self._key, [name]))[0]

        found: bytes | None = await self._connections.ask(read)
        if found is None:
            await self._connections.ask(lambda client: client.hsetnx(self._key, name, value))
            found = await self._connections.ask(read)
        self._shared += 1
        return found or b""

    async def _agree(self, *entity_types: str) -> MailboxPolicy:
        """Record or compare the mailbox policies of entity types in one request; return that of the last type."""
        mine = {each: self._settings.entity(each).mailbox for each in entity_types}
        recorded = await self._record({f"mailbox:{each}": str(mailbox) for each, mailbox in mine.items()})
        for each, mailbox in mine.items():
            theirs = mailbox_from_text(recorded[f"mailbox:{each}"])
            if theirs != mailbox:
                raise InvalidSettings(
                    f"entity type {each!r} has mailboxes {theirs} in namespace {self._settings.namespace!r}, these settings say {mailbox}: "
                    "all its clients must agree, or two of them would run one entity's commands at once. If no client uses it as recorded, "
                    f"`command-bus types forget {each}` takes that back"
                )
        self._agreed |= mine
        return mine[entity_types[-1]]

    async def _refuse_too_many(self, new: int) -> None:
        """Refuse further entity types in a namespace that has as many as it may have.

        The fields of the record are counted, because that is one HLEN: a type that was paused before its first command counts twice.

        Raises:
            TooManyEntityTypes: It has.
        """

        async def count(client: Redis) -> int:
            try:
                return int(await client.hlen(self._key))
            except NoPermissionError:  # a user whose ACL is of an earlier release
                return 0

        limit = self._settings.max_entity_types
        if await self._connections.ask(count) - len(_OWN_FIELDS) - self._shared + new > limit:
            raise TooManyEntityTypes(
                f"namespace {self._settings.namespace!r} has {limit:,} entity types, no more may be added: a type is a kind of thing, as `order`, "
                "and its id distinguishes one thing from another. `command-bus types list` shows them, `command-bus types forget TYPE` takes one "
                "back of which nothing is stored, and max_entity_types allows more",
                limit=limit,
            )

    async def _record(self, values: dict[str, str]) -> dict[str, str]:
        """Write the values that are not written yet, and return those that are. A full server refuses writes, so read first."""

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
        return {name: stored_text(value or b"") for name, value in zip(values, found, strict=True)}


async def recorded_choices(url: str, namespace: str, patience: float, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what a namespace recorded, as arguments for `BusSettings`, for clients without settings of their own. Empty if it is new.

    `options` are further arguments of the connections, as for `UrlClients`.

    Raises:
        InvalidSettings: The namespace has another format.
        TransportUnavailable: The server cannot be reached within `patience` seconds.
    """
    connections = Connections(clients_of(url, options))
    first = KeySpace(namespace, 1).shards[0]
    server = connections.at(first.prefix)
    try:
        async with with_tls_hint(url):
            meta: dict[bytes, bytes] = await server.retry_until(
                lambda: server.ask(lambda client: client.hgetall(first.meta)), mono() + patience
            )
    finally:
        await connections.close()
    if b"shards" not in meta:
        return {}
    _refuse_other_format(namespace, meta.get(b"protocol", b"").decode(errors="replace"))
    return {"shards": int(meta[b"shards"]), "entities": _policies(meta)}


def format_advice(recorded: str) -> str | None:
    """Return what to do if a namespace has another format than this release; None if it has the same."""
    if recorded == str(PROTOCOL):
        return None
    if recorded.isdecimal() and int(recorded) > PROTOCOL:
        return "upgrade command_bus here, or use another namespace"
    return 'drain the namespace with the release that made it, then delete its keys, or use another namespace ("Upgrading" in the docs has the steps)'


def _refuse_other_format(namespace: str, recorded: str) -> None:
    if (advice := format_advice(recorded)) is not None:
        raise InvalidSettings(
            f"namespace {namespace!r} has format {recorded!r}, this release of command_bus has format {PROTOCOL}: {advice}"
        )


def _policies(meta: Mapping[bytes, bytes]) -> dict[str, EntityPolicy]:
    """Return the policies that are not the default. Policies that cannot be read and invalid types are left out: sending to them fails."""
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
    servers = [connections.at(shard.prefix) for shard in keys.shards]
    found = [await inspect_server(server) for server in dict.fromkeys(servers)]
    if isinstance(connections.factory, FollowingClients) and any(facts.role == "slave" for facts in found):
        raise TransportUnavailable(
            f"{connections.label} is in a failover: a primary has just become a replica; try again in a moment"
        )
    for facts in found:
        for warning in judge(facts, connections.label, settings):
            if warning not in _warned:  # once per process: a test suite opens many buses
                _warned.add(warning)
                _log.warning(warning)
    namespace = Namespace(connections, keys, settings)
    try:
        await namespace.open()
        await asyncio.gather(*(ensure_ready(server, shard) for server, shard in zip(servers, keys.shards, strict=True)))
    except TransportUnavailable as error:
        if is_of_a_replica(error) and not isinstance(
            connections.factory, FollowingClients
        ):  # which a user without INFO meets here
            raise UnsuitableServer(READ_ONLY.format(connections.label)) from error
        raise
    return min(found, key=lambda facts: facts.version or (0,)), namespace
