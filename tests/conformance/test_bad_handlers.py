"""Bad handlers: the command gets its outcome, the worker survives, other entities do not wait. Numbers as in `test_bad_input.py`."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from command_bus import (
    BadResult,
    CallCycle,
    Command,
    CommandContext,
    CommandFailed,
    CommandInterrupted,
    EntityId,
    EntityPolicy,
    HandlerRegistry,
    Query,
    RetryPolicy,
    lanes,
)
from command_bus.transport.redis.worker import lease_keeper
from tests.conformance.conftest import Sandbox
from tests.conformance.crash_app import EXIT, Crash, CrashOnce, Fine
from tests.conformance.put_service import Put, put_service, until

ROOT = Path(__file__).parents[2]


class Bad(Command[None], entity="box", retry=RetryPolicy(attempts=3, delay=0.01, jitter=0.0)):
    box: EntityId


class Slow(Command[None], entity="box", retry=RetryPolicy(attempts=2, delay=0.0), attempt_timeout=0.1):
    box: EntityId


class Odd(Command[int], entity="box"):
    box: EntityId


class Anything(Command[Any], entity="box"):
    box: EntityId


class NoText(Exception):
    def __str__(self) -> str:
        raise ValueError("not even a text")


class NotEvenAnError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class NotAnError(BaseException):
    pass


@pytest.mark.parametrize("runs", ["async", "thread"])
@pytest.mark.parametrize(
    "kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, StopIteration, NotAnError, MemoryError]
)
async def test_20_a_worker_survives_everything_a_handler_raises(sandbox: Sandbox, kind: type[BaseException], runs: str) -> None:
    async def raises(command: Bad) -> None:
        raise kind

    def raises_in_thread(command: Bad) -> None:
        raise kind

    sandbox.registry.handles(Bad)(raises if runs == "async" else raises_in_thread)  # type: ignore[type-var]
    async with put_service(sandbox) as service:
        with pytest.raises(CommandFailed) as failure:
            await service.bus.call(Bad(box="a"), timeout=5)
        # A coroutine cannot raise a StopIteration: Python makes it a RuntimeError.
        assert failure.value.error_type.rpartition(".")[2] in (kind.__name__, "RuntimeError")
        assert failure.value.attempts == (3 if issubclass(kind, Exception) else 1)
        letter = await service.letter()
        assert (letter.reason, letter.attempts) == ("failed", failure.value.attempts)
        await service.assert_unharmed("a")


async def test_20_a_handler_that_cancels_itself_is_interrupted(sandbox: Sandbox) -> None:
    @sandbox.registry.handles(Bad)
    async def cancels(command: Bad) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    async with put_service(sandbox, lease=20.0) as service:
        with pytest.raises(CommandInterrupted, match="cancelled by the application"):
            await service.bus.call(Bad(box="a"), timeout=10)
        letter = await service.letter()
        assert (letter.reason, letter.attempts) == ("interrupted", 3)
        await service.assert_unharmed("a")


@pytest.mark.promise("The application cancels a handler's task, or the handler's error has no text")
async def test_20_a_handler_whose_task_is_cancelled_is_interrupted(sandbox: Sandbox) -> None:
    """Also one in a thread, which does not notice; and one that swallows it, whose result counts."""
    running: dict[str, asyncio.Task[Any]] = {}
    may_end = threading.Event()

    @sandbox.registry.handles(Odd)
    async def odd(command: Odd) -> int:
        task = asyncio.current_task()
        assert task is not None
        if command.box not in running:
            running[str(command.box)] = task
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if command.box == "swallows":
                    return 1
                raise
        return 2

    @sandbox.registry.handles(Anything)
    def in_thread(command: Anything) -> int:
        may_end.wait(20)
        return 3

    async with put_service(sandbox, lease=20.0) as service:
        calls = [asyncio.create_task(service.bus.call(Odd(box=box), timeout=10)) for box in ("ends", "swallows")]
        await until(lambda: len(running) == 2)
        held = asyncio.create_task(service.bus.call(Anything(box="thread"), timeout=10))
        tasks = {task.get_name(): task for task in asyncio.all_tasks()}
        await until(lambda: [name for name in tasks if name.endswith("box:thread")] or tasks.update(_by_name()))
        for task in (*running.values(), *(task for name, task in tasks.items() if name.endswith("box:thread"))):
            task.cancel()
        assert await asyncio.gather(*calls) == [2, 1]
        may_end.set()
        assert await held == 3
        await service.assert_unharmed("ends", "swallows", "thread")


def _by_name() -> dict[str, asyncio.Task[Any]]:
    return {task.get_name(): task for task in asyncio.all_tasks()}


@pytest.mark.promise("A handler blocks the event loop")
async def test_21_a_blocked_loop_keeps_its_lease_and_is_reported(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another worker, in a thread with its own loop, must not get the entity in that time."""
    monkeypatch.setattr(lease_keeper, "_BLOCKED_AFTER", 0.2)
    times: dict[str, float] = {}
    starts: list[int] = []
    elsewhere = HandlerRegistry()

    @sandbox.registry.handles(Bad)
    async def blocks(command: Bad, context: CommandContext) -> None:
        starts.append(context.attempt)
        time.sleep(1.6)
        times["end"] = time.monotonic()

    @elsewhere.handles(Odd)
    async def follower(command: Odd) -> int:
        times["follower"] = time.monotonic()
        return 1

    sandbox.registry.handles(Odd)(follower)
    ready, over = threading.Event(), threading.Event()

    async def second_worker() -> None:
        async with sandbox.bus(lease=0.5, registry=elsewhere) as bus, bus.worker():
            ready.set()
            while not over.is_set():
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=lambda: asyncio.run(second_worker()))
    try:
        async with put_service(sandbox, lease=0.5) as service:
            await service.bus.dispatch(Bad(box="a"))
            await until(lambda: starts)
            await service.bus.dispatch(Odd(box="a"))
            if sandbox.name != "memory":
                thread.start()
                ready.wait(5)
            await service.bus.wait_idle(10)
            assert starts == [1]
            assert times["follower"] >= times["end"]
            if sandbox.name == "memory":
                await service.assert_unharmed("a")
            assert await service.letters() == []
    finally:
        over.set()
        if thread.ident is not None:
            thread.join(10)
    reports = [record.getMessage() for record in caplog.records if "event loop has been blocked" in record.getMessage()]
    assert len(reports) == 1
    assert "in blocks" in reports[0]


@pytest.mark.parametrize("runs", ["async", "thread"])
async def test_22_a_handler_that_never_ends_is_timed_out(sandbox: Sandbox, runs: str) -> None:
    told: list[str | None] = []

    async def never(command: Slow, context: CommandContext) -> None:
        await asyncio.Event().wait()

    def never_in_thread(command: Slow, context: CommandContext) -> None:
        while not context.cancelled:
            time.sleep(0.01)
        told.append(context.cancel_reason)

    sandbox.registry.handles(Slow)(never if runs == "async" else never_in_thread)  # type: ignore[arg-type]
    async with put_service(sandbox) as service:
        with pytest.raises(CommandFailed) as failure:
            await service.bus.call(Slow(box="a"), timeout=5)
        assert (failure.value.error_type, failure.value.attempts) == ("TimeoutError", 2)
        assert told == ([] if runs == "async" else ["timeout", "timeout"])
        await service.assert_unharmed("a")


@pytest.mark.parametrize("value", [object(), print, {1: object()}, 2**64, "\ud800", {"deep": [[]] * 200_000}], ids=type)
async def test_23_an_unserializable_result_is_completed_and_told(sandbox: Sandbox, value: Any) -> None:
    runs = 0

    @sandbox.registry.handles(Anything)
    async def anything(command: Anything) -> Any:
        nonlocal runs
        runs += 1
        return value

    async with put_service(sandbox) as service:
        with pytest.raises(BadResult) as bad:
            await service.bus.call(Anything(box="a"), timeout=5, command_id="odd")
        assert bad.value.command_id == "odd"
        with pytest.raises(BadResult):
            await service.bus.result("odd")
        await service.bus.dispatch(Anything(box="a"))  # no caller waits for it: this is no error
        await service.bus.wait_idle(5)
        assert runs == 2
        assert await service.letters() == []
        assert (await service.bus.stats()).completed == 2
        await service.assert_unharmed("a")


async def test_23_a_result_of_another_type_is_completed_and_told(sandbox: Sandbox) -> None:
    @sandbox.registry.handles(Odd)
    async def odd(command: Odd) -> int:
        return "seven"  # type: ignore[return-value]

    async with put_service(sandbox) as service:
        with pytest.raises(BadResult, match="the reply is int, the handler returned str"):
            await service.bus.call(Odd(box="a"), timeout=5)
        assert (await service.bus.stats()).completed == 1
        await service.assert_unharmed("a")


@pytest.mark.promise("The application cancels a handler's task, or the handler's error has no text")
@pytest.mark.parametrize(
    "error", [NoText(), NotEvenAnError(), ValueError("\ud800"), ValueError("x" * 1_000_000), ValueError(object())], ids=type
)
async def test_24_an_exception_is_stored_without_locals(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    caplog.set_level(logging.DEBUG, logger="command_bus")

    @sandbox.registry.handles(Bad)
    async def bad(command: Bad) -> None:
        password = "hunter2"  # noqa: F841 - what must not be seen
        raise error

    async with put_service(sandbox) as service:
        with pytest.raises(CommandFailed) as failure:
            await service.bus.call(Bad(box="a"), timeout=5)
        assert failure.value.error_type.endswith(type(error).__name__)
        assert len(str(failure.value)) < 20_000
        letter = await service.letter()
        assert "in bad" in letter.traceback
        shown = "".join((str(failure.value), letter.error_message, letter.traceback, caplog.text))
        assert "hunter2" not in shown
        await service.assert_unharmed("a")


class Crew:
    """Worker processes that end themselves, replaced by hand."""

    def __init__(self, sandbox: Sandbox, lease: float) -> None:
        assert sandbox.url is not None
        self._command = [sys.executable, "-m", "tests.conformance.crash_app", sandbox.url, sandbox.namespace, str(lease)]
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(self._command, cwd=ROOT, env=os.environ, stderr=subprocess.DEVNULL)
        self._processes.append(process)
        return process

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.mark.promise("At least once", "A handler kills its process, again and again")
async def test_25_a_command_that_kills_its_worker_ends_after_its_attempts(sandbox: Sandbox) -> None:
    if sandbox.url is None:
        pytest.skip("another process cannot reach a server in this one")
    crew = Crew(sandbox, lease=0.6)
    try:
        async with sandbox.bus(lease=0.6) as bus:
            await bus.dispatch(Crash(box="a"), command_id="poison")
            for _ in range(2):
                process = crew.start()
                assert await asyncio.to_thread(process.wait, 20) == EXIT
            assert [letter async for letter in bus.dead_letters.list()] == []
            follower = asyncio.create_task(bus.call(Fine(box="a"), timeout=30))
            healthy = crew.start()
            assert await bus.call(Fine(box="b"), timeout=20) == healthy.pid
            with pytest.raises(CommandInterrupted):
                await bus.result("poison", timeout=20)
            assert await follower == healthy.pid
            (letter,) = [letter async for letter in bus.dead_letters.list()]
            assert (letter.reason, letter.attempts, letter.command_id) == ("interrupted", 2, "poison")

            await bus.dispatch(CrashOnce(box="a"), command_id="once")
            assert await asyncio.to_thread(healthy.wait, 20) == EXIT
            crew.start()
            with pytest.raises(CommandInterrupted):
                await bus.result("once", timeout=20)
            await bus.wait_idle(10)
            assert [letter.attempts async for letter in bus.dead_letters.list(name="CrashOnce")] == [1]
        assert await sandbox.entity_keys() == []
    finally:
        crew.end()


class Ask(Query[int], entity="box"):
    box: EntityId
    whom: str


@pytest.mark.parametrize("policy", ["own mailbox", "one lane"])
async def test_27_a_handler_cannot_wait_for_itself(sandbox: Sandbox, policy: str) -> None:
    entities = {"box": EntityPolicy(mailbox=lanes(1))} if policy == "one lane" else {}
    async with put_service(sandbox, entities=entities) as service:
        errors: list[CallCycle] = []

        @sandbox.registry.handles(Ask)
        async def ask(query: Ask) -> int:
            began = time.monotonic()
            with pytest.raises(CallCycle) as cycle:
                await service.bus.call(Put(box=query.whom, value=1), timeout=30)
            assert time.monotonic() - began < 1
            errors.append(cycle.value)
            await service.bus.dispatch(Put(box=query.whom, value=2))
            return 1

        whom = "a" if policy == "own mailbox" else "another of the lane"
        assert await service.bus.call(Ask(box="a", whom=whom), timeout=5) == 1
        assert "Put" in str(errors[0])
        assert "box" in str(errors[0])
        await service.bus.wait_idle(5)
        assert service.seen == [(whom, 2)]
        await service.assert_unharmed("a")


async def test_27_a_handler_may_call_another_entity(sandbox: Sandbox) -> None:
    async with put_service(sandbox) as service:

        @sandbox.registry.handles(Ask)
        async def ask(query: Ask) -> int:
            return await service.bus.call(Put(box=query.whom, value=7), timeout=5)

        assert await service.bus.call(Ask(box="a", whom="b"), timeout=5) == 7
        await service.assert_unharmed("a", "b")
