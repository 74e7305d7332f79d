"""One batch is sent while the next is encoded, in order; an error reaches the task."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from command_bus.errors import DispatchStalled
from command_bus.spark.writing.writer import SendAhead
from tests.unit.spark.encoders import Offline


class Slow(Offline):
    """A dispatcher that sends a batch when it is told to, and refuses the batch `bad`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Semaphore(0)
        self.sent: list[Any] = []

    def add_all(self, rows: Any) -> None:
        assert self.go.acquire(timeout=10)
        if rows == "bad":
            raise DispatchStalled("nobody takes them", accepted=0, waited=0.0, retry_after=0.0, limit="entity")
        self.sent.append(rows)


def test_a_batch_is_sent_while_the_next_is_made() -> None:
    dispatcher = Slow()
    with SendAhead(dispatcher) as sending:
        sending.send("first")  # type: ignore[arg-type]
        assert dispatcher.sent == []  # it has returned, and the batch is under way
        dispatcher.go.release()
        sending.send("second")  # type: ignore[arg-type]
        assert dispatcher.sent == ["first"]
        dispatcher.go.release()
    assert dispatcher.sent == ["first", "second"]


def test_rows_that_were_committed_before_are_counted_behind_those_that_are_sent() -> None:
    dispatcher = Slow()
    with SendAhead(dispatcher) as sending:
        sending.send("first")  # type: ignore[arg-type]
        dispatcher.go.release()
        sending.skip(7)
        assert dispatcher.sent == ["first"]
    assert (dispatcher.result.rows, dispatcher.result.duplicates) == (7, 7)


@pytest.mark.parametrize("more", [True, False])
def test_an_error_is_raised_by_the_next_batch_or_at_the_end(more: bool) -> None:
    dispatcher = Slow()
    dispatcher.go.release()

    def work() -> None:
        with SendAhead(dispatcher) as sending:
            sending.send("bad")  # type: ignore[arg-type]
            if more:
                sending.send("never")  # type: ignore[arg-type]

    with pytest.raises(DispatchStalled):
        work()
    assert dispatcher.sent == []


def test_an_error_of_the_task_is_not_hidden() -> None:
    dispatcher = Slow()
    dispatcher.go.release()

    def work() -> None:
        with SendAhead(dispatcher) as sending:
            sending.send("bad")  # type: ignore[arg-type]
            raise KeyError("of the task")

    with pytest.raises(KeyError):
        work()
