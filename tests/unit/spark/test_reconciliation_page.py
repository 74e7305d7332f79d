"""The page of a reconciliation and its charts: well-formed, complete, safe with any names."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("jinja2")

from command_bus.spark.reconciliation.charts import bar_chart, histogram, rate_chart, short_duration, short_number, stacked_bar
from command_bus.spark.reconciliation.page import ChartData, ErrorCount, Page, SlowEntity, render_page, write_page
from command_bus.spark.reconciliation.verdict import FLAGS, STATUSES, Verdict
from command_bus.transport.ports.bulk import DispatchFacts

START = 1_790_000_000_000
NASTY = "<script>alert(\"x\")</script> & 'so on'"
VOID = {"meta"}


def page(
    counts: dict[str, int], data: ChartData | None = None, *, dispatch_id: str = "orders-1", notes: list[str] | None = None
) -> Page:
    facts = DispatchFacts(dispatch_id, version=0, first_ms=START, done_ms=START + 5000, added=10, keep_ms=1, what="Ship")
    verdict = Verdict({name: counts.get(name, 0) for name in (*STATUSES, *FLAGS)}, notes=notes or [])
    return Page(facts, verdict, data or ChartData(), "redis://server:6379 namespace 'orders'", START + 60_000, 1.234)


DATA = ChartData(
    first_ms=START,
    last_ms=START + 4000,
    step_ms=1000,
    accepted=[5, 4, 1, 0],
    finished=[0, 3, 3, 3],
    latency={"p50": 800.0, "p90": 1900.0, "p99": 2100.0, "max": 2200.0},
    handling={"p50": 4.0, "p90": 7.0, "p99": 9.0, "max": 12.0},
    bins=[(562.3, 4), (1000.0, 2), (1778.3, 3)],
    attempts={0: 1, 1: 7, 2: 1},
    slowest=[SlowEntity("parcel:p-1", 4, 1200.0, 2200.0, 44.0, 1)],
    errors=[ErrorCount("rejected", "heavy", 2, "too heavy by 3 kg"), ErrorCount("quarantined", "invalid", 1, NASTY)],
)


class Nesting(HTMLParser):
    """Checks that every element is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def elements(text: str) -> list[str]:
    nesting = Nesting()
    nesting.feed(text)
    nesting.close()
    assert not nesting.open
    return nesting.seen


def svg(text: str) -> ET.Element:
    return ET.fromstring(text)


def test_the_page_is_complete_and_self_contained() -> None:
    text = render_page(page({"completed": 9, "rejected": 1}, DATA))
    seen = elements(text)
    assert seen.count("svg") == 4
    assert not {"script", "link", "img"} & set(seen)
    assert "http" not in text.replace("https://", "http")
    for shown in (
        "orders-1",
        "Ship",
        "Right: every row is accounted for",
        "2026-09-21",
        "parcel:p-1",
        "too heavy by 3 kg",
        "p99 2.1 s",
    ):
        assert shown in text, shown
    assert 'class="verdict good"' in text


def test_names_are_escaped() -> None:
    data = ChartData(slowest=[SlowEntity(NASTY, 1, 1, 1, 1, 0)], errors=DATA.errors)
    text = render_page(page({"completed": 1}, data, dispatch_id=NASTY, notes=[NASTY]))
    assert "script" not in elements(text)
    assert text.count("&lt;script&gt;") >= 4


def test_long_texts_are_cut() -> None:
    text = render_page(page({"rejected": 1}, ChartData(errors=[ErrorCount("rejected", "long", 1, "x" * 5000)])))
    assert "x" * 299 + "…" in text
    assert "x" * 300 not in text


@pytest.mark.parametrize(("counts", "mood"), [({"pending": 1}, "open"), ({"missing": 1}, "bad"), ({"duplicated": 1}, "bad")])
def test_the_verdict_has_its_colour(counts: dict[str, int], mood: str) -> None:
    text = render_page(page({"completed": 5} | counts))
    assert f'class="verdict {mood}"' in text
    assert ('class="alarm"' in text) == (mood == "bad")


def test_a_dispatch_without_outcomes_has_a_page() -> None:
    text = render_page(page({"pending": 3}))
    elements(text)
    assert "nothing has settled yet" in text


def test_many_attempts_share_a_bar() -> None:
    text = render_page(page({"completed": 1}, ChartData(attempts=dict.fromkeys(range(1, 20), 2))))
    assert "attempt 8 or more" in text
    assert ">24<" in text


def test_file_names_are_distinct(tmp_path: Path) -> None:
    names = ["orders-1", "a/b", "a:b", "../../etc", "x" * 300, "", "ünï"]
    paths = [write_page(page({}, dispatch_id=name), tmp_path / "deep" / "er") for name in names]
    assert paths[0].name == "reconciliation-orders-1.html"
    assert len(set(paths)) == len(names)
    assert all(path.parent == tmp_path / "deep" / "er" and path.read_text(encoding="utf-8") for path in paths)


def test_charts_are_well_formed() -> None:
    for picture in (
        rate_chart([("accepted", "accepted", []), ("settled", "settled", [])], 1000, "t"),
        rate_chart([("accepted", "accepted", [0.0])], 1, NASTY),
        rate_chart([("accepted", "accepted", [1e9] * 80)], 86_400_000, "t"),
        histogram([], 8, [], "t"),
        histogram([(1.0, 1)], 8, [("p50", 0.0), ("p99", 1e12)], "t"),
        bar_chart([], "t"),
        bar_chart([("attempt 1", 1), (NASTY, 10**9)], "t"),
        stacked_bar([], "t"),
        stacked_bar([(NASTY, "good", 5)], "t"),
    ):
        svg(picture)
        assert not re.search(r"nan|inf\b", picture)


def test_the_stacked_bar_shows_one_in_a_million() -> None:
    parts = svg(stacked_bar([("completed", "good", 999_999), ("missing", "bad", 1), ("pending", "open", 0)], "t")).findall("rect")
    assert [float(part.attrib["width"]) >= 2 for part in parts] == [True, True]
    assert sum(float(part.attrib["width"]) for part in parts) == pytest.approx(1144, abs=4)


def test_histogram_bars_match_their_counts() -> None:
    parts = svg(histogram([(10.0, 100), (100.0, 50), (1000.0, 25)], 8, [("p50", 100.0)], "t")).findall("rect")
    heights = [float(part.attrib["height"]) for part in parts]
    assert heights[0] == pytest.approx(2 * heights[1], rel=0.02)
    assert heights[1] == pytest.approx(2 * heights[2], rel=0.02)
    lefts = [float(part.attrib["x"]) for part in parts]
    assert lefts[1] - lefts[0] == pytest.approx(lefts[2] - lefts[1], rel=0.01)  # a factor of ten is as wide anywhere


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (950, "950"), (12_500, "12.5k"), (999_999, "1M"), (3.1e6, "3.1M"), (2e9, "2G")]
)
def test_short_numbers(value: float, text: str) -> None:
    assert short_number(value) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (8, "8 ms"),
        (999, "999 ms"),
        (1500, "1.5 s"),
        (90_000, "90 s"),
        (720_000, "12 min"),
        (1.15e7, "3.2 h"),
        (1.8e8, "2.1 d"),
    ],
)
def test_short_durations(ms: float, text: str) -> None:
    assert short_duration(ms) == text
