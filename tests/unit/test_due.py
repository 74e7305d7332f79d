"""Due entries are promoted on time by one of several workers, whatever the server's clock does."""

from __future__ import annotations

import pytest

from command_bus.transport.redis.maintenance.due_work import DueTimes, Member

MS = 1_700_000_000_000
"""The server's time when ours is 0."""


def look(times: DueTimes, now: float, *members: tuple[str, float], clock: float = 0.0) -> list[str]:
    """Return the names of due members, given with their seconds on the first clock; the server's clock is `clock` ahead."""
    scored = [(name, MS + seconds * 1000) for name, seconds in members]
    return [member.name for member in times.looked(scored, int(MS + (now + clock) * 1000), now)]


def due(*names: str) -> list[Member]:
    return [Member(name, 0.0) for name in names]


def test_it_wakes_when_the_first_is_due() -> None:
    times = DueTimes()
    assert look(times, 0.0, ("r:a", 0.4), ("r:b", 0.7)) == []
    assert times.pause(0.0, 1.0) == pytest.approx(0.4)
    assert look(times, 0.4, ("r:a", 0.4), ("r:b", 0.7)) == ["r:a"]
    times.promoted(due("r:a"), 1, 300, 0.4)
    assert times.pause(0.4, 1.0) == pytest.approx(0.3)


def test_without_due_entries_a_shard_is_polled_rarely() -> None:
    times = DueTimes()
    assert look(times, 0.0) == []
    assert times.pause(0.0, 1.0) == 1.0
    assert look(times, 0.0, ("d:c", 50.0)) == []
    assert times.pause(0.0, 1.0) == 1.0


def test_one_alone_is_never_late() -> None:
    times = DueTimes()
    for step in range(100):
        assert look(times, step, ("r:a", float(step))) == ["r:a"]
        times.promoted(due("r:a"), 1, 1000, step)
        assert times.pause(step, 5.0) == pytest.approx(1.0)


def test_the_loser_of_a_promotion_waits_longer_the_winner_does_not() -> None:
    times = DueTimes()
    lateness = []
    for step in range(8):
        look(times, step, (f"r:{step}", step + 0.5))
        look(times, step + 0.6, (f"r:{step + 1}", step + 1.5))  # another was faster
        lateness.append(times.lateness)
    assert lateness == sorted(lateness)
    assert lateness[0] > 0
    assert lateness[-1] <= 0.1, "a retry does not wait noticeably for a worker that is lost"
    assert times.pause(7.6, 5.0) == pytest.approx(0.9 + lateness[-1], abs=lateness[-1])
    assert look(times, 8.6, ("r:8", 8.5)) == ["r:8"]
    times.promoted(due("r:8"), 1, 1000, 8.6)
    assert times.lateness == 0.0


def test_two_that_wake_together_do_not_stay_together() -> None:
    times = DueTimes()
    assert look(times, 0.5, ("r:a", 0.5)) == ["r:a"]
    times.promoted(due("r:a"), 0, 500, 0.5)
    assert times.lateness > 0


def test_only_a_notified_worker_knows_a_new_first_due_time() -> None:
    times = DueTimes()
    times.lateness = 0.1
    times.ticked()
    look(times, 0.0, ("r:a", 0.2))
    assert times.pause(0.0, 1.0) == pytest.approx(0.2)


def test_to_wake_a_moment_too_early_is_not_to_be_beaten() -> None:
    times = DueTimes()
    look(times, 0.0, ("r:a", 0.4))
    look(times, 0.3995, ("r:a", 0.4))
    assert times.lateness == 0.0


def test_due_times_survive_a_clock_that_goes_back() -> None:
    times = DueTimes()
    look(times, 0.0, ("r:a", 3.0), ("d:c", 5.0))
    assert look(times, 1.0, ("r:a", 3.0), ("d:c", 5.0), clock=-3600) == []
    assert times.pause(1.0, 10.0) == pytest.approx(2.0)
    assert look(times, 3.1, ("r:new", 2.0 - 3600), ("r:a", 3.0), ("d:c", 5.0), clock=-3600) == ["r:new", "r:a"]
    times.promoted(due("r:new", "r:a"), 2, 3_600_000, 3.1)
    assert times.pause(3.1, 10.0) == pytest.approx(1.9)
    assert look(times, 5.1, ("d:c", 5.0), clock=-3600) == ["d:c"]


def test_a_clock_that_is_set_right_slowly_is_followed() -> None:
    times = DueTimes()
    for second in range(100):
        assert look(times, second, ("d:c", 90.0), clock=-0.3 * second) == []


def test_another_time_of_the_same_entity_is_another_matter() -> None:
    times = DueTimes()
    look(times, 0.0, ("r:a", 1.0))
    assert look(times, 1.5, ("r:a", 100.0)) == []
    assert times.pause(1.5, 10.0) == 10.0


def test_a_clock_that_jumps_ahead_is_believed() -> None:
    times = DueTimes()
    look(times, 0.0, ("r:a", 100.0))
    assert look(times, 1.0, ("r:a", 100.0), clock=200) == ["r:a"]


def test_what_was_dealt_with_and_is_still_due_is_left_for_a_moment() -> None:
    times = DueTimes()
    times.begin()
    assert look(times, 1.0, ("p:a", 0.5), ("r:b", 0.5)) == ["p:a", "r:b"]
    times.promoted([Member("p:a", MS + 500.0)], 1, -1, 1.0)
    assert look(times, 1.1, ("p:a", 0.5), ("r:b", 0.5)) == ["r:b"], "its job changed nothing: it would be asked all the time"
    times.begin()
    assert look(times, 1.5, ("p:a", 0.5)) == []
    assert look(times, 2.2, ("p:a", 0.5)) == ["p:a"]


def test_what_is_odd_is_left_for_as_long_as_is_said() -> None:
    times = DueTimes()
    times.leave([Member("r:a", MS + 500.0)], 61.0)
    assert look(times, 1.0, ("r:a", 0.5), ("r:b", 0.5)) == ["r:b"]
    assert look(times, 61.5, ("r:a", 0.5)) == ["r:a"]
