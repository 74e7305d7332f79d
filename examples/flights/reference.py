"""The expected result, computed from the table directly.

Written to share as little as possible with what it checks: no commands, no `model.apply`, no sequence numbers of
`data.movements`, but one straight loop over an aircraft's sorted rows. A mistake in either of the two shows as a difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from examples.flights.data import Flight
from examples.flights.model import Aircraft

__all__ = ["expected"]


def expected(flights: Iterable[Flight]) -> dict[str, Aircraft]:
    """Return the final state of every aircraft that left the ground, by tail number."""
    diaries: dict[str, list[tuple[int, bool, str, Flight]]] = defaultdict(list)
    for flight in flights:
        if flight.tail is None or flight.dep_delay is None:
            continue
        departed = flight.sched + flight.dep_delay
        diaries[flight.tail].append((departed, False, flight.key, flight))
        if flight.air_time is not None:
            diaries[flight.tail].append((departed + flight.air_time, True, flight.key, flight))
    return {tail: _final(diary) for tail, diary in diaries.items()}


def _final(diary: list[tuple[int, bool, str, Flight]]) -> Aircraft:
    diary.sort(key=lambda entry: entry[:3])
    chain = flights = landings = minutes = distance = gaps = gap_minutes = elsewhere = 0
    for position, (at, landing, _, flight) in enumerate(diary):
        delay = flight.arr_delay if landing else flight.dep_delay
        assert delay is not None, f"{flight.key}: the table gives the time but not the delay"
        chain = (chain * 31 + delay + position + 1) % 1_000_003
        if landing:
            landings += 1
            minutes += flight.air_time or 0
            distance += flight.distance
        else:
            flights += 1
            before = diary[position - 1] if position else None
            if before is not None and before[1]:
                gaps += 1
                gap_minutes += at - before[0]
                elsewhere += before[3].dest != flight.origin
    at, landing, _, flight = diary[-1]
    return Aircraft(
        seq=len(diary),
        chain=chain,
        flights=flights,
        landings=landings,
        minutes=minutes,
        distance=distance,
        airport=flight.dest if landing else flight.origin,
        landed_at=at if landing else None,
        gaps=gaps,
        gap_minutes=gap_minutes,
        elsewhere=elsewhere,
    )
