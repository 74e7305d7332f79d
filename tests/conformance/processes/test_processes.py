"""Handlers in processes: each way in which a child can end, and what then holds."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from command_bus import (
    BadResult,
    BusSettings,
    Command,
    CommandBus,
    CommandCancelled,
    CommandContext,
    CommandFailed,
    CommandInterrupted,
    CommandRejected,
    EntityId,
    EntityPolicy,
    EntityState,
    HandlerRegistry,
    ProcessContext,
    RegistrationError,
)
from command_bus.testing import TestBus
from command_bus.workflows import chain
from tests.conformance.conftest import Sandbox
from tests.conformance.processes.handlers import Again, Careful, Compute, Doubled, Slow, Told, registry
from tests.conformance.put_service import until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def own(sandbox: Sandbox) -> Sandbox:
    """Serve with the handlers in processes."""
    sandbox.registry.include(registry)
    return sandbox


def children(*, zombies: bool = False) -> set[int]:
    """Return the processes that were started by the server that forks them; or those that ended and were not waited for."""
    found: set[int] = set()
    for task in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = task.read_text().partition(" ")
        except OSError:
            continue
        is_zombie = rest.rpartition(")")[2].split()[0] == "Z"
        if (zombies and is_zombie and "python" in rest) or (not is_zombie and not zombies and _is_forked(task.parent)):
            found.add(int(pid))
    return found


def _is_forked(process: Path) -> bool:
    try:
        return b"forkserver" in (process / "cmdline").read_bytes()
    except OSError:
        return False


FAILS = {
    "raises": "raised",
    "raises what cannot be packed": "Odd: 1 and 2",
    "raises what cannot be read": "Unreadable",
    "exits": "SystemExit: 3",
    "exits at once": "exit code 3",
    "is killed": "SIGKILL",
    "reads where nothing is": "SIGSEGV",
    "interrupts itself": "KeyboardInterrupt",
    "needs too much memory": "MemoryError",
    "closes all descriptors": "has ended by itself",
}


@pytest.mark.parametrize("how", FAILS)
async def test_203_a_child_that_ends_badly_is_a_failed_attempt_and_its_line_goes_on(own: Sandbox, how: str) -> None:
    async with own.bus(settings=BusSettings(processes=1)) as bus, bus.worker():
        neighbour = asyncio.create_task(bus.call(Compute(sheet="s-2", value=1), timeout=20))
        with pytest.raises(CommandFailed, match=FAILS[how]):
            await bus.call(Compute(sheet="s-1", how=how), timeout=20)
        assert await bus.call(Compute(sheet="s-1", value=6), timeout=20) == 7
        assert await neighbour == 2
        letters = [each async for each in bus.dead_letters.list()]
        assert len(letters) == 1
        assert (await bus.stats()).depth == 0


@pytest.mark.parametrize("how", ["prints", "starts a thread", "starts a child"])
async def test_what_a_handler_does_besides_harms_nothing(own: Sandbox, how: str) -> None:
    async with own.bus(settings=BusSettings(processes=1)) as bus, bus.worker():
        assert await bus.call(Compute(sheet="s-1", how=how, value=3), timeout=20) == 3
        assert await bus.call(Compute(sheet="s-1", value=3), timeout=20) == 4


async def test_a_reply_and_a_refusal_arrive_as_from_any_handler(own: Sandbox) -> None:
    async with own.bus() as bus, bus.worker():
        with pytest.raises(CommandRejected) as refused:
            await bus.call(Compute(sheet="s-1", how="rejects", value=5), timeout=20)
        assert (refused.value.code, refused.value.details) == ("no", {"value": 5})
        with pytest.raises(BadResult):
            await bus.call(Compute(sheet="s-1", how="returns what cannot be packed"), timeout=20)
        assert await bus.call(Again(sheet="s-1"), timeout=20) == 3
        first = await bus.call(Told(sheet="s-1"), command_id="c-1", timeout=20)
        second = await bus.call(Told(sheet="s-1"), command_id="c-2", timeout=20)
        assert first[:3] == ["c-1", "True", "1"]
        assert second[0] == "c-2"
        assert first[3] == second[3] != str(os.getpid()), "a child is kept for the next call"


@pytest.mark.parametrize("how", ["sleeps", "holds the interpreter"])
async def test_a_child_is_killed_when_its_time_is_over(own: Sandbox, how: str) -> None:
    async with own.bus(settings=BusSettings(processes=1)) as bus, bus.worker():
        await bus.call(Compute(sheet="s-1"), timeout=20)
        began = time.monotonic()
        with pytest.raises(CommandFailed, match="attempt_timeout"):
            await bus.call(Slow(sheet="s-1", how=how), timeout=20)
        assert time.monotonic() - began < 5
        assert await bus.call(Compute(sheet="s-1", value=1), timeout=20) == 2


async def test_what_a_killed_child_has_started_is_killed_with_it(own: Sandbox) -> None:
    """celery 9168, billiard 204: the group of a task that is over its time stays."""
    async with own.bus(settings=BusSettings(processes=1)) as bus, bus.worker():
        child = (await bus.call(Told(sheet="s-1"), timeout=20))[3]
        with pytest.raises(CommandFailed):
            await bus.call(Slow(sheet="s-1", how="starts a child and sleeps"), timeout=20)
        await asyncio.sleep(0.1)
        groups = [stat.read_text().rpartition(")")[2].split() for stat in Path("/proc").glob("[0-9]*/stat") if stat.exists()]
        assert not [group for group in groups if group[2] == child and group[0] != "Z"]


async def test_large_commands_and_replies_pass(own: Sandbox) -> None:
    """cpython 74192, pebble 146: a pipe that is full, and nobody reads."""
    async with own.bus(settings=BusSettings(max_payload=16 << 20)) as bus, bus.worker():
        replies = await asyncio.gather(*(bus.call(Doubled(sheet=f"s-{n}", data=b"x" * (3 << 20)), timeout=30) for n in range(4)))
        assert [len(each) for each in replies] == [6 << 20] * 4


async def test_a_worker_that_stops_lets_a_child_finish(own: Sandbox) -> None:
    async with own.bus() as bus:
        async with bus.worker():
            await bus.call(Compute(sheet="s-0"), timeout=20)
            receipt = await bus.dispatch(Compute(sheet="s-1", how="holds the interpreter", value=1), keep_result=True)
            await until(lambda: _runs(bus))
        assert await receipt.result(timeout=1) == 1


async def test_the_end_of_the_server_that_forks_and_a_signal_to_all_harm_no_call(own: Sandbox) -> None:
    """cpython 75489 and 140867; systemd tells all processes of a service to end."""
    async with own.bus(settings=BusSettings(processes=2)) as bus, bus.worker():
        child = int((await bus.call(Told(sheet="s-1"), timeout=20))[3])
        call = asyncio.create_task(bus.call(Compute(sheet="s-1", how="sleeps", value=1), timeout=20))
        await until(lambda: _runs(bus))
        await asyncio.sleep(0.2)
        os.kill(child, signal.SIGTERM)
        server = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(server, signal.SIGKILL)
        assert await asyncio.gather(call, bus.call(Compute(sheet="s-2", value=1), timeout=20)) == [1, 2]
        with pytest.raises(CommandFailed, match="process of"):
            await bus.call(Compute(sheet="s-1", how="exits at once"), timeout=20)
        assert await bus.call(Compute(sheet="s-1", value=1), timeout=20) == 2


async def test_a_child_that_is_killed_while_it_is_idle_fails_one_attempt(own: Sandbox) -> None:
    """pebble 97, celery 2011."""
    async with own.bus(settings=BusSettings(processes=1)) as bus, bus.worker():
        child = int((await bus.call(Told(sheet="s-1"), timeout=20))[3])
        os.kill(child, signal.SIGKILL)
        assert await bus.call(Again(sheet="s-1"), timeout=20) == 3


async def test_a_lease_is_kept_while_the_interpreter_is_held(own: Sandbox) -> None:
    async with (
        own.bus(settings=BusSettings(lease=0.3)) as bus,
        bus.worker(),
        own.bus(settings=BusSettings(lease=0.3)) as other,
        other.worker(),
    ):
        assert await bus.call(Compute(sheet="s-1", how="holds the interpreter", value=3), timeout=20) == 3
        assert (await bus.stats()).retried == 0


async def test_a_cancelled_command_is_killed(own: Sandbox) -> None:
    async with own.bus() as bus, bus.worker():
        call = asyncio.create_task(bus.call(Compute(sheet="s-1", how="sleeps"), command_id="c-1", timeout=30))
        await until(lambda: _runs(bus))
        await asyncio.sleep(0.3)
        assert await bus.commands.cancel("c-1", running=True)
        with pytest.raises(CommandCancelled):
            await call
        assert await bus.call(Compute(sheet="s-1", value=1), timeout=20) == 2


async def _runs(bus: CommandBus) -> bool:
    return (await bus.stats()).in_flight == 1


async def test_at_most_once_is_never_run_again(own: Sandbox) -> None:
    async with own.bus() as bus, bus.worker():
        with pytest.raises(CommandInterrupted, match="SIGKILL"):
            await bus.call(Careful(sheet="s-1", how="is killed"), timeout=20)
        assert await bus.call(Careful(sheet="s-1", value=1), timeout=20) == 2


async def test_at_most_once_by_the_worker_s_policy_holds_for_what_was_sent_without_it(own: Sandbox) -> None:
    policies = {"sheet": EntityPolicy(delivery="at_most_once")}
    async with own.bus(entities=policies) as bus, bus.worker():
        with pytest.raises(CommandRejected) as caught:
            await bus.call(chain(Compute(sheet="s-1", how="is killed")), timeout=20)
        assert caught.value.details["code"] == "interrupted"


async def test_a_child_is_replaced_after_so_many_calls_and_ends_with_its_worker(own: Sandbox) -> None:
    before = children()
    async with own.bus(settings=BusSettings(processes=2, process_tasks=3)) as bus:
        async with bus.worker():
            seen = {(await bus.call(Told(sheet="s-1"), timeout=20))[3] for _ in range(7)}
            assert len(seen) == 3
        await asyncio.sleep(0.2)
    left = children() - before
    assert not left & {int(each) for each in seen}


async def test_more_commands_than_children_wait(own: Sandbox) -> None:
    async with own.bus(settings=BusSettings(processes=2)) as bus, bus.worker():
        calls = [bus.call(Compute(sheet=f"s-{number}", value=number), timeout=30) for number in range(40)]
        assert await asyncio.gather(*calls) == [number + 1 for number in range(40)]


def test_a_child_dies_with_its_worker(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import asyncio, sys
        from command_bus import CommandBus
        from tests.conformance.processes.handlers import Compute, Told, registry

        async def main():
            async with CommandBus.in_memory(registry=registry) as bus, bus.worker():
                print((await bus.call(Told(sheet="s-0"), timeout=20))[3], flush=True)
                await bus.dispatch(Compute(sheet="s-1", how="holds the interpreter"))
                await asyncio.sleep(60)

        if __name__ == "__main__":
            asyncio.run(main())
        """
    )
    (tmp_path / "program.py").write_text(program)
    worker = subprocess.Popen(
        [sys.executable, tmp_path / "program.py"], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert worker.stdout is not None
    with worker.stdout:
        child = int(worker.stdout.readline())
    time.sleep(0.5)
    os.kill(child, 0)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    until_at = time.monotonic() + 5
    while time.monotonic() < until_at and Path(f"/proc/{child}").exists():
        time.sleep(0.02)
    assert not Path(f"/proc/{child}").exists(), "it holds the interpreter, and its worker is gone"


@pytest.mark.parametrize("calls", [15, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
async def test_no_descriptor_and_no_zombie_is_left_by_many_children(own: Sandbox, calls: int) -> None:
    async with own.bus(settings=BusSettings(processes=2, process_tasks=1)) as bus, bus.worker():
        for number in range(3):
            await bus.call(Compute(sheet="s-1", value=number), timeout=20)
        before = len([*Path("/proc/self/fd").iterdir()])
        for number in range(calls):
            how = "is killed" if number % 3 == 0 else "returns"
            await bus.dispatch(Compute(sheet=f"s-{number % 2}", how=how))
        await bus.wait_idle(200)
        until_at = time.monotonic() + 5
        while children(zombies=True) and time.monotonic() < until_at:  # the last ones may not have been waited for yet
            await asyncio.sleep(0.05)
        assert not children(zombies=True)
        assert len([*Path("/proc/self/fd").iterdir()]) <= before + 2


async def test_a_test_bus_runs_it_in_line() -> None:
    async with TestBus(registry) as bus:
        told = await bus.call(Told(sheet="s-1"), command_id="c-1")
        assert (told[0], told[3]) == ("c-1", str(os.getpid()))


def test_202_what_cannot_run_in_a_process_is_refused() -> None:
    own = HandlerRegistry()

    class Local(Command[None], entity="sheet"):
        sheet: EntityId

    def in_function(command: Told) -> list[str]:
        return []

    async def coroutine(command: Told) -> list[str]:
        return []

    with pytest.raises(RegistrationError, match="by name"):
        own.handles(Told, runs_in="process")(in_function)
    with pytest.raises(RegistrationError, match="by name"):
        own.handles(Told, runs_in="process")(lambda command: [])
    with pytest.raises(RegistrationError, match="by name"):
        own.handles(Local, runs_in="process")(of_module)  # type: ignore[arg-type]
    with pytest.raises(RegistrationError, match="ProcessContext"):
        own.handles(Told, runs_in="process")(wants_bus)
    with pytest.raises(RegistrationError, match="def"):
        own.handles(Told, runs_in="process")(on_loop)
    with pytest.raises(RegistrationError, match="a state"):
        own.handles(Told, runs_in="process")(with_state)
    with pytest.raises(RegistrationError, match='runs_in="process"'):
        own.handles(Told)(of_process)
    with pytest.raises(RegistrationError, match="runs_in is"):
        own.handles(Told, runs_in="thread")  # type: ignore[arg-type]


class Sheet(EntityState, entity="sheet"):
    cells: int = 0


def of_module(command: Told) -> list[str]:
    return []


def of_process(command: Told, context: ProcessContext) -> list[str]:
    return []


def wants_bus(command: Told, context: CommandContext) -> list[str]:
    return []


def with_state(command: Told, sheet: Sheet) -> list[str]:
    return []


async def on_loop(command: Told) -> list[str]:
    return []
