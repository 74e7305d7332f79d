"""Spark's side of the examples: the same commands and results as the plain Python side, and both examples on a small sample."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytest.importorskip("rich", reason="the examples' set-up: pip install -e .[demo]")

from examples.flights import crash, data, fold, frames, reference
from examples.flights.commands import Arrive, Depart
from examples.flights.data import Flight
from examples.retail import stream, table
from tests.examples.test_flights import HEADER, ROWS

ROOT = Path(__file__).resolve().parents[2]
_DAYS = 2


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("flights") / "flights.csv"
    path.write_text(f"{HEADER}\n{ROWS}")
    return path


@pytest.fixture(scope="module")
def some_days(tmp_path_factory) -> tuple[Path, list[Flight]]:
    """Return the first days of the real table, without reading all of it, which takes Spark seconds."""
    try:
        whole = frames.unzipped(tmp_path_factory.mktemp("table"))
    except data.MissingTable as missing:
        pytest.skip(str(missing))
    path = whole.with_name("head.csv")
    with whole.open(encoding="utf-8") as lines:
        path.write_text("".join(line for _, line in zip(range(3_000), lines, strict=False)))
    with path.open(encoding="utf-8", newline="") as lines:
        return path, data.window_of_days(list(data.parse(lines)), _DAYS)


def sent(flights: list[Flight]) -> dict[str, dict[str, object]]:
    return {
        command_id: {"command": type(command).spec().name, **command.model_dump()}
        for command_id, command in data.movements(flights)
    }


def derived(spark: SparkSession, path: Path, days: int) -> dict[str, dict[str, object]]:
    found = {}
    for row in frames.commands(frames.window_of_days(frames.flights(spark, path), days)).collect():
        kind = Depart if row["command"] == Depart.spec().name else Arrive
        end = "dep" if kind is Depart else "arr"
        name = f"{row['time_hour'][:13]}/{row['carrier']}{row['flight']}/{end}"
        found[name] = {"command": row["command"], **{field: row[field] for field in kind.model_fields}}
        if kind is Depart:
            assert row["minutes"] is row["distance"] is None
    return found


@pytest.mark.slow
class TestFlights:
    def test_commands_equal_those_of_plain_python(self, spark, small):
        with small.open(encoding="utf-8", newline="") as lines:
            flights = list(data.parse(lines))
        assert derived(spark, small, 9) == sent(flights)

    def test_commands_of_real_days_equal_those_of_plain_python(self, spark, some_days):
        path, flights = some_days
        found = derived(spark, path, _DAYS)
        assert found == sent(flights)
        assert len(found) > 3_000

    def test_the_fold_equals_the_reference(self, spark, some_days):
        path, flights = some_days
        rows = frames.window_of_days(frames.flights(spark, path), _DAYS)
        assert fold.expected(rows) == reference.expected(flights)

    def test_the_census_equals_plain_python(self, spark, some_days):
        path, flights = some_days
        assert frames.census(frames.window_of_days(frames.flights(spark, path), _DAYS)) == data.census(flights)

    def test_a_sample_has_the_same_aircraft(self, spark, small):
        with small.open(encoding="utf-8", newline="") as lines:
            flights = list(data.parse(lines))
        rows = frames.sample_of_aircraft(frames.flights(spark, small), 1, 7).collect()
        assert [row["tail"] for row in rows] == [flight.tail for flight in data.sample_of_aircraft(flights, 1, seed=7)]

    def test_each_task_is_killed_once_during_its_write(self, spark, small, tmp_path, monkeypatch):
        """Run the mapper here as a task would; the signal is caught, not sent."""
        killed: list[int] = []
        monkeypatch.setattr(crash.os, "kill", lambda _, number: killed.append(number))
        rows = [
            row.asDict() for row in crash.doomed(frames.commands(frames.flights(spark, small)).coalesce(1), after=4).collect()
        ]
        assert [row["fatal"] for row in rows] == [number == 3 for number in range(len(rows))]
        first = self.attempt(tmp_path, rows, monkeypatch)
        assert killed == [signal.SIGKILL]
        assert self.attempt(tmp_path, rows, monkeypatch) == first
        assert killed == [signal.SIGKILL]
        assert {type(command) for command in first} == {Depart, Arrive}

    def attempt(self, marks: Path, rows: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch) -> list[object]:
        import pyspark

        class Context:
            @staticmethod
            def get() -> Context:
                return Context()

            @staticmethod
            def partitionId() -> int:  # noqa: N802 - Spark's name
                return 3

        monkeypatch.setattr(pyspark, "TaskContext", Context)
        monkeypatch.setenv(crash.MARKS, str(marks))
        return [crash.crashing(row) for row in rows]


@pytest.mark.slow
class TestRetail:
    LINES = """\
 customer_id  date number_of_cds  dollar_value
 00001 19970101  1   11.77
 00002 19970112  1   12.00
 00002 19970112  5   77.00
 00002 19970112  1   12.00
 00002 19970203  1   12.00
"""

    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "table.txt"
        path.write_text(self.LINES)
        return path

    def test_the_totals_leave_double_bookings_out(self, spark, path):
        assert stream.totals(stream.bought(spark, path, None)) == {"00001": (1, 1, 1177), "00002": (3, 7, 10100)}
        assert stream.totals(stream.bought(spark, path, ["00001"])) == {"00001": (1, 1, 1177)}

    def test_weeks(self, spark, path):
        assert stream.weekly(stream.bought(spark, path, None)) == [
            (11.77, 11.77), (89.0, 89.0), (0.0, 0.0), (0.0, 0.0), (12.0, 0.0)
        ]  # fmt: skip

    def test_invalid_rows_stay_invalid(self, spark, tmp_path, path):
        part = tmp_path / "slice.csv"
        table.write_slice([*table.read_rows(path)[:1], *table.SPOILT], part, 0.0)
        frame = spark.read.schema("line INT, customer STRING, date STRING, discs STRING, dollars STRING").csv(str(part))
        good, *bad = (row.asDict() for row in stream.purchases(frame).collect())
        assert Decimal(good["dollars"]) == Decimal("11.77")
        assert (good["customer"], good["day"], good["discs"]) == ("00001", "1997-01-01", 1)
        assert [(row["line"], row["customer"], row["day"], row["discs"], row["dollars"]) for row in bad] == [
            (900_001, None, "1997-02-14", 1, "11.77"),
            (900_002, "00003", "1997-02-31", 2, "20.76"),
            (900_003, "00004", "yesterday", 1, "14.37"),
            (900_004, "00005", "1997-03-01", 1, "-29.33"),
            (900_005, "00006", "1997-04-01", 0, "12.99"),
            (900_006, "00007", "1997-06-15", None, "28.74"),
            (900_007, "00008", "1997-10-03", 1, "9,77"),
            (900_008, "00009", "1998-01-20", 1, "NaN"),
        ]


@pytest.fixture
def run(tmp_path) -> Callable[..., str]:
    def run(module: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", module, "--out", str(tmp_path), *arguments],
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "160", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Everything agrees" in done.stdout
        assert "WRONG" not in done.stdout
        assert done.stderr == ""  # what Spark says goes to a file
        return done.stdout

    return run


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(180)
class TestRuns:
    def test_flights_agree_though_each_task_is_killed_once(self, run, tmp_path):
        shown = run("examples.flights", "--days", "3", "--fail-tasks")
        assert "killed with SIGKILL" in shown
        assert "tasks were killed in mid-write" in shown
        assert (tmp_path / "flights.png").read_bytes().startswith(b"\x89PNG")

    def test_every_purchase_is_accounted_for(self, run, tmp_path):
        shown = run("examples.retail", "--customers", "1500", "--concurrency", "2")
        assert "stopped in the middle" in shown
        assert "5 dead letters are replayed" in shown
        assert (tmp_path / "retail.png").read_bytes().startswith(b"\x89PNG")
