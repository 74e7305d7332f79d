"""Exception groups, as a `TaskGroup` raises them: which of its errors says how a command ends.

Everything that looks at the type of a handler's error asks here, so an error means in a group what it means by itself.
"""

from __future__ import annotations

from command_bus.errors import BadStep, CommandCancelled, Reject
from command_bus.messages.put_off import GiveUp, Snooze

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
