"""The check of `doctor` about unique keys, on announced policies."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("typer")

from command_bus import BusSettings, Command, EntityId, HandlerRegistry, RetryPolicy, Unique
from command_bus.doctor.stored_checks import check_unique, longest_retry
from command_bus.serialization.announcements import CommandInfo, read_description
from command_bus.worker.worker_bus import describe_commands


class Index(Command[None], entity="page", unique=Unique("fresh", wins="latest"), retry=RetryPolicy(attempts=3, delay=1)):
    page: EntityId


class Check(Command[None], entity="page", unique=Unique("fresh"), retry=RetryPolicy(attempts=3, delay=1)):
    page: EntityId


class Pull(Command[None], entity="shop", unique=Unique("fresh"), retry=RetryPolicy(attempts=5, delays=(60, 600, 1800, 7200))):
    shop: EntityId


class Push(Command[None], entity="shop", unique=Unique(until="started"), retry=RetryPolicy(attempts=5, delays=(7200,) * 4)):
    shop: EntityId


class Plain(Command[None], entity="shop"):
    shop: EntityId


def announced(*kinds: type[Command[Any]]) -> list[CommandInfo]:
    registry = HandlerRegistry()
    for kind in kinds:
        registry.handles(kind)(lambda command: None)
    records = describe_commands(registry, BusSettings())
    return [info for name, record in records.items() if (info := read_description(name, record, ("w",))) is not None]


def test_classes_that_share_a_key_and_differ() -> None:
    (found,) = check_unique(announced(Index, Check, Plain))
    assert (found.about, found.grade) == ("unique keys", "warning")
    assert "Check, Index of page: share the key 'fresh'" in found.found
    assert check_unique(announced(Index, Push, Plain)) == []


def test_retries_that_hold_a_key_for_long() -> None:
    (found,) = check_unique(announced(Pull, Push))
    assert found.found.startswith("Pull: one that fails is retried for up to 2 h 41 min")
    assert "until='started'" in found.advice


def steep(attempt: int, error: BaseException) -> float:
    return 7200.0


@pytest.mark.parametrize(
    ("retry", "seconds"),
    [
        (RetryPolicy(attempts=4, delay=1, max_delay=3), 1 + 2 + 3),
        (RetryPolicy(attempts=5, delay=1, factor=3, max_delay=60), 1 + 3 + 9 + 27),
        (RetryPolicy(attempts=4, delay=5, backoff="fixed"), 5 + 5 + 5),
        (RetryPolicy(attempts=2, delay=5, max_delay=3), 5),
        (RetryPolicy(attempts=1, delay=5), 0),
        (RetryPolicy(delays=(1, 10)), 11),
        (RetryPolicy(attempts=4, backoff=steep), 0),
    ],
)
def test_how_long_retries_take_as_they_are_announced(retry: RetryPolicy, seconds: float) -> None:
    class Slow(Command[None], entity="shop", unique=Unique(), retry=retry):
        shop: EntityId

    (info,) = announced(Slow)
    assert longest_retry(info.policy) == seconds


def test_an_ordinary_policy_that_holds_a_key_for_long() -> None:
    class Sync(Command[None], entity="shop", unique=Unique(), retry=RetryPolicy(attempts=20, delay=60, max_delay=600)):
        shop: EntityId

    (found,) = check_unique(announced(Sync))
    assert found.found.startswith("Sync: one that fails is retried for up to 2 h ")


def test_a_policy_that_does_not_say_is_no_long_one() -> None:
    assert longest_retry({}) == 0
    assert longest_retry({"attempts": 9, "delay": 9000, "backoff": "exponential", "max_delay": 9000}) == 0, (
        "of an earlier release"
    )


def test_a_policy_of_another_form_is_passed_over() -> None:
    (info,) = announced(Check)
    record = json.dumps({"entity": "page", "key": "page", "delivery": "x", "schema": info.schema, "policy": {"unique": 5}})
    read = read_description("Check", record.encode(), ())
    assert read is not None
    assert check_unique([read]) == []
