"""Policies of retries with delays or a function, how levels of policies combine, and how a dispatch's own travels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_bus.errors import InvalidSettings
from command_bus.messages.handling_policy import HandlingPolicy, handling_policy
from command_bus.messages.policies import EntityPolicy
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.serialization.envelope import WireEnvelope, pack_envelope, unpack_envelope
from command_bus.serialization.envelope_options import ATTEMPT_TIMEOUT, RETRY
from command_bus.serialization.limits import Undecodable
from command_bus.settings import BusSettings


def middle(low: float, high: float) -> float:
    return (low + high) / 2


def test_delays_are_taken_in_turn_and_count_the_attempts() -> None:
    policy = RetryPolicy(delays=(1, 5, 300))
    assert (policy.attempts, policy.delays) == (4, (1.0, 5.0, 300.0))
    assert [policy.delay_after(attempt, middle) for attempt in (1, 2, 3)] == [1.0, 5.0, 300.0], "not capped by max_delay"
    assert policy.delay_after(1, lambda low, high: high) == 1.2, "jitter is added"
    assert RetryPolicy(attempts=6, delays=(1, 5, 30, 300, 3600)).attempts == 6
    assert replace(policy, jitter=0).delays == policy.delays


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ({"attempts": 3, "delays": (1,)}, "1 delays go with 2 attempts"),
        ({"attempts": 2, "delays": (1, 5, 30)}, "3 delays go with 4 attempts"),
        ({"delays": ()}, "1 to 1,000 of them"),
        ({"delays": (1.0,) * 1001}, "1 to 1,000 of them"),
        ({"delays": (1, -1)}, "each is a non-negative number of seconds, not -1"),
        ({"delays": (math.nan,)}, "each is a non-negative number"),
        ({"delays": (True,)}, "each is a non-negative number"),
        ({"delays": ("5",)}, "each is a non-negative number"),
        ({"delays": "12"}, "a tuple of seconds"),
        ({"delays": 5}, "a tuple of seconds"),
        ({"delays": (1,), "backoff": "fixed"}, "one of the two"),
        ({"delays": (1,), "backoff": lambda attempt, error: 1.0}, "one of the two"),
        ({"backoff": lambda: 1.0}, "called with the attempt and its error"),
        ({"backoff": lambda attempt, error, third: 1.0}, "called with the attempt and its error"),
        ({"backoff": "linear"}, "or a function"),
        ({"attempts": True}, "at least 1"),
    ],
)
def test_a_senseless_policy_is_refused_with_the_reason(wrong: dict[str, Any], advice: str) -> None:
    with pytest.raises(InvalidSettings, match=advice):
        RetryPolicy(**wrong)


def test_a_coroutine_function_is_no_function_of_backoff() -> None:
    async def later(attempt: int, error: BaseException) -> float:
        return 1.0

    class Later:
        async def __call__(self, attempt: int, error: BaseException) -> float:
            return 1.0

    for wrong in (later, Later()):
        with pytest.raises(InvalidSettings, match="not a coroutine function"):
            RetryPolicy(backoff=wrong)  # type: ignore[arg-type]  # that it is refused is the test


@pytest.mark.parametrize(
    "function", [lambda attempt, error: attempt * 2.0, partial(lambda base, attempt, _: base * attempt, 2.0)]
)
def test_a_function_says_exactly_how_long(function: Callable[[int, BaseException], float]) -> None:
    policy = RetryPolicy(backoff=function, max_delay=1.0, jitter=1.0)

    def refuse(low: float, high: float) -> float:
        raise AssertionError

    assert [policy.delay_after(attempt, refuse, ValueError()) for attempt in (1, 4)] == [2.0, 8.0]


ONCE, TWICE, OFTEN = RetryPolicy(attempts=1), RetryPolicy(attempts=2), RetryPolicy(attempts=9)
AT_MOST: Any = "at_most_once"
AT_LEAST: Any = "at_least_once"


@pytest.mark.parametrize(
    ("levels", "wanted"),
    [
        ([{}, {}], HandlingPolicy()),
        ([{"retry": TWICE}, {"retry": OFTEN}], HandlingPolicy(retry=TWICE)),
        ([{}, {"retry": OFTEN, "attempt_timeout": 5.0}], HandlingPolicy(retry=OFTEN, attempt_timeout=5.0)),
        ([{"attempt_timeout": 1.0}, {"attempt_timeout": 5.0}], HandlingPolicy(attempt_timeout=1.0)),
        ([{"delivery": AT_MOST}, {"retry": OFTEN}], HandlingPolicy(AT_MOST, ONCE)),
        ([{"delivery": AT_MOST, "retry": TWICE}, {"retry": OFTEN}], HandlingPolicy(AT_MOST, TWICE)),
        ([{"retry": TWICE}, {"delivery": AT_MOST}], HandlingPolicy(AT_MOST, TWICE)),
        ([{"delivery": AT_LEAST}, {"delivery": AT_MOST}], HandlingPolicy(AT_LEAST)),
        ([{"delivery": AT_LEAST}, {"delivery": AT_MOST, "retry": OFTEN}], HandlingPolicy(AT_LEAST, OFTEN)),
        ([{}, {"delivery": AT_MOST, "retry": OFTEN}], HandlingPolicy(AT_MOST, OFTEN)),
    ],
)
def test_the_most_specific_level_that_says_something_decides(levels: list[dict[str, Any]], wanted: HandlingPolicy) -> None:
    assert handling_policy(*(EntityPolicy(**level) for level in levels)) == wanted


def test_an_override_keeps_which_errors_are_retried() -> None:
    policy = HandlingPolicy(retry=RetryPolicy(attempts=5, retry_on=(OSError,), give_up_on=(FileNotFoundError,)))
    found = policy.with_overrides(RetryPolicy(delays=(1.0,)), 3.0)
    assert found.retry == RetryPolicy(retry_on=(OSError,), give_up_on=(FileNotFoundError,), delays=(1.0,))
    assert (found.retry.attempts, found.attempt_timeout, found.delivery) == (2, 3.0, "at_least_once")
    assert policy.with_overrides(None, None) is policy


def travelled(retry: RetryPolicy | None, attempt_timeout: float | None) -> WireEnvelope:
    options: dict[str, Any] = {}
    RETRY.put(options, retry)
    ATTEMPT_TIMEOUT.put(options, attempt_timeout)
    return unpack_envelope(pack_envelope(WireEnvelope("c", "Do", "box", "a", b"\x80", options=options or None)))


SECONDS = st.floats(0, 1e9)
POLICIES = st.one_of(
    st.builds(
        RetryPolicy,
        attempts=st.integers(1, 2**63 - 1),
        delay=SECONDS,
        backoff=st.sampled_from(["exponential", "fixed"]),
        factor=st.floats(1, 1000),
        max_delay=SECONDS,
        jitter=st.floats(0, 1),
    ),
    st.builds(RetryPolicy, delays=st.lists(SECONDS, min_size=1, max_size=50).map(tuple), jitter=st.floats(0, 1)),
)


@given(policy=POLICIES, timeout=st.one_of(st.none(), st.floats(0.001, 1e9)))
def test_what_a_dispatch_says_arrives_as_it_was(policy: RetryPolicy, timeout: float | None) -> None:
    envelope = travelled(policy, timeout)
    assert RETRY.of(envelope.options) == policy
    assert ATTEMPT_TIMEOUT.of(envelope.options) == timeout


def test_nothing_travels_that_was_not_said() -> None:
    assert travelled(None, None).options is None
    assert travelled(RetryPolicy(attempts=1), None).options == {"r": {"attempts": 1}}
    assert travelled(None, 2.5).options == {"t": 2.5}


@pytest.mark.parametrize(
    "value",
    [
        None, 3, [], {"attempts": 0}, {"attempts": "3"}, {"attempts": True}, {"attempts": 1, "retry_on": []}, {"delays": [1, 2], "attempts": 9},
        {"delays": "ab"}, {"delays": 7}, {"delays": [1.0] * 51}, {"delays": [float("nan")]}, {"factor": "x"}, {"factor": None}, {"jitter": {}},
        {"delay": -1}, {"backoff": []}, {"backoff": {}},
    ],
    ids=str,
)  # fmt: skip
def test_62_a_policy_that_cannot_be_is_no_option(value: Any) -> None:
    assert not RETRY.check(value)
    with pytest.raises(Undecodable, match="option 'r' is of the wrong type"):
        unpack_envelope(pack_envelope(WireEnvelope("c", "Do", "box", "a", b"\x80", options={"r": value})))


@pytest.mark.parametrize("value", [None, 0, -1, True, "5", 1e10, float("nan"), float("inf"), []], ids=str)
def test_62_and_no_more_is_a_time_that_cannot_be(value: Any) -> None:
    assert not ATTEMPT_TIMEOUT.check(value)


@given(value=st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()), lambda inner: st.one_of(
    st.lists(inner), st.dictionaries(st.sampled_from(["attempts", "delay", "delays", "factor", "jitter", "backoff", "x"]), inner))))  # fmt: skip
def test_62_whatever_a_policy_holds_it_is_one_or_none(value: Any) -> None:
    assert RETRY.check(value) in (True, False)


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("retry", {"attempts": 0}, "retry: .*at least 1"),
        ("retry", {"atempts": 2}, "retry.atempts: there is no such setting; did you mean 'attempts'"),
        ("delivery", "exactly_once", "delivery: "),
        ("attempt_timeout", 0, "attempt_timeout: "),
        ("attempt_timeout", math.inf, "attempt_timeout: "),
        ("entities", {"box": {"call_timeout": -1}}, "call_timeout is a positive number"),
        ("entities", {"box": {"attempt_timeout": 0}}, "attempt_timeout is a positive number"),
        ("entities", {"box": {"delivery": "twice"}}, "delivery"),
        ("entities", {"box": {"retry": {"attempts": 2, "delays": [1, 2, 3]}}}, "3 delays go with 4 attempts"),
    ],
)
def test_63_wrong_defaults_are_refused_by_name(name: str, value: Any, advice: str) -> None:
    with pytest.raises(InvalidSettings, match=advice):
        BusSettings(**{"url": "redis://none", name: value})


@pytest.mark.parametrize("wrong", [{"delivery": "twice"}, {"retry": 3}, {"attempt_timeout": 0}, {"call_timeout": math.nan}])
def test_63_in_a_policy_too(wrong: Any) -> None:
    with pytest.raises(InvalidSettings, match=f"EntityPolicy\\({next(iter(wrong))}="):
        EntityPolicy(**wrong)


def test_an_environment_can_say_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMAND_BUS_RETRY", '{"delays": [1, 5]}')
    monkeypatch.setenv("COMMAND_BUS_DELIVERY", "at_most_once")
    monkeypatch.setenv("COMMAND_BUS_ATTEMPT_TIMEOUT", "2.5")
    monkeypatch.setenv("COMMAND_BUS_ENTITIES", '{"mail": {"retry": {"attempts": 7}, "call_timeout": 3}}')
    settings = BusSettings(url="redis://none")
    assert settings.retry == RetryPolicy(attempts=3, delays=(1.0, 5.0))
    assert (settings.delivery, settings.attempt_timeout) == ("at_most_once", 2.5)
    assert settings.entity("mail").retry == RetryPolicy(attempts=7)
    assert (settings.call_timeout_of("mail"), settings.call_timeout_of("box"), settings.call_timeout_of(None)) == (3, 60.0, 60.0)
