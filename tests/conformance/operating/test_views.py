"""Views of a bounded cost: what stands still, search, pages of dead letters, recent events, the audit log, figures over time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from command_bus import Command, CommandBus, EntityId, InvalidSettings, RetryPolicy
from command_bus.admin import letter_pages
from command_bus.admin.views import STANDING_STATES
from command_bus.clock import wall_ms
from command_bus.transport.redis.admin import views
from tests.conformance.conftest import Sandbox
from tests.conformance.operating.operated_app import Add, Count, Seen, registered
from tests.conformance.put_service import until


@pytest.fixture
def seen(sandbox: Sandbox) -> Seen:
    return registered(sandbox)


async def standing(bus: CommandBus, **options: Any) -> dict[str, str]:
    found = await bus.views.standing_still(patience=0.0, **options)
    return {each.entity.name: each.state for each in found.entities}


@pytest.mark.parametrize("shards", [1, 3])
async def test_what_stands_still_is_found_with_its_reason(sandbox: Sandbox, seen: Seen, shards: int) -> None:
    seen.gate.clear()
    async with sandbox.bus(shards=shards) as bus:
        await bus.entity("sum", "p").pause("by hand")
        await bus.dispatch(Add(name="p", number=1), command_id="held")
        assert await standing(bus) == {"sum:p": "paused"}
        await bus.dispatch(Add(name="w", number=1))
        nobody = await bus.views.standing_still(patience=0.0)
        assert {each.entity.name: (each.state, each.handlers) for each in nobody.entities} == {
            "sum:p": ("paused", 0),
            "sum:w": ("no_handler", 0),
        }
        async with bus.worker() as worker:
            await bus.dispatch_batch([Add(name="bad", number=1, fails=True), Add(name="bad", number=2)])
            await bus.dispatch(Count(name="slow", number=1), command_id="slow-1")
            await bus.dispatch(Count(name="later", number=1), delay=60)
            await until(lambda: _is(bus, {"sum:p": "paused", "sum:w": "running", "sum:bad": "parked", "other:slow": "running"}))
            still = await bus.views.standing_still(patience=0.0)
            found = {each.entity.name: each for each in still.entities}
            assert found["sum:p"].entity.hold is not None
            assert found["sum:p"].entity.hold.reason == "by hand"
            assert (found["sum:p"].command_id, found["sum:p"].command) == ("held", "Add")
            letter = found["sum:bad"].letter
            assert letter is not None
            assert (letter.error_message, found["sum:bad"].since_ms) == ("no paper", int(letter.id.split("-")[1]))
            assert (found["other:slow"].entity.worker, found["other:slow"].handlers) == (worker.name, 1)
            assert (still.totals["parked"], still.totals["paused"], still.complete) == (1, 1, True)
            assert [each.since_ms for each in still.entities] == sorted(each.since_ms for each in still.entities)
            await bus.dispatch_raw("sum", "u", "NoSuchCommand", {})
            await until(lambda: _is_offered(bus, "u"))
            whole = await standing(bus)
            assert {"parked", "paused", "running", "no_handler"} <= set(whole.values())
            for state in STANDING_STATES:  # a view of one state is its part of the whole
                assert await standing(bus, states={state}) == {name: each for name, each in whole.items() if each == state}, state
            assert "other:slow" not in {each.entity.name for each in (await bus.views.standing_still(patience=30)).entities}
            seen.gate.set()


async def _is_offered(bus: CommandBus, name: str) -> bool:
    return (await bus.entity("sum", name).show()).entity.state == "retrying"


async def _is(bus: CommandBus, wanted: dict[str, str]) -> bool:
    return await standing(bus) == wanted


async def test_a_bounded_part_is_looked_at(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus:
        for number in range(12):
            await bus.dispatch(Add(name=f"n{number:02}", number=1))
        some = await bus.views.standing_still(patience=0.0, limit=5)
        assert ([each.entity.name for each in some.entities], some.complete) == (
            [f"sum:n{number:02}" for number in range(5)],
            False,
        )
        assert (await bus.views.standing_still(patience=0.0, limit=50)).complete


class Carry(Command[None], entity="box", retry=RetryPolicy(attempts=5, delay=400, max_delay=600, jitter=0)):
    box: EntityId


async def test_what_is_retried_later_is_found_behind_delayed_commands(
    sandbox: Sandbox, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    @sandbox.registry.handles(Carry)
    async def carry(command: Carry) -> None:
        raise ConnectionError("the road is closed")

    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Carry(box="b"))
        for number in range(150):
            await bus.dispatch(Count(name=f"later-{number}", number=1), delay=60)
        await until(lambda: _is(bus, {"box:b": "retrying"}))
        still = await bus.views.standing_still(limit=100)
        assert (still.totals["retrying"], still.complete, still.at_least) == (1, True, frozenset())
        monkeypatch.setattr(views, "_FIRST", 40)
        assert await standing(bus, limit=10) == {"box:b": "retrying"}
        monkeypatch.setattr(views, "_MOST", 60)
        cut = await bus.views.standing_still(limit=10)
        assert (cut.totals["retrying"], cut.complete) == (0, False)
        assert cut.at_least == {"retrying", "snoozed", "no_handler"}
        assert (await bus.views.standing_still(states=["parked"], limit=10)).complete


@pytest.mark.parametrize("first", [1000, 20])
async def test_of_many_the_longest_standing_are_found(
    sandbox: Sandbox, seen: Seen, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    monkeypatch.setattr(views, "_FIRST", first)
    many = 600  # a hash of so many is no longer a list on the server
    async with sandbox.bus(max_total_depth=10_000) as bus, bus.worker(concurrency=50):
        for number in range(many):
            await bus.entity("other", f"p{number}").pause("by hand")
        await bus.dispatch_batch(Add(name=f"n{number}", number=1, fails=True) for number in range(many))
        await until(lambda: _letters(bus, many), 30)
        oldest = [each.entity async for each in bus.dead_letters.list(limit=10)]
        still = await bus.views.standing_still(limit=10)
        assert sorted(each.entity.name for each in still.entities if each.state == "parked") == sorted(map(str, oldest))
        held = [each.entity for each in still.entities if each.state == "paused"]
        assert {each.name for each in held} <= {f"other:p{number}" for number in range(20)}
        assert (len(held), still.totals["parked"], still.complete, still.at_least) == (10, many, False, {"paused"})
        monkeypatch.setattr(views, "_MOST", 100)
        assert len((await bus.views.standing_still(limit=10)).entities) == 20


@pytest.mark.parametrize("shards", [1, 4])
async def test_a_search_finds_each_entity_once(sandbox: Sandbox, seen: Seen, shards: int) -> None:
    async with sandbox.bus(shards=shards) as bus:
        await bus.dispatch_batch(Add(name=f"n{number}", number=0) for number in range(40))
        await bus.dispatch_batch(Count(name=name, number=0) for name in ("n7", "a*b", "a?b", "[x]", "é%~"))
        for text, wanted in (
            ("", {f"sum:n{number}" for number in range(40)} | {"other:n7", "other:a*b", "other:a?b", "other:[x]", "other:é%~"}),
            ("n3", {"sum:n3", *(f"sum:n3{number}" for number in range(10))}),
            ("other:n", {"other:n7"}),
            ("a*b", {"other:a*b"}),
            ("a?b", {"other:a?b"}),
            ("[x]", {"other:[x]"}),
            ("é%", {"other:é%~"}),
            ("nothing", set()),
        ):
            names: list[str] = []
            cursor = None
            while True:
                page = await bus.views.find(text, limit=7, cursor=cursor)
                assert len(page.entities) <= 7
                names += [each.name for each in page.entities]
                if (cursor := page.cursor) is None:
                    break
            assert (sorted(names), set(names)) == (sorted(set(names)), wanted), text
        of_type = await bus.views.find("7", entity_type="other", limit=50)
        assert [each.name for each in of_type.entities] == ["other:n7"]


@pytest.mark.parametrize("shards", [1, 3])
async def test_pages_of_letters_are_newest_first_and_whole(
    sandbox: Sandbox, seen: Seen, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sandbox.bus(shards=shards) as bus, bus.worker():
        await bus.dispatch_batch(Add(name=f"n{number}", number=number, fails=True) for number in range(30))
        await until(lambda: _letters(bus, 30))
        every = {each.id async for each in bus.dead_letters.list()}
        pages, cursor = [], None
        while True:
            page = await bus.dead_letters.page(limit=7, cursor=cursor)
            pages.append([each.id for each in page.letters])
            if (cursor := page.cursor) is None:
                break
        found = [each for page in pages for each in page]
        assert (len(found), set(found)) == (30, every)
        places = [tuple(map(int, each.split("-")[1:])) for each in found]
        assert places == sorted(places, reverse=True)
        monkeypatch.setattr(letter_pages, "_SIZES", (2, 3))
        again, cursor = list[str](), None
        while True:
            page = await bus.dead_letters.page(limit=4, cursor=cursor)
            again += [each.id for each in page.letters]
            if (cursor := page.cursor) is None:
                break
        assert again == found
        monkeypatch.undo()
        one = await bus.dead_letters.page(entity_id="n3")
        assert ([each.entity_id for each in one.letters], one.looked, one.cursor) == (["n3"], 30, None)
        several = await bus.dead_letters.several([found[0], "0-1-1", "nonsense", "99-1-1"])
        assert list(several) == [found[0]]


async def _letters(bus: CommandBus, count: int) -> bool:
    return (await bus.stats()).dead_letters == count


async def test_recent_events_are_those_of_the_entity(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus(shards=2) as bus, bus.worker():
        await bus.events.watch()
        for name in ("a", "b", "a"):
            await bus.call(Add(name=name, number=1), timeout=5)
        await bus.entities.of("sum").pause("all of them")
        await bus.entities.of("sum").resume()
        page = await bus.events.recent("sum", "a")
        assert [each.kind for each in page.events] == [
            "resumed",
            "paused",
            "completed",
            "started",
            "accepted",
            "completed",
            "started",
            "accepted",
        ]
        assert page.before is None
        first = await bus.events.recent("sum", "a", limit=3)
        assert first.before is not None
        rest = await bus.events.recent("sum", "a", before=first.before)
        assert [*first.events, *rest.events] == list(page.events)
        cut = await bus.events.recent("sum", "a", scan=2)
        assert (cut.looked, cut.before is not None) == (2, True)


async def test_the_audit_log_keeps_what_was_done(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        assert (await bus.audit.page()).entries == ()
        ids = [await bus.audit.write("ann", "pause", f"account:{number}", "x" * 5000, outcome="é\ud800") for number in range(5)]
        page = await bus.audit.page(limit=2)
        assert [each.id for each in page.entries] == ids[:2:-1]
        assert (len(page.entries[0].why), page.entries[0].outcome) == (2000, "é?")
        assert abs(page.entries[0].at_ms - wall_ms()) < 60_000
        rest = await bus.audit.page(cursor=page.cursor)
        assert ([each.id for each in rest.entries], rest.cursor) == (ids[2::-1], None)


async def test_figures_are_kept_once_a_minute(sandbox: Sandbox, seen: Seen) -> None:
    async with sandbox.bus() as bus, bus.worker():
        await bus.call(Add(name="a", number=1), timeout=5)
        stats = await bus.stats()
        written = await asyncio.gather(*(bus.trends.keep(stats) for _ in range(10)))
        assert 1 <= sum(written) <= 2
        points = await bus.trends.list()
        assert len(points) == sum(written)
        assert (points[-1].settled, points[-1].workers, points[-1].at_ms % 60_000) == (1, 1, 0)


async def test_181_views_of_what_is_none_are_refused(sandbox: Sandbox) -> None:
    async with sandbox.bus() as bus:
        for wrong in (
            bus.views.standing_still(states={"asleep"}),  # type: ignore[arg-type]
            bus.views.standing_still(limit=0),
            bus.views.find(limit=0),
            bus.views.find(cursor="1.2"),
            bus.views.find(cursor="9.0.0"),
            bus.dead_letters.page(limit=0),
            bus.dead_letters.page(cursor="1-1"),
            bus.events.recent("sum", "a", limit=0),
            bus.events.recent("sum", "a", before="x"),
            bus.audit.page(limit=0),
            bus.audit.page(cursor="x"),
            bus.trends.list(minutes=0),
            bus.trends.list(minutes=10**6),
        ):
            with pytest.raises(InvalidSettings):
                await wrong
        assert len(STANDING_STATES) == len(set(STANDING_STATES))
