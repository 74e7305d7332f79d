"""The options of an envelope for the attempts of this command alone: `r` how failures are retried, `t` how long one attempt may take.

    r  a map with the fields of `RetryPolicy` that are not at their defaults, always `attempts`
    t  a number of seconds

Functions and exception types do not travel: which errors are retried stays with the class that the worker has. A later release that has more to say
uses another key, so that this one leaves such commands to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

from command_bus.clock import LONGEST, checked_seconds, duration_fault
from command_bus.errors import InvalidCommand, InvalidSettings
from command_bus.messages.history import MOST_KEPT, History
from command_bus.messages.message import MOST_VERSION
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.spelling import shown

RETRY = "r"
ATTEMPT_TIMEOUT = "t"
_USUAL = RetryPolicy()
_FIELDS = ("delay", "backoff", "factor", "max_delay", "jitter", "delays")
_MOST_DELAYS = 50  # an envelope has no longer arrays than 64
_NUMBERS = (int, float)


def override(options: dict[str, Any], retry: RetryPolicy | None, attempt_timeout: float | None) -> None:
    """Add what a dispatch says of its attempts to its options.

    Raises:
        InvalidCommand: It is not what it may be, or has something that does not travel.
    """
    if retry is not None:
        options[RETRY] = _packed(retry)
    if attempt_timeout is not None:
        options[ATTEMPT_TIMEOUT] = checked_seconds("attempt_timeout", attempt_timeout)


def _packed(retry: RetryPolicy) -> dict[str, Any]:
    if not isinstance(retry, RetryPolicy):
        raise InvalidCommand(f"retry is a RetryPolicy, not {shown(retry)}")
    if callable(retry.backoff):
        raise InvalidCommand(
            "retry: a function of backoff does not travel with a command; give the class one, or delays=(…) here"
        )
    if (retry.retry_on, retry.give_up_on) != (_USUAL.retry_on, _USUAL.give_up_on):
        raise InvalidCommand(
            "retry: exception types do not travel with a command; retry_on and give_up_on of its class apply, or of its entity type"
        )
    if retry.delays is not None and len(retry.delays) > _MOST_DELAYS:
        raise InvalidCommand(f"retry: at most {_MOST_DELAYS} delays travel with a command, not {len(retry.delays)}")
    given = {name: getattr(retry, name) for name in _FIELDS}
    return {"attempts": retry.attempts} | {name: value for name, value in given.items() if value != getattr(_USUAL, name)}


def is_retry(value: Any) -> bool:
    """Return whether a value is a policy of retries."""
    return _unpacked(value) is not None


def _unpacked(value: Any) -> RetryPolicy | None:
    if type(value) is not dict or not value.keys() <= {"attempts", *_FIELDS}:
        return None
    try:
        policy = RetryPolicy(**value)
    except (InvalidSettings, TypeError, ValueError):
        return None
    return policy if policy.delays is None or len(policy.delays) <= _MOST_DELAYS else None


def is_attempt_timeout(value: Any) -> bool:
    """Return whether a value is a number of seconds."""
    return type(value) in _NUMBERS and duration_fault(value) is None


def retry_in(options: Mapping[str, Any] | None) -> RetryPolicy | None:
    """Return the policy of retries in the options of an envelope that was read."""
    return None if not options or RETRY not in options else _unpacked(options[RETRY])


def attempt_timeout_in(options: Mapping[str, Any] | None) -> float | None:
    """Return the seconds of one attempt in the options of an envelope that was read."""
    return options.get(ATTEMPT_TIMEOUT) if options else None


CALLERS: Final = "c"
NO_CALLERS: Mapping[str, str] = MappingProxyType({})
_MOST_CALLERS = 15
_MOST_BYTES = 1024
_CALLER_MAILBOX = re.compile(r"[!-~]{1,2048}")
_ACTIVATION = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


def are_callers(value: Any) -> bool:
    """Return whether a value is a map of callers."""
    return type(value) is dict and 1 <= len(value) <= _MOST_CALLERS and all(_is_caller(*each) for each in value.items())


def _is_caller(mailbox: object, activation: object) -> bool:
    return (
        type(mailbox) is str
        and type(activation) is str
        and _CALLER_MAILBOX.fullmatch(mailbox) is not None
        and _ACTIVATION.fullmatch(activation) is not None
    )


def callers_in(options: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Return the callers in the options of an envelope that was read."""
    return options.get(CALLERS, NO_CALLERS) if options else NO_CALLERS


def with_caller(callers: Mapping[str, str], mailbox: str, activation: str) -> Mapping[str, str]:
    """Return the callers with one more; without it if they are as many, or as long, as travel."""
    more = {**callers, mailbox: activation}
    fits = len(more) <= _MOST_CALLERS and sum(len(name) for name in more) <= _MOST_BYTES
    return more if fits else callers


CHAIN: Final = "m"
_LONGEST_CHAIN = 32
_CHAIN_MAILBOX = re.compile(r"[!-{}~]{1,2048}")


def are_mailboxes(value: Any) -> bool:
    """Return whether a value is a chain of mailboxes."""
    return (
        type(value) is list
        and 1 <= len(value) <= _LONGEST_CHAIN
        and all(type(each) is str and _CHAIN_MAILBOX.fullmatch(each) for each in value)
    )


def chain_in(options: Mapping[str, Any] | None) -> Sequence[str]:
    """Return the chain in the options of an envelope that was read."""
    return options.get(CHAIN, ()) if options else ()


def with_mailbox(chain: Sequence[str], mailbox: str) -> list[str]:
    """Return a chain with one mailbox more, as it travels."""
    longer = [*chain, mailbox][-_LONGEST_CHAIN:]
    while sum(map(len, longer)) > _MOST_BYTES and len(longer) > 1:
        del longer[0]
    return longer


DURABLE: Final = "d"
RETURN: Final = "w"


class ReturnAddress(NamedTuple):
    """The durable command that waits for an outcome, and by what name it knows it."""

    mailbox: str
    command_id: str
    call: str


def is_return_address(value: Any) -> bool:
    """Return whether a value is a return address."""
    if type(value) is not list or len(value) != len(ReturnAddress._fields):
        return False
    mailbox, _, call = value
    return all(type(each) is str and each for each in value) and "|" not in mailbox and "|" not in call


def return_address_in(options: Mapping[str, Any] | None) -> ReturnAddress | None:
    """Return who waits for the outcome of a command, by the options of its envelope."""
    return ReturnAddress(*options[RETURN]) if options and RETURN in options else None


def is_durable(options: Mapping[str, Any] | None) -> bool:
    """Return whether a command is durable, by the options of its envelope."""
    return bool(options) and DURABLE in (options or {})


HISTORY: Final = "h"
_LENGTHS = (2, 3)


class KeptHistory(NamedTuple):
    """A history that travels.

    Attributes:
        age_ms: For how long the end is kept.
        number: Among how many others of its shard.
        payload: 1 if the command's payload is kept, too.
    """

    age_ms: int
    number: int
    payload: int = 0

    @property
    def bounds(self) -> str:
        """Its bounds, as the scripts take them."""
        return f"h{self.age_ms}:{self.number}"


def history_option(history: History) -> list[int]:
    """Return a history as it travels."""
    return [history.age_ms, cast("int", history.number), *([1] if history.payload else [])]


def is_history(value: Any) -> bool:
    """Return whether a value is a history that travels."""
    if type(value) is not list or len(value) not in _LENGTHS or not all(type(each) is int for each in value):
        return False
    return 1 <= value[0] <= LONGEST * 1000 and 1 <= value[1] <= MOST_KEPT and value[2:] in ([], [1])


def history_in(options: Mapping[str, Any] | None) -> KeptHistory | None:
    """Return the history in the options of an envelope that was read; None without one."""
    return KeptHistory(*options[HISTORY]) if options and HISTORY in options else None


PRIORITY: Final = "p"


def is_priority(value: Any) -> bool:
    """Return whether a value is a priority that travels."""
    return value in ("high", "low")


VERSION: Final = "v"


def is_version(value: Any) -> bool:
    """Return whether a value is a version that travels."""
    return type(value) is int and 1 < value <= MOST_VERSION


def version_in(options: Mapping[str, Any] | None) -> int:
    """Return the version of a command's fields, by the options of its envelope."""
    version: int = options.get(VERSION, 1) if options else 1
    return version


def with_version(options: Mapping[str, Any] | None, version: int) -> dict[str, Any] | None:
    """Return the options with another version in them; None if there are none."""
    others = {name: value for name, value in (options or {}).items() if name != VERSION}
    return others | ({VERSION: version} if version > 1 else {}) or None
