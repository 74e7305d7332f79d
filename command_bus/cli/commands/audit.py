"""`audit`: what operators did, and why, as the dashboard, the command line, the gateway and programs of yours wrote it down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from command_bus.cli.connection import on_bus
from command_bus.cli.options import Answer, Limit, Target, with_target
from command_bus.cli.output import format_table

if TYPE_CHECKING:
    from command_bus.admin.audit import AuditEntry
    from command_bus.bus import CommandBus

_PAGE = 500


@with_target
def audit(*, limit: Limit = 50, target: Target) -> Answer:
    """Show what operators did in the dashboard and on the command line, the last first: who, what, why, and what came of it.

    About ten thousand entries are kept.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301
    acts, complete = on_bus(target, lambda bus: _read(bus, limit))

    def text() -> Iterator[str]:
        heads = ["at", "who", "act", "to what", "why", "outcome"]
        yield format_table(heads, map(_row, acts)) if acts else "nothing was done yet"
        if not complete:
            yield f"the last {len(acts):,}; there are more"

    return Answer({"acts": acts, "complete": complete}, text())


async def _read(bus: CommandBus, limit: int) -> tuple[list[AuditEntry], bool]:
    """Return the last acts, each once, and whether these are all."""
    acts: list[AuditEntry] = []
    ended: frozenset[str] = frozenset()
    cursor: str | None = None
    while True:
        page = await bus.audit.page(limit=_PAGE, cursor=cursor)
        acts += page.acts(ended)
        ended, cursor = page.unannounced(ended), page.cursor
        if cursor is None or len(acts) > limit:
            return acts[:limit], len(acts) <= limit


def _row(each: AuditEntry) -> tuple[str, str, str, str, str, str]:
    target = f"{each.target} ({each.details})" if each.details else each.target
    return each.at, each.who, each.act, target, each.why, each.outcome or "begun, and its end is not known"
