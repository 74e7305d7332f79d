"""`bus.views`, `bus.audit` and `bus.trends` of a `SyncCommandBus`."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from command_bus.admin.audit import Audit
from command_bus.admin.trends import Trends
from command_bus.admin.views import StandingState, Views
from command_bus.sync.parts import Part

if TYPE_CHECKING:
    from command_bus.admin.audit import AuditPage
    from command_bus.admin.info import Stats
    from command_bus.admin.search import FoundEntities
    from command_bus.admin.trends import TrendPoint
    from command_bus.admin.views import Standstill


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
