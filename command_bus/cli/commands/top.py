"""`top`: figures, entities and workers on one screen, refreshed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from command_bus.cli.commands.inspect import Order, entity_table, stats_lines, worker_table
from command_bus.cli.connection import run_until_interrupted
from command_bus.cli.options import Json, Target, with_target
from command_bus.cli.output import format_fields, full_screen, to_json
from command_bus.cli.terminal import SafeText, echo
from command_bus.errors import TransportUnavailable

if TYPE_CHECKING:
    from command_bus.admin.info import EntityPage, Stats
    from command_bus.bus import CommandBus
    from command_bus.serialization.announcements import WorkerStatus
    from command_bus.transport.records import HoldInfo


@with_target
def top(
    *,
    once: Annotated[bool, Option("--once", help="Show the figures once and exit.")] = False,
    interval: Annotated[float, Option(min=0.2, max=3600, help="Seconds between two refreshes.")] = 2.0,
    rows: Annotated[int, Option(min=1, max=200, help="Entities to show.")] = 15,
    sort: Annotated[Order, Option(help="Which entities come first.")] = Order.DEPTH,
    target: Target,
    as_json: Json = False,
) -> None:
    """Show figures, rates, the hottest entities and the workers, live. Ctrl-C ends it.

    \b
    Exit codes: 0 shown until Ctrl-C, 2 wrong usage, 4 no server.
    """  # noqa: D301

    async def work(bus: CommandBus) -> None:
        if as_json:
            echo(to_json(_plain(*await _look(bus, rows, sort))))
        elif once:
            echo(_view(bus, *await _look(bus, rows, sort), None, interval))
        else:
            await _watch(bus, rows, sort, interval)

    run_until_interrupted(target, work)


async def _watch(bus: CommandBus, rows: int, sort: Order, interval: float) -> None:
    import asyncio

    before: Stats | None = None
    with full_screen() as show:
        while True:
            try:
                found = await _look(bus, rows, sort)
                show(_view(bus, *found, before, interval))
                before = found[0]
            except TransportUnavailable as error:  # the server may come back
                show(error.message)
                before = None
            await asyncio.sleep(interval)


async def _look(bus: CommandBus, rows: int, sort: Order) -> tuple[Stats, list[HoldInfo], EntityPage, list[WorkerStatus]]:
    order: Any = sort.value
    return (
        await bus.stats(),
        await bus.entities.holds(),
        await bus.entities.list(limit=rows, order=order, scan=20_000),
        await bus.fleet.workers(),
    )


def _view(
    bus: CommandBus, stats: Stats, holds: list[HoldInfo], page: EntityPage, workers: list[WorkerStatus], before: Stats | None,
    interval: float,
) -> SafeText:  # fmt: skip
    lines = stats_lines(stats, holds)
    if before is not None:
        rates = ((stats.accepted - before.accepted) / interval, (stats.settled - before.settled) / interval)
        lines.insert(0, ("per second", f"{rates[0]:,.1f} accepted, {rates[1]:,.1f} settled"))
    parts = [
        f"{typer.style(f'namespace {bus.settings.namespace}', bold=True)}\n{format_fields(lines)}",
        entity_table(page) if page.entities else "no entity has work",
        worker_table(workers) if workers else "no worker has been seen",
    ]
    return SafeText("\n\n".join(parts))  # every part is


def _plain(stats: Stats, holds: list[HoldInfo], page: EntityPage, workers: list[WorkerStatus]) -> dict[str, Any]:
    return {"stats": stats, "holds": holds, "entities": page.entities, "workers": workers}
