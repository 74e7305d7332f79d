"""`doctor`: check the server and the namespace, and advise what to change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from typer import Option

from command_bus.cli.connection import load_settings, on_bus, open_bus, run_command
from command_bus.cli.options import Answer, Target, with_target
from command_bus.cli.output import format_table
from command_bus.doctor.diagnosis import Finding, check_environment, worst_grade
from command_bus.errors import CommandBusError, TransportUnavailable


@with_target
def doctor(
    *,
    strict: Annotated[bool, Option("--strict", help="Treat warnings as bad.")] = False,
    suspended_hours: Annotated[
        float, Option("--suspended-hours", min=0.0, help="Warn of commands that are suspended for longer.")
    ] = 24.0,
    database: Annotated[
        str | None,
        Option("--outbox", metavar="URL", help="Check also the outbox of this database, as postgresql://user@host/name."),
    ] = None,
    export: Annotated[
        Path | None, Option("--export", metavar="DIR", help="Check also this folder of an export.", file_okay=False)
    ] = None,
    target: Target,
) -> Answer:
    """Check the server and the namespace: version, role, persistence, eviction, memory, scripts, clock, rights, shards, workers.

    Nothing is changed. Each problem comes with advice what to change.

    \b
    Exit codes: 0 nothing is bad, 1 something is bad (or a warning, with --strict), 2 wrong usage, 4 no server.
    """  # noqa: D301
    findings = run_command(lambda: _examine(target, suspended_hours * 3600))
    if database is not None:
        from command_bus.cli.commands.outbox import explained

        with explained():
            from command_bus.sql.outbox_admin import examine

            findings += examine(database, target.command)
    if export is not None:
        from command_bus.doctor.export_check import examine_export

        findings += on_bus(target, lambda bus: examine_export(bus, export, target.command))
    grade = worst_grade(findings)
    lines: list[str] = [format_table(["", "about", "found"], [(each.grade, each.about, each.found) for each in findings])]
    advised = [f"{each.about}: {each.advice}" for each in findings if each.advice]
    if advised:  # each on one line, however long it is, so that a command in it can be copied
        lines += ["", *advised]
    return Answer({"grade": grade, "findings": findings}, lines, grade == "ok" or (grade == "warning" and not strict))


async def _examine(target: Target, longest: float) -> list[Finding]:
    from command_bus.doctor.examination import examine_server, examine_work
    from command_bus.settings import unknown_variables

    seen, findings, goes_on = await examine_server(load_settings(target))
    findings += check_environment(unknown_variables(os.environ))
    if not goes_on:
        return findings
    try:
        async with open_bus(target) as bus:
            return findings + await examine_work(bus, seen, target.command, longest)
    except TransportUnavailable:
        raise
    except CommandBusError as error:
        return [*findings, Finding("bus", "bad", error.message, "see above")]
