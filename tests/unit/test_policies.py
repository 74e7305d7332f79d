"""Retry delays, mailboxes as text, and limits on what may be configured."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_bus.errors import InvalidSettings
from command_bus.messages.policies import EntityPolicy, Lanes, PerEntity, lanes, mailbox_from_text, per_entity
from command_bus.messages.retry_policy import RetryPolicy


def middle(low: float, high: float) -> float:
    return (low + high) / 2


def test_the_defaults_are_those_of_the_design() -> None:
    policy = RetryPolicy()
    assert (policy.attempts, policy.delay, policy.factor, policy.max_delay, policy.backoff) == (3, 0.1, 2.0, 30.0, "exponential")
    assert EntityPolicy() == EntityPolicy(mailbox=per_entity(), max_depth=None, on_poison=None)


def test_exponential_backoff_doubles_up_to_its_cap() -> None:
    policy = RetryPolicy(attempts=20, delay=0.5, max_delay=3.0)
    assert [policy.delay_after(attempt, middle) for attempt in (1, 2, 3, 4, 5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_delay_is_not_cut_by_the_default_of_another_option() -> None:
    policy = RetryPolicy(delay=60.0, jitter=0)
    assert [policy.delay_after(attempt, middle) for attempt in (1, 2, 9)] == [60.0, 60.0, 60.0]


def test_fixed_backoff_stays() -> None:
    policy = RetryPolicy(delay=0.5, backoff="fixed", jitter=0)
    assert {policy.delay_after(attempt, middle) for attempt in (1, 2, 50)} == {0.5}


def test_without_jitter_no_random_number_is_drawn() -> None:
    def refuse(low: float, high: float) -> float:
        raise AssertionError

    assert RetryPolicy(jitter=0).delay_after(1, refuse) == 0.1


def test_a_huge_attempt_number_does_not_overflow() -> None:
    assert RetryPolicy(factor=10.0, delay=1.0, jitter=0).delay_after(100_000, middle) == 30.0


@given(
    attempt=st.integers(1, 1_000),
    delay=st.floats(0, 100),
    factor=st.floats(1, 10),
    max_delay=st.floats(0, 1_000),
    jitter=st.floats(0, 1),
    seed=st.integers(),
)
def test_every_delay_is_within_its_share_of_the_cap(
    *, attempt: int, delay: float, factor: float, max_delay: float, jitter: float, seed: int
) -> None:
    policy = RetryPolicy(delay=delay, factor=factor, max_delay=max_delay, jitter=jitter)
    seconds = policy.delay_after(attempt, random.Random(seed).uniform)
    assert 0 <= seconds <= max(delay, max_delay) * (1 + jitter) * (1 + 1e-9)


def test_retries_go_by_the_type_of_the_error() -> None:
    policy = RetryPolicy(retry_on=(OSError,), give_up_on=(FileNotFoundError,))
    assert policy.retries(TimeoutError())
    assert not policy.retries(ValueError())
    assert not policy.retries(FileNotFoundError())
    assert RetryPolicy().retries(ValueError())
    assert not RetryPolicy().retries(KeyboardInterrupt())


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": 1.5},
        {"delay": -1},
        {"delay": math.nan},
        {"delay": math.inf},
        {"max_delay": -1},
        {"max_delay": math.inf},
        {"factor": 0.5},
        {"jitter": 1.5},
        {"jitter": -0.1},
        {"jitter": math.nan},
        {"backoff": "linear"},
    ],
)
def test_a_senseless_retry_policy_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match=f"RetryPolicy\\({next(iter(wrong))}="):
        RetryPolicy(**wrong)


def test_policies_are_values() -> None:
    assert RetryPolicy() == RetryPolicy()
    assert hash(lanes(3)) == hash(Lanes(3))
    with pytest.raises(AttributeError):
        RetryPolicy().attempts = 5  # type: ignore[misc]  # that it is refused is the test


@pytest.mark.parametrize("mailbox", [per_entity(), per_entity("/"), per_entity("--"), lanes(1), lanes(64), lanes(65_536)])
def test_a_mailbox_policy_reads_back_from_its_text(mailbox: PerEntity | Lanes) -> None:
    assert mailbox_from_text(str(mailbox)) == mailbox


@pytest.mark.parametrize("text", ["", "lanes", "lanes:", "lanes:x", "lanes:-1", "lanes:0", "per_entity:", "lanes:65537"])
def test_an_unknown_mailbox_policy_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettings):
        mailbox_from_text(text)


@pytest.mark.parametrize("count", [0, -1, 65_537, 1.5, "4"])
def test_lanes_are_counted_within_limits(count: Any) -> None:
    with pytest.raises(InvalidSettings, match="lanes"):
        lanes(count)


@pytest.mark.parametrize("wrong", [{"max_depth": 0}, {"on_poison": "explode"}])
def test_a_senseless_entity_policy_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match=next(iter(wrong))):
        EntityPolicy(**wrong)
