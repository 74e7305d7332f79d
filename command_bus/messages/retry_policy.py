"""`RetryPolicy`: how often a failed command is started again, and how soon."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from command_bus.clock import duration_fault
from command_bus.errors import InvalidSettings
from command_bus.messages.snooze import leaves
from command_bus.spelling import shown

_STEEPEST = 1000  # its 64th power is still a float
_MOST_DELAYS = 1000

Backoff = Callable[[int, BaseException], float]
"""A function of one's own: the attempt that failed (1 for the first) and its error in, the seconds until the next one out."""


def require(condition: bool, message: str) -> None:
    """Raise `InvalidSettings(message)` unless the condition holds."""
    if not condition:
        raise InvalidSettings(message)


class _ByDefault(int):
    """A number that was not given."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The policy of retries: how often and how soon. While a failed command waits it keeps its place: no command of its entity overtakes it.

    Attributes:
        attempts: Starts in all, at least 1; interrupted starts count. By default 3, or with `delays` one more than there are delays.
        delay: Seconds before the second attempt.
        backoff: `"exponential"` multiplies by `factor` each time, `"fixed"` does not. Or a function: the attempt that failed and its error in,
            the seconds until the next one out. It runs in the worker's event loop, so it does not block; neither `max_delay` nor `jitter` changes
            what it says. Where it raises or gives no number of seconds, that is logged, and the delay is the exponential one.
        factor: The multiplier of exponential backoff, 1 to 1,000.
        max_delay: Cap in seconds of what exponential backoff grows to; `delay`, where that is more.
        jitter: Share of the delay that is random, 0 to 1: the actual delay is uniform in `delay * (1 ± jitter)`.
        retry_on: Exception types that are retried; others are dead-lettered at once.
        give_up_on: Exception types that are never retried, even if `retry_on` has a base of theirs.
        delays: Seconds before the second attempt, the third, and so on, one for each attempt after the first; instead of `delay`, `backoff`,
            `factor` and `max_delay`.
    """

    attempts: int = _ByDefault(3)
    delay: float = 0.1
    backoff: Literal["exponential", "fixed"] | Backoff = "exponential"
    factor: float = 2.0
    max_delay: float = 30.0
    jitter: float = 0.2
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()
    delays: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.delays is not None:
            self._check_delays(self.delays)
        attempts = self.attempts
        is_count = isinstance(attempts, int) and not isinstance(attempts, bool) and attempts >= 1
        require(is_count, f"RetryPolicy(attempts={shown(attempts)}): at least 1")
        object.__setattr__(self, "attempts", int(attempts))
        for name, value in (("delay", self.delay), ("max_delay", self.max_delay)):
            fault = duration_fault(value, zero=True)
            require(fault is None, f"RetryPolicy({name}={shown(value)}): {name} {fault}")
        object.__setattr__(self, "max_delay", max(self.max_delay, self.delay))
        require(1 <= self.factor <= _STEEPEST, f"RetryPolicy(factor={self.factor!r}): from 1 to {_STEEPEST:,}")
        require(0 <= self.jitter <= 1, f"RetryPolicy(jitter={self.jitter!r}): a share from 0 to 1")
        if callable(self.backoff):
            _check_function(self.backoff)
        else:
            choices = "'exponential', 'fixed', or a function of the attempt and its error"
            require(self.backoff in ("exponential", "fixed"), f"RetryPolicy(backoff={self.backoff!r}): {choices}")

    def _check_delays(self, delays: Any) -> None:
        require(
            not isinstance(delays, str | bytes) and hasattr(delays, "__iter__"),
            f"RetryPolicy(delays={delays!r}): a tuple of seconds",
        )
        delays = tuple(delays)
        for value in delays:
            fault = duration_fault(value, zero=True)
            require(fault is None, f"RetryPolicy(delays={delays!r}): each {fault}")
        count = len(delays)
        require(0 < count <= _MOST_DELAYS, f"RetryPolicy(delays=…): 1 to {_MOST_DELAYS:,} of them, not {count:,}")
        require(self.backoff == "exponential", "RetryPolicy(delays=…, backoff=…): one of the two")
        if isinstance(self.attempts, _ByDefault):
            object.__setattr__(self, "attempts", count + 1)
        require(
            self.attempts == count + 1,
            f"RetryPolicy(attempts={self.attempts!r}, delays={delays!r}): one delay before each attempt after the first, so {count} delays go "
            f"with {count + 1} attempts; leave out attempts, which are counted then",
        )
        object.__setattr__(self, "delays", tuple(float(value) for value in delays))

    def retries(self, error: BaseException) -> bool:
        """Return whether an error of this type is worth another attempt. Of a group each has to be, unless `retry_on` names such groups."""
        errors = leaves(error)
        if isinstance(error, self.give_up_on) or any(isinstance(each, self.give_up_on) for each in errors):
            return False
        groups = tuple(kind for kind in self.retry_on if issubclass(kind, BaseExceptionGroup))
        return isinstance(error, groups) or all(isinstance(each, self.retry_on) for each in errors)

    def delay_after(self, attempt: int, uniform: Callable[[float, float], float], error: BaseException | None = None) -> float:
        """Return the seconds to wait after the given failed attempt (1 for the first).

        Args:
            attempt: The number of the attempt.
            uniform: Gives the jitter.
            error: What failed it, for a `backoff` that is a function. Of a group it is asked for each error, and the longest time counts.

        Raises:
            InvalidSettings: The function gave no number of seconds.
            Exception: What the function raised.
        """
        if callable(self.backoff) and error is not None:
            return max(self._asked(self.backoff, attempt, each) for each in leaves(error))
        if self.delays is not None:
            base = self.delays[min(attempt, len(self.delays)) - 1]
        else:
            base = self.delay if self.backoff == "fixed" else self.delay * self.factor ** min(attempt - 1, 64)
            base = min(base, self.max_delay)
        return max(0.0, base * uniform(1 - self.jitter, 1 + self.jitter)) if self.jitter else base

    def _asked(self, backoff: Backoff, attempt: int, error: BaseException) -> float:
        seconds = backoff(attempt, error)
        fault = duration_fault(seconds, zero=True)
        require(fault is None, f"RetryPolicy(backoff={backoff!r}): what it gives {fault}")
        return float(seconds)


def _check_function(function: Backoff) -> None:
    """Check that a function can be asked for a delay.

    Raises:
        InvalidSettings: It is a coroutine function, or takes other arguments.
    """
    require(
        not inspect.iscoroutinefunction(function) and not inspect.iscoroutinefunction(getattr(function, "__call__", None)),  # noqa: B004
        f"RetryPolicy(backoff={function!r}): a plain function, not a coroutine function",
    )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin may have none
        return
    try:
        signature.bind(1, Exception())
    except TypeError as error:
        raise InvalidSettings(f"RetryPolicy(backoff={function!r}): called with the attempt and its error, but {error}") from None
