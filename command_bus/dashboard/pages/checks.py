"""The page of what `command-bus doctor` finds: the server, the namespace, and what is stored."""

from __future__ import annotations

from typing import NamedTuple

from starlette.responses import Response

from command_bus.admin.info import EntityInfo
from command_bus.dashboard.pages.entities import failure_text
from command_bus.dashboard.visit import Visit
from command_bus.doctor.diagnosis import Finding
from command_bus.doctor.examination import examine_server, examine_work
from command_bus.errors import InvalidSettings

_PAGES = {
    "workers": "/workers",
    "lost workers": "/workers",
    "handlers": "/workers",
    "unknown commands": "/?state=no_handler",
    "paused": "/?state=paused",
    "parked": "/?state=parked",
    "retry storm": "/?state=retrying",
    "long running": "/?state=running",
    "suspended for long": "/?state=suspended",
    "dead letters": "/letters",
    "retention": "/letters",
    "limits": "/limits",
    "priorities": "/limits",
    "schedules overdue": "/schedules",
    "schedules unhandled": "/schedules",
    "schedules skip": "/schedules",
    "schedule declared": "/schedules",
}
"""The pages on which findings are seen, by what they are about."""
_KEPT = 10.0
"""Seconds for which findings are shown again: a look takes some twenty requests."""


class _Shown(NamedTuple):
    """A finding, and the path of the page on which it is seen; empty if there is none."""

    finding: Finding
    path: str


async def checks_page(visit: Visit) -> Response:
    """Show what is wrong with the server and the namespace, and what to change."""
    masking = visit.state.masking

    def error_of(entity: EntityInfo) -> str:
        return failure_text(masking, "", None, entity.failure)

    async def examine() -> list[Finding]:
        try:
            _ = visit.bus.url
        except InvalidSettings:
            return [Finding("server", "ok", "the bus is in memory of this process: there is no server to check")]
        seen, findings, goes_on = await examine_server(visit.bus.settings)
        return findings + (await examine_work(visit.bus, seen, error_of=error_of) if goes_on else [])

    findings = [_Shown(each, _PAGES.get(each.about, "")) for each in await visit.state.reads.get("checks", examine, _KEPT)]
    graded = {grade: [each for each in findings if each.finding.grade == grade] for grade in ("bad", "warning", "ok")}
    return visit.page("checks.html", graded=graded)
