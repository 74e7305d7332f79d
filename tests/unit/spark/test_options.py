"""The options of the data source: tolerant of case, strict otherwise."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import pytest

from command_bus import InvalidSettings
from command_bus.spark.options import WriteOptions, duration_ms

GIVEN = {"command": "shop:Take", "dispatchId": "d"}


def test_names_ignore_case_and_values_are_text() -> None:
    options = WriteOptions.parse(
        {
            "COMMAND": "shop:Take",
            "dispatchid": "d",
            "MaxBacklog": "5000",
            "maxwait": "90",
            "outcomes": "7 days",
            "onInvalid": "RAISE",
            "columns": "sku=item, line = number",
            "batchSize": "5000",
            "checkpointLocation": "/tmp/x",
            "dispatchVersion": "3",
        }
    )
    assert (options.command, options.dispatch_id, options.version) == ("shop:Take", "d", 3)
    assert (options.max_backlog, options.max_wait, options.batch_size) == (5000, 90.0, 1000)
    assert (options.outcomes_ms, options.on_invalid) == (604_800_000, "raise")
    assert options.columns == {"sku": "item", "line": "number"}
    assert options.command_id_column == "command_id"


def test_a_dispatch_is_remembered_at_least_as_long_as_its_outcomes() -> None:
    assert WriteOptions.parse({**GIVEN, "rememberFor": "1 day", "outcomes": "3 days"}).remember_ms == 3 * 86_400_000


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"comand": "x"}, "unknown option 'comand': did you mean command?"),
        ({**GIVEN, "dispatch_id": "x"}, "did you mean dispatchId?"),
        ({**GIVEN, "zzz": "x"}, "there are url, namespace, command"),
        ({}, "option command is missing"),
        ({**GIVEN, "onInvalid": "ignore"}, "there are quarantine, raise, drop"),
        ({**GIVEN, "maxBacklog": "many"}, "maxBacklog = 'many' is a whole number, at least 1"),
        ({**GIVEN, "maxBacklog": "0"}, "at least 1"),
        ({**GIVEN, "maxBacklog": "9" * 5000}, "at most 9223372036854775807"),
        ({**GIVEN, "dispatchVersion": str(2**53)}, "at most 9007199254740991"),
        ({**GIVEN, "maxWait": "0 s"}, "maxWait = '0 s' is no time at all"),
        ({**GIVEN, "rememberFor": "0 days"}, "rememberFor = '0 days' is no time at all"),
        ({**GIVEN, "columns": '{"a":' + "[" * 100_000}, "as a JSON object of texts"),
        ({**GIVEN, "outcomes": "soon"}, "write it like '90 s', '15 minutes' or '7 days'"),
        ({**GIVEN, "columns": "a=b,c"}, "write it like 'field=column, other=column2'"),
    ],
)
def test_errors_name_the_right_option(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        WriteOptions.parse(options)
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250 ms", 250),
        ("90s", 90_000),
        ("1.5 h", 5_400_000),
        ("15 minutes", 900_000),
        ("3 m", 180_000),
        ("2 weeks", 1_209_600_000),
        ("10 milliseconds", 10),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(text, "x") == ms


@pytest.mark.parametrize("text", ["", "7", "days", "-1 s", "1 fortnight"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(InvalidSettings, match="is no duration"):
        duration_ms(text, "x")


def test_a_mapper_needs_no_command() -> None:
    values: dict[str, Any] = {"dispatchId": "d", "mapper": "pickle:x"}
    assert WriteOptions.parse(values).command == ""


@pytest.mark.parametrize("word", ["no", "0", "False"])
def test_classes_by_value_can_be_forbidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, word: str) -> None:
    pytest.importorskip("pyarrow")
    from command_bus.spark.writing.command_lookup import command_mappings, mapper_of

    class Touch:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "it-ran",)

    hostile = "pickle:" + base64.b64encode(pickle.dumps(Touch())).decode()
    monkeypatch.setenv("COMMAND_BUS_SPARK_PICKLE", word)
    with pytest.raises(InvalidSettings, match="forbids classes and functions by value"):
        command_mappings(WriteOptions.parse({**GIVEN, "command": hostile}), ["sku"])
    with pytest.raises(InvalidSettings, match="forbids"):
        mapper_of(hostile)
    assert not (tmp_path / "it-ran").exists()
    monkeypatch.delenv("COMMAND_BUS_SPARK_PICKLE")
    mapper_of(hostile)
    assert (tmp_path / "it-ran").exists(), "else this test shows nothing"
