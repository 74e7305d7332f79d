"""The request to end an attempt, as it is written: what an operator types cannot break it, and what a later release writes is left alone."""

from __future__ import annotations

import pytest

from command_bus.transport.interrupts import Interrupt

ASKED = Interrupt("abandon", "17|18-0", 5, "anna@host", "the ledger | hangs\nagain")


def test_it_is_read_as_it_was_written() -> None:
    assert Interrupt.unpack(ASKED.pack().encode()) == ASKED
    answered = Interrupt("abort", "17|18-0", 5, "anna", "", "blocked", "app.py:7 in reckon")
    assert Interrupt.unpack(answered.pack().encode()) == answered


def test_bars_and_lines_in_a_name_do_not_shift_the_rest() -> None:
    read = Interrupt.unpack(Interrupt("abort", "17|18-0", 5, "a|b\nc", "why|so").pack().encode())
    assert read is not None
    assert (read.by, read.reason, read.attempt_id) == ("a/b c", "why|so", "17|18-0")


@pytest.mark.parametrize("value", [b"", b"abort|17|18-0", b"postpone|17|18-0|5||||", b"\xff\xfe", b"abort"])
def test_what_is_of_a_later_release_or_broken_is_nothing(value: bytes) -> None:
    assert Interrupt.unpack(value) is None


def test_its_words() -> None:
    assert Interrupt("abort", "1|1-1").words == "aborted by an operator"
    assert Interrupt("abort", "1|1-1", by="anna", reason="it hangs").words == "aborted by anna: it hangs"
    assert Interrupt("cancel", "1|1-1", by="anna", reason="wrong day").words == "wrong day"
    assert Interrupt("cancel", "1|1-1").request == "cancelled: it was cancelled"
