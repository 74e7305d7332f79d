"""The pure parts of the benchmark: medians, what is chosen, which targets are met, the table, the pictures; on made-up figures."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import figures, protocol
from benchmarks.__main__ import arguments, plan
from benchmarks.case import Case, chosen
from benchmarks.cases.drain import together
from benchmarks.cases.growth import ROWS
from benchmarks.catalogue import GROUPS, catalogue
from benchmarks.figures import Figure, figures_of, from_json
from benchmarks.ground import Spent
from benchmarks.judging import Finding, Verdict, judged
from benchmarks.peers.cases import cases_of
from benchmarks.peers.field import PEERS
from benchmarks.report import report, table_of_targets
from benchmarks.runner import Results
from benchmarks.targets import BARE_ARROW, BY_HAND, FULL_SERVICE, SPARK, TARGETS, verdicts

LANGUAGES = {peer.name: peer.language for peer in PEERS}
ABOUT = {
    "machine": {"cpu": "a processor", "cores": 2, "memory_gb": 8.0, "system": "Linux"},
    "versions": {"Python": "3.11", "server": "Valkey 9.1.2"},
    "load": [0.2, 0.4],
    "runs": 3,
    "scale": 1.0,
    "peers": {"bullmq": {"version": "6.7.0", "language": "Node", "settings": "quick", "order": "none"}},
}


def made_up(cases: Mapping[str, Mapping[str, float]]) -> figures.Figures:
    return figures_of({case: [metrics] for case, metrics in cases.items()})


# Figures.


def test_a_figure_is_the_median_and_the_extremes() -> None:
    figure = Figure.of([3.0, 1.0, 10.0])
    assert (figure.median, figure.low, figure.high, figure.samples) == (3.0, 1.0, 10.0, (3.0, 1.0, 10.0))


def test_a_case_without_samples_has_no_figures() -> None:
    found = figures_of({"a": [{"x": 1.0}, {"x": 3.0, "y": 5.0}], "b": []})
    assert set(found) == {"a"}
    assert found["a"]["x"].median == 2.0
    assert found["a"]["y"].samples == (5.0,)


def test_figures_survive_json() -> None:
    found = figures_of({"a": [{"x": 1.25}, {"x": 3.0}]})
    assert from_json(json.loads(json.dumps(figures.to_json(found)))) == found


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5), (0.99, 10), (0.1, 1), (0.11, 2)])
def test_a_quantile_is_the_smallest_sufficient_value(share: float, expected: float) -> None:
    assert protocol.quantile(list(range(10, 0, -1)), share) == expected


def test_processor_time_is_spread_over_the_commands() -> None:
    assert Spent(cpu=0.5, scripts=0.2).per(100_000) == pytest.approx({"server_us": 5.0, "script_us": 2.0})


def test_two_workers_are_one_from_the_first_job_of_any_to_the_last() -> None:
    early = {"count": 60, "first": 10.0, "last": 12.0, "cpu": 0.6, "rss": 50e6}
    late = {"count": 40, "first": 11.0, "last": 14.0, "cpu": 0.2, "rss": 40e6}
    idle = {"count": 0, "first": 0.0, "last": 0.0, "cpu": 0.0, "rss": 1.0}
    assert together([early, late, idle], 100) == pytest.approx({"per_s": 25.0, "worker_us": 8000.0, "rss_mb": 90.0})


def test_a_worker_counts_its_jobs(capfd: pytest.CaptureFixture[str]) -> None:
    handled = protocol.Handled(120)
    for _ in range(130):
        handled()
    (line,) = capfd.readouterr().out.splitlines()
    told = json.loads(line)
    assert told["count"] == 120
    assert told["seconds"] == told["last"] - told["first"] >= 0


# Choosing.


def nothing(_ground: object) -> dict[str, float]:
    return {}


def test_the_quick_set_is_the_default_and_words_choose() -> None:
    a, b = Case("drain, 10", "drain", nothing, quick=True), Case("call, 1", "call", nothing)
    assert chosen([a, b], [], quick=True) == [a]
    assert chosen([a, b], [], quick=False) == [a, b]
    assert chosen([a, b], ["call"], quick=True) == [b]
    assert chosen([a, b], ["RAIN, 1"], quick=True) == [a]


def test_names_are_unique_and_groups_are_known() -> None:
    cases = catalogue()
    assert len({case.name for case in cases}) == len(cases)
    assert {case.group for case in cases} == set(GROUPS)


def test_what_is_compared_is_measured_side_by_side() -> None:
    names = [case.name for case in catalogue()]
    assert {case.name for peer in PEERS for case in cases_of(peer)} <= set(names)
    for ours, theirs in (
        ("dispatch, one by one", "dispatch, one by one"),
        ("dispatch, batches of 1,000", "fill"),
        ("drain, 1,000 entities", "drain"),
    ):
        place, peers = names.index(ours) + 1, [peer for peer in PEERS if not peer.durable]
        assert set(names[place : place + len(peers)]) == {f"{peer.name}, {theirs}" for peer in peers}
    place = names.index("durable, five steps, 1 in flight")
    assert [name.partition(",")[0] for name in names[place : place + 4]] == ["durable", "restate", "dbos", "dbos"]


def test_the_command_line_chooses_sizes() -> None:
    quick, everything = arguments([]), arguments(["--all", "--no-peers"])
    assert (quick.runs, quick.scale) == (2, 0.5)
    assert (everything.runs, everything.scale) == (3, 1.0)
    assert len(plan(quick)) < len(plan(everything))
    assert not any(case.peer for case in plan(everything))
    for wrong in (["--scale", "2"], ["--peers", "bullmq,sidekiq"]):
        with pytest.raises(SystemExit):
            arguments(wrong)


def test_the_command_line_chooses_what_the_targets_compare() -> None:
    given = arguments(["--targets", "--peers", "bullmq,huey,restate"])
    names = {case.name for case in plan(given)}
    assert (given.runs, given.scale) == (3, 1.0)
    assert {"drain, 1,000 entities", "dispatch, one by one", "growth, entities 1,000", "growth, entities 1,000,000"} <= names
    assert {"bullmq, drain", "huey, dispatch, one by one", "bullmq, dispatch, 500 concurrent"} <= names
    assert not {name for name in names if name.startswith(("floor", "celery")) or "10 entities" in name}
    enough = {name: metrics for name, metrics in EVERYTHING.items() if name in names}
    assert [each.missing for verdict in verdicts(made_up(enough), LANGUAGES) for each in verdict.findings if each.missing] == []
    assert {case.name for case in plan(arguments(["--targets", "call", "--no-peers"]))} == {
        "call, 1 in flight",
        "call, 50 in flight",
        "durable, a durable call, 1,000 entities",
        "durable, beside it a plain call of another entity, 1,000 entities",
        "durable, beside it a plain call that calls, 50 in flight",
        "durable, call that calls, 50 in flight",
        "gateway, call, 1 in flight",
    }


# Targets.


def verdict(cases: Mapping[str, Mapping[str, float]], text: str = "≥ 5 × bullmq") -> Verdict:
    """Return the verdict on the target that has this condition."""
    found = verdicts(made_up(cases), LANGUAGES)
    return next(each for each in found if any(finding.condition.text == text for finding in each.findings))


def finding(cases: Mapping[str, Mapping[str, float]], text: str) -> Finding:
    """Return what is found about one condition."""
    return next(each for each in verdict(cases, text).findings if each.condition.text == text)


METRICS = (
    "per_s", "worker_us", "client_us", "server_us", "p50_ms", "p99_ms", "bytes_each", "mark_bytes", "slowest_p95_ms", "open_pages_percent",
)  # fmt: skip
GROWTH_METRICS = ("dispatch_redis_us", "dispatch_python_us", "drain_redis_us", "drain_python_us")
EVERYTHING = {case.name: dict.fromkeys((*METRICS, *GROWTH_METRICS), 1.0) for case in catalogue()}


def test_every_figure_that_a_target_asks_for_is_measured() -> None:
    """With all metrics of all cases there, no target lacks anything: no name in it is misspelt."""
    found = verdicts(made_up(EVERYTHING), LANGUAGES)
    assert [each.missing for verdict in found for each in verdict.findings if each.missing] == []
    assert all(bool(verdict.beside) == (verdict.target.beside is not None) for verdict in found)


def test_the_table_has_every_row_that_the_bus_shall_be_ahead_in() -> None:
    rows = {target.case: [[condition.text for condition in way] for way in target.ways] for target in reversed(TARGETS)}
    assert rows["drain, 1,000 entities"] == [["≥ 5 × bullmq"], ["server ≤ 5.5 µs", "worker ≤ 7.5 µs"]]
    assert rows["drain, every command its own entity"] == [["≥ 50,000/s", "server ≤ 9.5 µs", "worker ≤ 10.5 µs"]]
    assert rows["memory, per_entity, 1 per entity, stock server"] == [["≤ 350 bytes"]]
    assert rows["dispatch, one by one"] == [["≥ 1.3 × the best peer", "server ≤ 15 µs", "client ≤ 16 µs"]]
    assert rows["dispatch, 500 concurrent"] == [["≥ 75,000/s", "client ≤ 11 µs"]]
    assert rows["dispatch, batches of 1,000"] == [["≥ 220,000/s"]]
    assert rows["call, 1 in flight"] == [["p50 ≤ 0.8 × every peer's"]]
    assert rows["call, 50 in flight"] == [["≥ 20,000/s", "p99 ≤ 2 × p50"]]
    assert len(rows["a million entities"][0]) == 4
    assert {"bullmq", "huey", "faststream", "dramatiq"} <= LANGUAGES.keys()


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert [(found.met, found.ratio) for found in verdicts({}, LANGUAGES)] == [(None, None)] * len(TARGETS)


@pytest.mark.parametrize(("ours", "met"), [(50_000, True), (49_999, False), (100_000, True)])
def test_a_multiple_of_a_peer(ours: float, met: bool) -> None:
    found = finding({"drain, 1,000 entities": {"per_s": ours}, "bullmq, drain": {"per_s": 10_000}}, "≥ 5 × bullmq")
    assert found.met is met
    assert found.ratio == pytest.approx(ours / 50_000)


@pytest.mark.parametrize(("ours", "met"), [(7.5, True), (7.6, False), (5.0, True)])
def test_an_upper_limit(ours: float, met: bool) -> None:
    found = finding({"drain, 1,000 entities": {"worker_us": ours}}, "worker ≤ 7.5 µs")
    assert found.met is met
    assert found.ratio == pytest.approx(7.5 / ours)


@pytest.mark.parametrize(
    ("rate", "server", "worker", "met", "ratio"),
    [
        (50_000, 9.0, 9.0, True, 1.0),
        (20_000, 5.5, 7.0, True, 1.0),
        (20_000, 5.4, 7.6, False, 7.5 / 7.6),
        (45_000, 15.0, 10.0, False, 0.9),
    ],
)
def test_one_way_is_enough_and_all_its_conditions_must_hold(
    rate: float, server: float, worker: float, met: bool, ratio: float
) -> None:
    ours = {"per_s": rate, "server_us": server, "worker_us": worker}
    found = verdict({"drain, 1,000 entities": ours, "bullmq, drain": {"per_s": 10_000}})
    assert found.met is met
    assert found.ratio == pytest.approx(ratio)


def test_a_way_that_is_not_known_leaves_a_target_open_unless_another_is_met() -> None:
    missed = {"drain, 1,000 entities": {"per_s": 50_000, "server_us": 9.0, "worker_us": 9.0}}
    assert verdict(missed).met is None
    assert verdict({"drain, 1,000 entities": {"per_s": 50_000, "server_us": 5.0, "worker_us": 7.0}}).met is True
    assert verdict(missed | {"bullmq, drain": {"per_s": 20_000}}).met is False


def test_a_condition_that_is_missed_decides_before_one_that_is_not_known() -> None:
    assert verdict({"dispatch, one by one": {"per_s": 9_000, "server_us": 12.0, "client_us": 12.0}}, "client ≤ 16 µs").met is None
    assert (
        verdict({"dispatch, one by one": {"per_s": 9_000, "server_us": 17.0, "client_us": 12.0}}, "client ≤ 16 µs").met is False
    )


def test_we_are_held_beside_every_peer_of_the_run_the_best_first() -> None:
    rates = {"dispatch, one by one": {"per_s": 9_000}, "huey, dispatch, one by one": {"per_s": 10_000}}
    more = {"bullmq, dispatch, one by one": {"per_s": 4_500}}
    found = verdict(rates | more, "≥ 1.3 × the best peer")
    assert list(found.beside.items()) == [("huey", 0.9), ("bullmq", 2.0)]
    assert finding(rates | more, "≥ 1.3 × the best peer").limit == pytest.approx(13_000)
    times = {"call, 1 in flight": {"p50_ms": 0.5}, "huey, call, 1 in flight": {"p50_ms": 0.6}}
    assert verdict(times, "p50 ≤ 0.8 × every peer's").beside == {"huey": pytest.approx(1.2)}


def test_the_best_python_peer_is_not_bullmq() -> None:
    cases = {
        "drain, 1,000 entities": {"per_s": 48_000},
        "bullmq, drain": {"per_s": 20_000},
        "huey, drain": {"per_s": 6_000},
        "arq, drain": {"per_s": 2_000},
    }
    assert finding(cases, "≥ 8 × the best Python peer").limit == 48_000
    assert finding(cases, "≥ 8 × the best Python peer").met


def test_lower_than_every_peer_means_the_lowest_of_all() -> None:
    ours = {"call, 1 in flight": {"p50_ms": 0.7}}
    peers = {"bullmq, call, 1 in flight": {"p50_ms": 0.9}, "arq, call, 1 in flight": {"p50_ms": 2.0}}
    assert finding(ours | peers, "p50 ≤ 0.8 × every peer's").met
    peers["huey, call, 1 in flight"] = {"p50_ms": 0.7}
    assert finding(ours | peers, "p50 ≤ 0.8 × every peer's").met is False


@pytest.mark.parametrize(("far", "met"), [(12.0, True), (12.1, False), (8.0, True)])
def test_growth_compares_the_ends_of_its_row(far: float, met: bool) -> None:
    entities = ROWS[1]
    near, end = (dict.fromkeys(GROWTH_METRICS, 10.0) for _ in range(2))
    ends = {entities.case(entities.sizes[0]): near, entities.case(entities.sizes[-1]): end | {"drain_redis_us": far}}
    found = [each for each in verdicts(made_up(ends), {}) if each.met is not None]
    assert [(each.target.case, each.met) for each in found] == [("a million entities", met)]


def test_spark_is_held_beside_what_is_written_by_hand() -> None:
    rates = made_up({FULL_SERVICE: {"per_s": 153.0}, BY_HAND: {"per_s": 100.0}, BARE_ARROW: {"per_s": 240.0}})
    (found,) = judged(SPARK, rates, {})
    assert [each.met for each in found.findings] == [True, False]
    assert found.ratio == pytest.approx(153 / 180)
    lines = [" ".join(line.split()) for line in table_of_targets([found])]
    assert lines == [
        "MISSED 0.85 × full service: dispatch_dataframe",
        "1.02 × ≥ 1.5 × foreachPartition with pipelined XADD 153.0 against 150.0",
        "0.85 × ≥ 0.75 × packed Arrow without service 153.0 against 180.0",
    ]


# What people see.


def results() -> Results:
    cases: dict[str, dict[str, float]] = {
        "drain, 1,000 entities": {"per_s": 60_000, "worker_us": 10.0, "server_us": 6.0},
        "bullmq, drain": {"per_s": 10_000},
        "dispatch, one by one": {"per_s": 9_000, "server_us": 12.0, "client_us": 12.0},
        "call, 1 in flight": {"p50_ms": 0.5, "p99_ms": 1.0},
        "bullmq, call, 1 in flight": {"p50_ms": 0.6},
        "memory, lanes": {"bytes_each": 200.0, "mark_bytes": 90.0},
    }
    growth = {
        row.case(size): {"size": float(size), "drain_redis_us": 8.0, "drain_python_us": 14.0}
        for row in ROWS
        for size in row.sizes
    }
    return Results(made_up(cases | growth), {"arq, drain": "it ended\nwith a traceback"}, ABOUT, {"bullmq": "Node"})


def test_the_table_tells_targets_failures_and_a_busy_machine() -> None:
    text = report(results())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    row = lines.index("met 1.20 × drain, 1,000 entities")
    assert lines[row + 1 : row + 5] == [
        "1.20 × ≥ 5 × bullmq 60,000 against 50,000",
        "or 0.92 × server ≤ 5.5 µs 6.00 against 5.50",
        "0.75 × worker ≤ 7.5 µs 10.00 against 7.50",
        "beside 6.00 × bullmq",
    ]
    row = lines.index("MISSED 0.96 × call, 1 in flight")
    assert lines[row + 1] == "0.96 × p50 ≤ 0.8 × every peer's 0.50 against 0.48"
    row = lines.index("unknown 1.25 × dispatch, one by one")
    assert lines[row + 1] == "? × ≥ 1.3 × the best peer not measured: every peer's dispatch, one by one: per_s"
    assert re.search(r"arq, drain +FAILED: it ended$", text, re.MULTILINE)
    assert "traceback" not in text
    assert "bullmq 6.7.0 (Node): quick; order per entity: none" in text
    assert "not ours alone" not in text
    busy = results()
    busy.about = {**ABOUT, "load": [3.0, 4.0]}
    assert "not ours alone" in report(busy)


def test_results_survive_json() -> None:
    once = results()
    again = Results.from_json(json.loads(json.dumps(once.to_json())))
    assert again.to_json() == once.to_json()
    assert report(again) == report(once)


def test_the_pictures_are_small_and_always_the_same(tmp_path: Path) -> None:
    from benchmarks.plot import draw

    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    first, second = (draw(results(), folder) for folder in folders)
    assert [path.name for path in first] == ["performance-peers.svg", "performance-growth.svg"]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()
        assert one.stat().st_size < 60_000
        assert "dc:date" not in one.read_text()


# Peers.


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_is_pinned_and_no_registry_is_named(peer: object) -> None:
    assert peer in PEERS
    found = next(each for each in PEERS if each is peer)
    text = found.requirements.read_text()
    assert re.fullmatch(r"\d+(\.\d+)+", found.version())
    assert "://" not in text
    if found.language == "Python":
        pinned = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
        assert all("==" in line for line in pinned)
        assert text.count("--hash=sha256:") >= len(pinned)
        assert found.name in found.requirements.with_suffix(".in").read_text()
    else:
        assert not re.search(r'": "[\^~><*]', text)
