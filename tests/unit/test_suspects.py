"""The end of a lease: by the server's clock and ours, and by ours alone when the server's has gone back."""

from __future__ import annotations

from command_bus.transport.redis.maintenance.expired_leases import Held, LeaseWatch

LEASE = 30.0


def looked(suspects: LeaseWatch, at: float, *held: Held) -> list[Held]:
    """Return the result for leases that were read within 10 ms."""
    assert suspects.wants_all(at)
    return suspects.all(held, at, at + 0.01)


def test_a_lease_is_lost_when_idle_time_and_our_clock_agree() -> None:
    suspects = LeaseWatch(LEASE)
    assert suspects.idle([Held("1-0", 4, 17.0)], 100.0) == []
    assert suspects.idle([Held("1-0", 4, 29.0)], 112.0) == []
    assert suspects.idle([Held("1-0", 4, 30.1)], 113.1) == [Held("1-0", 4, 30.1)]


def test_a_renewal_restarts_the_watch() -> None:
    suspects = LeaseWatch(LEASE)
    suspects.idle([Held("1-0", 4, 17.0)], 100.0)
    assert suspects.idle([Held("1-0", 5, 3600.0)], 113.5) == [], "the clock has jumped ahead"
    assert suspects.idle([Held("1-0", 5, 3606.5)], 120.0) == []
    assert suspects.idle([Held("1-0", 5, 3615.5)], 129.0) == [Held("1-0", 5, 3615.5)]


def test_an_unrenewed_lease_ends_whatever_the_servers_clock() -> None:
    """It went back, by an hour: nothing is idle."""
    suspects = LeaseWatch(LEASE)
    item = Held("1-0", 4, 0.0)
    assert looked(suspects, 100.0, item) == []
    assert not suspects.wants_all(114.9)
    assert looked(suspects, 115.1, item) == []
    assert suspects.next(115.2, 60.0) < 15.0, "it knows when the lease is over"
    assert not suspects.wants_all(130.0)
    assert looked(suspects, 130.02, item) == [item]


def test_a_renewed_lease_is_never_suspected() -> None:
    suspects = LeaseWatch(LEASE)
    for number in range(20):
        at = 100.0 + 15.2 * number
        assert looked(suspects, at, Held("1-0", number, 0.0), Held("2-0", 1 + number // 2, 0.0)) == []


def test_idle_time_counts_from_one_answer_to_the_next_request() -> None:
    """The server read it in between; its value at both ends is unknown."""
    suspects = LeaseWatch(LEASE)
    item = Held("1-0", 1, 0.0)
    suspects.all([item], 100.0, 107.0)
    assert suspects.all([item], 136.9, 140.0) == []
    assert suspects.all([item], 137.1, 137.2) == [item]


def test_a_lease_that_was_taken_or_settled_is_forgotten() -> None:
    suspects = LeaseWatch(LEASE)
    looked(suspects, 100.0, Held("1-0", 1, 0.0))
    looked(suspects, 116.0)
    assert looked(suspects, 131.5, Held("1-0", 1, 0.0)) == []


def test_an_idle_time_that_passes_is_believed() -> None:
    """An old renewal that came late set the sequence back: what was seen then is no proof."""
    suspects = LeaseWatch(LEASE)
    assert looked(suspects, 100.0, Held("1-0", 4, 0.0)) == []
    assert looked(suspects, 116.0, Held("1-0", 4, 1.0)) == []
    assert looked(suspects, 131.5, Held("1-0", 4, 0.0)) == []


def test_all_leases_are_checked_rarely() -> None:
    for lease, pause in ((30.0, 15.0), (1.0, 2.0)):
        suspects = LeaseWatch(lease)
        suspects.all([], 100.0, 100.0)
        assert not suspects.wants_all(100.0 + pause - 0.01)
        assert suspects.wants_all(100.0 + pause)
