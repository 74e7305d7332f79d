"""`bus.history` of a `SyncCommandBus`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from command_bus.admin.history import CommandHistory
from command_bus.sync.parts import Part

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from command_bus.admin.history import HistoryEntry, HistoryPage
    from command_bus.serialization.outcome import Status


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
