"""`Session`: the open connection of a bus to its namespace, which senders, workers and operators share.

The only module below the facade that knows Redis. A session belongs to the event loop that opened it, which is of one thread
of one process: the check of that is made with every request, so it must cost next to nothing. Before Python 3.12
`asyncio.get_running_loop` asks the kernel for the process id; a loop that runs, runs in its thread alone, so the thread and whether the loop
runs say the same in a tenth of the time. Forks are counted in the child.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import cached_property
from threading import get_ident
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet

from command_bus.errors import BusClosed, CommandBusError, InvalidSettings, UnsuitableServer, WrongEventLoop
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.notifications.notifications import Notifications
from command_bus.observer import Observer, ReportingProducer, announced, observed, outward_of
from command_bus.serialization.limits import PayloadLimits, reading_limits
from command_bus.serialization.protection import Protection
from command_bus.settings import BusSettings
from command_bus.transport.ports.operator import OperatorSide
from command_bus.transport.ports.transport import Transport
from command_bus.transport.redis.connection.factory import ClientFactory
from command_bus.transport.redis.transport import RedisTransport

Clients: TypeAlias = ClientFactory
"""Makes the clients that a session connects with."""


TransportOpener = Callable[[BusSettings], Awaitable[Transport]]
"""Opens a transport: connects, checks the server, and agrees on the namespace."""


class SessionHook(Protocol):
    """Watches sessions open and close; the testing kit gives them other clients."""

    async def opening(self, session: Session) -> None:
        """Prepare a session that is about to connect, on its event loop; may set `session.clients`."""
        ...

    async def closed(self, session: Session) -> None:
        """Follow a session that has closed its connections, on its event loop."""
        ...

    async def awaited(self, result: Awaitable[Any]) -> Any:
        """Await a result for a caller."""
        ...

    async def publishing(self, session: Session, event: OutgoingMessage) -> None:
        """Prepare a session that is about to publish an event."""
        ...


class SessionPart(Protocol):
    """Ends with the session that it is attached to."""

    async def close(self) -> None:
        """End the part. The session calls this before it closes its connections."""
        ...

    def renew(self) -> None:
        """Reset to the state before `open`, also for another event loop."""
        ...


class Session:
    """Opens, closes and opens again.

    Args:
        settings: What the bus is set to.
        protection: Signs and encrypts, or None.
        clients: The place where to connect to; None: to `settings.url`, or the development server.
        open_transport: Opens another transport than Redis's.
        owner: The bus, for hooks.

    Attributes:
        settings: As they were given.
        protection: As it was given.
        clients: As they were given; may be set while the session is not open.
        owner: As it was given.
        observer: Receives what happens; may be set until the session opens.
        notifications: What it tells others; None: nothing.
        hook: Watches this session; None: `every_hook` does, if there is one.
    """

    every_hook: SessionHook | None = None  # of all sessions of this process, while a test runs

    def __init__(
        self,
        settings: BusSettings,
        protection: Protection | None,
        *,
        clients: Clients | None = None,
        open_transport: TransportOpener | None = None,
        owner: object = None,
    ) -> None:
        self._open_transport = open_transport
        self.owner = owner
        self.settings = settings
        self.protection = protection
        self.clients = clients
        self.observer: Observer | None = None
        self.notifications: Notifications | None = None
        self.hook: SessionHook | None = None
        self._transport: Transport | None = None
        self._guard: LoopGuard | None = None
        self._closed = False
        self._opening = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._parts: list[SessionPart] = []

    def __repr__(self) -> str:
        return f"<session {self.settings.namespace!r} {self.state}>"

    @property
    def state(self) -> str:
        """`open`, `closed` or `not open`."""
        return "open" if self._transport is not None else "closed" if self._closed else "not open"

    @property
    def is_open(self) -> bool:
        """Whether it is connected."""
        return self._transport is not None

    @property
    def transport(self) -> Transport:
        """The open transport.

        Raises:
            BusClosed: The session is not open.
            WrongEventLoop: It is open in another event loop.
        """
        if self._transport is None or self._guard is None:
            raise BusClosed("the bus is closed" if self._closed else "the bus is not open: use `async with CommandBus(…) as bus`")
        self._guard.check()
        return self._transport

    @property
    def redis(self) -> RedisTransport:
        """The open transport of a session on Redis, for code that is about Redis.

        Raises:
            BusClosed, WrongEventLoop: As for `transport`.
            UnsuitableServer: The session has another transport.
        """
        transport = self.transport
        if not isinstance(transport, RedisTransport):
            raise UnsuitableServer(f"{transport.label} is not Redis")
        return transport

    @property
    def active_hook(self) -> SessionHook | None:
        """The hook that watches this session, if there is one."""
        return self.hook or self.every_hook

    @property
    def where(self) -> str:
        """The namespace and its server, for people."""
        return f"namespace {self.settings.namespace!r} on {self.transport.label}"

    @property
    def url(self) -> str:
        """The server's URL, which other processes of this machine can use; it may hold a password.

        Raises:
            InvalidSettings: The session was given clients or a transport.
        """
        if self.clients is not None or self._open_transport is not None:
            raise InvalidSettings(
                "this bus was given its connections and has no URL: an in-memory bus lives in this process alone"
            )
        if self.settings.server_url is not None:
            return self.settings.server_url
        from command_bus.embedded import shared_server

        return shared_server()

    def exchange_guard(self, guard: LoopGuard) -> LoopGuard | None:
        """Check every use by this guard from now on; return the one before, None if the session is not open."""
        before, self._guard = self._guard, guard
        return before

    def attach(self, part: SessionPart) -> None:
        """Close and renew this part together with the session."""
        self._parts.append(part)

    async def open(self) -> None:
        """Connect, check the server and agree on the namespace. Idempotent; a session that was closed opens again.

        Raises:
            CommandBusError: As `CommandBus.open`.
        """
        if self._closing is not None and self._closing.done():
            self.renew()
        if self._guard is not None:
            self._guard.check()
        async with self._opening:
            if self._closed:
                raise BusClosed("the bus is being closed: open it again once `close` has returned")
            if self._transport is None:
                if self.active_hook is not None:
                    await self.active_hook.opening(self)
                transport = await self._connect()
                await self._agree_on_digests(transport)
                if self.observer is not None:
                    transport.producer = ReportingProducer(transport.producer, observed(self.observer))
                    transport.availability.on_away = self.observer.server_away
                    transport.availability.on_back = self.observer.server_back
                    self.observer.connects(lambda: transport.reconnects)
                if self.notifications is not None and self.active_hook is None:  # a test's bus tells nothing
                    self._tell(transport, self.notifications)
                self._transport, self._guard = transport, LoopGuard()
                OPEN_SESSIONS.add(self)

    async def _agree_on_digests(self, transport: Transport) -> None:
        """Take the namespace's key of digests, if this bus has a cipher; the first to open makes it."""
        protection = self.protection
        if protection is not None and (sealed := protection.new_digest_key()) is not None:
            protection.use_digest_key(await transport.agreements.shared("digests", sealed))

    def _tell(self, transport: Transport, notifications: Notifications) -> None:
        """Begin to tell others, if there is a notifier."""
        told = notifications.begin(transport)
        if told is None:
            return
        if "work" in told.kinds:
            transport.producer = ReportingProducer(transport.producer, announced(told.announcer))
        if (outward := outward_of(self.observer)) is not None:
            outward.notifies(lambda: told.figures)

    async def _connect(self) -> Transport:
        if self._open_transport is not None:
            return await self._open_transport(self.settings)
        return await RedisTransport.open(self.clients or self.url, self.settings)

    async def close(self) -> None:
        """Let accepted work leave, close the connections. Idempotent; a caller that gives up waiting does not stop it half-way.

        A session of an event loop that is closed, or of before a fork, has no connections left to close.

        Raises:
            WrongEventLoop: It is open in another event loop: close it there.
        """
        if self._guard is not None and self._guard.is_lost():
            self._closed, self._transport, self._guard = True, None, None
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="command_bus.close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        async with self._opening:
            self._closed = True
            transport, self._transport, self._guard = self._transport, None, None
            OPEN_SESSIONS.discard(self)
        for part in self._parts:
            await part.close()
        if transport is not None:
            await transport.close()
            if self.active_hook is not None:
                await self.active_hook.closed(self)

    def renew(self) -> None:
        """Be as before the first `open`, also for another event loop: an application can start twice in one process."""
        self._transport, self._guard, self._closed, self._closing = None, None, False, None
        self._opening = asyncio.Lock()
        for part in self._parts:
            part.renew()
        OPEN_SESSIONS.discard(self)


async def is_answered(session: Session, patience: float) -> bool:
    """Return whether the server answers within some seconds."""
    try:
        async with asyncio.timeout(patience):
            await session.transport.ping()
    except (CommandBusError, TimeoutError):
        return False
    return True


OPEN_SESSIONS: WeakSet[Session] = WeakSet()
"""The sessions of this process that are connected."""

_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - it is the process's
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class LoopGuard:
    """The running event loop, its thread and its process."""

    __slots__ = ("_forks", "_is_running", "_loop", "_pid", "_thread")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_running = self._loop.is_running
        self._thread = get_ident()
        self._pid = os.getpid()
        self._forks = _forks

    def check(self) -> None:
        """Do nothing where the bus may be used.

        Raises:
            WrongEventLoop: In another event loop, in a thread, after a fork.
        """
        if get_ident() != self._thread or not self._is_running() or self._forks != _forks:
            raise WrongEventLoop(self._advice())

    def is_lost(self) -> bool:
        """Return whether it cannot be returned to: its loop is closed, or it is the parent's.

        Raises:
            WrongEventLoop: It can, and this is another place.
        """
        if self._forks != _forks or self._loop.is_closed():
            return True
        self.check()
        return False

    def _advice(self) -> str:
        if self._forks != _forks:
            return (
                f"this bus was opened in process {self._pid}, and this is process {os.getpid()}, forked from it: "
                "make a new bus after the fork, or take SyncCommandBus, which opens one of its own in each process"
            )
        return (
            "this bus was opened in another event loop, and a bus belongs to the loop that opened it: open one in this loop with "
            "`async with CommandBus(…) as bus`, or take SyncCommandBus, which works from every thread"
        )


class ServerState:
    """The state of the server: there or away. Nothing is asked for it: a request that failed started a probe, and probes go on until one succeeds.

    Args:
        session: Connections and settings of the bus.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def is_available(self) -> bool:
        """Whether no server of the bus is known to be away. False while the bus is not open."""
        return self._session.is_open and self._session.transport.availability.is_available

    @property
    def away_for(self) -> float:
        """Seconds since a server was found to be away, the longest of several; 0 if none is."""
        return self._session.transport.availability.away_for if self._session.is_open else 0.0


def shard_of(session: Session, mailbox: str) -> int:
    """Return the shard of a mailbox, among those that the namespace was made with.

    Raises:
        BusClosed, WrongEventLoop: As for `Session.transport`.
    """
    return session.transport.shard_of(mailbox)


class OnSession:
    """Something that is done on a session.

    Args:
        session: The connection of the bus.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def _transport(self) -> Transport:
        return self._session.transport

    @property
    def _operator(self) -> OperatorSide:
        return self._session.transport.operator

    @cached_property
    def _limits(self) -> PayloadLimits:
        """The limits of reading."""
        return reading_limits(self._session.settings)
