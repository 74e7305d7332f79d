"""A lone command that is begun where it was read: its handler sees what it would see in a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import sys
import weakref
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest

from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.transport.steps import DeadLetterStep, Done, GiveBack, LeaseLost, Released, StepFailed
from tests.unit.short_way import Do, Way, started, turns, way


def task() -> asyncio.Task[Any]:
    """Return the current task."""
    current = asyncio.current_task()
    assert current is not None
    return current


def kinds(of: Way) -> dict[str, type]:
    return {box: type(step) for box, step in of.steps.steps.items() if box != "warm"}


async def test_of_several_that_wait_the_first_has_the_parked_task() -> None:
    tasks: dict[str, int] = {}
    names: list[str] = []

    async def handler(command: Do) -> None:
        tasks[str(command.box)] = id(task())
        names.append(task().get_name())
        if command.box not in ("a", "warm"):
            await asyncio.sleep(0)
            assert id(task()) == tasks[str(command.box)]

    async with way(handler) as found:
        parked = id(found.parked.task)
        tasks.clear()
        await found.arrive("a", "b", "c")
        assert tasks == {"a": parked, "b": parked}, "they have begun"
        assert len(found.consumer.running) == 3, "also what has no task"
        await found.idle()
        assert tasks["c"] != parked
        assert names[1:] == ["command_bus.run box:a", "command_bus.run box:b", "command_bus.run box:c"]
        assert list(kinds(found).values()) == [Done, Done, Done]


async def test_a_handler_that_has_cancelled_itself_and_ended_harms_no_other() -> None:
    """Neither the next of its turn, nor those that come later."""
    ended: list[str] = []

    async def handler(command: Do) -> None:
        if command.box == "a":
            task().cancel()
            return
        await turns(2)
        ended.append(str(command.box))

    async with way(handler) as found:
        await found.arrive("a", "b")
        await turns(5)
        await found.arrive("c")
        await found.idle()
        assert sorted(ended)[:2] == ["b", "c"]
        assert kinds(found) == {"a": Done, "b": Done, "c": Done}


async def test_nor_does_it_alone() -> None:
    async def handler(command: Do) -> None:
        if command.box == "a":
            task().cancel()
        elif command.box == "b":
            await turns(2)

    async with way(handler) as found:
        await found.arrive("a")
        await turns(5)
        await found.arrive("b")
        await found.idle()
        assert kinds(found) == {"a": Done, "b": Done}


@pytest.mark.parametrize("others", [0, 1])
async def test_what_it_waits_for_may_be_awaited_by_others_first(others: int) -> None:
    """Before its own task waits for it, and whoever came first."""
    shared: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def handler(command: Do) -> int:
        return 0 if command.box == "warm" else await shared

    async def other(turn: int) -> int:
        await turns(turn)
        return await shared

    async with way(handler) as found:
        waiting = [asyncio.create_task(other(turn)) for turn in range(others, 3)]
        await turns(others)
        await found.arrive("a", "b")
        await turns(5)
        shared.set_result(7)
        assert await asyncio.gather(*waiting) == [7] * len(waiting)
        await found.idle()
        assert kinds(found) == {"a": Done, "b": Done}


async def test_readers_of_two_shards_that_read_in_one_turn_leave_no_task() -> None:
    """With none that is free there is one new one, whoever needs it next."""

    async def handler(command: Do) -> None:
        if command.box != "warm":
            await turns(2)

    async with way(handler, shards=2) as found:
        await found.arrive("a")
        await found.arrive("b", shard=0)
        await found.arrive("c", shard=1)
        await found.idle()
        parked = [each for each in asyncio.all_tasks() if each.get_name() == "command_bus.parked"]
        assert parked == [each for each in [found.parked.task] if not each.done()]
        assert kinds(found) == {"a": Done, "b": Done, "c": Done}


@pytest.fixture(autouse=True, params=[False, True], ids=["started", "taken"])
def takes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Way, "takes", request.param)


class Odd:
    """An awaitable that is no coroutine."""

    def __await__(self) -> Generator[Any, Any, int]:
        yield from asyncio.sleep(0).__await__()
        return 4


class Bare:
    """An awaitable whose iterator has no methods but `__next__`."""

    def __await__(self) -> Any:
        return iter([None])


async def coroutine() -> int:
    return 4


def future() -> asyncio.Future[int]:
    result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(result.set_result, 4)
    return result


@pytest.mark.parametrize("make", [Odd, Bare, coroutine, future, lambda: asyncio.ensure_future(coroutine())])
async def test_a_handler_may_return_whatever_can_be_awaited(make: Callable[[], Any]) -> None:
    def handler(command: Do) -> Awaitable[Any]:
        return make()  # type: ignore[no-any-return]

    async with way(handler) as found:
        await found.arrive("a")
        await found.arrive("b", short=False)
        await found.idle()
        a, b = found.steps.steps["a"], found.steps.steps["b"]
        assert isinstance(a, Done)
        assert isinstance(b, Done)
        assert a.left.reply == b.left.reply.replace(b"c-b", b"c-a")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="functions are not marked before")
async def test_also_one_that_is_marked_as_a_coroutine_function() -> None:
    def handler(command: Do) -> Any:
        return future()

    vars(inspect)["markcoroutinefunction"](handler)

    async with way(handler) as found:
        await found.arrive("a")
        await found.idle()
        assert kinds(found) == {"a": Done}


async def test_an_end_of_iteration_where_it_is_called_is_an_error() -> None:
    def handler(command: Do) -> Awaitable[Any]:
        raise StopIteration(9)

    async with way(handler) as found:
        await found.arrive("a")
        await found.idle()
        assert kinds(found) == {"a": DeadLetterStep}


async def test_nothing_is_being_handled_behind_a_cancellation_that_it_has_swallowed() -> None:
    saw: list[Any] = []

    async def handler(command: Do) -> None:
        task().cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1)
        saw.append(sys.exception())
        try:
            raise ValueError
        except ValueError as error:
            saw.append(error.__context__)

    async with way(handler) as found:
        await found.arrive("a")
        await found.arrive("b", short=False)
        await found.idle()
        assert saw == [None] * 6


async def test_whoever_wants_to_know_its_end_is_told_although_others_could_use_its_task() -> None:
    told: list[str] = []

    async def handler(command: Do) -> None:
        box = str(command.box)
        task().add_done_callback(lambda _: told.append(box))

    async with way(handler) as found:
        await found.arrive("a", "b")
        await found.idle()
        await turns(3)
        assert sorted(told) == ["a", "b", "warm"]


async def test_whoever_has_kept_its_task_cancels_no_other_handler() -> None:
    kept: list[asyncio.Task[Any]] = []

    async def handler(command: Do) -> None:
        if command.box == "a":
            kept.append(task())
        elif command.box != "warm":
            await turns(6)

    async with way(handler) as found:
        await found.arrive("a", "b")
        kept[0].cancel()
        await turns(3)
        await found.arrive("c")
        await turns(3)
        kept[0].cancel()
        await found.idle()
        assert kinds(found) == {"a": Done, "b": Done, "c": Done}


async def test_what_is_kept_by_task_is_not_found_by_others() -> None:
    """As long as the task is there: so do libraries that have one connection, session or scope per task."""
    by_task: weakref.WeakKeyDictionary[asyncio.Task[Any], str] = weakref.WeakKeyDictionary()

    async def handler(command: Do) -> None:
        if command.box == "b":
            await turns(2)
        assert by_task.setdefault(task(), str(command.box)) == command.box

    async with way(handler) as found:
        await found.arrive("a", "b", "c")
        await found.idle()
        await found.arrive("d")
        await found.idle()
        assert kinds(found) == dict.fromkeys("abcd", Done)


async def test_what_nobody_has_kept_is_used_again() -> None:
    used: list[int] = []

    async def handler(command: Do) -> None:
        used.append(id(task()))
        async with asyncio.timeout(5):
            task().get_name()

    async with way(handler) as found:
        used.clear()
        for _ in range(5):
            await found.arrive("a", "b")
            await turns(3)
        assert used == [id(found.parked.task)] * 10


@pytest.mark.parametrize("how", ["returns", "fails", "waits and fails"])
async def test_its_result_or_error_is_freed_at_once(how: str) -> None:
    class Result(dict[str, int]):
        pass

    class Fault(Exception):
        pass

    left: list[weakref.ref[Any]] = []

    async def handler(command: Do) -> Any:
        if how == "returns":
            result = Result()
            left.append(weakref.ref(result))
            return result
        if how == "waits and fails":
            await turns(2)
        error = Fault()
        left.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    gc.disable()
    try:
        async with way(handler) as found:
            await turns(5)
            left.clear()
            await found.arrive("a")
            await found.idle()
            await turns(2)
            assert [each() for each in left] == [None]
    finally:
        gc.enable()


async def test_its_error_is_the_one_that_it_raised() -> None:
    async def handler(command: Do) -> None:
        raise ValueError("odd")

    async with way(handler) as found:
        await found.arrive("a")
        await found.idle()
        step = found.steps.steps["a"]
        assert isinstance(step, DeadLetterStep)
        letter = DeadLetterRecord.unpack(step.record)
        assert (letter.error_type, letter.error_message) == ("ValueError", "odd")


class TestTheEndOfAWorker:
    async def test_a_step_without_a_task_counts_as_running(self) -> None:
        async def handler(command: Do) -> None: ...

        async with way(handler) as found:
            found.steps.is_away = True
            await found.arrive("a", "b")
            assert sorted(found.consumer.running.values()) == ["box:a", "box:b"]
            await turns(3)
            assert sorted(found.consumer.running.values()) == ["box:a", "box:b"]
            found.consumer.cancel()
            await turns(3)
            assert not found.consumer.running

    async def test_what_its_answer_starts_is_given_back(self) -> None:
        async def handler(command: Do) -> None: ...

        async with way(handler) as found:
            found.steps.answers["a"] = [started("a"), Released("yield")]
            await found.arrive("a")
            found.state.stopping = True
            await found.idle()
            assert kinds(found) == {"a": GiveBack}

    async def test_what_is_cancelled_before_it_begins_leaves_nothing(self, recwarn: pytest.WarningsRecorder) -> None:
        async def handler(command: Do) -> None: ...

        async with way(handler) as found:
            found.steps.answers["a"] = [started("a")]
            await found.arrive("a")
            await asyncio.sleep(0)  # it is answered
            asyncio.get_running_loop().call_soon(found.consumer.cancel)  # behind what makes a task of it
            await found.idle()
            gc.collect()
            assert not [each for each in recwarn if issubclass(each.category, RuntimeWarning)]


@pytest.mark.parametrize("answer", [LeaseLost(), Released("idle"), Released("wait")])
async def test_an_answer_that_ends_it_needs_no_task(answer: Any) -> None:
    async def handler(command: Do) -> None: ...

    async with way(handler) as found:
        found.steps.answers["a"] = [answer]
        before = asyncio.all_tasks()
        await found.arrive("a")
        await turns(3)
        assert not found.consumer.running
        assert asyncio.all_tasks() == before


async def test_a_step_that_fails_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    from command_bus.worker import entity_run

    async def handler(command: Do) -> None: ...

    monkeypatch.setattr(entity_run, "_BROKEN_PAUSE", 0.001)
    async with way(handler) as found:
        found.steps.answers["a"] = [StepFailed("no"), StepFailed("no"), Released("idle")]
        await found.arrive("a")
        await found.idle()
        assert found.steps.answers["a"] == []
