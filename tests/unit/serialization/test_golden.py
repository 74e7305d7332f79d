"""The wire format cannot change by accident: see `vectors` for how it changes on purpose."""

from __future__ import annotations

import pytest

from tests.unit.serialization.vectors import GROUPS, Color, read

CASES = [(group, name) for group, members in GROUPS.items() for name in members.vectors]


@pytest.mark.parametrize(("group", "name"), CASES)
def test_the_bytes_are_as_recorded(group: str, name: str) -> None:
    assert GROUPS[group].pack(GROUPS[group].vectors[name]).hex() == read(group)[name].hex()


@pytest.mark.parametrize(("group", "name"), CASES)
def test_recorded_bytes_are_read_back(group: str, name: str) -> None:
    value = GROUPS[group].vectors[name]
    expected = value.value if isinstance(value, Color) else value
    found = GROUPS[group].unpack(read(group)[name])
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("group", GROUPS)
def test_every_recorded_vector_is_still_tested(group: str) -> None:
    assert list(read(group)) == list(GROUPS[group].vectors)
