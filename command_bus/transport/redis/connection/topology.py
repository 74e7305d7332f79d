"""Servers that move: the primary that Sentinels watch, and the primaries of a Redis Cluster.

A connection looks up its primary whenever it connects (see `following`). Everything else is as with one server. In a cluster all keys of
a shard share a hash tag, so a shard has one primary at a time, and a bus uses each shard like a server of its own. A slot that is being
moved refuses scripts (ASK, TRYAGAIN) until the move is over; idempotent scripts are repeated anyway. redis-py's own cluster client is not
used: it asks the server for the keys of every XREADGROUP and repeats requests by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlunsplit

from redis import Redis as SyncRedis
from redis import RedisError
from redis.asyncio.connection import parse_url
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry
from redis.sentinel import Sentinel

from command_bus.errors import InvalidSettings
from command_bus.server_urls import redacted, split_url

T = TypeVar("T")
_LOOK = 1.0  # seconds that one Sentinel or node gets to connect, and to say where a primary is
_PORTS = {"sentinel": 26379, "cluster": 6379}

HostPort = tuple[str, int]
"""Host and port."""
_Range = tuple[int, int, HostPort]


@dataclass(frozen=True)
class TopologyUrl:
    """A URL of several servers: `redis+sentinel://user:password@host:port,host:port/service/db`, `redis+cluster://host:port,host:port`.

    Attributes:
        kind: `sentinel` or `cluster`.
        addresses: Those of the Sentinels, or of some nodes of the cluster.
        service: The Sentinels' name for the primary.
        tls: Whether connections use TLS; `options` then has the files.
        options: Settings of connections to the servers, as redis-py names them.
        sentinel_options: Options of connections to Sentinels.
    """

    kind: str
    addresses: tuple[HostPort, ...]
    service: str
    tls: bool
    options: dict[str, Any] = field(repr=False)
    sentinel_options: dict[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> TopologyUrl:
        """Read a URL.

        Raises:
            InvalidSettings: It is not of this form.
        """
        parts = split_url(url)
        scheme, _, kind = parts.scheme.partition("+")
        login, at, hosts = parts.netloc.rpartition("@")
        path = [unquote(part) for part in parts.path.split("/") if part]
        service = path.pop(0) if kind == "sentinel" and path else ""
        if kind == "sentinel" and not service:
            raise InvalidSettings(
                f"url {redacted(url)}: name the primary that the Sentinels watch, as in redis+sentinel://host:26379/mymaster"
            )
        if kind == "cluster" and path and path != ["0"]:
            raise InvalidSettings(f"url {redacted(url)}: a cluster has no databases but 0")
        query = dict(parse_qsl(parts.query))
        asked: dict[str, Any] = {
            name.removeprefix("sentinel_"): query.pop(name) for name in list(query) if name.startswith("sentinel_")
        }
        plain = urlunsplit((scheme, f"{login}{at}server", "/" + "/".join(path), urlencode(query), ""))
        try:
            options: dict[str, Any] = dict(parse_url(plain))
        except ValueError as error:  # names the option, not its value
            raise InvalidSettings(f"url {redacted(url)}: {error}") from None
        for name in ("host", "port", "connection_class"):
            options.pop(name, None)
        tls = scheme == "rediss"
        if tls:
            asked = {**{name: value for name, value in options.items() if name.startswith("ssl_")}, **asked, "ssl": True}
        return cls(kind, tuple(_address(each, kind) for each in hosts.split(",")), service, tls, options, asked)

    def filled(self, given: Mapping[str, Any]) -> TopologyUrl:
        """Return the URL with further options, where it has none of its own. Sentinels have other users and the same certificates."""
        of_tls = {name: value for name, value in given.items() if name.startswith("ssl_")}
        return replace(self, options={**given, **self.options}, sentinel_options={**of_tls, **self.sentinel_options})

    @property
    def label(self) -> str:
        """For people, without the password."""
        addresses = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return (
            f"the primary {self.service!r} of the Sentinels {addresses}"
            if self.kind == "sentinel"
            else f"the Redis Cluster {addresses}"
        )


def _address(text: str, kind: str) -> HostPort:
    """Return host and port. A text that is neither may be part of a password, so the error does not quote it."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(_PORTS[kind])
    if not host or not port.isdecimal():
        raise InvalidSettings(
            "url: one of its addresses is no host:port; write host:port,host:port, and quote special characters of user and password"
        )
    return host.strip("[]"), int(port)


class Locator(Protocol):
    """Finds a primary; called from several threads."""

    def locate(self) -> HostPort:
        """Return host and port of the primary. Blocks, a second for each node that does not answer.

        Raises:
            redis.exceptions.ConnectionError: No node knows it.
        """
        ...

    def moved(self) -> None:
        """Discard the last result: it is not true, or the server there is gone. Never blocks: an event loop calls it."""
        ...


class _Nodes:
    """Nodes that can be asked, in turn: first the one that answered last. Threads may ask at once; none waits for another.

    Args:
        label: What is looked for, for error texts.
        addresses: Those of the nodes.
    """

    def __init__(self, label: str, addresses: Iterable[HostPort]) -> None:
        self._label = label
        self._addresses = tuple(dict.fromkeys(addresses))

    def add(self, addresses: Iterable[HostPort]) -> None:
        """Add further nodes."""
        self._addresses = tuple(dict.fromkeys((*self._addresses, *addresses)))

    def ask(self, question: Callable[[HostPort], T]) -> T:
        """Return the answer of the first node that has one.

        Raises:
            redis.exceptions.ConnectionError: No node answers.
        """
        addresses, problem = self._addresses, None
        for position, address in enumerate(addresses):
            try:
                answer = question(address)
            except (RedisError, OSError) as error:
                problem = error
                continue
            if position:
                self._addresses = (*addresses[position:], *addresses[:position])
            return answer
        raise RedisConnectionError(f"connecting to {self._label}: no node answers ({problem})") from problem


def _look_options() -> dict[str, Any]:
    """Return the options of requests to nodes: a short timeout and one try. By default redis-py would try ten times more."""
    return {"socket_timeout": _LOOK, "socket_connect_timeout": _LOOK, "retry": Retry(NoBackoff(), 0)}


class SentinelPrimary(Locator):
    """The primary of a service. Its Sentinels are asked each time."""

    def __init__(self, url: TopologyUrl) -> None:
        self._url = url
        self._nodes = _Nodes(url.label, url.addresses)

    def locate(self) -> HostPort:
        return self._nodes.ask(self._told_by)

    def moved(self) -> None:
        """Do nothing: nothing is remembered."""

    def _told_by(self, address: HostPort) -> HostPort:
        options: dict[str, Any] = {**_look_options(), **self._url.sentinel_options}
        sentinel: Any = Sentinel([address], sentinel_kwargs=options)  # type: ignore[no-untyped-call]
        try:
            host, port = sentinel.discover_master(self._url.service)
        finally:
            for client in sentinel.sentinels:
                client.close()
        return str(host), int(port)


class ClusterMap:
    """The primaries of a cluster by slot. It is asked for when first needed, and again after a primary could not be reached.

    Args:
        url: Some of its nodes.
    """

    def __init__(self, url: TopologyUrl) -> None:
        self._url = url
        self._nodes = _Nodes(url.label, url.addresses)
        self._asking = threading.Lock()  # of threads that need an answer: one asks for all. `forget` takes no lock
        self._ranges: list[_Range] = []

    def primary_of(self, slot: int) -> HostPort:
        """Return the address of a slot's keys.

        Raises:
            redis.exceptions.ConnectionError: No node answers, or no node has the slot.
        """
        for first, last, address in self._ranges or self._asked():
            if first <= slot <= last:
                return address
        self.forget()
        raise RedisConnectionError(f"connecting to {self._url.label}: no node has slot {slot}")

    def forget(self) -> None:
        """Ask again next time."""
        self._ranges = []

    def shard(self, tag: str) -> Locator:
        """Return the locator of all keys with a hash tag."""
        return _SlotPrimary(self, key_slot(tag.encode()))

    def _asked(self) -> list[_Range]:
        """Ask a node for the map. If the map is discarded in between, a wrong address is noticed again when it is used."""
        with self._asking:
            ranges = self._ranges
            if not ranges:
                slots = self._nodes.ask(self._told_by)
                self._nodes.add(address for _, _, addresses in slots for address in addresses)
                ranges = self._ranges = [(first, last, addresses[0]) for first, last, addresses in slots if addresses]
            return ranges

    def _told_by(self, address: HostPort) -> list[tuple[int, int, list[HostPort]]]:
        host, port = address
        options: dict[str, Any] = {**_look_options(), **self._url.options, "ssl": self._url.tls, "protocol": 2}
        client: Any = SyncRedis(host=host, port=port, **options)
        try:
            return [_slots(each, host) for each in _plain_slots(client)]
        finally:
            client.close()


def _plain_slots(client: Any) -> Any:
    """Return the unparsed answer to CLUSTER SLOTS."""
    connection = client.connection_pool.make_connection()  # before redis-py 5.3 `get_connection` wants a command's name
    try:
        connection.send_command("CLUSTER", "SLOTS")
        return connection.read_response()
    finally:
        connection.disconnect()


def _slots(answer: Any, asked: str) -> tuple[int, int, list[HostPort]]:
    """Return one range with its nodes, the primary first. A node without a host is the one that was asked."""
    first, last, *nodes = answer
    return int(first), int(last), [((node[0] or b"").decode() or asked, int(node[1])) for node in nodes]


@dataclass(frozen=True)
class _SlotPrimary(Locator):
    """The primary of one slot."""

    map: ClusterMap
    slot: int

    def locate(self) -> HostPort:
        return self.map.primary_of(self.slot)

    def moved(self) -> None:
        self.map.forget()
