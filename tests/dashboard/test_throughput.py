"""The page of the throughput: figures by command, plots with axes of their own, values and times that can be read."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from command_bus import CommandBus, Stats
from command_bus.admin.audit import TrendPoint
from command_bus.dashboard.pages.throughput import by_command
from command_bus.serialization.announcements import WorkerInfo
from command_bus.serialization.tallies import FAILED, HANDLED, RETRIED, Tallies
from command_bus.transport.redis.admin.history import RedisHistory
from tests.dashboard.conftest import Browser, page_text
from tests.dashboard.troubled_shop import Shop, until

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]

MINUTE = 60_000
HOUR = 60 * MINUTE


def tallied(**handled: int) -> Tallies:
    found = Tallies()
    for name, number in handled.items():
        found[name].update({HANDLED: number, 20: number})
    return found


def mark(at_ms: int, **handled: int) -> TrendPoint:
    found = tallied(**handled)
    return TrendPoint(at_ms, tallies=found.pack(), runs=found.runs)


def stats(started_ms: int, **handled: int) -> Stats:
    return Stats(workers=(WorkerInfo("w", "h", 1, started_ms, 0, 1, 0, (), tallies=tallied(**handled).pack()),))


def counted(points: list[TrendPoint], now: Stats, begin_ms: int) -> tuple[dict[str, int], int]:
    rows, since_ms = by_command(points, now, begin_ms)
    return {row.name: row.handled for row in rows}, since_ms


async def test_figures_are_those_of_the_span() -> None:
    points = [mark(10 * HOUR, Pay=100, Mail=7), TrendPoint(10 * HOUR + MINUTE), mark(11 * HOUR, Pay=130, Mail=7)]
    assert counted(points, stats(1, Pay=135, Mail=7, New=2), 9 * HOUR) == ({"Pay": 35, "New": 2}, 10 * HOUR)


async def test_what_a_worker_counted_that_began_in_the_span_counts_from_its_start() -> None:
    assert counted([mark(10 * HOUR, Pay=100)], stats(9 * HOUR + 1, Pay=130), 9 * HOUR) == ({"Pay": 130}, 9 * HOUR + 1)
    assert counted([], stats(1, Pay=130), 9 * HOUR) == ({"Pay": 130}, 1)
    assert counted([], Stats(), 9 * HOUR) == ({}, 0)


async def test_a_worker_that_leaves_takes_nothing_back() -> None:
    points = [mark(10 * HOUR, Pay=100), mark(11 * HOUR, Pay=160), mark(12 * HOUR, Pay=5), mark(13 * HOUR, Pay=25)]
    assert counted(points, stats(11 * HOUR + 1, Pay=30), 9 * HOUR) == ({"Pay": 60 + 25}, 10 * HOUR)
    churn = [mark(10 * HOUR + number * MINUTE, Pay=(5 if number % 2 else 9)) for number in range(200)]
    rows, since_ms = counted(churn, stats(1, Pay=6), 9 * HOUR)
    assert (rows, since_ms > 12 * HOUR) == ({"Pay": 20 * 4 - 3}, True)


async def test_workers_count_what_became_of_their_runs(troubled: tuple[CommandBus, Shop]) -> None:
    bus, _ = troubled

    async def told() -> bool:
        found = Tallies.sum(each.tallies for each in (await bus.stats()).workers)
        return (found["Mail"][HANDLED], found["Mail"][FAILED], found["Ship"][RETRIED], found["Charge"][RETRIED]) == (4, 8, 1, 4)

    await until(told)
    assert all(not each.tallies or b"c-1" not in each.tallies for each in (await bus.stats()).workers)


async def test_the_page_says_how_each_command_fares_and_where_to_look(viewer: Browser) -> None:
    async def shown() -> bool:
        return "Mail 4 8 0" in page_text(await viewer.page("/throughput"))

    await until(shown)
    page = await viewer.page("/throughput")
    text = page_text(page)
    assert re.search(r"Charge 1 2 4 (< 1|\d+) ms", text)
    assert text.index("Mail 4 8 0") < text.index("Charge 1 2 4") < text.index("Ship 0 0 1"), "what fails most is the first"
    assert 'href="/letters?name=Mail">8</a>' in page
    assert 'href="/history?name=Deposit"' in page
    assert re.search(r"Runs of handlers that ended since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC", text)
    assert "since the namespace was made: " in text


async def filled(bus: CommandBus, monkeypatch: pytest.MonkeyPatch, minutes: int) -> None:
    """Let the plots be of some minutes: 4,000 retries and two dead letters in one of them."""
    kept = (await bus.trends.list())[-1:] or [TrendPoint(0)]
    now = (await bus.session.transport.operator.entities.now_ms()) // MINUTE
    points = [
        replace(kept[0], at_ms=each * MINUTE, retried=4000 * (each >= now), dead_lettered=2 * (each >= now), oldest_age=1.5)
        for each in range(now - minutes, now + 1)
    ]

    async def listed(*_: object, **__: object) -> list[TrendPoint]:
        return points

    monkeypatch.setattr(type(bus.trends), "list", listed)


async def test_what_differs_by_far_has_no_axis_in_common(
    troubled: tuple[CommandBus, Shop], viewer: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(troubled[0], monkeypatch, 60)
    figures = re.findall(r"<figure.*?</figure>", await viewer.page("/throughput"))
    tops = {page_text(each).partition(" 1")[0].partition(" 0")[0]: _ticks(each)[-1] for each in figures if "data-column" in each}
    assert len(tops) == 9
    assert all(len(re.findall(r"\d UTC</text>", each)) == 3 for each in figures if "data-column" in each)
    assert {"2", "5,000"} <= set(tops.values())
    assert {len(re.findall("<path", each)) for each in figures} == {0, 1, 2}


def _ticks(figure: str) -> list[str]:
    return re.findall(r'text-anchor="end">([^<]*)<', figure)[:3]


async def test_all_values_are_in_a_table(
    troubled: tuple[CommandBus, Shop], viewer: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(troubled[0], monkeypatch, 60)
    table = (await viewer.page("/throughput")).partition('id="values"')[2].partition("</table>")[0]
    heads, rows = re.findall(r"<th(?: [^>]*)?>([^<]*)", table), table.split("<tr>")[2:]
    first = dict(zip(heads, re.findall(r"<td[^>]*>(?:<time[^>]*>)?([^<]*)", rows[0]), strict=True))
    assert (len(rows), len(heads)) == (61, 12)
    assert (first["retried"], first["dead-lettered"], first["longest wait"]) == ("4,000", "2", "1.5 s")
    await filled(troubled[0], monkeypatch, 2000)
    page = await viewer.page("/throughput?span=2d")
    assert "A point is 12 minutes" in page_text(page)
    assert page.partition('id="values"')[2].partition("</table>")[0].count("<tr>") <= 182
    monkeypatch.undo()


async def test_the_page_asks_no_more_than_before(viewer: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    newest = RedisHistory.newest

    async def counted_newest(self: RedisHistory, name: Any, before: str, count: int) -> Any:
        asked.append(name)
        return await newest(self, name, before, count)

    monkeypatch.setattr(RedisHistory, "newest", counted_newest)
    await viewer.page("/throughput")
    assert asked == ["trends"]
