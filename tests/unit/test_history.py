"""Values of a history, and how they travel: always an age and a number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from command_bus import (
    BusSettings,
    Command,
    EntityId,
    EntityPolicy,
    History,
    HistoryEntry,
    InvalidSettings,
    RegistrationError,
    StoryStep,
)
from command_bus.messages.history import history_of
from command_bus.serialization.envelope_options import HISTORY
from command_bus.serialization.msgpack import pack
from command_bus.serialization.outcome import OutcomeRecord, Status
from command_bus.transport.unique_keys import Stander

HOUR = 3_600_000


@pytest.mark.parametrize(
    ("age", "ms"),
    [
        ("30 days", 720 * HOUR),
        ("12 h", 12 * HOUR),
        ("1.5 hours", 90 * 60_000),
        ("90s", 90_000),
        ("2 weeks", 336 * HOUR),
        (0.5, 500),
    ],
)
def test_ages(age: Any, ms: int) -> None:
    assert History(age).age_ms == ms


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"number": 5}, "an age and a number"),
        ({"age": "1 h", "number": None}, "an age and a number"),
        ({"age": "soon"}, "30 days"),
        ({"age": "5 months"}, "30 days"),
        ({"age": ""}, "30 days"),
        ({"age": "0 s"}, "positive"),
        ({"age": -1}, "positive"),
        ({"age": float("nan")}, "positive"),
        ({"age": 1e12}, "31 years"),
        ({"age": "1 h", "number": 0}, "from 1 to"),
        ({"age": "1 h", "number": True}, "from 1 to"),
        ({"age": "1 h", "number": 2_000_000_000}, "from 1 to"),
        ({"age": "1 h", "payload": "yes"}, "True or False"),
    ],
)
def test_119_a_history_has_bounds(values: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidSettings, match=named):
        History(**values)


@pytest.mark.parametrize("wrong", [True, 30, "soon", ["30 days"]])
def test_levels_refuse_what_is_no_history(wrong: Any) -> None:
    with pytest.raises(InvalidSettings, match="30 days"):
        EntityPolicy(history=wrong)
    with pytest.raises(InvalidSettings, match="history"):
        BusSettings(history=wrong)
    with pytest.raises(RegistrationError, match="30 days"):

        class Wrong(Command[int], entity="account", history=wrong):
            account: EntityId


def test_the_first_level_that_says_something_decides() -> None:
    assert history_of(None, None, None) is None
    assert history_of(None, False, "1 h") is None
    assert history_of(None, "2 h", False) == History("2 h")
    assert history_of(History(5, 7), "2 h", None) == History(5, 7)


@pytest.mark.parametrize("value", ["7 days", '{"age": "7 days"}'])
def test_the_environment_has_one(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("COMMAND_BUS_HISTORY", value)
    assert BusSettings().history == History("7 days")


def test_a_class_inherits_it_and_may_switch_it_off() -> None:
    class Base(Command[int], entity="account", history="1 h"):
        account: EntityId

    class Same(Base):
        pass

    class Without(Base, history=False):
        pass

    assert (Same.spec().history, Without.spec().history) == ("1 h", False)


@pytest.mark.parametrize(
    "history",
    [
        History("1 h"),
        History(0.001, 1),
        History(1_000_000_000, 1_000_000_000, payload=True),
        History("1 h", steps=True),
        History("1 h", payload=True, steps=True),
    ],
)
def test_it_travels_as_an_option(history: History) -> None:
    option = HISTORY.pack(history)
    assert HISTORY.check(option)
    kept = HISTORY.of({"h": option})
    assert kept is not None
    assert (kept.age_ms, kept.number, kept.payload, kept.steps) == (
        history.age_ms,
        history.number,
        history.payload,
        history.steps,
    )
    stander = Stander("1-0", 0, 0, True, "in box", "Name", "c-1", history=kept.bounds)
    assert Stander.parse(b"1-0|||" + stander.names.encode()) == stander


@pytest.mark.parametrize(
    "value",
    [None, [], [1], [1, 2, 0], [1, 2, 4], [0, 1], [1, 0], [1, True], [1, "2"], [1, 2, 1, 1], [10**13, 1], [1, 10**10], "h"],
)
def test_other_values_are_no_history(value: Any) -> None:
    assert not HISTORY.check(value)


def test_a_record_has_an_envelope_or_none() -> None:
    record = OutcomeRecord("completed", "N", "t", "i", 1, "w", 2, 3, 4, "5-0", b"reply")
    assert OutcomeRecord.unpack(record.pack()) == record
    assert record.pack()[0] == 0x9C, "what Spark reads is as it was"
    with_envelope = OutcomeRecord("completed", "N", "t", "i", 1, "w", 2, 3, 4, "5-0", b"reply", envelope=b"envelope")
    assert OutcomeRecord.unpack(with_envelope.pack()) == with_envelope
    for each in (record, with_envelope):
        of_several = replace(each, others=(("t", "j"), ("u", "k")))
        assert OutcomeRecord.unpack(of_several.pack()) == of_several
        with_digest = bytes((of_several.pack()[0] + 1,)) + of_several.pack()[1:] + pack({"digest": bytes(8)})
        assert OutcomeRecord.unpack(with_digest) == of_several, "the map that is kept for a later release"
        with_story = replace(of_several, story={"f": {"s:one#1": b"12345678\x01"}})
        assert OutcomeRecord.unpack(with_story.pack()) == with_story
    odd = b"\x9e" + record.pack()[1:] + pack([["t", 1]]) + pack({})
    assert OutcomeRecord.unpack(odd) == record, "what only a later release knows"


def test_the_command_line_has_every_status() -> None:
    pytest.importorskip("typer")
    from command_bus.cli.commands.history import EndStatus

    assert {str(each) for each in EndStatus} == set(get_args(Status))


def test_the_command_line_tells_the_steps() -> None:
    pytest.importorskip("typer")
    from command_bus.cli.commands.history import _data, _facts

    steps = (
        StoryStep("step", "charge#1", result={"cents": 5}),
        StoryStep("call", "Pay#1", is_open=True, command_id="c-2"),
        StoryStep("step", "bytes#1", result=b"\xff"),
        StoryStep("sleep", "sleep#1", until_ms=1_700_000_000_000),
        StoryStep("step", "two#1", error="ValueError: no"),
        StoryStep("step", "secret#1", encrypted=True),
        StoryStep("left_out", "7 fields", cut=True),
    )
    entry = HistoryEntry("c-1", "Order", "order", "o-1", "completed", 1, "w", 1, 2, 3, None, None, None, (), steps)
    assert [(name, str(value)) for name, value in _facts(entry)][-7:] == [
        ("step", "charge#1  {'cents': 5}"),
        ("call", "Pay#1  not waited for"),
        ("step", "bytes#1  b'\\xff'"),
        ("sleep", "sleep#1  until 2023-11-14 22:13:20Z"),
        ("step", "two#1  ValueError: no"),
        ("step", "secret#1  encrypted"),
        ("left_out", "7 fields  (too large to be kept)"),
    ]
    told = _data(entry)["steps"]
    assert told[0]["result"] == {"cents": 5}
    assert {*told[2]} == {"kind", "name", "result", "error", "is_open", "command_id", "until_at", "cut", "encrypted"}
    assert told[2]["result"], "also bytes have a form"
    assert (told[3]["until_at"], told[1]["command_id"]) == ("2023-11-14T22:13:20.000Z", "c-2")
