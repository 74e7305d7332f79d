"""Read commands that are in mailboxes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from command_bus.serialization.odd_values import stored_text
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.scripts import READ_MAILBOXES, Script

Entry = tuple[str, dict[bytes, bytes]]
"""An entry of a mailbox: its id and its fields. The id of a lone command is in its record, so it may be any text."""

RunScript = Callable[[Script, list[str], list[Any]], Awaitable[Any]]
"""Runs a script with keys and arguments, and returns its answer."""

OLDEST = "-"
"""The first command of a mailbox that is not settled."""

_MOST = 500
"""Mailboxes of one script call: it takes a few milliseconds."""


async def read_mailboxes(run: RunScript, keys: ShardKeys, wanted: Sequence[tuple[str, str]], count: int) -> list[list[Entry]]:
    """Return for each mailbox its first commands, oldest first, without those that are settled.

    Args:
        run: Runs the script.
        keys: Of the shard.
        wanted: Mailboxes of this shard, each with the id of the first command that is returned, with `(` and the id before it, or `OLDEST`.
        count: How many commands of each mailbox.

    Raises:
        CommandBusError: The server cannot be asked, or this user may not read mailboxes.
    """
    found: list[list[Entry]] = []
    for at in range(0, len(wanted), _MOST):
        part = wanted[at : at + _MOST]
        names = [keys.active, keys.lone, *(keys.mailbox(mailbox) for mailbox, _ in part)]
        answer = await run(READ_MAILBOXES, names, [len(keys.mailboxes), count, *(start for _, start in part)])
        found += [
            [(stored_text(entry), dict(zip(fields[::2], fields[1::2], strict=True))) for entry, fields in entries]
            for entries in answer
        ]
    return found


async def read_entry(run: RunScript, keys: ShardKeys, mailbox: str, message: str) -> dict[bytes, bytes]:
    """Return the fields of one command; empty if it is not in its mailbox any more.

    Raises:
        CommandBusError: As for `read_mailboxes`.
    """
    (entries,) = await read_mailboxes(run, keys, [(mailbox, message)], 1)
    return entries[0][1] if entries and entries[0][0] == message else {}
