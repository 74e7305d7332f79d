"""`command-bus delayed`: commands that take their place in line later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

from command_bus.cli.completion import OnlyType
from command_bus.cli.connection import act_on_bus, on_bus
from command_bus.cli.options import Answer, CommandIds, Limit, Target, command_group, with_target
from command_bus.cli.output import format_time_and_age, listing, split
from command_bus.cli.times import parse_moment

if TYPE_CHECKING:
    from command_bus.admin.commands import DelayedCommand
    from command_bus.bus import CommandBus

delayed = command_group("Delayed commands: list, promote.")


@delayed.command("list", short_help="List delayed commands, the next first.")
@with_target
def list_delayed(
    entity_type: OnlyType = None,
    *,
    before: Annotated[str | None, Option("--before", metavar="TIME", help="Only commands due before: 2026-12-01T09:00.")] = None,
    limit: Limit = 50,
    target: Target,
) -> Answer:
    """List the commands that take their place in line later, the next first. All are read, whatever the limit.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301
    moment = None if before is None else parse_moment(before)

    async def read(bus: CommandBus) -> list[DelayedCommand]:
        return [each async for each in bus.commands.delayed(entity_type=entity_type, before=moment)]

    found = sorted(on_bus(target, read), key=lambda each: (each.due_ms, each.command_id))
    columns = ["due", "command", "entity", "id"]
    return listing("delayed", found, limit, columns, _row, "nothing is delayed")


@delayed.command("promote", short_help="Let delayed commands take their place now.")
@with_target
def promote(
    command_ids: CommandIds,
    *,
    at: Annotated[str | None, Option("--at", metavar="TIME", help="Start at this time instead of now: 2026-12-01T09:00.")] = None,
    target: Target,
) -> Answer:
    """Let delayed commands take their place in line now, or at another time. Each joins the end of its line.

    \b
    Exit codes: 0 all have another time, 1 one of them is not delayed any more, 2 wrong usage, 4 no server.
    """  # noqa: D301
    moment = None if at is None else parse_moment(at)

    async def move(bus: CommandBus) -> dict[str, bool]:
        delay = 0.0 if moment is None else None
        return {each: await bus.commands.reschedule(each, delay=delay, at=moment) for each in command_ids}

    done = act_on_bus(target, "Run delayed command now" if moment is None else "Delay command", ", ".join(command_ids), move)
    return split(done, "promoted", "not_delayed", "not delayed any more, or never accepted")


def _row(each: DelayedCommand) -> tuple[str, str, str, str]:
    entity = f"{each.entity_type}:{each.entity_id}" if each.entity_type else "-"
    return format_time_and_age(each.due_ms), each.name, entity, each.command_id
