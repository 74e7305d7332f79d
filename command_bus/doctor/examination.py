"""All checks together, as the command line and the dashboard run them. Nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from command_bus.doctor.diagnosis import (
    CommandLine,
    Finding,
    check_entities,
    check_mailboxes,
    check_namespace,
    check_server,
    check_values,
    check_work,
    command_line,
    worst_grade,
)
from command_bus.doctor.stored_checks import (
    ErrorOf,
    check_dead_letters,
    check_limits,
    check_priorities,
    check_unique,
    examine_durable,
    examine_history,
    examine_retries,
    examine_schedules,
    examine_subscriptions,
    first_line_of,
)
from command_bus.errors import CommandBusError
from command_bus.serialization.odd_values import odd_values
from command_bus.transport.redis.admin.examination import Examination, examine
from command_bus.transport.redis.connection.credentials import connection_options

if TYPE_CHECKING:
    from command_bus.admin.info import EntityInfo
    from command_bus.bus import CommandBus
    from command_bus.settings import BusSettings


async def examine_server(settings: BusSettings) -> tuple[Examination, list[Finding], bool]:
    """Check the server and what the namespace recorded; return whether the rest can be checked, too.

    Raises:
        TransportUnavailable: The server cannot be reached.
    """
    seen = await examine(settings.server_url or "", settings.namespace, connection_options(settings), settings.dispatch_timeout)
    shards = settings.shards if "shards" in settings.model_fields_set else None
    findings = [*check_server(seen), *check_namespace(seen, settings.namespace, shards)]
    decisive = [each for each in findings if each.about in ("role", "version", "scripts", "namespace")]
    return seen, findings, "shards" in seen.meta and worst_grade(decisive) != "bad"


async def without_handler(bus: CommandBus, entities: Sequence[EntityInfo]) -> frozenset[str]:
    """Return the names of entities whose command no live worker handles. One that was not started may also wait for a thread, or for replicas."""
    if not any(each.state == "retrying" and not each.attempt for each in entities):
        return frozenset()
    found = await bus.views.standing_still(states=["no_handler"], patience=0.0, limit=1000)
    return frozenset(each.entity.name for each in found.entities)


async def examine_work(
    bus: CommandBus,
    seen: Examination,
    line: CommandLine = command_line,
    longest: float = 86_400.0,
    error_of: ErrorOf = first_line_of,
) -> list[Finding]:
    """Check what is stored: entities, workers, dead letters, schedules, limits, durable commands.

    Args:
        bus: Open.
        seen: The server, as it was examined.
        line: Makes command lines.
        longest: Seconds after which a suspension is worth a warning.
        error_of: Returns the last error of an entity, as far as it may be shown.
    """
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
        *await examine_subscriptions(bus, line),
        *check_limits(await bus.limits.list(), await bus.session.transport.limits.keyed(), line),
        *await examine_durable(bus, longest, line),
        *await examine_retries(bus, line, error_of),
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
