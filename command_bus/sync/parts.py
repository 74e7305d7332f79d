"""The parts of a `SyncCommandBus`: each has the methods of its asynchronous namesake, waits for them, and adds nothing.

Async iterators become generators. A test compares the signatures of both sides, so that none has what the other lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast
from uuid import UUID

from command_bus.admin.audit import Audit, Trends
from command_bus.admin.commands import Commands
from command_bus.admin.dead_letters import DeadLetters, LetterFilters
from command_bus.admin.entities import Entities
from command_bus.admin.entity import EntityScope
from command_bus.admin.events import Event, EventKind, Events
from command_bus.admin.fairness import Fairness
from command_bus.admin.fleet import Fleet
from command_bus.admin.history import CommandHistory
from command_bus.admin.limits import LimitInfos, Limits
from command_bus.admin.views import StandingState, Views
from command_bus.errors import BusClosed
from command_bus.messages.message import Message, canonical_entity_id, check_entity_type
from command_bus.scheduling.schedules import Schedules
from command_bus.session import ServerState

if TYPE_CHECKING:
    from datetime import datetime

    from command_bus.admin.audit import AuditPage, TrendPoint
    from command_bus.admin.command_status import CommandStatus
    from command_bus.admin.commands import DelayedCommand
    from command_bus.admin.events import EventPage
    from command_bus.admin.history import HistoryEntry, HistoryPage
    from command_bus.admin.info import (
        AbortReport,
        DeadLetter,
        EntityDetails,
        EntityOrder,
        EntityPage,
        EntityTypeInfo,
        HoldInfo,
        LetterPage,
        ShareInfo,
        Stats,
        UniqueKeyPage,
    )
    from command_bus.admin.records import CommandRecord
    from command_bus.admin.search import FoundEntities
    from command_bus.admin.views import Standstill
    from command_bus.bus import CommandBus
    from command_bus.handlers.registry import HandlerRegistry
    from command_bus.messages.limits import Rate
    from command_bus.messages.options import CallOptions, DispatchOptions, FollowedCallOptions
    from command_bus.messages.receipts import SyncReceipt
    from command_bus.messages.reports import ProgressInfo
    from command_bus.messages.schedule_declarations import PutOptions
    from command_bus.messages.schedule_specs import Cron, Every
    from command_bus.scheduling.info import ImportReport, ScheduleInfo, SyncReport
    from command_bus.serialization.announcements import CommandInfo, WorkerStatus
    from command_bus.serialization.outcome import Status
    from command_bus.sync.thread import ThreadedBus
    from command_bus.transport.records import EntityState, Recount

R = TypeVar("R")
P = TypeVar("P")


class Part(Generic[P]):
    """A part of a bus that runs in a thread.

    Args:
        bus: The bus.
        part: Finds the part in it.
    """

    def __init__(self, bus: ThreadedBus, part: Callable[[CommandBus], P]) -> None:
        self._bus = bus
        self._part = part

    def _do(self, work: Callable[[P], Coroutine[Any, Any, R]]) -> R:
        return self._bus.do(lambda bus: work(self._part(bus)))


class SyncDeadLetters(Part[DeadLetters]):
    """See `DeadLetters`; reached as `bus.dead_letters`."""

    def list(self, *, limit: int | None = None, **filters: Unpack[LetterFilters]) -> Generator[DeadLetter]:
        """See `DeadLetters.list`; a hundred of them are read ahead."""
        return self._bus.each(lambda bus: bus.dead_letters.list(limit=limit, **filters))

    def page(self, *, limit: int = 50, cursor: str | None = None, **filters: Unpack[LetterFilters]) -> LetterPage:
        """See `DeadLetters.page`."""
        return self._do(lambda letters: letters.page(limit=limit, cursor=cursor, **filters))

    def count(self, **filters: Unpack[LetterFilters]) -> Counter[tuple[str, str]]:
        """See `DeadLetters.count`."""
        return self._do(lambda letters: letters.count(**filters))

    def oldest(self) -> datetime | None:
        """See `DeadLetters.oldest`."""
        return self._do(lambda letters: letters.oldest())

    def get(self, letter_id: str) -> DeadLetter:
        """See `DeadLetters.get`."""
        return self._do(lambda letters: letters.get(letter_id))

    def several(self, letter_ids: Collection[str]) -> dict[str, DeadLetter]:
        """See `DeadLetters.several`."""
        return self._do(lambda letters: letters.several(letter_ids))

    def replay(self, letter_id: str, *, payload: Mapping[str, Any] | Message[Any] | None = None) -> str:
        """See `DeadLetters.replay`."""
        return self._do(lambda letters: letters.replay(letter_id, payload=payload))

    def replay_all(self, **filters: Unpack[LetterFilters]) -> int:
        """See `DeadLetters.replay_all`."""
        return self._do(lambda letters: letters.replay_all(**filters))

    def discard(self, letter_id: str) -> None:
        """See `DeadLetters.discard`."""
        self._do(lambda letters: letters.discard(letter_id))

    def purge(self, **filters: Unpack[LetterFilters]) -> int:
        """See `DeadLetters.purge`."""
        return self._do(lambda letters: letters.purge(**filters))


class SyncEntities(Part[Entities]):
    """See `Entities`; reached as `bus.entities`."""

    def of(self, entity_type: str | None) -> SyncEntities:
        """See `Entities.of`."""
        checked = None if entity_type is None else check_entity_type(entity_type)
        return SyncEntities(self._bus, lambda bus: bus.entities.of(checked))

    def pause(self, reason: str = "", *, until: datetime | float | None = None) -> bool:
        """See `Entities.pause`."""
        return self._do(lambda entities: entities.pause(reason, until=until))

    def drain(self, reason: str = "") -> bool:
        """See `Entities.drain`."""
        return self._do(lambda entities: entities.drain(reason))

    def resume(self) -> bool:
        """See `Entities.resume`."""
        return self._do(lambda entities: entities.resume())

    def purge(self) -> int:
        """See `Entities.purge`."""
        return self._do(lambda entities: entities.purge())

    def obliterate(self, *, confirm: str, force: bool = False) -> int:
        """See `Entities.obliterate`."""
        return self._do(lambda entities: entities.obliterate(confirm=confirm, force=force))

    def holds(self) -> list[HoldInfo]:
        """See `Entities.holds`."""
        return self._do(lambda entities: entities.holds())

    def recount(self, *, correct: bool = True) -> Recount:
        """See `Entities.recount`."""
        return self._do(lambda entities: entities.recount(correct=correct))

    def types(self) -> list[EntityTypeInfo]:
        """See `Entities.types`."""
        return self._do(lambda entities: entities.types())

    def forget_type(self, entity_type: str) -> bool:
        """See `Entities.forget_type`."""
        return self._do(lambda entities: entities.forget_type(entity_type))

    def list(
        self,
        *,
        states: Collection[EntityState] = (),
        order: EntityOrder = "depth",
        limit: int = 50,
        cursor: str | None = None,
        scan: int = 200_000,
    ) -> EntityPage:
        """See `Entities.list`."""
        return self._do(lambda entities: entities.list(states=states, order=order, limit=limit, cursor=cursor, scan=scan))

    def unique_keys(self, *, limit: int = 100, cursor: str | None = None, scan: int = 200_000) -> UniqueKeyPage:
        """See `Entities.unique_keys`."""
        return self._do(lambda entities: entities.unique_keys(limit=limit, cursor=cursor, scan=scan))


class SyncEntityScope(Part[EntityScope]):
    """See `EntityScope`; reached as `bus.entity("account", "a-17")`.

    Raises:
        InvalidCommand: The type or id is not what it may be.
    """

    def __init__(self, bus: ThreadedBus, entity_type: str, entity_id: str | int) -> None:
        self.type = check_entity_type(entity_type)
        self.id = canonical_entity_id(entity_id)
        super().__init__(bus, lambda bus: bus.entity(self.type, self.id))

    def __repr__(self) -> str:
        return f"<entity {self.type}:{self.id}>"

    def dispatch(self, command: Message[R], **options: Unpack[DispatchOptions]) -> SyncReceipt[R]:
        """See `EntityScope.dispatch`."""
        return self._bus.receive(lambda bus: self._part(bus).dispatch(command, **options))

    def call(self, command: Message[R], **options: Unpack[FollowedCallOptions]) -> R:
        """See `EntityScope.call`."""
        hears = options.pop("on_progress", None)
        plain = cast("CallOptions", options)
        return self._bus.call(lambda bus, tell: self._part(bus).call(command, **plain, on_progress=tell), hears)

    def depth(self) -> int:
        """See `EntityScope.depth`."""
        return self._do(lambda scope: scope.depth())

    def pause(self, reason: str = "", *, until: datetime | float | None = None) -> bool:
        """See `EntityScope.pause`."""
        return self._do(lambda scope: scope.pause(reason, until=until))

    def drain(self, reason: str = "") -> bool:
        """See `EntityScope.drain`."""
        return self._do(lambda scope: scope.drain(reason))

    def resume(self) -> bool:
        """See `EntityScope.resume`."""
        return self._do(lambda scope: scope.resume())

    def show(self, *, waiting: int = 20, scan: int | None = None) -> EntityDetails:
        """See `EntityScope.show`."""
        return self._do(lambda scope: scope.show(waiting=waiting, scan=scan))

    def cancel(self, command_id: str | UUID) -> bool:
        """See `EntityScope.cancel`."""
        return self._do(lambda scope: scope.cancel(command_id))

    def abort(self, reason: str = "", *, by: str = "", wait: float = 10.0, force: bool = False) -> AbortReport:
        """See `EntityScope.abort`."""
        return self._do(lambda scope: scope.abort(reason, by=by, wait=wait, force=force))

    def purge(self) -> int:
        """See `EntityScope.purge`."""
        return self._do(lambda scope: scope.purge())

    def forget(self, key: str) -> bool:
        """See `EntityScope.forget`."""
        return self._do(lambda scope: scope.forget(key))

    def unique_keys(self, *, limit: int = 100, scan: int = 20_000) -> UniqueKeyPage:
        """See `EntityScope.unique_keys`."""
        return self._do(lambda scope: scope.unique_keys(limit=limit, scan=scan))


class SyncEvents(Part[Events]):
    """See `Events`; reached as `bus.events`."""

    def __call__(
        self, *entity_types: str | None, kinds: Collection[EventKind] = (), after: str | None = None, follow: bool = True
    ) -> Generator[Event]:
        """See `Events`: `for event in bus.events(): …`, which waits for the next one in this thread. A hundred are read ahead."""
        events = self._bus.each(lambda bus: bus.events(*entity_types, kinds=kinds, after=after, follow=follow))
        return _until_closed(events) if follow else events

    def watch(self, *entity_types: str | None, kept: int = 10_000) -> None:
        """See `Events.watch`."""
        self._do(lambda events: events.watch(*entity_types, kept=kept))

    def cursor(self) -> str:
        """See `Events.cursor`."""
        return self._do(lambda events: events.cursor())

    def unwatch(self, *entity_types: str | None) -> None:
        """See `Events.unwatch`."""
        self._do(lambda events: events.unwatch(*entity_types))

    def watched(self) -> dict[str | None, int]:
        """See `Events.watched`."""
        return self._do(lambda events: events.watched())

    def recent(
        self, entity_type: str, entity_id: str | int, *, limit: int = 100, before: str = "", scan: int = 3000
    ) -> EventPage:
        """See `Events.recent`."""
        return self._do(lambda events: events.recent(entity_type, entity_id, limit=limit, before=before, scan=scan))


class SyncFairness(Part[Fairness]):
    """See `Fairness`; reached as `bus.fairness`."""

    def put(self, tenant: str | int, *, weight: float) -> None:
        """See `Fairness.put`."""
        self._do(lambda fairness: fairness.put(tenant, weight=weight))

    def remove(self, tenant: str | int) -> bool:
        """See `Fairness.remove`."""
        return self._do(lambda fairness: fairness.remove(tenant))

    def list(self) -> list[ShareInfo]:
        """See `Fairness.list`."""
        return self._do(lambda fairness: fairness.list())


class SyncFleet(Part[Fleet]):
    """See `Fleet`; reached as `bus.fleet`."""

    def workers(self) -> list[WorkerStatus]:
        """See `Fleet.workers`."""
        return self._do(lambda fleet: fleet.workers())

    def commands(self) -> list[CommandInfo]:
        """See `Fleet.commands`."""
        return self._do(lambda fleet: fleet.commands())

    def command(self, name: str) -> CommandInfo | None:
        """See `Fleet.command`."""
        return self._do(lambda fleet: fleet.command(name))


class SyncLimits(Part[Limits]):
    """See `Limits`; reached as `bus.limits`."""

    def put(self, name: str, rate: Rate | None = None, *, concurrency: int | None = None) -> bool:
        """See `Limits.put`."""
        return self._do(lambda limits: limits.put(name, rate, concurrency=concurrency))

    def remove(self, name: str) -> bool:
        """See `Limits.remove`."""
        return self._do(lambda limits: limits.remove(name))

    def release(self, name: str, *, key: str | None = None) -> None:
        """See `Limits.release`."""
        return self._do(lambda limits: limits.release(name, key=key))

    def list(self, name: str | None = None) -> LimitInfos:
        """See `Limits.list`."""
        return self._do(lambda limits: limits.list(name))

    def waiting(self) -> int:
        """See `Limits.waiting`."""
        return self._do(lambda limits: limits.waiting())


def _until_closed(events: Generator[Event]) -> Generator[Event]:
    """Iterate until the bus is closed, as on the asynchronous side."""
    try:
        yield from events
    except BusClosed:
        return


class SyncServerState(Part[ServerState]):
    """The state of the server: see `ServerState`."""

    @property
    def is_available(self) -> bool:
        """See `ServerState.is_available`."""
        return self._do(_is_available)

    @property
    def away_for(self) -> float:
        """See `ServerState.away_for`."""
        return self._do(_away_for)


async def _is_available(state: ServerState) -> bool:
    return state.is_available


async def _away_for(state: ServerState) -> float:
    return state.away_for


class SyncHistory(Part[CommandHistory]):
    """See `CommandHistory`; reached as `bus.history`."""

    def get(self, command_id: str | UUID) -> HistoryEntry | None:
        """See `CommandHistory.get`."""
        return self._do(lambda history: history.get(command_id))

    def search(
        self,
        *,
        name: str | None = None,
        entity: tuple[str, str | int] | None = None,
        entity_type: str | None = None,
        status: Status | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        scan: int = 10_000,
        cursor: str | None = None,
    ) -> HistoryPage:
        """See `CommandHistory.search`."""
        return self._do(
            lambda history: history.search(
                name=name, entity=entity, entity_type=entity_type, status=status, since=since, until=until, limit=limit,
                scan=scan, cursor=cursor,
            )
        )  # fmt: skip


class SyncCommands(Part[Commands]):
    """See `Commands`; reached as `bus.commands`."""

    def signal(self, command_id: str | UUID, name: str, value: Any = None, *, signal_id: str | None = None) -> bool:
        """See `Commands.signal`."""
        return self._do(lambda commands: commands.signal(command_id, name, value, signal_id=signal_id))

    def status(self, command_id: str | UUID) -> CommandStatus:
        """See `Commands.status`."""
        return self._do(lambda commands: commands.status(command_id))

    def progress(self, command_id: str | UUID) -> Generator[ProgressInfo]:
        """See `Commands.progress`."""
        return self._bus.each(lambda bus: bus.commands.progress(command_id))

    def record(self, command_id: str | UUID) -> CommandRecord:
        """See `Commands.record`."""
        return self._do(lambda commands: commands.record(command_id))

    def cancel(self, command_id: str | UUID, *, running: bool = False, reason: str = "", wait: float = 10.0) -> bool:
        """See `Commands.cancel`."""
        return self._do(lambda commands: commands.cancel(command_id, running=running, reason=reason, wait=wait))

    def reschedule(self, command_id: str, *, delay: float | None = None, at: datetime | None = None) -> bool:
        """See `Commands.reschedule`."""
        return self._do(lambda commands: commands.reschedule(command_id, delay=delay, at=at))

    def delayed(self, *, entity_type: str | None = None, before: datetime | None = None) -> Generator[DelayedCommand]:
        """See `Commands.delayed`; a hundred of them are read ahead."""
        return self._bus.each(lambda bus: bus.commands.delayed(entity_type=entity_type, before=before))


class SyncSchedules(Part[Schedules]):
    """See `Schedules`; reached as `bus.schedules`."""

    def put(self, name: str, command: Message[Any], spec: Cron | Every, **options: Unpack[PutOptions]) -> ScheduleInfo:
        """See `Schedules.put`."""
        return self._do(lambda schedules: schedules.put(name, command, spec, **options))

    def put_raw(
        self,
        name: str,
        entity_type: str | None,
        entity_id: str | int | None,
        command: str,
        payload: Mapping[str, Any],
        spec: Cron | Every,
        *,
        version: int = 1,
        **options: Unpack[PutOptions],
    ) -> ScheduleInfo:
        """See `Schedules.put_raw`."""
        return self._do(
            lambda schedules: schedules.put_raw(name, entity_type, entity_id, command, payload, spec, version=version, **options)
        )

    def get(self, name: str) -> ScheduleInfo:
        """See `Schedules.get`."""
        return self._do(lambda schedules: schedules.get(name))

    def next(self, name: str, count: int = 5) -> tuple[datetime, ...]:
        """See `Schedules.next`."""
        return self._do(lambda schedules: schedules.next(name, count))

    def pause(self, name: str, reason: str = "") -> bool:
        """See `Schedules.pause`."""
        return self._do(lambda schedules: schedules.pause(name, reason))

    def resume(self, name: str) -> bool:
        """See `Schedules.resume`."""
        return self._do(lambda schedules: schedules.resume(name))

    def trigger(self, name: str) -> str:
        """See `Schedules.trigger`."""
        return self._do(lambda schedules: schedules.trigger(name))

    def remove(self, name: str) -> None:
        """See `Schedules.remove`."""
        self._do(lambda schedules: schedules.remove(name))

    def sync(self, registry: HandlerRegistry, *, prune: bool = False) -> SyncReport:
        """See `Schedules.sync`."""
        return self._do(lambda schedules: schedules.sync(registry, prune=prune))

    def compare(self, registry: HandlerRegistry) -> dict[str, str]:
        """See `Schedules.compare`."""
        return self._do(lambda schedules: schedules.compare(registry))

    def export(self, *, stop: bool = False) -> Generator[str]:
        """See `Schedules.export`; a hundred of them are read ahead."""
        return self._bus.each(lambda bus: bus.schedules.export(stop=stop))

    def import_(self, lines: Iterable[str], *, replace: bool = False) -> ImportReport:
        """See `Schedules.import_`."""
        return self._do(lambda schedules: schedules.import_(lines, replace=replace))

    def list(self, *, entity_type: str | None = None) -> Generator[ScheduleInfo]:
        """See `Schedules.list`; a hundred of them are read ahead."""
        return self._bus.each(lambda bus: bus.schedules.list(entity_type=entity_type))


class SyncViews(Part[Views]):
    """See `Views`; reached as `bus.views`."""

    def standing_still(self, *, states: Collection[StandingState] = (), patience: float = 5.0, limit: int = 100) -> Standstill:
        """See `Views.standing_still`."""
        return self._do(lambda views: views.standing_still(states=states, patience=patience, limit=limit))

    def find(
        self, text: str = "", *, entity_type: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> FoundEntities:
        """See `Views.find`."""
        return self._do(lambda views: views.find(text, entity_type=entity_type, limit=limit, cursor=cursor))


class SyncAudit(Part[Audit]):
    """See `Audit`; reached as `bus.audit`."""

    def write(self, who: str, act: str, target: str, why: str, *, outcome: str = "", ref: str = "", details: str = "") -> str:
        """See `Audit.write`."""
        return self._do(lambda audit: audit.write(who, act, target, why, outcome=outcome, ref=ref, details=details))

    def page(self, *, limit: int = 100, cursor: str | None = None) -> AuditPage:
        """See `Audit.page`."""
        return self._do(lambda audit: audit.page(limit=limit, cursor=cursor))


class SyncTrends(Part[Trends]):
    """See `Trends`; reached as `bus.trends`."""

    def keep(self, stats: Stats) -> bool:
        """See `Trends.keep`."""
        return self._do(lambda trends: trends.keep(stats))

    def list(self, *, minutes: int = 180) -> list[TrendPoint]:
        """See `Trends.list`."""
        return self._do(lambda trends: trends.list(minutes=minutes))
