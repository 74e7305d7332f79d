"""On which servers a conformance test runs."""

from __future__ import annotations

from tests.selection import choices, turn

HERE = {"valkey", "redis"}.__contains__


def test_servers_in_a_text() -> None:
    assert choices("memory,valkey") == [["memory"], ["valkey"]]
    assert choices("memory|valkey,cluster") == [["memory", "valkey"], ["cluster"]]
    assert choices("all") == [["memory"], ["valkey"], ["redis"], ["redis62"], ["sentinel"], ["cluster"]]


def test_every_server_has_its_turn_and_a_test_has_one() -> None:
    names = [f"test_{number}" for number in range(100)]
    turns = [turn(["valkey", "redis"], name, HERE) for name in names]
    assert 30 < turns.count("valkey") < 70
    assert turns == [turn(["valkey", "redis"], name, HERE) for name in names]


def test_no_turn_is_given_to_a_server_that_is_not_here() -> None:
    assert {turn(["redis62", "redis"], f"test_{number}", HERE) for number in range(20)} == {"redis"}


def test_a_test_whose_servers_are_all_absent_is_kept_and_skipped() -> None:
    assert turn(["sentinel"], "test", HERE) == "sentinel"
