"""`CommandBus`: the facade. It composes the parts and holds no protocol of its own.

dispatch: command → EnvelopeBuilder (encode, name the mailbox) → StreamProducer (enqueue) → Receipt
call:     the same, with an inbox → RpcHandler (wait for the reply) → the typed result
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload
from uuid import UUID

from command_bus.admin.dead_letters import DeadLetters
from command_bus.admin.entities import Entities
from command_bus.admin.entity import EntityScope
from command_bus.admin.events import Events
from command_bus.admin.fleet import Fleet
from command_bus.admin.info import Stats
from command_bus.admin.statistics import Statistics
from command_bus.admin.waiting import WaitingCommands
from command_bus.clock import checked_seconds, mono
from command_bus.errors import (
    BusClosed,
    InvalidSettings,
    TransportUnavailable,
)
from command_bus.handlers.registry import HandlerRegistry, default_registry
from command_bus.home import Home
from command_bus.keywords import BusArguments
from command_bus.messages.context import while_lent
from command_bus.messages.message import Message
from command_bus.messages.options import DispatchOptions
from command_bus.messages.outgoing import Envelope, OutgoingMessage
from command_bus.messages.receipts import BatchResult, Receipt
from command_bus.middleware import Middleware, Sending, around_batch, around_call, around_dispatch
from command_bus.observer import ObservedProducer, Observer, observed_call
from command_bus.sending.admission import receipt
from command_bus.sending.batch import BatchSender
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.sending.overdue_calls import OverdueCalls
from command_bus.sending.results import ResultReader, later
from command_bus.serialization.protection import PayloadCipher, Protection
from command_bus.settings import BusSettings, SettingOverrides, resolved
from command_bus.stand_in import OPEN, StandIn
from command_bus.transport.redis.connection.connections import ClientFactory
from command_bus.transport.redis.transport import RedisTransport
from command_bus.transport.submissions import Admission, Submission

if TYPE_CHECKING:
    from command_bus.worker.worker import Worker

__all__ = ["CommandBus"]

R = TypeVar("R")


class CommandBus:
    """Sends commands and queries to the workers of a namespace, and makes workers.

        async with CommandBus("redis://localhost") as bus:
            await bus.dispatch(Deposit(account_id="a-1", amount=5))
            balance = await bus.call(GetBalance(account_id="a-1"))

    Args:
        url: Of the server; without one `COMMAND_BUS_URL` or `REDIS_URL`, else the embedded development server.
        namespace: Prefix of all keys: one fleet.
        registry: Handlers of this process's workers; by default those registered with `@handles`.
        settings: All settings at once; further keyword arguments override single ones.
        middleware: Around dispatch and handle, the first outermost.
        lifespan: Makes an async context manager that a worker holds open from before its first command until its last.
        cipher: Encrypts payloads, and replies to encrypted commands.
        observer: Is told what happens, for metrics: `command_bus.telemetry.metrics.PrometheusMetrics()`, say.

    Attributes:
        dead_letters: What was given up: list, inspect, replay, discard, purge it.
        entities: All entities, for operators: list, pause, resume, drain, purge them; `entities.of("account")` is one type.
        fleet: Who works here, and the commands that the workers announce.
        events: What happens to commands of watched entity types: `async for event in bus.events()`.
        observer: As given; it may be set until the bus is opened.

    Raises:
        InvalidSettings: A setting is out of range.
    """

    _stand_in: StandIn | None = None  # of all buses, or of this one, while a test runs

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        registry: HandlerRegistry | None = None,
        settings: BusSettings | None = None,
        middleware: Sequence[Middleware] = (),
        lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        cipher: PayloadCipher | None = None,
        observer: Observer | None = None,
        **overrides: Unpack[SettingOverrides],
    ) -> None:
        self.settings = resolved(settings, url, namespace, overrides)
        self.registry = default_registry if registry is None else registry
        self.middleware = tuple(middleware)
        self.lifespan = lifespan
        self.observer = observer
        self.dead_letters = DeadLetters(self)
        self.entities = Entities(self)
        self.fleet = Fleet(self)
        self.events = Events(self)
        self._clients: ClientFactory | None = None
        self._transport: RedisTransport | None = None
        self._home: Home | None = None
        self._closed = False
        self._opening = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self.protection = Protection.of(self.settings, cipher)
        self._builder = EnvelopeBuilder(self.settings, self.protection)
        self._overdue = OverdueCalls(self)
        self._send = around_dispatch(self.middleware, self._transmit)
        self._prepare = around_dispatch(self.middleware, self._build)

    @classmethod
    def in_memory(cls, **arguments: Unpack[BusArguments]) -> Self:
        """A bus in this process alone, for unit tests (extra `testing`): the same code over fakeredis, no server."""
        from command_bus.transport.memory import MemoryClients

        bus = cls("redis://in-memory", **arguments)
        bus._clients = MemoryClients()
        return bus

    # Life.

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect, check the server and agree on the namespace; `async with` does it. Idempotent; a bus that was closed opens again.

        Raises:
            TransportUnavailable: The server cannot be reached.
            UnsuitableServer: The server may lose commands.
            InvalidSettings: The namespace was made with other settings.
            WrongEventLoop: It is open in another event loop.
            BusClosed: It is just being closed.
        """
        if self._closing is not None and self._closing.done():
            self._renew()
        if self._home is not None:
            self._home.check()
        async with self._opening:
            if self._closed:
                raise BusClosed("the bus is being closed: open it again once `close` has returned")
            if self._transport is None:
                if self._stand_in is not None:
                    await self._stand_in.opening(self)
                transport = await RedisTransport.open(self._clients or self._url(), self.settings)
                if self.observer is not None:
                    transport.producer = ObservedProducer(transport.producer, self.observer)
                    self.observer.connects(lambda: transport.connections.all_reconnects)
                self._transport, self._home = transport, Home()
                OPEN.add(self)

    async def close(self) -> None:
        """Let accepted dispatches leave, close the connections. Workers are stopped by their own `async with`.

        Idempotent; whoever gives up waiting for it does not stop it half-way. What was opened in an event loop that is closed, or before a
        fork, has no connections left to close.

        Raises:
            WrongEventLoop: It is open in another event loop: close it there.
        """
        if self._home is not None and self._home.is_lost():
            self._closed, self._transport, self._home = True, None, None
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="command_bus.close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        async with self._opening:
            self._closed = True
            transport, self._transport, self._home = self._transport, None, None
            OPEN.discard(self)
        await self._overdue.close()
        if transport is not None:
            await transport.close()
            if self._stand_in is not None:
                await self._stand_in.closed(self)

    def _renew(self) -> None:
        """Be as before the first `open`: also for another event loop, so that an application can start twice in one process."""
        self._transport, self._home, self._closed, self._closing, self._opening = None, None, False, None, asyncio.Lock()
        self._overdue = OverdueCalls(self)
        OPEN.discard(self)

    def __repr__(self) -> str:
        state = "open" if self._transport is not None else "closed" if self._closed else "not open"
        return f"<CommandBus {self.settings.namespace!r} {state}>"

    @property
    def url(self) -> str:
        """The server's URL, which other processes of this machine can use; it may hold a password."""
        return self._url()

    # Sending.

    async def dispatch(
        self,
        command: Message[R],
        *,
        command_id: str | UUID | None = None,
        delay: float = 0.0,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
        keep_result: bool = False,
    ) -> Receipt[R]:
        """Accept a command: when this returns, the server has it.

        Args:
            command: What to do.
            command_id: Makes it idempotent: a repeat within the dedup window is not run twice.
            delay: Seconds until it takes its place in its entity's line.
            headers: Text that travels with it.
            expires: Seconds after which it is not started any more, but dead-lettered as expired.
            keep_result: Keep its result, for `await receipt.result()`, as that of a command with a given id is kept.

        Raises:
            InvalidCommand: It cannot be sent (also a ValueError).
            QueueFull: A depth limit refuses it; see `retry_after`.
            IdempotencyConflict: The id was used with another payload.
            TransportUnavailable: The server did not answer within `dispatch_timeout`.
            BusClosed: The bus is not open.
        """
        plain = command_id is None and not delay and not headers and expires is None and not keep_result
        if plain and self._builder.can_build_fast and self._agreed(command):
            submission = self._builder.build_fast(command)
            return receipt(
                submission.command_id, await self.transport.producer.enqueue(submission, self.settings.dispatch_timeout)
            )
        out = self._builder.outbound(
            command, command_id=command_id, delay=delay, headers=headers, expires=expires, keep_result=keep_result
        )
        return receipt(out.command_id, await self._send(out), partial(later, self, type(command)) if keep_result else None)

    async def dispatch_raw(
        self,
        entity_type: str | None,
        entity_id: str | int | None,
        name: str,
        payload: Mapping[str, Any],
        *,
        command_id: str | UUID | None = None,
        delay: float = 0.0,
        headers: Mapping[str, str] | None = None,
        expires: float | None = None,
        keep_result: bool = False,
    ) -> Receipt[Any]:
        """As `dispatch`, without the command's class: the worker validates the payload. `None, None` names no entity."""
        options = DispatchOptions(command_id=command_id, delay=delay, headers=headers, expires=expires, keep_result=keep_result)
        out = self._builder.raw(entity_type, entity_id, name, payload, **options)
        return receipt(out.command_id, await self._send(out), partial(later, self, None) if keep_result else None)

    async def dispatch_batch(self, commands: Iterable[Message[Any] | Envelope[Any]]) -> BatchResult:
        """Accept many commands in few steps; the order of an entity's commands is kept.

        Never raises for single commands: each has its outcome. After a refused command of an entity, its later ones in the batch are
        refused as well (`QueueFull` with `limit="predecessor"`), so that none overtakes it. A shard whose server is away is waited for once,
        for `dispatch_timeout`: the rest of its commands fail at once (`TransportUnavailable`, not in doubt).

        Raises:
            BusClosed: The bus is not open.
        """
        sender = BatchSender(self._builder, self.transport.producer, self._prepare, self.settings.dispatch_timeout, self._agreed)
        result: BatchResult = await around_batch(self.middleware, partial(sender.send, commands))()
        return result

    async def call(
        self,
        command: Message[R],
        *,
        timeout: float | None = None,
        command_id: str | UUID | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> R:
        """Send a command or query and wait for its reply; a repeat of a settled command id gets the stored reply.

        Args:
            command: What to do; its type argument is the reply's type.
            timeout: Seconds to wait, by default `call_timeout`; a command that was not started by then never is, give or take the time
                that its request was on its way to the server.
            command_id: As for `dispatch`.
            headers: As for `dispatch`.

        Raises:
            CommandRejected: The handler refused it.
            CommandFailed: The handler failed, and its retries are used up.
            CommandInterrupted: An at-most-once command was started and its worker lost.
            CommandExpired: It was not started in time.
            NoHandler: No worker handles it.
            CommandTimeout: No outcome in time: it is unknown; see `result`. The error says where the command was, see its attributes.
            CallCycle: A handler calls the entity that it runs for.
            InvalidCommand, QueueFull, IdempotencyConflict, TransportUnavailable, BusClosed: As for `dispatch`.
        """
        out = self._builder.outbound(command, command_id=command_id, headers=headers)
        value: R = await self._ask(out, type(command).spec().reply, timeout)
        return value

    async def call_raw(
        self,
        entity_type: str | None,
        entity_id: str | int | None,
        name: str,
        payload: Mapping[str, Any],
        *,
        timeout: float | None = None,
        command_id: str | UUID | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """As `call`, without the command's class: the worker validates the payload, the reply is plain data. `None, None` names no entity."""
        out = self._builder.raw(entity_type, entity_id, name, payload, command_id=command_id, headers=headers)
        return await self._ask(out, Any, timeout)

    def _ask(self, out: OutgoingMessage, reply_type: Any, timeout: float | None) -> Awaitable[Any]:
        """Send it for a caller who waits so long, and give what its reply says."""
        seconds = self.settings.call_timeout if timeout is None else checked_seconds("timeout", timeout)
        deadline = mono() + seconds
        out.ttl_ms = max(1, int(seconds * 1000))
        out.inbox = self.transport.replies.process
        exchange: Sending = partial(self._results().exchange, self._send, self._builder.place_of, reply_type, deadline)
        if self.observer is not None:
            exchange = partial(observed_call, self.observer, exchange)
        return around_call(self.middleware, exchange)(out)

    @overload
    async def result(self, command_id: str | UUID, command_type: type[Message[R]], *, timeout: float = ...) -> R: ...
    @overload
    async def result(self, command_id: str | UUID, command_type: None = ..., *, timeout: float = ...) -> Any: ...
    async def result(
        self,
        command_id: str | UUID,
        command_type: type[Message[Any]] | None = None,
        *,
        timeout: float = 0.0,
    ) -> Any:
        """The stored outcome of a call, or of a command with a given id: as `call` would have given it, for `reply_ttl` seconds.

        Args:
            command_id: Which.
            command_type: Its class, for a typed result; without it plain data is returned.
            timeout: Seconds to wait for an outcome.

        Raises:
            InvalidCommand: The timeout is negative or too long.
            UnknownCommand: The id is not known (any more), or it is the generated id of a dispatch, whose result nobody keeps.
            CommandTimeout: It is known and not settled.
            CommandBusError: Its outcome, as `call` raises it.
        """
        timeout = checked_seconds("timeout", timeout, zero=True)
        reply_type = Any if command_type is None else command_type.spec().reply
        result = self._results().result(str(command_id), reply_type, timeout)
        return await (while_lent(result) if timeout > 0 else result)

    async def cancel(self, command_id: str | UUID) -> bool:
        """Take a waiting command out of line; its caller gets `CommandCancelled`. False if it runs, has run or is unknown.

        Quick for ids that were given, for calls and for delayed commands. For the generated id of a dispatch every line is looked through:
        `bus.entity(…).cancel(…)` looks through one.
        """
        return await WaitingCommands(self.transport.operations, self.settings).cancel(str(command_id))

    def entity(self, entity_type: str, entity_id: str | int) -> EntityScope:
        """One entity: dispatch and call for it, see its depth, pause, drain, resume and purge it."""
        return EntityScope(self, entity_type, entity_id, self._builder.mailbox_of)

    # Looking.

    async def stats(self) -> Stats:
        """A snapshot of the namespace, in one round trip per shard."""
        transport = self.transport
        return await Statistics(transport.operations, transport.keys).stats()

    async def ping(self) -> float:
        """Seconds of one round trip to the server.

        Raises:
            TransportUnavailable: There is no answer.
        """
        began = mono()
        await self.transport.connections.ask(lambda client: client.ping())
        return mono() - began

    async def wait_idle(self, timeout: float | None = None) -> None:
        """Wait until every accepted command is settled (delayed ones and retries too).

        Raises:
            InvalidCommand: The timeout is negative or too long.
            EntitiesStopped: What is left belongs to paused or parked entities, which only an operator can move.
            IdleTimeout: There is still work after `timeout` seconds.
        """
        seconds = None if timeout is None else checked_seconds("timeout", timeout, zero=True)
        await Statistics(self.transport.operations, self.transport.keys).until_idle(seconds)

    # Working.

    def worker(
        self,
        *,
        concurrency: int | None = None,
        registry: HandlerRegistry | None = None,
        lease: float | None = None,
        grace: float | None = None,
    ) -> Worker:
        """A worker for this bus's namespace: `async with bus.worker(): …`, or `await bus.worker().run()`.

        Args:
            concurrency: Entities that it runs at a time, by default `settings.concurrency`.
            registry: Its handlers, by default the bus's.
            lease: Seconds, by default `settings.lease`; the same for the whole fleet.
            grace: Seconds that its handlers get to finish when it is stopped, by default `settings.grace`.
        """
        from command_bus.worker.worker import Worker  # a sender loads nothing of it

        given = {"concurrency": concurrency, "lease": lease, "grace": grace}
        settings = resolved(self.settings, None, None, {name: value for name, value in given.items() if value is not None})
        return Worker(self, settings, self.registry if registry is None else registry)

    # Inside.

    @property
    def is_open(self) -> bool:
        """Whether it is connected."""
        return self._transport is not None

    @property
    def transport(self) -> RedisTransport:
        """The parts below the facade, for workers and extensions.

        Raises:
            BusClosed: The bus is not open.
            WrongEventLoop: It is open in another event loop.
        """
        if self._transport is None or self._home is None:
            raise BusClosed("the bus is closed" if self._closed else "the bus is not open: use `async with CommandBus(…) as bus`")
        self._home.check()
        return self._transport

    def _url(self) -> str:
        if self._clients is not None:
            raise InvalidSettings("an in-memory bus has no URL: it lives in this process alone")
        if self.settings.server_url is not None:
            return self.settings.server_url
        from command_bus.embedded import shared_server

        return shared_server()

    def _results(self) -> ResultReader:
        return ResultReader(self.transport, self._builder.reply_limits, self._overdue, self.protection)

    async def _transmit(self, out: OutgoingMessage) -> Admission:
        """The innermost of the middleware around a dispatch: build and enqueue."""
        submission = await self._build(out)
        return await self.transport.producer.enqueue(submission, self._patience(out))

    def _patience(self, out: OutgoingMessage) -> float:
        """Seconds that accepting it may take: a caller waits no longer than it said."""
        timeout = self.settings.dispatch_timeout
        return timeout if out.deadline is None else min(timeout, max(out.deadline - mono(), 0.001))

    def _agreed(self, message: Message[Any]) -> bool:
        """Whether a message can be sealed at once: no middleware wants to see it, and its entity type is agreed on."""
        if self.middleware:
            return False
        entity_type = self._builder.entity_of(message)
        return entity_type is None or self.transport.namespace.agreed(entity_type) is not None

    async def _build(self, out: OutgoingMessage) -> Submission:
        """The submission of an outbound value; with the first of an entity type, agree on its mailboxes."""
        namespace = self.transport.namespace
        if out.entity_type is not None and namespace.agreed(out.entity_type) is None:
            await self._agree(out.entity_type, self._patience(out))
        return self._builder.build(out)

    async def _agree(self, entity_type: str, patience: float) -> None:
        """Record or compare how an entity type's mailboxes are, for as long as a dispatch may take: nothing of the command has left yet."""
        try:
            await self.transport.namespace.agree(entity_type, mono() + patience)
        except TransportUnavailable as error:
            raise TransportUnavailable(error.message) from error
