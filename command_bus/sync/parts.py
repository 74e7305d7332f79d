"""The parts of a `SyncCommandBus`: each has the methods of its asynchronous namesake, waits for them, and adds nothing.

A method is made from its namesake and has its parameters and its documentation. Async iterators become generators, which read a hundred
items ahead.
"""

# pyright: reportPrivateUsage=false
# The methods that are made here belong to the class.

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Generator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from command_bus.admin.audit import Audit, Trends
from command_bus.admin.commands import Commands
from command_bus.admin.dead_letters import DeadLetters
from command_bus.admin.entities import Entities
from command_bus.admin.entity import EntityScope
from command_bus.admin.events import CommandEvent, EventKind, Events
from command_bus.admin.fairness import Fairness
from command_bus.admin.fleet import Fleet
from command_bus.admin.history import CommandHistory
from command_bus.admin.limits import Limits
from command_bus.admin.states import States
from command_bus.admin.subscriptions import Subscriptions
from command_bus.admin.views import Views
from command_bus.bus import CommandBus
from command_bus.errors import BusClosed
from command_bus.messages.message import canonical_entity_id, check_entity_type
from command_bus.messages.receipts import Receipt, SyncReceipt
from command_bus.scheduling.schedules import Schedules
from command_bus.session import ServerState
from command_bus.sync.thread import ThreadedBus

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


class Part(Generic[A]):
    """A part of a bus that runs in a thread.

    Args:
        bus: Runs in a thread of its own.
        part: Finds the part in it.
    """

    def __init__(self, bus: ThreadedBus, part: Callable[[CommandBus], A]) -> None:
        self._bus = bus
        self._part = part


def blocking(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Part[A], P], R]:
    """Return a method that waits for the asynchronous one."""

    @wraps(method)
    def wait(self: Part[A], /, *args: P.args, **options: P.kwargs) -> R:
        return self._bus.do(lambda bus: method(self._part(bus), *args, **options))

    return wait


def dispatching(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, Receipt[R]]],
) -> Callable[Concatenate[Part[A], P], SyncReceipt[R]]:
    """Return a method that waits for the acceptance, and whose receipt waits for the result."""

    @wraps(method)
    def dispatch(self: Part[A], /, *args: P.args, **options: P.kwargs) -> SyncReceipt[R]:
        return self._bus.receive(lambda bus: method(self._part(bus), *args, **options))

    return dispatch


def calling(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Part[A], P], R]:
    """Return a method that waits for the reply; `on_progress` is a plain function, which is called in the thread that calls."""

    @wraps(method)
    def call(self: Part[A], /, *args: Any, on_progress: Any = None, **options: Any) -> R:
        plain: Callable[..., Coroutine[Any, Any, R]] = method
        return self._bus.call(lambda bus, hears: plain(self._part(bus), *args, **options, on_progress=hears), on_progress)

    return call


def iterating(method: Callable[Concatenate[A, P], AsyncIterator[R]]) -> Callable[Concatenate[Part[A], P], Generator[R]]:
    """Return a method whose generator reads the asynchronous iterator."""

    @wraps(method)
    def iterate(self: Part[A], /, *args: P.args, **options: P.kwargs) -> Generator[R]:
        return self._bus.each(lambda bus: method(self._part(bus), *args, **options))

    return iterate


class SyncDeadLetters(Part[DeadLetters]):
    """`DeadLetters`, reached as `bus.dead_letters`."""

    list = iterating(DeadLetters.list)
    page = blocking(DeadLetters.page)
    count = blocking(DeadLetters.count)
    oldest = blocking(DeadLetters.oldest)
    get = blocking(DeadLetters.get)
    several = blocking(DeadLetters.several)
    replay = blocking(DeadLetters.replay)
    replay_all = blocking(DeadLetters.replay_all)
    discard = blocking(DeadLetters.discard)
    purge = blocking(DeadLetters.purge)


class SyncEntities(Part[Entities]):
    """`Entities`, reached as `bus.entities`."""

    def of(self, entity_type: str | None) -> SyncEntities:
        """Return the entities of one type: see `Entities.of`."""
        checked = None if entity_type is None else check_entity_type(entity_type)
        return SyncEntities(self._bus, lambda bus: bus.entities.of(checked))

    pause = blocking(Entities.pause)
    drain = blocking(Entities.drain)
    resume = blocking(Entities.resume)
    purge = blocking(Entities.purge)
    obliterate = blocking(Entities.obliterate)
    holds = blocking(Entities.holds)
    recount = blocking(Entities.recount)
    types = blocking(Entities.types)
    forget_type = blocking(Entities.forget_type)
    list = blocking(Entities.list)
    unique_keys = blocking(Entities.unique_keys)


class SyncEntityScope(Part[EntityScope]):
    """`EntityScope`, reached as `bus.entity("account", "a-17")`.

    Raises:
        InvalidCommand: The type or id is not what it may be.
    """

    def __init__(self, bus: ThreadedBus, entity_type: str, entity_id: str | int) -> None:
        self.type = check_entity_type(entity_type)
        self.id = canonical_entity_id(entity_id)
        super().__init__(bus, lambda bus: bus.entity(self.type, self.id))

    def __repr__(self) -> str:
        return f"<entity {self.type}:{self.id}>"

    dispatch = dispatching(EntityScope.dispatch)
    call = calling(EntityScope.call)
    depth = blocking(EntityScope.depth)
    pause = blocking(EntityScope.pause)
    drain = blocking(EntityScope.drain)
    resume = blocking(EntityScope.resume)
    prioritize = blocking(EntityScope.prioritize)
    show = blocking(EntityScope.show)
    cancel = blocking(EntityScope.cancel)
    abort = blocking(EntityScope.abort)
    purge = blocking(EntityScope.purge)
    forget = blocking(EntityScope.forget)
    unique_keys = blocking(EntityScope.unique_keys)


class SyncEvents(Part[Events]):
    """`Events`, reached as `bus.events`."""

    def __call__(
        self, *entity_types: str | None, kinds: Collection[EventKind] = (), after: str | None = None, follow: bool = True
    ) -> Generator[CommandEvent]:
        """Iterate over events: `for event in bus.events(): …`, which waits for the next one in this thread. A hundred are read ahead."""
        events = self._bus.each(lambda bus: bus.events(*entity_types, kinds=kinds, after=after, follow=follow))
        return _until_closed(events) if follow else events

    watch = blocking(Events.watch)
    cursor = blocking(Events.cursor)
    unwatch = blocking(Events.unwatch)
    watched = blocking(Events.watched)
    recent = blocking(Events.recent)


def _until_closed(events: Generator[CommandEvent]) -> Generator[CommandEvent]:
    """Iterate until the bus is closed, as on the asynchronous side."""
    try:
        yield from events
    except BusClosed:
        return


class SyncFairness(Part[Fairness]):
    """`Fairness`, reached as `bus.fairness`."""

    put = blocking(Fairness.put)
    remove = blocking(Fairness.remove)
    list = blocking(Fairness.list)


class SyncFleet(Part[Fleet]):
    """`Fleet`, reached as `bus.fleet`."""

    workers = blocking(Fleet.workers)
    commands = blocking(Fleet.commands)
    command = blocking(Fleet.command)
    events = blocking(Fleet.events)


class SyncLimits(Part[Limits]):
    """`Limits`, reached as `bus.limits`."""

    put = blocking(Limits.put)
    remove = blocking(Limits.remove)
    release = blocking(Limits.release)
    list = blocking(Limits.list)
    waiting = blocking(Limits.waiting)


class SyncServerState(Part[ServerState]):
    """`ServerState`, reached as `bus.server`."""

    @property
    def is_available(self) -> bool:
        """Return whether the server answered last: see `ServerState.is_available`."""
        return self._bus.do(_is_available)

    @property
    def away_for(self) -> float:
        """Return the seconds for which the server has been away: see `ServerState.away_for`."""
        return self._bus.do(_away_for)


async def _is_available(bus: CommandBus) -> bool:
    return bus.server.is_available


async def _away_for(bus: CommandBus) -> float:
    return bus.server.away_for


class SyncHistory(Part[CommandHistory]):
    """`CommandHistory`, reached as `bus.history`."""

    get = blocking(CommandHistory.get)
    search = blocking(CommandHistory.search)


class SyncCommands(Part[Commands]):
    """`Commands`, reached as `bus.commands`."""

    signal = blocking(Commands.signal)
    status = blocking(Commands.status)
    progress = iterating(Commands.progress)
    record = blocking(Commands.record)
    cancel = blocking(Commands.cancel)
    reschedule = blocking(Commands.reschedule)
    prioritize = blocking(Commands.prioritize)
    delayed = iterating(Commands.delayed)


class SyncSchedules(Part[Schedules]):
    """`Schedules`, reached as `bus.schedules`."""

    put = blocking(Schedules.put)
    put_raw = blocking(Schedules.put_raw)
    get = blocking(Schedules.get)
    next = blocking(Schedules.next)
    pause = blocking(Schedules.pause)
    resume = blocking(Schedules.resume)
    trigger = blocking(Schedules.trigger)
    remove = blocking(Schedules.remove)
    sync = blocking(Schedules.sync)
    compare = blocking(Schedules.compare)
    export = iterating(Schedules.export)
    import_ = blocking(Schedules.import_)
    list = iterating(Schedules.list)


class SyncViews(Part[Views]):
    """`Views`, reached as `bus.views`."""

    standing_still = blocking(Views.standing_still)
    find = blocking(Views.find)


class SyncStates(Part[States]):
    """`States`, reached as `bus.states`."""

    get = blocking(States.get)
    find = blocking(States.find)
    get_many = blocking(States.get_many)
    list = iterating(States.list)
    put = blocking(States.put)
    delete = blocking(States.delete)


class SyncSubscriptions(Part[Subscriptions]):
    """`Subscriptions`, reached as `bus.subscriptions`."""

    get = blocking(Subscriptions.get)
    names = blocking(Subscriptions.names)
    put = blocking(Subscriptions.put)
    sync = blocking(Subscriptions.sync)
    remove = blocking(Subscriptions.remove)
    pause = blocking(Subscriptions.pause)
    resume = blocking(Subscriptions.resume)
    list = blocking(Subscriptions.list)


class SyncAudit(Part[Audit]):
    """`Audit`, reached as `bus.audit`."""

    write = blocking(Audit.write)
    page = blocking(Audit.page)


class SyncTrends(Part[Trends]):
    """`Trends`, reached as `bus.trends`."""

    keep = blocking(Trends.keep)
    list = blocking(Trends.list)
