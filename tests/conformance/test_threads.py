"""Synchronous handlers run in a worker's threads: a hung handler delays no other command, and none starts too late."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from command_bus import Command, CommandContext, EntityId, HandlerRegistry, Worker
from command_bus.worker import threads as thread_runs
from command_bus.worker.threads import ThreadJob
from tests.conformance.conftest import Sandbox
from tests.conformance.harness import side_of
from tests.conformance.put_service import until

ROOT = Path(__file__).parents[2]


class Hang(Command[None], entity="line"):
    line: EntityId


class Short(Command[str], entity="line"):
    line: EntityId


class Task(Command[None], entity="line"):
    line: EntityId


class Registered:
    """Handlers of one worker: hanging ones, until they are let go, and short ones."""

    def __init__(self) -> None:
        self.registry = HandlerRegistry()
        self.let_go = threading.Event()
        self.hanging = 0
        self.ran: list[str] = []

        @self.registry.handles(Hang)
        def hang(command: Hang) -> None:
            self.hanging += 1
            self.let_go.wait(60)

        @self.registry.handles(Short)
        def short(command: Short, context: CommandContext) -> str:
            self.ran.append(str(command.line))
            return context.worker

    def with_async(self) -> None:
        """Let one handler be asynchronous, so that the worker has more slots than threads."""

        @self.registry.handles(Task)
        async def task(command: Task) -> None:
            await asyncio.sleep(0)


@pytest.mark.promise("Threads hang")
@pytest.mark.parametrize("mixed", [True, False])
async def test_commands_behind_a_hung_thread_go_to_an_idle_worker(
    sandbox: Sandbox, mixed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stuck, idle = Registered(), Registered()
    if mixed:
        stuck.with_async()
    async with sandbox.bus(threads=4, concurrency=12) as bus:
        try:
            async with bus.worker(registry=stuck.registry) as worker:
                await bus.dispatch_batch(Hang(line=f"h{number}") for number in range(4))
                await until(lambda: stuck.hanging == 4)
                await bus.dispatch_batch(Short(line=f"s{number}") for number in range(60))
                if mixed:
                    await until(lambda: worker.info().awaiting_thread == 8)
                    assert worker.info().running == 12
                async with bus.worker(registry=idle.registry):
                    await until(lambda: len(idle.ran) == 60, 20)
                assert len(set(idle.ran)) == 60
                assert stuck.ran == []
                assert (await bus.stats()).retried == 0
                stuck.let_go.set()
        finally:
            stuck.let_go.set()
        assert mixed is any("threads are taken" in message for message in caplog.messages)


async def test_a_worker_of_sync_handlers_takes_as_many_commands_as_threads(sandbox: Sandbox) -> None:
    only = Registered()
    async with sandbox.bus(threads=3, concurrency=12) as bus:
        try:
            async with bus.worker(registry=only.registry) as worker:
                await bus.dispatch_batch(Hang(line=f"h{number}") for number in range(6))
                await until(lambda: only.hanging == 3)
                assert (worker.info().running, worker.info().concurrency) == (3, 3)
                stats = await bus.stats()
                assert (stats.ready, stats.in_flight) == (3, 3)
                only.let_go.set()
                await bus.wait_idle(10)
        finally:
            only.let_go.set()


async def test_waiting_commands_keep_their_place_while_threads_come_free(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_runs, "THREAD_PATIENCE", 0.2)
    registry, ran = HandlerRegistry(), list[str]()

    @registry.handles(Short)
    def slow(command: Short) -> str:
        time.sleep(0.1)
        ran.append(str(command.line))
        return ""

    @registry.handles(Task)
    async def task(command: Task) -> None: ...

    async with sandbox.bus(threads=1, concurrency=8) as bus, bus.worker(registry=registry):
        await bus.dispatch_batch(Short(line=f"s{number}") for number in range(8))
        await bus.wait_idle(10)
        assert len(ran) == 8
        assert (await bus.stats()).handed_back == 0


async def test_asynchronous_work_goes_on_beside_hung_threads(sandbox: Sandbox) -> None:
    """Work for threads that waits takes slots only for a while at a time."""
    stuck = Registered()
    stuck.with_async()
    async with sandbox.bus(threads=2, concurrency=4) as bus:
        try:
            async with bus.worker(registry=stuck.registry):
                await bus.dispatch_batch(Hang(line=f"h{number}") for number in range(2))
                await until(lambda: stuck.hanging == 2)
                await bus.dispatch_batch(Short(line=f"s{number}") for number in range(6))
                await asyncio.gather(*(bus.call(Task(line=f"t{number}"), timeout=15) for number in range(6)))
                assert stuck.ran == []
                stuck.let_go.set()
                await bus.wait_idle(15)
                assert len(stuck.ran) == 6
        finally:
            stuck.let_go.set()


@pytest.mark.promise("A thread starts nothing late")
async def test_a_thread_starts_nothing_whose_lease_is_over(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process seems stopped between the hand-over to the thread and its first step."""
    registry, ran = HandlerRegistry(), list[int]()
    workers: list[Worker] = []

    @registry.handles(Short)
    def short(command: Short, context: CommandContext) -> str:
        ran.append(context.attempt)
        return ""

    really = ThreadJob.run

    def late(job: ThreadJob) -> object:
        for leases in side_of(workers.pop()).leases._held if workers else ():
            for lease in leases.values():
                lease.deadline = time.monotonic() - 0.001
        return really(job)

    monkeypatch.setattr(ThreadJob, "run", late)
    async with sandbox.bus(threads=1) as bus, bus.worker(registry=registry) as worker:
        workers.append(worker)
        await bus.dispatch(Short(line="a"))
        await bus.wait_idle(15)
        assert ran == [1], "it was handed back untouched, and started under a lease that held"
        assert (await bus.stats()).handed_back == 1


async def test_a_hung_thread_does_not_keep_the_program_from_ending(sandbox: Sandbox, tmp_path: Path) -> None:
    if sandbox.url is None:
        pytest.skip("a program of its own needs a server")
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import asyncio, threading
from command_bus import Command, CommandBus, EntityId, handles

class Hang(Command[None], entity="line"):
    line: EntityId

@handles(Hang)
def hang(command: Hang) -> None:
    print("hangs", flush=True)
    threading.Event().wait()

async def main() -> None:
    async with CommandBus({sandbox.url!r}, namespace={sandbox.namespace!r}, grace=0.1) as bus:
        await bus.dispatch(Hang(line="a"))
        await bus.worker().run()

asyncio.run(main())
""",
        encoding="utf-8",
    )
    process = subprocess.Popen([sys.executable, str(program)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "hangs\n"
        process.terminate()
        assert await asyncio.to_thread(process.wait, 20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
