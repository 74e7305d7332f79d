"""`Connections`: the connections of one process, a pipe for scripts and plain requests and one for each blocking read.

`ServerWatch`: finds out that a server is away, and when it is back.

A request that failed because there was no connection is only a suspicion: its own connection may have been cut while the server lives on. So the
first such failure has the server asked at once, by a PING over a new connection where the old one broke. If that fails too, the server
is away. Then it is asked again and again until it answers. A request that merely takes long raises no suspicion.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, NoScriptError

from command_bus.clock import mono
from command_bus.errors import BusClosed, CommandBusError, InvalidCommand, TransportUnavailable, Unconfirmed, UnsuitableServer
from command_bus.tasks import all_of, end_tasks
from command_bus.transport.ports.extensions import Availability
from command_bus.transport.redis.connection.clients import PipeRedis
from command_bus.transport.redis.connection.errors import CONNECTION_ERRORS, NotPrimary, is_redirect, translated
from command_bus.transport.redis.connection.factory import ClientFactory
from command_bus.transport.redis.connection.outage_log import Backoff, OutageLog
from command_bus.transport.redis.connection.pipe import Answered, Pipe, Requests
from command_bus.transport.redis.scripts import CONFIRM, SCRIPTS, Script

_log = logging.getLogger("command_bus.transport")
_LONGEST_PAUSE = 0.5
"""Seconds between two probes at most: what fails at once meanwhile should not do so for long."""


@dataclass(eq=False)
class ServerWatch:
    """The watch over one server.

    Attributes:
        label: The server, for people.
        ping: Asks the server whether it is there.
        availability: Learns what is found out of the bus's servers.
        fails_fast: Whether requests of senders are refused while the server is away.

    Attributes:
        refuses: Whether senders are refused: the server is away, and they shall not wait for it. Each dispatch asks, so it is a plain value.
    """

    label: str
    ping: Callable[[], Awaitable[Any]]
    availability: Availability
    fails_fast: bool

    def __post_init__(self) -> None:
        self._probing: asyncio.Task[None] | None = None
        self._reason = ""
        self._is_away = False
        self.refuses = False

    def refusal(self) -> TransportUnavailable:
        """Return the error of what is refused: nothing of it was sent."""
        return TransportUnavailable(f"not sent, because the server is away (fail_fast): {self._reason}")

    def suspect(self, error: Exception) -> None:
        """Ask the server, because a request failed. Threads' failures are left to those of the event loop."""
        if self._probing is not None or not isinstance(error, TransportUnavailable):
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._probing = loop.create_task(self._probe(), name="command_bus.probe")
        self._probing.add_done_callback(self._probed)

    async def close(self) -> None:
        """End the watch."""
        if self._probing is not None:
            await end_tasks([self._probing])

    async def _probe(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self.ping()
            except TransportUnavailable as error:
                self._away(error)
            except CommandBusError:
                return self._back()  # it answers, if only to refuse this user: the requests themselves tell that better
            else:
                return self._back()
            await asyncio.sleep(min(backoff.next(), _LONGEST_PAUSE))

    def _away(self, error: TransportUnavailable) -> None:
        self._reason = error.message
        if not self._is_away:
            self._is_away, self.refuses = True, self.fails_fast
            self.availability.away(self, self.label, error.message)

    def _back(self) -> None:
        if self._is_away:
            self._is_away = self.refuses = False
            self.availability.back(self, self.label)

    def _probed(self, task: asyncio.Task[None]) -> None:
        self._probing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the server cannot be probed", exc_info=error)
            self._back()  # else nothing would find out that it is there again


P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Replicas:
    """Number of replicas that confirm what must not be lost with the primary, and the seconds that they get."""

    count: int
    patience: float


_WANTED = 1024 * 1024
"""Bytes that an answer should have at most: a server copies that in about a millisecond."""
_FIRST_GUESS = 16 * 1024


class PageSize:
    """Guesses how many entries make an answer of a good size.

    Args:
        most: Entries that are never exceeded, however small they are.
        wanted: Bytes that an answer should have at most.
    """

    __slots__ = ("_guess", "_most", "_wanted", "count")

    def __init__(self, most: int, wanted: int = _WANTED) -> None:
        self._most = most
        self._wanted = wanted
        self._guess = _FIRST_GUESS
        self.count = self._entries()

    def observe(self, size: int, entries: int) -> None:
        """Record an answer: so many bytes for so many entries. Large entries shrink the page at once, small ones widen it gradually."""
        if entries:
            guess = max(size // entries, self._guess // 2)
            if guess != self._guess:
                self._guess = guess
                self.count = self._entries()

    def _entries(self) -> int:
        return max(1, min(self._most, self._wanted // max(self._guess, 1)))


class Connections:
    """The clients of one bus in one process, opened lazily and closed together.

    Args:
        factory: Makes them.
        replicas: Those that must confirm what `run_confirmed` writes; None if none must.
        first: The bus's first connections, which count for all servers; None if these are the first.
        fail_fast: Whether senders are refused while their server is away.

    Attributes:
        script_cache: Loads scripts.
        confirms: Whether replicas must have what is written before it counts.
        availability: The servers of the bus that are away.
        watch: Finds out whether this one is.
        reconnects: Requests that were repeated because a server did not answer; of the first connections, those of all servers.
    """

    def __init__(
        self,
        factory: ClientFactory,
        replicas: Replicas | None = None,
        first: Connections | None = None,
        *,
        fail_fast: bool = False,
    ) -> None:
        self._first = first or self
        self.factory = factory
        self.label = factory.label
        self.availability: Availability = Availability() if first is None else first.availability
        self.watch = ServerWatch(
            self.label, lambda: self.ask(lambda client: client.ping()), self.availability, fails_fast=fail_fast
        )
        self.outage = OutageLog(self.label, self.watch.suspect)
        self._fail_fast = fail_fast
        self._replicas = replicas
        self.confirms = replicas is not None
        self._commands: Redis | None = None
        self._patient: Redis | None = None
        self._scripts: Requests | None = None
        self._pipes: list[Requests] = []
        self._by_tag: dict[str, Connections] = {}
        self.reconnects = 0
        self.script_cache = ScriptCache(self)
        self._closed = False

    def at(self, tag: str) -> Connections:
        """Return the connections to the server that has the keys with a hash tag: these, unless shards are on several servers."""
        found = self._by_tag.get(tag)
        if found is None and self._closed:
            return self
        if found is None:
            factory = self.factory.at(tag)
            found = self._by_tag[tag] = (
                self if factory is self.factory else Connections(factory, self._replicas, self._first, fail_fast=self._fail_fast)
            )
        return found

    def count_reconnect(self) -> None:
        """Count a request that is repeated because the server did not answer."""
        self._first.reconnects += 1

    @property
    def commands(self) -> Redis:
        """The client for short requests."""
        if self._commands is None:
            self._refuse_if_closed()
            self._commands = PipeRedis(self.scripts) if isinstance(self.scripts, Pipe) else self.factory.commands()
        return self._commands

    @property
    def _confirming(self) -> Redis:
        """The client whose connections may wait for replicas: WAIT delays all later requests of its connection."""
        if self._patient is None:
            self._refuse_if_closed()
            self._patient = self.factory.commands()
        return self._patient

    @property
    def scripts(self) -> Requests:
        """The connection that scripts are sent over."""
        if self._scripts is None:
            self._scripts = self.pipe()
        return self._scripts

    def pipe(self, block: float = 0.0) -> Requests:
        """Return a new connection, for one reader that blocks up to `block` seconds."""
        self._refuse_if_closed()
        pipe = self.factory.pipe(block)
        self._pipes.append(pipe)
        return pipe

    async def end(self, pipe: Requests) -> None:
        """Close a reader's connection."""
        if pipe in self._pipes:
            self._pipes.remove(pipe)
        await pipe.close()

    async def close(self) -> None:
        """Close every client; idempotent. Later requests raise `BusClosed`."""
        self._closed = True
        await self.watch.close()
        by_tag, self._by_tag = self._by_tag, {}
        pipes, self._pipes, self._scripts = self._pipes, [], None
        clients = [client for client in (self._commands, self._patient) if client is not None]
        self._commands = self._patient = None
        others = [each for each in by_tag.values() if each is not self]
        with suppress(*CONNECTION_ERRORS):  # a connection that is broken already is closed enough
            await all_of(
                *(each.close() for each in others), *(pipe.close() for pipe in pipes), *(client.aclose() for client in clients)
            )

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise BusClosed("the bus was closed")

    async def run(self, script: Script, keys: list[str], args: list[Any]) -> Any:
        """Run a script once; load it if the server does not know it.

        Raises:
            CommandBusError: As `translated` decides.
        """
        request = ("EVALSHA", script.sha, len(keys), *keys, *args)
        try:
            try:
                return await self.scripts.request(*request)
            except NoScriptError:
                await self.script_cache.load(script)
                return await self.scripts.request(*request)
        except NoScriptError as error:
            raise TransportUnavailable(f"{self.label} lost its scripts again as soon as they were loaded") from error
        except CONNECTION_ERRORS as error:
            raise translated(error, self.label, writes=True) from error

    def post(self, script: Script, keys: list[str], args: list[Any], answered: Answered) -> bool:
        """Send a script, and return at once; `answered` gets the raw answer or error. See `Requests.post`.

        Return False if it has to be sent with `run_confirmed`: there is no connection, or replicas must confirm what it writes.
        """
        return self._replicas is None and self.post_request(answered, "EVALSHA", script.sha, len(keys), *keys, *args)

    def post_request(self, answered: Answered, *request: Any) -> bool:
        """Send a request, as `post` does a script."""
        return self._scripts is not None and self._scripts.post(answered, *request)

    async def run_confirmed(self, script: Script, keys: list[str], args: list[Any], written: str) -> tuple[Any, bool]:
        """Run a script, and wait for the replicas that must have what it wrote; return its answer and whether they have it.

        Args:
            script: To be run.
            keys: Its keys.
            args: Its arguments.
            written: The figures of the same shard, for a write behind the script: WAIT waits for the last write of its connection, and a
                script that is repeated may write nothing. If the namespace was deleted, nothing is written there.

        Raises:
            CommandBusError: As `translated` decides.
        """
        replicas = self._replicas
        if replicas is None:
            return await self.run(script, keys, args), True
        for _ in range(2):
            pipeline: Any = self._confirming.pipeline(transaction=False)
            pipeline.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)
            pipeline.execute_command("EVALSHA", CONFIRM.sha, 1, written)
            pipeline.wait(replicas.count, int(replicas.patience * 1000))
            try:
                answer, noted, confirmed = await pipeline.execute(raise_on_error=False)
            except CONNECTION_ERRORS as error:
                raise translated(error, self.label, writes=True) from error
            if isinstance(answer, NoScriptError) or isinstance(noted, NoScriptError):
                await self.script_cache.load(script)
                continue
            for each in (answer, confirmed):
                if isinstance(each, Exception):
                    raise translated(each, self.label, writes=True) from each
            return answer, confirmed >= replicas.count
        raise TransportUnavailable(f"{self.label} does not keep scripts", outcome_unknown=True)

    async def ask(self, request: Callable[Concatenate[Redis, P], Any], *args: P.args, **options: P.kwargs) -> Any:
        """Send a plain request, `request(client, *args)`, and return its answer; its errors are translated.

        It is sent once. Only if a node of a Redis Cluster answers that another one has the slot, which applies nothing, is it sent once
        more, to the node that has it now.

        Raises:
            CommandBusError: As `translated` decides.
        """
        try:
            try:
                return await _answer_to(request(self.commands, *args, **options))
            except NotPrimary as error:
                if not is_redirect(error):
                    raise
                return await _answer_to(request(self.commands, *args, **options))
        except UnicodeEncodeError as error:
            raise InvalidCommand("a text that was given has lone surrogates, which UTF-8 cannot carry") from error
        except CONNECTION_ERRORS as error:
            raise translated(error, self.label) from error

    async def retry_until(self, attempt: Callable[[], Awaitable[T]], deadline: float, *, sends: bool = False) -> T:
        """Repeat an idempotent request with backoff until it has an answer; `deadline` is monotonic.

        Args:
            attempt: Makes the request.
            deadline: When to give up.
            sends: Whether a sender waits for it, who may not want to wait for a server that is away.

        Raises:
            TransportUnavailable: The deadline passed, or the server is away and the sender does not wait; `outcome_unknown` if any try may
                have been applied.
        """
        backoff = Backoff()
        unknown = False
        while True:
            if sends and self.watch.refuses:
                raise self.watch.refusal()
            try:
                async with asyncio.timeout(max(deadline - mono(), 0.001)):
                    return await attempt()
            except TimeoutError as error:
                raise TransportUnavailable(f"no answer from {self.label} in time", outcome_unknown=True) from error
            except (TransportUnavailable, Unconfirmed) as error:
                pause = backoff.next()
                if mono() + pause >= deadline and isinstance(error, Unconfirmed):
                    raise
                unknown = unknown or isinstance(error, Unconfirmed) or error.outcome_unknown
                self.count_reconnect()
                self.watch.suspect(error)
                if mono() + pause >= deadline:
                    raise TransportUnavailable(error.message, outcome_unknown=unknown) from error
                await asyncio.sleep(pause)


async def _answer_to(request: Any) -> Any:
    """Return the answer to a request that was built; a request without one, such as a filled pipeline, is its own answer."""
    return await request if inspect.isawaitable(request) else request


_EVERY = 1.0


class ScriptCache:
    """Keeps all scripts in the script cache of a server, which a restart and SCRIPT FLUSH empty.

    Args:
        connections: To the server.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._seen = 0.0

    async def load(self, wanted: Script | None = None) -> None:
        """Load all scripts, `wanted` last: if loading breaks off, that one is missing again and loading is repeated.

        All are loaded because a producer may lack the right: after a restart the first worker that misses one loads them for all clients.

        Raises:
            TransportUnavailable: The server cannot be reached, or this user may not load scripts.
        """
        label = self._connections.label
        try:
            for script in (*(script for script in SCRIPTS if script is not wanted), *([wanted] if wanted else [])):
                await self._connections.commands.script_load(script.text)
        except NoPermissionError as error:
            raise TransportUnavailable(
                f"{label} lacks this version's scripts, and this user may not load them: start a worker of this version, which loads them "
                "as it starts, and within a second after the server lost them"
            ) from error
        except CONNECTION_ERRORS as error:
            raise translated(error, label) from error

    async def keep(self) -> None:
        """Check about once a second whether the server has all scripts; load them if it lost them (a restart, SCRIPT FLUSH)."""
        now = mono()
        if now - self._seen < _EVERY:
            return
        self._seen = now
        try:
            there = await self._connections.ask(lambda client: client.script_exists(*(script.sha for script in SCRIPTS)))
        except UnsuitableServer:  # a user of the application's own making, which may not ask
            return
        if not all(there):
            with suppress(TransportUnavailable):
                await self.load()
