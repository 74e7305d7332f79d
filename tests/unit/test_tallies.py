"""`Tallies`: what a worker publishes of its runs, added, compared with before, and read from hostile bytes."""

from __future__ import annotations

from collections import Counter

import pytest

from command_bus.serialization.msgpack import pack
from command_bus.serialization.odd_values import odd_values
from command_bus.serialization.tallies import FAILED, HANDLED, RETRIED, Tallies, quantile


def step(seconds: float) -> int:
    return int((seconds * 1_000_000) ** 2).bit_length()


def test_what_was_packed_is_added() -> None:
    one, other = Tallies(), Tallies()
    one["Pay"][HANDLED] += 2
    other["Pay"].update({HANDLED: 1, FAILED: 3, 20: 4})
    other["Mail"][RETRIED] += 5
    found = Tallies.sum([one.pack(), b"", other.pack()])
    assert found == {"Pay": Counter({HANDLED: 3, FAILED: 3, 20: 4}), "Mail": Counter({RETRIED: 5})}
    assert (found.runs, Tallies().pack()) == (11, b"")


def test_those_that_ran_most_are_published() -> None:
    many = Tallies()
    for number in range(500):
        many[f"c{number}"][HANDLED] = number
    assert sorted(Tallies.sum([many.pack()])) == sorted(f"c{number}" for number in range(400, 500))


def test_growth_is_what_came_on_top_and_never_negative() -> None:
    grown = Tallies()
    before, after = Tallies(), Tallies()
    before["Pay"].update({HANDLED: 5, RETRIED: 9})
    after["Pay"].update({HANDLED: 7, RETRIED: 1})
    after["New"][FAILED] = 1
    grown.grow(before, after)
    assert grown == {"Pay": Counter({HANDLED: 2}), "New": Counter({FAILED: 1})}


@pytest.mark.parametrize("seconds", [0.000_02, 0.0013, 0.25, 7.0, 3600.0])
def test_a_quantile_is_right_to_a_fifth(seconds: float) -> None:
    tally = Counter({HANDLED: 100, step(seconds): 96, step(seconds * 100): 4})
    assert quantile(tally, 0.5) == quantile(tally, 0.95) == pytest.approx(seconds, rel=0.2)
    assert quantile(tally, 0.99) == pytest.approx(seconds * 100, rel=0.2)
    assert quantile(Counter({HANDLED: 1}), 0.5) is None


@pytest.mark.parametrize("odd", [b"\xc1", pack([1]), pack({"a": 5}), pack({"a": [1]}), pack({"a": {"b": 1}}), b"x" * 300_000])
def test_odd_bytes_are_left_out(odd: bytes) -> None:
    sound = Tallies()
    sound["Pay"][HANDLED] = 1
    before = odd_values.counts().get("workers", 0)
    assert Tallies.sum([odd, sound.pack()])["Pay"][HANDLED] == 1
    assert odd_values.counts().get("workers", 0) == before + 1


def test_odd_numbers_are_left_out() -> None:
    odd = pack({5: [-1, 1], "Pay": [-1, -5, -99, 1, 10**9, 1, 3, 2.5, 4, True, 5, 2**60, 6, 1]})
    assert Tallies.sum([odd]) == {"5": Counter({HANDLED: 1}), "Pay": Counter({6: 1})}
