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
from benchmarks.peers.field import PEERS
from benchmarks.report import report
from benchmarks.runner import Results
from benchmarks.targets import TARGETS, Verdict, verdicts

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


def verdict(text: str, cases: Mapping[str, Mapping[str, float]]) -> Verdict:
    return next(found for found in verdicts(made_up(cases), LANGUAGES) if found.target.text == text)


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


def test_the_command_line_chooses_sizes() -> None:
    quick, everything = arguments([]), arguments(["--all", "--no-peers"])
    assert (quick.runs, quick.scale) == (2, 0.5)
    assert (everything.runs, everything.scale) == (3, 1.0)
    assert len(plan(quick)) < len(plan(everything))
    assert not any(case.peer for case in plan(everything))
    with pytest.raises(SystemExit):
        arguments(["--scale", "2"])


# Targets.


def test_every_figure_that_a_target_asks_for_is_measured() -> None:
    """With all metrics of all cases there, no target lacks anything: no name in it is misspelt."""
    metrics = ("per_s", "worker_us", "server_us", "p50_ms", "p99_ms", "bytes_each", "mark_bytes", *GROWTH_METRICS)
    everything = {case.name: dict.fromkeys(metrics, 1.0) for case in catalogue()}
    assert [found.missing for found in verdicts(made_up(everything), LANGUAGES) if found.missing] == []


GROWTH_METRICS = ("dispatch_redis_us", "dispatch_python_us", "drain_redis_us", "drain_python_us")


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert [found.met for found in verdicts({}, LANGUAGES)] == [None] * len(TARGETS)


@pytest.mark.parametrize(("ours", "met"), [(30_000, True), (29_999, False), (60_000, True)])
def test_a_multiple_of_a_peer(ours: float, met: bool) -> None:
    found = verdict("≥ 3 × bullmq", {"drain, 1,000 entities": {"per_s": ours}, "bullmq, drain": {"per_s": 10_000}})
    assert found.met is met
    assert found.ratio == pytest.approx(ours / 30_000)


@pytest.mark.parametrize(("ours", "met"), [(15.0, True), (15.1, False), (5.0, True)])
def test_an_upper_limit(ours: float, met: bool) -> None:
    found = verdict("≤ 15 µs worker CPU", {"drain, 1,000 entities": {"worker_us": ours}})
    assert found.met is met
    assert found.ratio == pytest.approx(15 / ours)


def test_the_best_python_peer_is_not_bullmq() -> None:
    cases = {
        "drain, 1,000 entities": {"per_s": 48_000},
        "bullmq, drain": {"per_s": 20_000},
        "huey, drain": {"per_s": 6_000},
        "arq, drain": {"per_s": 2_000},
    }
    assert verdict("≥ 8 × the best Python peer", cases).limit == 48_000
    assert verdict("≥ 8 × the best Python peer", cases).met


def test_lower_than_every_peer_means_the_lowest_of_all() -> None:
    ours = {"call, 1 in flight": {"p50_ms": 0.8}}
    peers = {"bullmq, call, 1 in flight": {"p50_ms": 0.9}, "arq, call, 1 in flight": {"p50_ms": 2.0}}
    assert verdict("p50 lower than every peer's", ours | peers).met
    peers["huey, call, 1 in flight"] = {"p50_ms": 0.7}
    assert verdict("p50 lower than every peer's", ours | peers).met is False


def test_one_of_two_limits_is_enough() -> None:
    text = "≥ 100,000/s or ≥ 0.5 × pipelined XADD"
    ours = {"dispatch, 500 concurrent": {"per_s": 70_000}}
    assert verdict(text, ours).met is False
    assert verdict(text, ours | {"floor, XADD, pipelines of 500": {"per_s": 130_000}}).met
    assert verdict(text, ours | {"floor, XADD, pipelines of 500": {"per_s": 150_000}}).met is False
    fast = {"dispatch, 500 concurrent": {"per_s": 100_000}}
    assert verdict(text, fast | {"floor, XADD, pipelines of 500": {"per_s": 900_000}}).met


def test_a_call_is_held_against_the_floor() -> None:
    floor = {"floor, EVALSHA round trip": {"p50_ms": 0.06}, "floor, LPUSH/BRPOP round trip": {"p50_ms": 0.3}}
    found = verdict("p50 ≤ 2 × (EVALSHA + LPUSH/BRPOP round trip)", floor | {"call, 1 in flight": {"p50_ms": 0.72}})
    assert found.limit == pytest.approx(0.72)
    assert found.met


@pytest.mark.parametrize(("far", "met"), [(12.5, True), (12.6, False), (8.0, True)])
def test_growth_compares_the_ends_of_its_row(far: float, met: bool) -> None:
    backlog = ROWS[0]
    ends = {backlog.case(backlog.sizes[0]): {"drain_redis_us": 10.0}, backlog.case(backlog.sizes[-1]): {"drain_redis_us": far}}
    found = [each for each in verdicts(made_up(ends), {}) if each.met is not None]
    assert [(each.target.case, each.met) for each in found] == [("growth of backlog", met)]


# What people see.


def results() -> Results:
    cases: dict[str, dict[str, float]] = {
        "drain, 1,000 entities": {"per_s": 40_000, "worker_us": 14.0, "server_us": 9.0},
        "bullmq, drain": {"per_s": 10_000},
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
    assert re.search(r"met +1\.33 × +drain, 1,000 entities +≥ 3 × bullmq +\(40,000 against 30,000\)", text)
    assert re.search(r"MISSED +0\.89 × +drain, 1,000 entities +≤ 8 µs server CPU", text)
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
