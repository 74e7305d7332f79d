"""The edges take what is given as it is, or refuse it with a typed error: options of a URL, ids, numbers of JSON."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pydantic import Field

from command_bus import Command, CommandBus
from command_bus.errors import CommandBusError, InvalidCommand, InvalidSettings
from command_bus.messages.message import canonical_entity_id, checked_id
from command_bus.serialization.json_fields import message_from_json
from command_bus.serialization.json_forms import json_form, read_json
from command_bus.server_urls import with_taken_options
from command_bus.spelling import shown

SCHEMES = ("redis://host/0?", "rediss://host/0?", "redis+sentinel://host/main?", "redis+cluster://host/0?")
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "option", ["protocol=3", "credential_provider=x", "command_packer=x", "decode_responses=1", "encoding=x", "retry=1"]
)
def test_an_option_that_the_bus_decides_is_named_and_refused(scheme: str, option: str) -> None:
    with pytest.raises(InvalidSettings, match=option.partition("=")[0]):
        CommandBus(f"{scheme}{option}")


@pytest.mark.parametrize("url", ["redis://host/shop", "redis://host?db=x", "redis://host?db=-1"])
def test_a_database_is_a_number(url: str) -> None:
    with pytest.raises(InvalidSettings):
        CommandBus(url)


def test_no_option_comes_before_what_the_bus_needs() -> None:
    url = "redis://host/0?socket_timeout=1&p%72otocol=2&d%62=3&max_connections=1&client_name=x"
    assert with_taken_options(url) == "redis://host/0?d%62=3&client_name=x"


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "1e400", '"\\ud800"', "\ud800", "9" * 5_000, "[" * 300 + "]" * 300, ""])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        read_json(text)


@pytest.mark.parametrize("value", [10**5_000, DEEP, object(), "\ud800" * 5_000], ids=["int", "deep", "object", "surrogates"])
def test_ids_and_what_is_shown_of_them(value: Any) -> None:
    for check in (canonical_entity_id, checked_id):
        with pytest.raises(InvalidCommand):
            check(value)
    assert len(shown(value)) < 600


class Valued(Command[None]):
    money: Decimal
    blob: bytes = b""
    by_number: dict[int, bytes] = Field(default_factory=dict[int, bytes])


@pytest.mark.parametrize("text", ["0.1000000000000000000001", "10000000000000000.1", "12345678901234567890.5", "1.5e-310", "7"])
def test_a_number_keeps_all_its_digits_in_a_decimal(text: str) -> None:
    assert message_from_json(Valued, "Valued", read_json(f'{{"money": {text}}}')).money == Decimal(text)


@pytest.mark.parametrize("blob", [b"", b"text", "Grüße".encode(), b"\xff\x00", b"data:;base64,AA=="])
def test_bytes_come_back_from_their_form(blob: bytes) -> None:
    given = {"money": "1", "blob": json_form(blob), "by_number": {"-7": json_form(blob)}}
    assert message_from_json(Valued, "Valued", given) == Valued(money=Decimal(1), blob=blob, by_number={-7: blob})


@pytest.mark.parametrize(
    "fields", [{"by_number": {"x": "a"}}, {"by_number": {"-0": "a"}}, {"by_number": {"1.0": "a"}}, {"blob": "data:;base64,?"}]
)
def test_a_key_or_text_that_is_none_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(CommandBusError):
        message_from_json(Valued, "Valued", {"money": 1, **fields})
