"""`Snooze` and `GiveUp`: how a handler says when it can do its work, or that it never can."""

from __future__ import annotations

import math
from typing import Any

from command_bus.errors import BadStep, CommandCancelled, InvalidSettings, Reject

_LONGEST = 365 * 86_400


class GiveUp(Exception):
    """Raised *by a handler* that knows that no retry will help: the command fails at once, whatever attempts are left.

    It is dead-lettered, or parks its entity, as after its last attempt, and its caller gets `CommandFailed`.

    Args:
        reason: For the dead letter and the caller.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Snooze(Exception):
    """Raised *by a handler* that cannot do its work now and knows when it can: the command starts again after that time.

    It is no failure and uses no attempt. The command keeps its place and its entity waits, so that no command of it is overtaken. Raise it only
    before the work has begun: an `at_most_once` command starts again as well, since its handler says that it did nothing.

    Args:
        seconds: How long to wait, at most a year.
        most: The number of times this command may do so. Once more is a failure, which its retry policy decides about.
        reason: For logs, and for the dead letter if it was too often.
        hold: Besides its own entity, a limit that nothing passes for that time: `"limit:shopify"` holds the bucket of this name that the
            command falls into, `"limit:type:shop"` its type's, `"limit:bus"` the bus's. What waited for it then starts at its rate. The
            latest end counts. A name that the command's class does not have is a failure of the handler.

    Raises:
        InvalidSettings: Such a time, number or name there is not. In a handler that is a failure like any other.
    """

    def __init__(self, seconds: float, *, most: int = 10, reason: str = "", hold: str | None = None) -> None:
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and not math.isnan(seconds)
        if not is_number or not 0 <= seconds <= _LONGEST:
            raise InvalidSettings(f"Snooze({seconds!r}): a number of seconds from 0 to {_LONGEST:,}, a year")
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise InvalidSettings(f"Snooze(most={most!r}): a number, at least 1")
        if hold is not None and (not isinstance(hold, str) or not hold.startswith("limit:")):
            raise InvalidSettings(f"Snooze(hold={hold!r}): 'limit:' and the name of a limit, as in 'limit:shopify'")
        super().__init__(f"for {seconds:g} s{': ' if reason else ''}{reason}")
        self.seconds = float(seconds)
        self.most = most
        self.reason = reason
        self.hold = hold

    def too_often(self) -> Snooze:
        """Return the failure of a command that was put off once more than it may be."""
        error = Snooze(self.seconds, most=self.most, reason=self.reason, hold=self.hold)
        error.args = (f"put off {self.most} times, which is the most; then again {self}",)
        return error.with_traceback(self.__traceback__)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.seconds, self.most, self.reason, self.hold, self.args)


def _again(kind: type[Snooze], seconds: float, most: int, reason: str, hold: str | None, args: tuple[str, ...]) -> Snooze:
    """Make one that was pickled."""
    error = kind(seconds, most=most, reason=reason, hold=hold)
    error.args = args
    return error


_PRECEDENCE = (BadStep, Reject, GiveUp, CommandCancelled)
"""What parks a command before what ends it; either before what would be tried again."""


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors of a group and of the groups in it; of another error itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for each in error.exceptions for leaf in leaves(each)]


def leading(error: BaseException) -> BaseException:
    """Return the error of a group that says how the command ends; the group itself if none does.

    What is no `Exception` comes first, since it ends the run; then the errors of `_PRECEDENCE`. A `Snooze` counts if there is nothing else, and the
    longest of several.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    found = leaves(error)
    for each in found:
        if not isinstance(each, Exception):
            return each
    for kind in _PRECEDENCE:
        for each in found:
            if isinstance(each, kind):
                return each
    snoozes = [each for each in found if isinstance(each, Snooze)]
    return max(snoozes, key=lambda each: each.seconds) if len(snoozes) == len(found) else error
