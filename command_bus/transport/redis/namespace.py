"""`Namespace`: what all clients of a namespace must agree on; the first one records it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from command_bus.clock import mono
from command_bus.errors import InvalidCommand, InvalidSettings, TooManyEntityTypes, TransportUnavailable, UnsuitableServer
from command_bus.messages.message import check_entity_type
from command_bus.messages.policies import EntityPolicy, MailboxPolicy, PerEntity, mailbox_from_text
from command_bus.serialization.odd_values import stored_text
from command_bus.settings import MAX_SHARDS, BusSettings
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

RESERVED: Final = ("region", "doubt", "move", "layout")
"""Fields of the record that a later release writes: where a namespace is active, when it was restored, where it has moved."""
MOVING: Final = "moving"
"""The format of a namespace while a later release moves it."""

_log = logging.getLogger("command_bus")
_warned: set[str] = set()
_NUMBER: Final = re.compile("[0-9]{1,4}")
_OWN_FIELDS = frozenset({"protocol", "shards"})


class Namespace(Agreements):
    """Choices that all clients of a namespace share: its format, shard count and mailbox policies. The first client records them in Redis.

    Raises:
        InvalidSettings: From its methods, if this client disagrees. The shard count it follows.
    """

    def __init__(self, connections: Connections, settings: BusSettings) -> None:
        first = KeySpace(settings.namespace, 1).shards[0]
        self.server = connections.at(first.prefix)
        self._settings = settings
        self._key = first.meta
        self._keys: KeySpace | None = None
        self._agreed: dict[str, MailboxPolicy] = {}
        self._recorded: dict[str, MailboxPolicy] = {}
        self._agreeing = asyncio.Lock()
        self._in_line = 0
        self._shared = 0

    async def open(self) -> KeySpace:
        settings, mine = self._settings, self._settings.shards if self._keys is None else self._keys.count
        meta = await self._record({"protocol": str(PROTOCOL), "shards": str(mine)}, RESERVED)
        _refuse_other_format(settings.namespace, meta)
        shards = _count_of(settings.namespace, meta["shards"])
        if self._keys is not None and shards != mine:
            raise InvalidSettings(
                f"namespace {settings.namespace!r} was made again with {shards} shards, and this process has opened it with {mine}: start it again"
            )
        if shards != mine and "shards" in settings.model_fields_set:
            warn_once(
                f"namespace {settings.namespace!r} has {shards} shards, which this process follows: shards={mine} counts only when a namespace "
                "is made"
            )
        self._keys = self._keys or KeySpace(settings.namespace, shards)
        if types := {*settings.entities, *self._agreed}:
            await self._agree(*types)
        return self._keys

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
        (found,) = await self.server.ask(lambda client: client.hmget(self._key, field))  # no role may HGET here
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
                return await self.server.retry_until(lambda: self._agree(entity_type), deadline, sends=True)
        except TimeoutError as error:
            raise TransportUnavailable(f"no answer from {self.server.label} in time") from error
        finally:
            self._in_line -= 1

    def forget(self, entity_type: str) -> None:
        """Agree on this type again before its next command."""
        self._agreed.pop(entity_type, None)

    async def shared(self, name: str, value: bytes) -> bytes:

        async def read(client: Redis) -> Any:
            return (await client.hmget(self._key, [name]))[0]

        found: bytes | None = await self.server.ask(read)
        if found is None:
            await self.server.ask(lambda client: client.hsetnx(self._key, name, value))
            found = await self.server.ask(read)
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
        if await self.server.ask(count) - len(_OWN_FIELDS) - self._shared + new > limit:
            raise TooManyEntityTypes(
                f"namespace {self._settings.namespace!r} has {limit:,} entity types, no more may be added: a type is a kind of thing, as `order`, "
                "and its id distinguishes one thing from another. `command-bus types list` shows them, `command-bus types forget TYPE` takes one "
                "back of which nothing is stored, and max_entity_types allows more",
                limit=limit,
            )

    async def _record(self, values: dict[str, str], further: Sequence[str] = ()) -> dict[str, str]:
        """Write the values that are not written yet, and return those that are, with further ones; empty where there is none.

        A full server refuses writes, and so do the rights of some users, so read first.
        """

        async def write(client: Redis) -> Any:
            pipeline = client.pipeline(transaction=False)
            for name, value in values.items():
                pipeline.hsetnx(self._key, name, value)
            await pipeline.execute()

        names = [*values, *further]
        found: list[bytes | None] = await self.server.ask(lambda client: client.hmget(self._key, names))
        if missing := found[: len(values)].count(None):
            if not values.keys() & _OWN_FIELDS:
                await self._refuse_too_many(missing)
            await self.server.ask(write)
            found = await self.server.ask(lambda client: client.hmget(self._key, names))
        return {name: stored_text(value or b"") for name, value in zip(names, found, strict=True)}


async def recorded_choices(url: str, namespace: str, patience: float, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the policies that a namespace recorded, as an argument for `BusSettings`, for clients without settings of their own.

    Empty if it is new.

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
    _refuse_other_format(
        namespace, {name.decode(errors="replace"): value.decode(errors="replace") for name, value in meta.items()}
    )
    return {"entities": _policies(meta)}


def format_advice(meta: Mapping[str, str]) -> str | None:
    """Return what to do if a namespace has another format than this release, or words of a later one; None if it has the same."""
    recorded, words = meta.get("protocol", ""), [word for word in RESERVED if meta.get(word)]
    if recorded == str(PROTOCOL):
        of_later = f"a later release has written {' and '.join(words)} into its record: upgrade command_bus here, or use another namespace"
        return of_later if words else None
    if recorded == MOVING:
        return "a later release moves it: wait until that is over, then upgrade command_bus here"
    number = recorded.partition(".")[0]
    if number.isdecimal() and int(number) >= PROTOCOL:
        return "upgrade command_bus here, or use another namespace"
    return 'drain the namespace with the release that made it, then delete its keys, or use another namespace ("Upgrading" in the docs has the steps)'


def _refuse_other_format(namespace: str, meta: Mapping[str, str]) -> None:
    if (advice := format_advice(meta)) is not None:
        raise InvalidSettings(
            f"namespace {namespace!r} has format {meta.get('protocol', '')!r}, this release of command_bus has format {PROTOCOL}: {advice}"
        )


def _count_of(namespace: str, recorded: str) -> int:
    """Return the recorded number of shards.

    Raises:
        InvalidSettings: It is none: another program wrote it.
    """
    if not _NUMBER.fullmatch(recorded) or not 1 <= int(recorded) <= MAX_SHARDS:
        raise InvalidSettings(
            f"namespace {namespace!r} records {recorded[:50]!r} as its number of shards: write the number with which it was made into its record "
            "again (HSET, `shards`), or use another namespace"
        )
    return int(recorded)


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


async def open_namespace(connections: Connections, settings: BusSettings) -> tuple[ServerFacts, Namespace, KeySpace]:
    """Check the server, agree on the namespace and make its groups.

    Raises:
        UnsuitableServer: The server may lose work.
        InvalidSettings: The namespace was made with other settings.
        TransportUnavailable: The server cannot be reached within `dispatch_timeout`.
    """
    namespace = Namespace(connections, settings)
    facts = {namespace.server: await _checked(connections, namespace.server, settings)}
    try:
        keys = await namespace.open()
        servers = [connections.at(shard.prefix) for shard in keys.shards]
        for server in servers:
            if server not in facts:
                facts[server] = await _checked(connections, server, settings)
        await asyncio.gather(*(ensure_ready(server, shard) for server, shard in zip(servers, keys.shards, strict=True)))
    except TransportUnavailable as error:
        if is_of_a_replica(error) and not isinstance(
            connections.factory, FollowingClients
        ):  # which a user without INFO meets here
            raise UnsuitableServer(READ_ONLY.format(connections.label)) from error
        raise
    return min(facts.values(), key=lambda each: each.version or (0,)), namespace, keys


async def _checked(connections: Connections, server: Connections, settings: BusSettings) -> ServerFacts:
    """Return what a server says of itself, and warn of it.

    Raises:
        CommandBusError: As `open_namespace`.
    """
    facts = await inspect_server(server)
    if isinstance(connections.factory, FollowingClients) and facts.role == "slave":
        raise TransportUnavailable(
            f"{connections.label} is in a failover: a primary has just become a replica; try again in a moment"
        )
    for warning in judge(facts, connections.label, settings):
        warn_once(warning)
    return facts


def warn_once(text: str) -> None:
    """Log a warning once per process: a test suite opens many buses."""
    if text not in _warned:
        _warned.add(text)
        _log.warning(text)
