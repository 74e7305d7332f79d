"""Durations that users give are numbers of seconds that every clock on the way can count; anything else is refused with what to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from command_bus import (
    BusSettings,
    Command,
    CommandBus,
    EntityId,
    InvalidCommand,
    InvalidSettings,
    RegistrationError,
    RetryPolicy,
)
from command_bus.clock import LONGEST
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.spark.options import duration_ms

TOO_LONG = [1e308, 1e18, math.nextafter(LONGEST, math.inf)]


class Move(Command[None], entity="box"):
    box: EntityId


def _declared(timeout: float) -> object:
    class Timed(Command[None], entity="box", attempt_timeout=timeout):
        box: EntityId

    return Timed


GIVEN: dict[str, tuple[Callable[[Any], object], type[Exception]]] = {
    "delay": (lambda seconds: EnvelopeBuilder(BusSettings()).outgoing(Move(box="a"), {"delay": seconds}), InvalidCommand),
    "expires": (lambda seconds: EnvelopeBuilder(BusSettings()).outgoing(Move(box="a"), {"expires": seconds}), InvalidCommand),
    "RetryPolicy delay": (lambda seconds: RetryPolicy(delay=seconds), InvalidSettings),
    "RetryPolicy max_delay": (lambda seconds: RetryPolicy(max_delay=seconds), InvalidSettings),
    "handler timeout": (_declared, RegistrationError),
    **{
        name: (lambda seconds, name=name: BusSettings(**{name: seconds}), InvalidSettings)  # type: ignore[misc]
        for name in ("grace", "quantum_time", "unknown_grace", "dispatch_timeout", "call_timeout", "dedup_window", "reply_ttl")
    },
}


@pytest.mark.parametrize("seconds", TOO_LONG)
@pytest.mark.parametrize("given", GIVEN)
def test_too_long_a_duration_is_refused_with_the_longest(given: str, seconds: float) -> None:
    make, error = GIVEN[given]
    with pytest.raises(error, match=r"1,000,000,000|1000000000") as refusal:
        make(seconds)
    assert "OverflowError" not in str(refusal.value)


@pytest.mark.parametrize("given", GIVEN)
def test_the_longest_is_taken(given: str) -> None:
    GIVEN[given][0](LONGEST)


@pytest.mark.parametrize("seconds", [-1, math.inf, math.nan, True, "5"])
@pytest.mark.parametrize("given", ["delay", "expires", "RetryPolicy delay", "RetryPolicy max_delay", "handler timeout"])
def test_an_invalid_duration_is_refused(given: str, seconds: Any) -> None:
    make, error = GIVEN[given]
    with pytest.raises(error, match="number of seconds"):
        make(seconds)


async def test_waits_are_checked_before_anything_is_asked() -> None:
    bus = CommandBus("redis://nowhere.invalid")
    for seconds in (*TOO_LONG, 10**400, 10**5000, -1, math.nan):
        for wait in (bus.wait_idle(seconds), bus.result("c-1", timeout=seconds), bus.call(Move(box="a"), timeout=seconds)):
            with pytest.raises(InvalidCommand, match="timeout is"):
                await wait
        with pytest.raises(InvalidCommand, match="grace is"):
            await bus.worker().stop(grace=seconds)


@pytest.mark.parametrize("factor", [0.5, 1e10, math.nan, math.inf])
def test_a_backoff_that_would_overflow_is_refused(factor: float) -> None:
    with pytest.raises(InvalidSettings, match="from 1 to 1,000"):
        RetryPolicy(factor=factor)


def test_the_steepest_backoff_of_all_ends_at_its_cap() -> None:
    policy = RetryPolicy(attempts=10_000, delay=LONGEST, factor=1000, max_delay=LONGEST, jitter=0.0)
    assert policy.delay_after(9_999, lambda low, high: low) == LONGEST


@pytest.mark.parametrize("text", ["99999999999 days", f"{'9' * 400} s"])
def test_sparks_options_too(text: str) -> None:
    with pytest.raises(InvalidSettings, match="1,000,000,000 s"):
        duration_ms(text, "rememberFor")
