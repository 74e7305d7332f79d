"""`doctor`: is this server fit, and does this namespace work? Says what to change."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from command_bus.cli.connection import Json, Place, connected, execute, placed, settings_of
from command_bus.cli.json_output import plainly
from command_bus.cli.process.options import Outcome
from command_bus.cli.terminal import Shown, escaped, say

if TYPE_CHECKING:
    from command_bus.bus import CommandBus
    from command_bus.cli.commands.diagnosis import CommandLine, Finding
    from command_bus.transport.redis.admin.examination import Examination

__all__ = ["doctor"]


@placed
def doctor(
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Take warnings for bad.")] = False,
    place: Place,
    as_json: Json = False,
) -> None:
    """Look at the server and the namespace: version, role, persistence, eviction, memory, scripts, clock, rights, shards, workers.

    Nothing is changed. What is wrong comes with what to change.

    \b
    Exit codes: 0 fit, 1 something is bad (or worth a warning, with --strict), 2 wrong usage, 4 no server.
    """  # noqa: D301
    from command_bus.cli.commands.diagnosis import worst

    findings = execute(lambda: _examined(place))
    grade = worst(findings)
    if as_json:
        say(plainly({"grade": grade, "findings": findings}))
    else:
        from command_bus.cli.output import table

        say(table(["", "about", "found"], [(each.grade, each.about, each.found) for each in findings]))
        advised = [f"{each.about}: {each.advice}" for each in findings if each.advice]
        if advised:  # each on one line, however long it is, so that a command in it can be copied
            say(Shown("\n" + "\n".join(map(escaped, advised))))
    bad = grade == "bad" or (strict and grade != "ok")
    raise typer.Exit(Outcome.FAILED if bad else Outcome.DONE)


async def _examined(place: Place) -> list[Finding]:
    from command_bus.cli.commands.diagnosis import Finding, judge_environment, judge_namespace, judge_server, worst
    from command_bus.errors import CommandBusError, TransportUnavailable
    from command_bus.settings import unknown_variables
    from command_bus.transport.redis.admin.examination import examine
    from command_bus.transport.redis.connection.credentials import connection_options

    settings = settings_of(place)
    seen = await examine(settings.server_url or "", settings.namespace, connection_options(settings), settings.dispatch_timeout)
    named = settings.shards if "shards" in settings.model_fields_set else None
    findings = [
        *judge_server(seen),
        *judge_environment(unknown_variables(os.environ)),
        *judge_namespace(seen, settings.namespace, named),
    ]
    if "shards" not in seen.meta or worst([each for each in findings if each.about in ("role", "version", "scripts")]) == "bad":
        return findings
    try:
        async with connected(place) as bus:
            return findings + await _at_work(bus, seen, place.command)
    except TransportUnavailable:
        raise
    except CommandBusError as error:
        return [*findings, Finding("bus", "bad", error.message, "see above")]


async def _at_work(bus: CommandBus, seen: Examination, line: CommandLine) -> list[Finding]:
    from command_bus.cli.commands.diagnosis import judge_entities, judge_letters, judge_mailboxes, judge_work

    workers, stats = await bus.fleet.workers(), await bus.stats()
    unhandled = [each.name for each in await bus.fleet.commands() if not each.workers]
    oldest = await bus.dead_letters.oldest() if stats.dead_letters else None
    age = None if oldest is None else (datetime.now(UTC) - oldest).total_seconds() + seen.skew
    return [
        *judge_mailboxes(seen, stats.entities),
        *judge_work(stats, workers, await bus.entities.holds(), unhandled, line),
        *judge_letters(stats, age, line),
        *judge_entities((await bus.entities.list(order="age", limit=1000, scan=20_000)).entities, line),
    ]
