"""`CommandBus`: the facade. It composes session, sender, operators' parts and workers, and holds no logic of its own.

`sending/sender.py` says how a command goes out, `worker/worker.py` how it is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload
from uuid import UUID

from command_bus.admin.audit import Audit, Trends
from command_bus.admin.commands import Commands
from command_bus.admin.dead_letters import DeadLetters
from command_bus.admin.entities import Entities
from command_bus.admin.entity import EntityScope
from command_bus.admin.events import Events
from command_bus.admin.fairness import Fairness
from command_bus.admin.fleet import Fleet
from command_bus.admin.history import CommandHistory
from command_bus.admin.info import Stats
from command_bus.admin.limits import Limits
from command_bus.admin.services import Services
from command_bus.admin.states import States
from command_bus.admin.statistics import Statistics
from command_bus.admin.subscriptions import Subscriptions
from command_bus.admin.views import Views
from command_bus.clock import checked_seconds, mono
from command_bus.handlers.registry import HandlerRegistry, default_registry
from command_bus.messages.event import Published, PublishOptions
from command_bus.messages.message import Event, Message
from command_bus.messages.options import CallOptions, DispatchOptions, FollowedCallOptions
from command_bus.messages.outgoing import Envelope, OtherEntities, RawEnvelope
from command_bus.messages.receipts import BatchResult, Receipt
from command_bus.middleware import Middleware
from command_bus.notifications.notifications import Notifications
from command_bus.notifications.notifier import Notifier
from command_bus.observer import Observer
from command_bus.scheduling.schedules import Schedules
from command_bus.sending.envelope_builder import events_of, of_event
from command_bus.sending.sender import Sender
from command_bus.serialization.protection import PayloadCipher, Protection
from command_bus.session import Clients, ServerState, Session, TransportOpener
from command_bus.setting_values import SettingOverrides
from command_bus.settings import BusSettings, resolved
from command_bus.transport.ports.transport import Transport

if TYPE_CHECKING:
    from command_bus.worker.worker import Worker

R = TypeVar("R")


class BusOptions(SettingOverrides, total=False):
    """Arguments of a bus besides its server and its handlers; see `CommandBus`."""

    namespace: str | None
    settings: BusSettings | None
    middleware: Sequence[Middleware]
    lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None
    cipher: PayloadCipher | None
    observer: Observer | None
    notifier: Notifier | None
    clients: Clients | None
    open_transport: TransportOpener | None


class BusArguments(BusOptions, total=False):
    """Arguments of a bus besides its server; see `CommandBus`."""

    registry: HandlerRegistry | None


class CommandBus:
    """Sends commands and queries to the workers of a namespace, and makes workers.

        async with CommandBus("redis://localhost") as bus:
            await bus.dispatch(Deposit(account_id="a-1", amount=5))
            balance = await bus.call(GetBalance(account_id="a-1"))

    Args:
        url: Address of the server; without one `COMMAND_BUS_URL` or `REDIS_URL`, else the embedded development server.
        namespace: Prefix of all keys: one fleet.
        registry: Handlers of this process's workers; by default those registered with `@handles`.
        settings: All settings at once; further keyword arguments override single ones.
        middleware: Around dispatch and handle, the first outermost.
        lifespan: Makes an async context manager that a worker holds open from before its first command until its last.
        cipher: Encrypts payloads, and replies to encrypted commands.
        observer: Receives what happens, for metrics: `command_bus.telemetry.metrics.PrometheusMetrics()`, for example.
        notifier: Tells others what happens: `command_bus.notifications.RedisNotifier()`, for example.
        clients: The place where to connect to instead of a URL: `command_bus.transport.redis.memory.MemoryClients()`, for example.
        open_transport: Opens another transport than Redis's, as `command_bus.transport.ports.transport` describes it.

    Attributes:
        dead_letters: What was given up: list, inspect, replay, discard, purge it.
        entities: All entities, for operators: list, pause, resume, drain, purge them; `entities.of("account")` is one type.
        fairness: The shares of tenants: weights, and who waits.
        fleet: Who works here, and the commands that the workers announce.
        server: Whether the server is there, as the bus's own requests found out.
        limits: The rates and numbers at which commands may start: put, take back, list.
        events: What happens to commands of watched entity types: `async for event in bus.events()`.
        commands: Single commands: status, progress, cancel, signal, reschedule, prioritize.
        schedules: Commands that come at times: put, list, pause, trigger, remove their schedules.
        history: How commands ended that have a history: get one by its id, search.
        notifier: Sends notices and listens to them: `async with bus.notifier.listen("work", types={"order"}) as woken: …`.
        views: What is stuck, and entities by a part of their ids, at a cost that does not grow with the namespace.
        states: What entities are, as their last settled commands left it: get, list, correct, delete it.
        services: Other services that the settings name, each a bus: `await bus.services.get("warehouse")`.
        subscriptions: Who gets the events that are published: list, put, pause, remove.
        audit: What operators did, and why: write and read it.
        trends: Figures of the last days, a minute apart.
        session: The connection, which workers and operators of this bus share.
        sender: What it sends with; its workers send follow-ups by it.

    Raises:
        InvalidSettings: A setting is out of range.
    """

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
        notifier: Notifier | None = None,
        clients: Clients | None = None,
        open_transport: TransportOpener | None = None,
        **overrides: Unpack[SettingOverrides],
    ) -> None:
        self.settings = resolved(settings, url, namespace, overrides)
        self.registry = default_registry if registry is None else registry
        self.lifespan = lifespan
        self.cipher = cipher
        self.session = Session(
            self.settings, Protection.of(self.settings, cipher), clients=clients, open_transport=open_transport, owner=self
        )
        self.session.observer = observer
        self.notifier = Notifications(notifier, self.settings.namespace, lambda: self.session.transport)
        self.session.notifications = self.notifier
        self.session.attach(self.notifier)
        self.sender = Sender(self.session, middleware)
        self.dead_letters = DeadLetters(self.session)
        self.entities = Entities(self.session)
        self.fairness = Fairness(self.session)
        self.fleet = Fleet(self.session)
        self.events = Events(self.session)
        self.server = ServerState(self.session)
        self.commands = Commands(self.session)
        self.schedules = Schedules(self.session, self.sender)
        self.limits = Limits(self.session)
        self.history = CommandHistory(self.session)
        self.views = Views(self.session)
        self.states = States(self.session)
        self.services = Services(self.session, self._of_service)
        self.subscriptions = Subscriptions(self.session, self.sender.subscriptions)
        self.audit = Audit(self.session)
        self.trends = Trends(self.session)

    def _of_service(self, settings: BusSettings) -> CommandBus:
        """Make the bus of another service."""
        session = self.session
        bus = CommandBus(settings=settings, middleware=self.middleware, cipher=self.cipher, clients=session.clients)
        bus.session.hook = session.hook
        return bus

    @classmethod
    def in_memory(cls, **arguments: Unpack[BusArguments]) -> Self:
        """Make a bus in this process alone, for unit tests (extra `testing`): the same code over fakeredis, no server."""
        from command_bus.transport.redis.memory import MemoryClients

        given: BusArguments = {"clients": MemoryClients(), **arguments}
        return cls("redis://in-memory", **given)

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
        await self.session.open()

    async def close(self) -> None:
        """Let accepted dispatches leave, close the connections. Workers are stopped by their own `async with`.

        Idempotent; a caller that gives up waiting does not stop it half-way. A bus that was opened in an event loop that is closed, or
        before a fork, has no connections left to close.

        Raises:
            WrongEventLoop: It is open in another event loop: close it there.
        """
        await self.session.close()

    def __repr__(self) -> str:
        return f"<CommandBus {self.settings.namespace!r} {self.session.state}>"

    @property
    def url(self) -> str:
        """The server's URL, which other processes of this machine can use; it may hold a password."""
        return self.session.url

    @property
    def is_open(self) -> bool:
        """Whether it is connected."""
        return self.session.is_open

    @property
    def transport(self) -> Transport:
        """The open transport, for extensions.

        Raises:
            BusClosed: The bus is not open.
            WrongEventLoop: It is open in another event loop.
        """
        return self.session.transport

    @property
    def middleware(self) -> tuple[Middleware, ...]:
        """The middleware around dispatch and handle, the first one outermost; it may be set until the bus is opened."""
        return self.sender.middleware

    @middleware.setter
    def middleware(self, middleware: Sequence[Middleware]) -> None:
        self.sender.use(middleware)

    @property
    def observer(self) -> Observer | None:
        """The observer, which receives the facts for metrics; it may be set until the bus is opened."""
        return self.session.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self.session.observer = observer

    # Sending.

    async def dispatch(
        self,
        command: Message[R],
        **options: Unpack[DispatchOptions],
    ) -> Receipt[R]:
        """Accept a command: when this returns, the server has it.

        Args:
            command: What to do.
            command_id: Makes it idempotent: a repeat within the dedup window is not run twice.
            delay: Seconds until it takes its place in its entity's line.
            at: The moment when it does, with a time zone, by this machine's clock; one that is past is now. Instead of `delay`.
            headers: Text that travels with it.
            expires: Seconds after which it is not started any more, but dead-lettered as expired.
            keep_result: Keep its result, for `await receipt.result()`, as that of a command with a given id is kept.
            priority: `"high"` lifts its entity before others that wait for a worker; what stands before it there still runs before it.
            retry: How its failures are retried, rather than as its class says. What errors are retried its class says.
            attempt_timeout: Seconds that one attempt of its handler may take, rather than as its class says.
            unique: Folds it with others of its entity that have the same key; by default as its class says.
            history: What is kept of its end, as `"30 days"` or a `History`, rather than as its class says; `False`: nothing.

        Raises:
            InvalidCommand: It cannot be sent (also a ValueError).
            QueueFull: A depth limit refuses it; see `retry_after`.
            IdempotencyConflict: The id was used with another payload.
            TransportUnavailable: The server did not answer within `dispatch_timeout`.
            BusClosed: The bus is not open.
        """
        return await self.sender.dispatch(command, options)

    async def dispatch_raw(
        self,
        entity_type: str | None,
        entity_id: str | int | None,
        name: str,
        payload: Mapping[str, Any],
        *,
        version: int = 1,
        others: OtherEntities = (),
        **options: Unpack[DispatchOptions],
    ) -> Receipt[Any]:
        """Dispatch without the command's class: the worker validates the payload. `None, None` names no entity.

        `version` is that of the payload's fields, if the class has versions (see `upcasts`); `others` are types and ids of the further entities
        of a class that has several, in the order of its fields. The options are those of `dispatch`.
        """
        return await self.sender.dispatch_raw(RawEnvelope(entity_type, entity_id, name, payload, version, options, others))

    async def dispatch_batch(self, commands: Iterable[Message[Any] | Envelope[Any] | RawEnvelope]) -> BatchResult:
        """Accept many commands in few steps; the order of an entity's commands is kept.

        Never raises for single commands: each has its outcome. After a refused command of an entity, its later ones in the batch are
        refused as well (`QueueFull` with `limit="predecessor"`), so that none overtakes it. A shard whose server is away is waited for once,
        for `dispatch_timeout`: the rest of its commands fail at once (`TransportUnavailable`, not in doubt).

        Raises:
            BusClosed: The bus is not open.
        """
        return await self.sender.dispatch_batch(commands)

    async def publish(self, *events: Event, **options: Unpack[PublishOptions]) -> Published:
        """Publish an event: when this returns, each subscription that is for it has it, in its own line of the event's entity.

        Several events go together, in their order. An event that no subscription is for is gone; the answer says so. Without the class:
        `publish_raw`.

        Args:
            *events: What has happened.
            event_id: Makes it idempotent: no subscription gets it twice within the dedup window. Of several events the ids are made of it:
                `psp-77.1`, `psp-77.2`.
            delay: Seconds until it takes its places.
            at: The moment when it does; instead of `delay`.
            headers: Text that travels with it.
            expires: Seconds after which it is not given to handlers any more, but dead-lettered as expired.
            priority: As for `dispatch`.

        Raises:
            InvalidCommand: It cannot be sent (also a ValueError).
            PublishedInPart: Some subscriptions have it, others refused it.
            QueueFull: All refused it.
            TransportUnavailable: The server did not answer in time.
            BusClosed: The bus is not open.
        """
        event_id, made = events_of(self.sender.builder, events, options)
        return await self.sender.publish(event_id, *made)

    async def publish_raw(
        self,
        entity_type: str,
        entity_id: str | int,
        name: str,
        fields: Mapping[str, Any],
        *,
        version: int = 1,
        **options: Unpack[PublishOptions],
    ) -> Published:
        """Publish without the event's class: handlers of its class validate the fields. The options are those of `publish`."""
        builder = self.sender.builder
        event = builder.raw(RawEnvelope(entity_type, entity_id, name, fields, version, of_event(options)))
        return await self.sender.publish(event.command_id, event)

    async def call(
        self,
        command: Message[R],
        **options: Unpack[FollowedCallOptions],
    ) -> R:
        """Send a command or query and wait for its reply; a repeat of a settled command id gets the stored reply.

        Args:
            command: What to do; its type argument is the reply's type.
            timeout: Seconds to wait, by default `call_timeout` of the entity type or the bus; a command that was not started by then never is,
                give or take the time that its request was on its way to the server.
            command_id: As for `dispatch`.
            headers: As for `dispatch`.
            priority: As for `dispatch`.
            retry: As for `dispatch`.
            attempt_timeout: As for `dispatch`.
            history: As for `dispatch`.
            on_progress: Is called with a `ProgressInfo`, and awaited if it can be, whenever the handler has said by `context.progress` how far it
                is. What is replaced between two looks, 50 ms to a second, is not seen. Needs the rights of an operator. An error that it raises
                ends this wait, not the command.

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
        return await self.sender.call(command, **options)

    async def call_raw(
        self,
        entity_type: str | None,
        entity_id: str | int | None,
        name: str,
        payload: Mapping[str, Any],
        *,
        version: int = 1,
        others: OtherEntities = (),
        **options: Unpack[CallOptions],
    ) -> Any:
        """Call without the command's class: the worker validates the payload, the reply is plain data. `None, None` names no entity.

        `version` and `others` are as for `dispatch_raw`; the options are those of `call`, but for `on_progress`.
        """
        return await self.sender.call_raw(RawEnvelope(entity_type, entity_id, name, payload, version, others=others), **options)

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
        """Return the stored outcome of a call, or of a command with a given id, as `call` would return it. It is kept for `reply_ttl` seconds.

        Args:
            command_id: The id of the command.
            command_type: Its class, for a typed result; without it plain data is returned.
            timeout: Seconds to wait for an outcome.

        Raises:
            InvalidCommand: The timeout is negative or too long.
            UnknownCommand: The id is not known (any more), or it is the generated id of a dispatch, whose result is not kept.
            CommandTimeout: It is known and not settled.
            CommandBusError: Its outcome, as `call` raises it.
        """
        return await self.sender.result(command_id, command_type, timeout)

    async def cancel(self, command_id: str | UUID, *, running: bool = False, reason: str = "", wait: float = 10.0) -> bool:
        """Cancel a command: see `Commands.cancel`, reached as `bus.commands.cancel`. `bus.entity(…).cancel(…)` looks through one line only."""
        return await self.commands.cancel(command_id, running=running, reason=reason, wait=wait)

    def entity(self, entity_type: str, entity_id: str | int) -> EntityScope:
        """Return the scope of one entity: send to it, read its depth, pause, drain, resume and purge it."""
        return EntityScope(self.session, self.sender, entity_type, entity_id)

    # Looking.

    async def stats(self) -> Stats:
        """Return a snapshot of the namespace, read in one round trip per shard."""
        return await Statistics(self.session).stats()

    async def ping(self) -> float:
        """Return the seconds of one round trip to the server.

        Raises:
            TransportUnavailable: There is no answer.
        """
        began = mono()
        await self.session.transport.ping()
        return mono() - began

    async def wait_idle(self, timeout: float | None = None) -> None:
        """Wait until every accepted command is settled (delayed ones and retries too).

        Raises:
            InvalidCommand: The timeout is negative or too long.
            EntitiesStopped: What is left belongs to paused or parked entities, which only an operator can move.
            IdleTimeout: There is still work after `timeout` seconds.
        """
        seconds = None if timeout is None else checked_seconds("timeout", timeout, zero=True)
        await Statistics(self.session).until_idle(seconds)

    # Working.

    def worker(
        self,
        *,
        concurrency: int | None = None,
        registry: HandlerRegistry | None = None,
        lease: float | None = None,
        grace: float | None = None,
    ) -> Worker:
        """Make a worker for this bus's namespace: `async with bus.worker(): …`, or `await bus.worker().run()`.

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
