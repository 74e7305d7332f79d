"""`bus.schedules` and `bus.commands` of a `SyncCommandBus`."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack
from uuid import UUID

from command_bus.admin.commands import Commands
from command_bus.scheduling.schedules import Schedules
from command_bus.sync.parts import Part

if TYPE_CHECKING:
    from datetime import datetime

    from command_bus.admin.command_status import CommandStatus
    from command_bus.admin.commands import DelayedCommand
    from command_bus.admin.records import CommandRecord
    from command_bus.handlers.registry import HandlerRegistry
    from command_bus.messages.message import Message
    from command_bus.messages.progress import ProgressInfo
    from command_bus.messages.schedule_declarations import PutOptions
    from command_bus.messages.schedule_specs import Cron, Every
    from command_bus.scheduling.info import ImportReport, ScheduleInfo, SyncReport


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
