"""`SyncCommandBus`: the bus for blocking code: scripts, web views, notebooks, threads, forked processes.

It runs a `CommandBus` on an event loop in a daemon thread of its own, started at first use. Threads may share it: their dispatches
leave together. After a fork the child starts a loop and connections of its own.
"""

from __future__ import annotations

from typing import Any, Self, TypeVar, Unpack, overload
from uuid import UUID

from command_bus.bus import BusArguments, CommandBus
from command_bus.messages.message import Message
from command_bus.sync.parts import (
    Part,
    SyncAudit,
    SyncCommands,
    SyncDeadLetters,
    SyncEntities,
    SyncEntityScope,
    SyncEvents,
    SyncFairness,
    SyncFleet,
    SyncHistory,
    SyncLimits,
    SyncSchedules,
    SyncServerState,
    SyncStates,
    SyncSubscriptions,
    SyncTrends,
    SyncViews,
    blocking,
    calling,
    dispatching,
)
from command_bus.sync.thread import ThreadedBus, warn_of_event_loop

R = TypeVar("R")


class SyncCommandBus(Part[CommandBus]):
    """A `CommandBus` for blocking code, without workers; the arguments are the same.

        with SyncCommandBus("redis://localhost") as bus:
            balance = bus.call(GetBalance(account_id="a-1"))

    Args:
        url: Address of the server; without one `COMMAND_BUS_URL` or `REDIS_URL`, else the embedded development server.
        **arguments: See `CommandBus`.

    Attributes:
        settings: What holds.
        dead_letters: What was given up: list, inspect, replay, discard, purge it.
        entities: All entities, for operators: list, pause, resume, drain, purge them; `entities.of("account")` is one type.
        fairness: The shares of tenants: weights, and who waits.
        fleet: Who works here, and the commands that the workers announce.
        server: Whether the server is there, as the bus's own requests found out.
        events: What happens to commands of watched entity types: `for event in bus.events()`.
        commands: Single commands that wait: list and reschedule delayed ones, prioritize.
        schedules: Commands that come at times: put, list, pause, trigger, remove their schedules.
        views: What is stuck, and entities by a part of their ids.
        states: What entities are, as their last settled commands left it.
        subscriptions: Who gets the events that are published: list, put, pause, remove.
        audit: What operators did, and why.
        trends: Figures of the last days.

    Raises:
        InvalidSettings: A setting is out of range.
    """

    def __init__(self, url: str | None = None, **arguments: Unpack[BusArguments]) -> None:
        warn_of_event_loop()
        self._plan = CommandBus(url, **arguments)  # is never opened; it says now what is wrong with the settings
        self.settings = self._plan.settings
        super().__init__(ThreadedBus(lambda: CommandBus(url, **arguments)), lambda bus: bus)
        self.dead_letters = SyncDeadLetters(self._bus, lambda bus: bus.dead_letters)
        self.entities = SyncEntities(self._bus, lambda bus: bus.entities)
        self.fairness = SyncFairness(self._bus, lambda bus: bus.fairness)
        self.fleet = SyncFleet(self._bus, lambda bus: bus.fleet)
        self.events = SyncEvents(self._bus, lambda bus: bus.events)
        self.server = SyncServerState(self._bus, lambda bus: bus.server)
        self.commands = SyncCommands(self._bus, lambda bus: bus.commands)
        self.schedules = SyncSchedules(self._bus, lambda bus: bus.schedules)
        self.limits = SyncLimits(self._bus, lambda bus: bus.limits)
        self.views = SyncViews(self._bus, lambda bus: bus.views)
        self.states = SyncStates(self._bus, lambda bus: bus.states)
        self.subscriptions = SyncSubscriptions(self._bus, lambda bus: bus.subscriptions)
        self.audit = SyncAudit(self._bus, lambda bus: bus.audit)
        self.trends = SyncTrends(self._bus, lambda bus: bus.trends)
        self.history = SyncHistory(self._bus, lambda bus: bus.history)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Connect now rather than at the first use."""
        self._bus.open()

    def close(self) -> None:
        """Close the connections. Other threads that wait for something get `BusClosed`."""
        self._bus.close()

    def __repr__(self) -> str:
        return f"<SyncCommandBus {self.settings.namespace!r} {self._bus.state}>"

    @property
    def url(self) -> str:
        """Return the server's URL, which other processes of this machine can use; it may hold a password."""
        return self._plan.url

    dispatch = dispatching(CommandBus.dispatch)
    dispatch_raw = dispatching(CommandBus.dispatch_raw)
    dispatch_batch = blocking(CommandBus.dispatch_batch)  # the iterable is consumed in the bus's own thread
    publish = blocking(CommandBus.publish)
    publish_raw = blocking(CommandBus.publish_raw)
    call = calling(CommandBus.call)
    call_raw = blocking(CommandBus.call_raw)
    cancel = blocking(CommandBus.cancel)
    stats = blocking(CommandBus.stats)
    ping = blocking(CommandBus.ping)
    wait_idle = blocking(CommandBus.wait_idle)

    @overload
    def result(self, command_id: str | UUID, command_type: type[Message[R]], *, timeout: float = ...) -> R: ...
    @overload
    def result(self, command_id: str | UUID, command_type: None = ..., *, timeout: float = ...) -> Any: ...
    def result(
        self,
        command_id: str | UUID,
        command_type: type[Message[Any]] | None = None,
        *,
        timeout: float = 0.0,
    ) -> Any:
        """Return the stored result of a command: see `CommandBus.result`."""
        return self._bus.do(lambda bus: bus.result(command_id, command_type, timeout=timeout))

    def entity(self, entity_type: str, entity_id: str | int) -> SyncEntityScope:
        """Return one entity: see `CommandBus.entity`."""
        return SyncEntityScope(self._bus, entity_type, entity_id)
