"""Offers of unknown commands by a worker: often enough for a newer worker, rarely enough for all others."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import pairwise
from random import Random
from statistics import mean

import pytest

from command_bus import HandlerRegistry
from command_bus.serialization.envelope import WireEnvelope, pack_envelope
from command_bus.settings import BusSettings
from command_bus.transport.steps import DeadLetterStep, GiveBack, Retry, Started, Step
from command_bus.worker.decisions import Decisions
from command_bus.worker.offers import Offer, Offers

BEGIN = 1_700_000_000_000
ENVELOPE = pack_envelope(WireEnvelope("c-1", "Newer", "box", "a", b"\x80", 0))


class OldWorker:
    """A worker that does not know the commands."""

    def __init__(self, grace: float = 60.0) -> None:
        settings = BusSettings(url="redis://none", unknown_grace=grace)
        self._decisions = Decisions(HandlerRegistry().lookup, settings, worker="w")
        self._offers = Offers(Random(7), "w")

    def read(self, now: float, waiting_since: float = 0.0) -> Step:
        """Return its decision; times in seconds."""
        started = Started("7", "1-0", 1, BEGIN + int(waiting_since * 1000), BEGIN + int(now * 1000), ENVELOPE)
        step = self._decisions.read(started)
        if isinstance(step, Offer):
            step = step.otherwise() if step.otherwise and step.left_ms <= 0 else self._offers.unknown(started, step)
        assert isinstance(step, (GiveBack, Retry, DeadLetterStep))
        return step

    def offers(self, entities: int, seconds: float) -> list[list[float]]:
        """Return when each of so many entities is offered, if all come in the first second and no other worker takes them."""
        line = [(i / entities, i) for i in range(entities)]
        heapq.heapify(line)
        offers: list[list[float]] = [[] for _ in range(entities)]
        while line[0][0] < seconds:
            now, entity = heapq.heappop(line)
            offers[entity].append(now)
            match self.read(now):
                case Retry(delay_ms):
                    heapq.heappush(line, (now + delay_ms / 1000, entity))
                case _:
                    heapq.heappush(line, (now, entity))
        return offers


def per_second(offers: list[list[float]], begin: int, end: int) -> list[int]:
    """Return the number of offers per second."""
    counts = Counter(int(time) for each in offers for time in each)
    return [counts[second] for second in range(begin, end)]


def test_a_few_are_offered_every_second_and_passed_on_by_chance() -> None:
    offers = OldWorker().offers(20, 30)
    waits = [after - before for each in offers for before, after in pairwise(each)]
    assert max(waits) <= 1.1
    assert 0.4 < mean(wait == 0 for wait in waits) < 0.6


@pytest.mark.promise("Unknown commands are offered again")
def test_a_flood_is_offered_evenly_each_command_within_ten_seconds() -> None:
    offers = OldWorker(grace=600).offers(20_000, 40)
    waits = [after - before for each in offers for before, after in pairwise(each)]
    assert max(waits) <= 10.001
    rates = per_second(offers, 20, 40)
    assert mean(rates) < 3300, "each of them once a second, and passed on as often, would be 40,000"
    assert max(rates) < 5000


def test_after_a_flood_the_rest_is_offered_every_second_again() -> None:
    worker = OldWorker(grace=600)
    worker.offers(20_000, 40)
    steps = [worker.read(55 + i / 100) for i in range(100)]
    assert max(step.delay_ms for step in steps if isinstance(step, Retry)) == 1000


@pytest.mark.parametrize(("left", "most"), [(40.0, 10.0), (20.0, 5.0), (8.0, 2.0), (2.0, 1.0), (0.3, 0.3)])
def test_what_is_near_the_end_of_its_grace_is_offered_more_often(left: float, most: float) -> None:
    worker = OldWorker(grace=60)
    delays = [step.delay_ms for _ in range(20_000) if isinstance(step := worker.read(60 - left), Retry)]
    assert max(delays) / 1000 == pytest.approx(most, abs=0.01)


def test_it_is_given_up_when_its_grace_is_over() -> None:
    assert isinstance(OldWorker(grace=60).read(60.1), DeadLetterStep)


def test_a_clock_that_goes_back_prolongs_no_wait() -> None:
    worker = OldWorker(grace=600)
    worker.offers(1000, 60)
    steps = [worker.read(-3600, waiting_since=-3600) for _ in range(10)]
    assert all(isinstance(step, GiveBack) or (isinstance(step, Retry) and step.delay_ms <= 10_000) for step in steps)
