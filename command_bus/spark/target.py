"""The namespace that a pipeline's commands go to, and this process's connection to it.

A `Target` is data and travels to the executors. A `TargetConnection` is opened by a process when it first needs one, and kept for all
later tasks. Shards and lanes need no configuration here: the server knows what the namespace was made with.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import SecretStr

from command_bus.bus import CommandBus
from command_bus.errors import CommandBusError, InvalidSettings, QueueFull
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.serialization.announcements import CommandInfo, read_description, worker_statuses
from command_bus.server_urls import ALL_SCHEMES, redacted, split_url
from command_bus.settings import BusSettings
from command_bus.sync.thread import BusThread
from command_bus.transport.ports.bulk import DispatchFacts
from command_bus.transport.ports.kept_streams import KeptStream, KeptStreams
from command_bus.transport.ports.transport import Transport
from command_bus.transport.redis.connection.credentials import connection_options
from command_bus.transport.redis.namespace import recorded_choices

T = TypeVar("T")
_log = logging.getLogger("command_bus.spark")
_LOOK = 2.0
"""Seconds to wait for the list of workers, which is only information."""
PATIENCE = 60.0
"""Seconds for which a request is repeated while the server restarts: a failed task costs more."""
PLANNING_PATIENCE = 10.0
"""The same for the driver's first contact: a user waits there, and the URL may be wrong."""


_TAKEN_OVER = {
    "username", "password", "tls_ca", "tls_cert", "tls_key", "insecure", "signing_keys",
    "max_depth", "max_total_depth", "max_entities", "max_payload", "max_nesting", "durability", "wait_replicas", "wait_timeout",
    "allow_eviction",
}  # fmt: skip
"""Credentials, limits and durability settings of the driver, which executors take over: their environment differs."""


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """A namespace on a server.

    Attributes:
        url: The server; redact it before printing.
        namespace: Prefix of all keys.
        access: Settings for credentials, signing and limits, by name; secrets are wrapped.
    """

    url: str
    namespace: str
    access: tuple[tuple[str, Any], ...] = ()

    def __repr__(self) -> str:
        return f"<Target {self.label}>"

    @classmethod
    def resolve(cls, url: str | None = None, namespace: str | None = None) -> Target:
        """Return the target that arguments and environment name. Call it on the driver: executors have another environment.

        If no URL is given anywhere, the development server of this project is started or joined.

        Raises:
            InvalidSettings: A value is not valid.
        """
        given: dict[str, Any] = {name: value for name, value in (("url", url), ("namespace", namespace)) if value is not None}
        if url is not None:
            _check_url(url)
        bus = CommandBus(settings=BusSettings(**given))
        _check_url(bus.url)
        return cls(bus.url, bus.settings.namespace, _access(bus.settings))

    @property
    def label(self) -> str:
        """URL and namespace for people, without the password."""
        return f"{redacted(self.url)} namespace {self.namespace!r}"


class TargetConnection:
    """The connection of this process to a target. Calls block, one at a time; the event loop runs in a thread of its own."""

    def __init__(self, target: Target, patience: float) -> None:
        given: dict[str, Any] = {
            "url": target.url,
            "namespace": target.namespace,
            "dispatch_timeout": PATIENCE,
            **dict(target.access),
        }
        options = connection_options(BusSettings(**given))
        choices = _run(recorded_choices(target.url, target.namespace, patience, options))
        self.settings = BusSettings(**given, **choices)
        self._thread = BusThread(CommandBus(settings=self.settings))
        self.pid = self._thread.pid
        self.builder = EnvelopeBuilder(self.settings)
        self._agreed: set[str] = set()

    @property
    def transport(self) -> Transport:
        """The transport of the open bus."""
        return self._thread.transport

    def facts(self, dispatch_id: str) -> DispatchFacts | None:
        """Return the record of a dispatch; None if it is unknown."""
        return self.wait(self.transport.bulk.facts(dispatch_id))

    def streams(self, names: Iterable[str], reader: KeptStreams | None = None) -> dict[tuple[str, int], KeptStream | None]:
        """Return streams, by default those of outcomes of dispatches, by name and shard; None where a shard has none."""
        keys = [(name, shard) for name in names for shard in range(self.transport.shards)]
        return dict(zip(keys, self.wait((reader or self.transport.bulk.outcomes).streams(keys)), strict=True))

    def chunks(self, items: AsyncIterator[T], count: int = 1) -> Iterator[list[T]]:
        """Yield the items of an asynchronous iterator in lists of `count`, in a thread without a loop."""

        async def next_chunk() -> list[T]:
            taken: list[T] = []
            async for item in items:
                taken.append(item)
                if len(taken) == count:
                    break
            return taken

        while taken := self.wait(next_chunk()):
            yield taken

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the connection's loop and return its result."""
        return self._thread.wait(work)

    def retry_while_full(self, work: Callable[[], Coroutine[Any, Any, T]], max_wait: float) -> T:
        """Run work as `wait` does, and repeat it for up to `max_wait` seconds while the server is at its memory limit."""
        deadline = time.monotonic() + max_wait
        while True:
            try:
                return self.wait(work())
            except QueueFull as error:
                if time.monotonic() + error.retry_after > deadline:
                    raise
                time.sleep(min(error.retry_after, 0.25))

    def agree(self, entity_type: str, max_wait: float = PATIENCE) -> None:
        """Check that all clients of the namespace use the same mailboxes for an entity type.

        Raises:
            InvalidSettings: They do not.
        """
        if entity_type not in self._agreed:
            self.retry_while_full(lambda: self.transport.agreements.agree(entity_type), max_wait)
            self._agreed.add(entity_type)

    def describe(self, name: str) -> CommandInfo | None:
        """Return what workers published of a wire name; None if no worker ever had it, or if it cannot be read."""
        record = self.wait(self.transport.announcements.described(name))
        return None if record is None else read_description(name, record, ())

    def live_workers(self) -> int | None:
        """Return the number of live workers in the namespace; None if it cannot be read."""
        try:
            records = self.wait(asyncio.wait_for(self.transport.announcements.workers(), _LOOK))
            return sum(worker.alive for worker in worker_statuses(records))
        except (CommandBusError, TimeoutError):
            return None

    def warn_without_workers(self) -> None:
        """Log a warning if the namespace has no live worker. The commands will wait, which is no error."""
        if self.live_workers() == 0:
            where = f"namespace {self.settings.namespace!r} on {self.transport.label}"
            _log.warning(
                "no worker lives in %s: what is dispatched waits there until one is started (command-bus worker module:bus)",
                where,
            )

    def shard_of(self, mailbox: str) -> int:
        """Return the shard of a mailbox."""
        return self.transport.shard_of(mailbox)

    def close(self) -> None:
        """Close the connection."""
        self._thread.close()


def _check_url(url: str) -> None:
    """Check that a URL can be that of a server.

    Raises:
        InvalidSettings: It cannot. A text that may be no URL is not repeated, since it may hold a password.
    """
    if not url.startswith(ALL_SCHEMES):
        shown = f"{redacted(url)!r}" if "://" in url else "(not shown)"
        raise InvalidSettings(f"url = {shown}: a server's URL begins with {', '.join(ALL_SCHEMES)}")
    if url.startswith("unix://"):
        return
    try:
        parts = split_url(url)
        quoted = "@" not in parts.path + parts.fragment and (not url.startswith(("redis://", "rediss://")) or parts.port != 0)
    except ValueError:  # its port is no number, or its brackets are open
        quoted = False
    if not quoted:
        raise InvalidSettings(
            "url: it cannot be read as redis://user:password@host:port; quote special characters of user and password "
            "(urllib.parse.quote(password, safe=''))"
        )


def _access(settings: BusSettings) -> tuple[tuple[str, Any], ...]:
    """Return the settings that are not at their defaults, hashable."""
    found = settings.model_dump(include=_TAKEN_OVER, exclude_defaults=True)
    if settings.signing_keys:
        found["signing_keys"] = tuple(
            SecretStr(f"{key_id}:{secret.get_secret_value()}") for key_id, secret in settings.signing_keys.items()
        )
    return tuple(found.items())


_connections: dict[Target, TargetConnection] = {}
_opening = threading.Lock()


def connection_to(target: Target, patience: float | None = None) -> TargetConnection:
    """Return this process's connection, opened at first use. A forked process opens its own.

    Args:
        target: The server and namespace.
        patience: Seconds to wait for the server when the connection is opened; by default `PATIENCE`.

    Raises:
        TransportUnavailable: The server cannot be reached.
        UnsuitableServer: It may lose commands.
    """
    with _opening:
        connection = _connections.get(target)
        if connection is None or connection.pid != os.getpid():
            connection = _connections[target] = TargetConnection(target, PATIENCE if patience is None else patience)
        return connection


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop in a new thread: in a notebook this thread already has a loop."""
    with ThreadPoolExecutor(1, "command_bus.spark") as thread:
        return thread.submit(asyncio.run, work).result()
