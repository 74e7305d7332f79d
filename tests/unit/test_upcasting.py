"""Versions of commands: what a class and its upcasters may say, and the fields that come out of them."""

from __future__ import annotations

from typing import Any

import pytest

from command_bus import Command, EntityId, InvalidCommand, RegistrationError, upcasts
from command_bus.messages.upcasting import check_upcasters, checked_version, upcast
from command_bus.serialization.announcements import read_description
from command_bus.serialization.envelope_options import VERSION


def three_versions() -> type[Command[int]]:
    class Deposit(Command[int], entity="account", version=3):
        account: EntityId
        cents: int
        currency: str

    @upcasts(Deposit, since=1)
    def cents_for_euros(fields: dict[str, Any]) -> dict[str, Any]:
        fields["cents"] = fields.pop("euros") * 100
        return fields

    @upcasts(Deposit, since=2)
    def with_currency(fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "currency": "EUR"}

    return Deposit


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        (1, {"account": "a", "euros": 3}),
        (2, {"account": "a", "cents": 300}),
        (3, {"account": "a", "cents": 300, "currency": "EUR"}),
    ],
)
def test_steps_are_applied_from_the_version_that_was_sent(version: int, fields: dict[str, Any]) -> None:
    assert upcast(three_versions(), dict(fields), version) == {"account": "a", "cents": 300, "currency": "EUR"}


@pytest.mark.parametrize("version", [0, -1, 1.0, True, "2", 1_000_001])
def test_110_a_version_is_a_whole_number(version: Any) -> None:
    with pytest.raises(RegistrationError, match="version is a whole number"):

        class Odd(Command[None], version=version):
            pass

    with pytest.raises(InvalidCommand, match="version: a whole number"):
        checked_version(version)
    assert not VERSION.check(version)


def test_a_version_is_not_inherited() -> None:
    class Child(three_versions(), entity="account"):  # type: ignore[misc, call-arg]
        pass

    assert Child.spec().version == 1


@pytest.mark.parametrize("since", [0, 3, 4, True, "1"])
def test_110_an_upcaster_begins_at_an_earlier_version(since: Any) -> None:
    with pytest.raises(RegistrationError, match="has version 3"):
        upcasts(three_versions(), since=since)


def test_110_what_is_no_upcaster() -> None:
    async def later(fields: dict[str, Any]) -> dict[str, Any]:
        return fields

    kind = three_versions()
    with pytest.raises(RegistrationError, match="plain function"):
        upcasts(kind, since=1)(later)  # type: ignore[type-var]
    with pytest.raises(RegistrationError, match="has an upcaster from version 1 already"):
        upcasts(kind, since=1)(dict)
    with pytest.raises(RegistrationError, match="no class of messages or states"):
        upcasts(dict, since=1)  # type: ignore[arg-type]


def test_the_same_function_may_be_registered_again() -> None:
    class Twice(Command[None], version=2):
        pass

    upcasts(Twice, since=1)(dict)
    assert upcasts(Twice, since=1)(dict) is dict


def test_a_missing_step_is_named() -> None:
    class Gap(Command[None], version=4):
        pass

    upcasts(Gap, since=2)(dict)
    with pytest.raises(RegistrationError, match="no upcaster from version 1, 3"):
        check_upcasters(Gap)
    with pytest.raises(InvalidCommand, match="has version 2, and no upcaster leads on from version 3"):
        upcast(Gap, {}, 2)
    check_upcasters(three_versions())


def test_what_an_upcaster_raises_or_returns_is_told_without_values() -> None:
    class Broken(Command[None], version=3):
        pass

    @upcasts(Broken, since=1)
    def lacks(fields: dict[str, Any]) -> dict[str, Any]:
        raise KeyError(fields["secret"])

    upcasts(Broken, since=2)(list)  # type: ignore[type-var]
    with pytest.raises(InvalidCommand) as caught:
        upcast(Broken, {"secret": "hidden"}, 1)
    assert caught.value.message == "Broken: the upcaster from version 1 raised KeyError"
    with pytest.raises(InvalidCommand, match="gave a value of type list, not a dict"):
        upcast(Broken, {}, 2)


def test_memory_that_runs_out_is_not_blamed_on_the_command() -> None:
    class Huge(Command[None], version=2):
        pass

    def exhausted(_: dict[str, Any]) -> dict[str, Any]:
        raise MemoryError

    upcasts(Huge, since=1)(exhausted)
    with pytest.raises(MemoryError):
        upcast(Huge, {}, 1)


def test_nothing_travels_for_the_first_version() -> None:
    assert VERSION.replaced(None, 1) is None
    assert VERSION.replaced({"v": 3}, 1) is None
    assert VERSION.replaced({"v": 3, "p": "high"}, 2) == {"p": "high", "v": 2}
    assert (VERSION.of(None), VERSION.of({"p": "high"}), VERSION.of({"v": 2})) == (1, 1, 2)
    assert not VERSION.check(1)


@pytest.mark.parametrize(("announced", "read"), [("2", 2), ("1", 1), ('"2"', 1), ("-5", 1), ("null", 1)])
def test_an_announced_version_that_is_none_is_the_first(announced: str, read: int) -> None:
    record = f'{{"entity": null, "key": null, "delivery": "x", "schema": {{"type": "object"}}, "version": {announced}}}'
    info = read_description("Deposit", record.encode(), ())
    assert info is not None
    assert info.version == read
