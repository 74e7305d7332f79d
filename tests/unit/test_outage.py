"""Log lines of a server that does not answer: the cause at once, then at most every ten seconds, and the end once."""

from __future__ import annotations

import logging

import pytest

from command_bus.errors import TransportUnavailable
from command_bus.transport.redis.connection import outage_log as outage_module
from command_bus.transport.redis.connection.outage_log import LoggedBackoff, OutageLog

LOG = logging.getLogger("command_bus.outage_test")
DOWN = TransportUnavailable("redis://h cannot be reached: Connection refused")
LOADING = TransportUnavailable("redis://h is not ready: LOADING")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(outage_module, "mono", clock)
    return clock


def loops(outage: OutageLog, *names: str, lasts: bool = True) -> list[LoggedBackoff]:
    return [LoggedBackoff(outage, name, LOG, lasts=lasts) for name in names]


def test_an_outage_of_forty_seconds_is_a_handful_of_lines(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    every = loops(OutageLog("redis://h"), "cannot read work", "cannot settle", "cannot look", "cannot renew leases")
    for _ in range(41):
        for loop in every:
            loop.failed(DOWN)
        clock.now += 1.0
    for loop in every:
        loop.worked()
        loop.worked()
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "cannot read work, trying again: redis://h cannot be reached: Connection refused"
    assert [line.partition("refused")[2] for line in lines[1:-1]] == [" (39 more failed so in between)"] * 4
    assert lines[-1] == "redis://h answers again after 41 s"
    assert len(lines) == 6


def test_another_cause_is_written_at_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    (loop,) = loops(OutageLog("redis://h"), "cannot read work")
    loop.failed(DOWN)
    loop.failed(LOADING)
    loop.failed(LOADING)
    clock.now += 0.5
    loop.worked()
    assert [record.getMessage().partition("redis://h ")[2] for record in caplog.records] == [
        "cannot be reached: Connection refused",
        "is not ready: LOADING",
        "answers again after 0.5 s",
    ]


def test_it_is_over_when_the_last_loop_has_its_answer(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    first, second = loops(OutageLog("redis://h"), "a", "b")
    first.failed(DOWN)
    second.failed(DOWN)
    first.worked()
    assert "again after" not in caplog.text
    second.worked()
    assert caplog.text.count("answers again after") == 1


def test_a_loop_that_was_stopped_is_not_waited_for(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    stopped, goes_on = loops(OutageLog("redis://h"), "a", "b")
    stopped.failed(DOWN)
    for _ in range(20):
        goes_on.failed(DOWN)
        clock.now += 1.0
    goes_on.worked()
    assert "answers again after 20 s" in caplog.text


def test_a_loop_that_may_give_up_does_not_prolong_an_outage(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    outage = OutageLog("redis://h")
    (sender,), (reader,) = loops(outage, "cannot send", lasts=False), loops(outage, "cannot read work")
    sender.failed(DOWN)
    reader.failed(DOWN)
    clock.now += 2.0
    reader.worked()
    assert "answers again after 2.0 s" in caplog.text
    sender.failed(DOWN)  # and nothing is sent for an hour
    clock.now += 3600.0
    caplog.clear()
    reader.failed(DOWN)
    clock.now += 1.0
    reader.worked()
    assert "answers again after 1.0 s" in caplog.text


def test_what_worked_says_nothing(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    (loop,) = loops(OutageLog("redis://h"), "a")
    loop.worked()
    assert not caplog.records


def test_pauses_grow_until_it_works(clock: Clock) -> None:
    (loop,) = loops(OutageLog("redis://h"), "a")
    assert [loop.failed(DOWN) for _ in range(12)][-1] >= 1.0
    loop.worked()
    assert loop.failed(DOWN) <= 0.02


def test_what_is_unexpected_has_its_traceback(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    (loop,) = loops(OutageLog("redis://h"), "a")
    loop.failed(ZeroDivisionError("by zero"), unexpected=True)
    assert caplog.records[0].exc_info
