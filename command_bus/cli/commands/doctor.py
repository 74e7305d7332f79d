"""`doctor`: check the server and the namespace, and advise what to change."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from typer import Option

from command_bus.cli.connection import load_settings, open_bus, run_command, without_handler
from command_bus.cli.doctor.diagnosis import (
    CommandLine,
    Finding,
    check_entities,
    check_environment,
    check_mailboxes,
    check_namespace,
    check_server,
    check_values,
    check_work,
    worst_grade,
)
from command_bus.cli.doctor.stored_checks import (
    check_dead_letters,
    check_limits,
    check_priorities,
    check_unique,
    examine_durable,
    examine_history,
    examine_retries,
    examine_schedules,
)
from command_bus.cli.options import Answer, Target, with_target
from command_bus.cli.output import format_table
from command_bus.errors import CommandBusError, TransportUnavailable

if TYPE_CHECKING:
    from command_bus.bus import CommandBus
    from command_bus.transport.redis.admin.examination import Examination


@with_target
def doctor(
    *,
    strict: Annotated[bool, Option("--strict", help="Treat warnings as bad.")] = False,
    suspended_hours: Annotated[
        float, Option("--suspended-hours", min=0.0, help="Warn of commands that are suspended for longer.")
    ] = 24.0,
    target: Target,
) -> Answer:
    """Check the server and the namespace: version, role, persistence, eviction, memory, scripts, clock, rights, shards, workers.

    Nothing is changed. Each problem comes with advice what to change.

    \b
    Exit codes: 0 nothing is bad, 1 something is bad (or a warning, with --strict), 2 wrong usage, 4 no server.
    """  # noqa: D301
    findings = run_command(lambda: _examine(target, suspended_hours * 3600))
    grade = worst_grade(findings)
    lines: list[str] = [format_table(["", "about", "found"], [(each.grade, each.about, each.found) for each in findings])]
    advised = [f"{each.about}: {each.advice}" for each in findings if each.advice]
    if advised:  # each on one line, however long it is, so that a command in it can be copied
        lines += ["", *advised]
    return Answer({"grade": grade, "findings": findings}, lines, grade == "ok" or (grade == "warning" and not strict))


async def _examine(target: Target, longest: float) -> list[Finding]:
    from command_bus.settings import unknown_variables
    from command_bus.transport.redis.admin.examination import examine
    from command_bus.transport.redis.connection.credentials import connection_options

    settings = load_settings(target)
    seen = await examine(settings.server_url or "", settings.namespace, connection_options(settings), settings.dispatch_timeout)
    named = settings.shards if "shards" in settings.model_fields_set else None
    findings = [
        *check_server(seen),
        *check_environment(unknown_variables(os.environ)),
        *check_namespace(seen, settings.namespace, named),
    ]
    if (
        "shards" not in seen.meta
        or worst_grade([each for each in findings if each.about in ("role", "version", "scripts", "namespace")]) == "bad"
    ):
        return findings
    try:
        async with open_bus(target) as bus:
            return findings + await _examine_work(bus, seen, target.command, longest)
    except TransportUnavailable:
        raise
    except CommandBusError as error:
        return [*findings, Finding("bus", "bad", error.message, "see above")]


async def _examine_work(bus: CommandBus, seen: Examination, line: CommandLine, longest: float) -> list[Finding]:
    from command_bus.serialization.odd_values import odd_values

    workers, stats = await bus.fleet.workers(), await bus.stats()
    commands, bounds = await bus.fleet.commands(), bus.session.settings
    unhandled = [each.name for each in commands if not each.workers]
    oldest = await bus.dead_letters.oldest() if stats.dead_letters else None
    longest_waiting = (await bus.entities.list(order="age", limit=1000, scan=20_000)).entities
    age = None if oldest is None else (datetime.now(UTC) - oldest).total_seconds() + seen.skew
    findings = [
        *check_mailboxes(seen, stats.entities),
        *check_work(stats, workers, await bus.entities.holds(), unhandled, line),
        *check_priorities(stats),
        *check_unique(commands),
        *check_dead_letters(stats, age, line, ttl=bounds.dead_letter_ttl, most=bounds.max_dead_letters),
        *await _examine_counters(bus, line),
        *await examine_schedules(bus, [each.name for each in commands if each.workers], line),
        *check_limits(await bus.limits.list(), await bus.session.transport.limits.keyed(), line),
        *await examine_durable(bus, longest, line),
        *await examine_retries(bus, line),
        *(await examine_history(bus) if stats.history else []),
        *check_entities(longest_waiting, await without_handler(bus, longest_waiting), line),
    ]
    return [*findings, *check_values(odd_values.counts())]


async def _examine_counters(bus: CommandBus, line: CommandLine) -> list[Finding]:
    """Compare the counters with what is there, as far as this user may."""
    try:
        found = await bus.entities.recount(correct=False)
    except CommandBusError:
        return []
    if found.is_right:
        return []
    text = f"depth is {found.stored:,}, and {found.counted:,} were counted; of {found.delayed:,} entities the delayed commands"
    return [Finding("counters", "warning", text, line("recount"))]
