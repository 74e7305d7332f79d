"""The options of `send` for a unique key."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from typer import Option

from command_bus.cli.terminal import usage_error
from command_bus.errors import InvalidCommand
from command_bus.messages.receipts import Receipt
from command_bus.messages.unique import Unique


class Wins(StrEnum):
    """The winner of two commands of one key, as words of the command line."""

    FIRST = "first"
    LATEST = "latest"


class Until(StrEnum):
    """The time for which a key is held, as words of the command line."""

    SETTLED = "settled"
    STARTED = "started"


Key = Annotated[
    str | None,
    Option(
        "--unique",
        metavar="KEY",
        help="Fold the command with others of its entity that have this key; a class that names no key has its wire name.",
    ),
]
UniqueWins = Annotated[
    Wins | None,
    Option("--wins", help="With --unique: which command stays, the waiting one or this one.  [default: first]"),
]
UniqueUntil = Annotated[
    Until | None,
    Option("--until", help="With --unique: how long the key is held.  [default: settled; latest: started]"),
]
UniqueWindow = Annotated[float | None, Option("--window", help="With --unique: seconds for which the key is held besides.")]
Debounce = Annotated[
    float | None,
    Option("--debounce", help="With --wins latest: seconds without another one until it joins the line."),
]
MaxWait = Annotated[float | None, Option("--max-wait", help="With --debounce: most seconds that others put it off.")]


def unique_from(
    key: str | None,
    wins: Wins | None,
    until: Until | None,
    *,
    window: float | None,
    debounce: float | None,
    max_wait: float | None,
) -> Unique | None:
    """Return the unique key that the options name; None if they name none.

    Raises:
        typer.Exit: A value is wrong, or two do not go together.
    """
    given = {"--wins": wins, "--until": until, "--window": window, "--debounce": debounce, "--max-wait": max_wait}
    if key is None:
        if without := [name for name, value in given.items() if value is not None]:
            raise usage_error(f"{without[0]} says how a unique key folds: name the key with --unique KEY")
        return None
    winner: Any = "first" if wins is None else wins.value
    end: Any = None if until is None else until.value
    try:
        return Unique(key, winner, end, window=window, debounce=debounce, max_wait=max_wait)
    except InvalidCommand as error:
        raise usage_error(error.message) from None


def receipt_text(receipt: Receipt[Any]) -> str:
    """Return a receipt as a line, with the other command of its key."""
    text = f"{receipt.command_id}: {receipt.status}"
    if receipt.other is None:
        return text
    return f"{text} {receipt.other}" if receipt.status == "replaced" else f"{text}, {receipt.other} has its unique key"
