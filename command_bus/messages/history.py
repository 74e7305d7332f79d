"""`History`: which ends of commands are kept, for how long, and how many. Off unless a level says otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from command_bus.clock import duration_ms
from command_bus.errors import InvalidSettings
from command_bus.messages.retry_policy import require
from command_bus.spelling import shown

NUMBER_KEPT = 100_000
"""Ends that a shard keeps where nothing else is said."""
MOST_KEPT = 1_000_000_000
"""The largest number that is accepted."""


@dataclass(frozen=True, slots=True)
class History:
    """The time for which the end of a command is kept, and among how many others. It is deleted by whichever comes first.

    Attributes:
        age: For how long: `"30 days"`, `"12 h"`, or a number of seconds.
        number: It is deleted once so many newer ones are in its shard.
        payload: Whether the command's payload is kept, too.
        steps: Whether the steps, calls and waits of a durable command are kept, too, up to 64 KiB.

    Raises:
        InvalidSettings: There is no age, or no number, or one of them is not what it may be.
    """

    age: str | float | None = None
    number: int | None = NUMBER_KEPT
    payload: bool = False
    steps: bool = False

    def __post_init__(self) -> None:
        example = 'write History(age="30 days", number=100_000)'
        require(self.age is not None, f"History(number={self.number!r}): a history has an age and a number; {example}")
        require(self.number is not None, f"History(age={self.age!r}, number=None): a history has an age and a number; {example}")
        try:
            duration_ms(self.age)
        except ValueError as error:
            raise InvalidSettings(f"History(age={self.age!r}): age {error}") from None
        require(
            type(self.number) is int and 1 <= self.number <= MOST_KEPT,
            f"History(number={self.number!r}): a whole number from 1 to {MOST_KEPT:,}",
        )
        for name, keeps in (("payload", self.payload), ("steps", self.steps)):
            require(type(keeps) is bool, f"History({name}={keeps!r}): True or False")

    @property
    def age_ms(self) -> int:
        """The age in ms."""
        return duration_ms(self.age)


HistoryChoice: TypeAlias = History | str | Literal[False]
"""A history, its age alone, or `False`: none, whatever a wider level says."""


def checked_history(what: str, choice: Any) -> History | Literal[False] | None:
    """Return what a level says; None: nothing.

    Args:
        what: Names the level, for the error.
        choice: What was given.

    Raises:
        InvalidSettings: It is no history.
    """
    if choice is None or choice is False or isinstance(choice, History):
        return choice
    if isinstance(choice, str):
        return History(choice)
    raise InvalidSettings(
        f'{what}: history is an age such as "30 days", a History(age="30 days", number=100_000), or False, not {shown(choice)}'
    )


def history_of(*choices: HistoryChoice | None) -> History | None:
    """Return what applies of several levels, the most specific one first; None: no history.

    Raises:
        InvalidSettings: One of them is no history.
    """
    found = next((choice for choice in choices if choice is not None), None)
    return checked_history("history", found) or None
