"""The options of an envelope for the attempts of this command alone: `r` how failures are retried, `t` how long one attempt may take.

    r  a map with the fields of `RetryPolicy` that are not at their defaults, always `attempts`
    t  a number of seconds

Functions and exception types do not travel: which errors are retried stays with the class that the worker has. A later release that has more to say
uses another key, so that this one leaves such commands to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from command_bus.clock import checked_seconds, duration_fault
from command_bus.errors import InvalidCommand, InvalidSettings
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
