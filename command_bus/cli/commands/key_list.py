"""`command-bus entities --keys`: the unique keys of all entities, or of one type, page by page; and keys as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from command_bus.cli.connection import open_bus, run_command
from command_bus.cli.json_output import to_json
from command_bus.cli.output import format_table, format_time_and_age
from command_bus.cli.terminal import SafeText, echo, print_error
from command_bus.cli.unknown_names import warn_if_unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from command_bus.admin.info import UniqueKeyInfo, UniqueKeyPage
    from command_bus.cli.options import Target


def key_table(keys: Sequence[UniqueKeyInfo], *, entities: bool) -> SafeText:
    """Return keys as a table, with their entities if these differ."""
    head = [*(["entity"] if entities else []), "unique key", "its command", "name", "command id", "window until"]
    rows = [
        (
            *([_entity(each)] if entities else []),
            each.key,
            each.state,
            each.name,
            each.command_id,
            format_time_and_age(each.window_ms),
        )
        for each in keys
    ]
    return format_table(head, rows)


def print_keys(target: Target, entity_type: str | None, limit: int, cursor: str | None, *, as_json: bool) -> None:
    """Print a page of keys, and how to get the next."""

    async def work() -> UniqueKeyPage:
        async with open_bus(target) as bus:
            chosen = bus.entities if entity_type is None else bus.entities.of(entity_type)
            page = await chosen.unique_keys(limit=limit, cursor=cursor)
            if not page.keys:
                await warn_if_unknown(bus, entity_type=entity_type)
            return page

    page = run_command(work)
    if as_json:
        echo(to_json(page))
        return
    echo(key_table(page.keys, entities=True) if page.keys else "no unique key is held")
    if page.cursor is not None:
        words = [*([] if entity_type is None else [entity_type]), "--limit", str(limit), "--cursor", page.cursor]
        echo(f"more: {target.command('entities', '--keys', *words)}")
    if not page.complete:
        print_error("there are more keys than were read: only those were sorted")


def _entity(key: UniqueKeyInfo) -> str:
    return f"{key.entity_type}:{'(a long id)' if key.entity_id is None else key.entity_id}"
