"""`export`: what happened, written into files: ends of commands, events, acts of operators, dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from command_bus.cli.connection import on_bus, run_until_interrupted
from command_bus.cli.options import Answer, Format, HealthHost, HealthPort, Level, LogFormat, StuckAfter, Target, with_target
from command_bus.cli.output import format_table
from command_bus.cli.terminal import echo, print_error, usage_error
from command_bus.cli.times import parse_duration, parse_time
from command_bus.clock import mono
from command_bus.errors import ExportGap, MissingExtra
from command_bus.worker.worker_bus import until_signal

if TYPE_CHECKING:
    from command_bus.bus import CommandBus
    from command_bus.export import Export, ExportReport

_SAY_EVERY = 2.0


class View(StrEnum):
    """The views that can be exported."""

    HISTORY = "history"
    STEPS = "steps"
    EVENTS = "events"
    AUDIT = "audit"
    LETTERS = "letters"


class FileFormat(StrEnum):
    """The formats of files."""

    PARQUET = "parquet"
    JSONL = "jsonl"


@with_target
def export(
    views: Annotated[list[View], Argument(metavar="VIEW...", help=f"What to export: {', '.join(View)}; one or several.")],
    *,
    to: Annotated[Path, Option(metavar="DIR", help="Folder of the export; made where it is missing.", file_okay=False)],
    file_format: Annotated[FileFormat, Option("--format", help="Format of the files.")] = FileFormat.PARQUET,
    follow: Annotated[bool, Option("--follow", help="Go on until Ctrl-C or SIGTERM, with a look each --every.")] = False,
    every: Annotated[str, Option(help="With --follow: the time between looks, as 30s or 5m.")] = "1m",
    since: Annotated[
        str | None, Option(help="Of a new export: only what happened since, 90s, 2h, 7d ago, or a time such as 2026-11-21T10:00.")
    ] = None,
    rows: Annotated[int, Option(min=1, help="Most rows of a file.")] = 100_000,
    allow_gaps: Annotated[
        bool, Option("--allow-gaps", help="End with 0 even if entries were deleted before they were read; DIR/gaps has them.")
    ] = False,
    health_port: HealthPort = None,
    health_host: HealthHost = "0.0.0.0",  # noqa: S104 - probes come from outside the container
    stuck_after: StuckAfter = 10.0,
    log_level: Level = None,
    log_format: Format = LogFormat.TEXT,
    target: Target,
) -> Answer:
    """Write ends of commands, steps of durable ones, events of watched types, acts of operators and dead letters into files, each row once.

    Run it again, or after a kill: it goes on where the last file ends. The server keeps what its histories say; the files keep the rest.

    \b
    Exit codes: 0 exported, 1 entries were deleted before they were read: the next run goes on behind them, 2 wrong usage, a folder that
    cannot be used, or a missing package, 4 no server.
    """  # noqa: D301
    from command_bus.cli.process.health import give_metrics
    from command_bus.cli.process.logs import configure_logging
    from command_bus.telemetry.health import HealthServer

    try:
        from command_bus.export import Export
    except MissingExtra as error:
        raise usage_error(error.message) from None
    pause = parse_duration(every)
    if follow:
        configure_logging(log_level, log_format)

    def made(bus: CommandBus) -> Export:
        options: dict[str, Any] = {"format": file_format.value, "rows": rows, "allow_gaps": allow_gaps}
        return Export(
            bus, to, [each.value for each in views], since=parse_time(since), progress=None if follow else _Progress(), **options
        )

    async def following(bus: CommandBus) -> None:
        if health_port is not None:
            give_metrics(bus.session)
        exporting = made(bus)
        probes = HealthServer(exporting, host=health_host, port=health_port or 0, stuck_after=stuck_after)
        async with nullcontext() if health_port is None else probes:
            echo(f"{bus.session.where}: exports {', '.join(views)} to {to}", err=True)
            await until_signal(exporting.follow(pause))

    if follow:
        run_until_interrupted(target, following, logs=True)
        raise Exit
    report, gap = on_bus(target, lambda bus: _run(made(bus)))
    answer = Answer(_data(report), _lines(report), done=gap is None)
    if gap is not None:
        print_error(gap.message)
    return answer


class _Progress:
    """Says every few seconds how many rows there are."""

    def __init__(self) -> None:
        self._said = mono()

    def __call__(self, report: ExportReport) -> None:
        if mono() - self._said >= _SAY_EVERY:
            self._said = mono()
            echo(", ".join(f"{name} {count:,}" for name, count in report.rows.items()), err=True)


async def _run(exporting: Export) -> tuple[ExportReport, ExportGap | None]:
    try:
        return await exporting.run(), None
    except ExportGap as gap:
        return exporting.report, gap


def _data(report: ExportReport) -> dict[str, Any]:
    views = [{"view": name, "rows": count} for name, count in report.rows.items()]
    return {"views": views, "files": report.files, "gaps": report.gaps}


def _lines(report: ExportReport) -> Iterator[str]:
    yield format_table(["view", "rows"], ((name, f"{count:,}") for name, count in report.rows.items()))
    yield f"new files: {report.files:,}" if report.files else "nothing new"
    for gap in report.gaps:
        yield f"gap: {gap.view} of shard {gap.shard} behind {gap.after}: {'perhaps some' if gap.lost is None else f'{gap.lost:,}'} lost"
