"""The option `c` of an envelope: the handlers that wait for the reply to this command, under leases that limits gave places.

A map of mailbox to activation, the outermost caller first. The server looks up which places these leases have at that moment, and the command
starts without one of its own there. So a false entry names a lease that is over, or none, and changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

CALLERS: Final = "c"
NO_CALLERS: Mapping[str, str] = MappingProxyType({})
_MOST = 15
_MOST_BYTES = 1024
_MAILBOX = re.compile(r"[!-~]{1,2048}")
_ACTIVATION = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


def are_callers(value: Any) -> bool:
    """Return whether a value is a map of callers."""
    return type(value) is dict and 1 <= len(value) <= _MOST and all(_is_caller(*each) for each in value.items())


def _is_caller(mailbox: object, activation: object) -> bool:
    return (
        type(mailbox) is str
        and type(activation) is str
        and _MAILBOX.fullmatch(mailbox) is not None
        and _ACTIVATION.fullmatch(activation) is not None
    )


def callers_in(options: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Return the callers in the options of an envelope that was read."""
    return options.get(CALLERS, NO_CALLERS) if options else NO_CALLERS


def with_caller(callers: Mapping[str, str], mailbox: str, activation: str) -> Mapping[str, str]:
    """Return the callers with one more; without it if they are as many, or as long, as travel."""
    more = {**callers, mailbox: activation}
    fits = len(more) <= _MOST and sum(len(name) for name in more) <= _MOST_BYTES
    return more if fits else callers
