"""The program `command-bus worker` as processes: signals, exit codes, several processes, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from command_bus import Command, CommandBus, EntityId, HandlerRegistry
from command_bus.embedded import EmbeddedServer
from command_bus.embedded.process import process_id, state_of
from tests.selection import quick

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
LEASE = 2.0
WORKS = "handles 3 types of commands"  # what a worker logs when it has started

APP = f"""
import asyncio, logging, os, time

from command_bus import Command, CommandBus, CommandContext, EntityId, handles

log = logging.getLogger("shop")


class Work(Command[int], entity="line"):
    line: EntityId
    seconds: float = 0.0


class Block(Command[int], entity="line"):
    line: EntityId
    seconds: float = 0.0


class Thread(Command[int], entity="line"):
    line: EntityId
    seconds: float = 0.0


def note(what, command, context):
    with open("events", "a") as events:
        events.write(f"{{what}} {{type(command).__name__}} {{command.line}} {{context.attempt}} {{os.getpid()}}\\n")


@handles(Work)
async def work(command: Work, context: CommandContext) -> int:
    note("start", command, context)
    log.warning("working for %g s", command.seconds, extra={{"shelf": 7}})
    await asyncio.sleep(command.seconds)
    note("end", command, context)
    return os.getpid()


@handles(Block)
async def block(command: Block, context: CommandContext) -> int:
    note("start", command, context)
    time.sleep(command.seconds)
    note("end", command, context)
    return os.getpid()


@handles(Thread)
def thread(command: Thread, context: CommandContext) -> int:
    note("start", command, context)
    time.sleep(command.seconds)
    note("end", command, context)
    return os.getpid()


bus = CommandBus(lease={LEASE})


async def make() -> CommandBus:
    return CommandBus(lease={LEASE})
"""


class Work(Command[int], entity="line"):
    line: EntityId
    seconds: float = 0.0


def eventually(condition: Callable[[], object], within: float = 20.0) -> bool:
    until = time.monotonic() + within
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


class Shop:
    """A folder with an application, a namespace of its own, and the program run in it."""

    def __init__(self, folder: Path, environment: dict[str, str], namespace: str) -> None:
        self.folder = folder
        self.namespace = namespace
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        self.log = folder / "log"
        self.started: list[subprocess.Popen[bytes]] = []
        self.write("app", APP)

    def write(self, module: str, text: str) -> None:
        (self.folder / f"{module}.py").write_text(text)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the program; it has begun when its log says so."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "command_bus", *arguments], cwd=self.folder, env=self.environment, stderr=log, stdout=log
            )
        self.started.append(process)
        return process

    def start_worker(self, *arguments: str, target: str = "app", processes: int = 1) -> subprocess.Popen[bytes]:
        """Start workers and wait until they run commands."""
        before = self.text().count(WORKS)
        process = self.start("worker", target, "--processes", str(processes), *arguments)
        assert eventually(lambda: self.text().count(WORKS) >= before + processes or process.poll() is not None), self.text()
        assert process.poll() is None, self.text()
        return process

    def refused(self, *arguments: str) -> str:
        """Return the log of a program that does not start."""
        process = self.start("worker", *arguments)
        assert process.wait(30) == 1, self.text()
        return self.text()

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def events(self, beginning: str = "") -> list[list[str]]:
        """Return the handlers' records: `[what, command, line, attempt, pid]`."""
        file = self.folder / "events"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.split() for line in lines if line.startswith(beginning)]

    def happened(self, beginning: str, times: int = 1) -> bool:
        return eventually(lambda: len(self.events(beginning)) >= times)


@pytest.fixture
def shop(server: EmbeddedServer, tmp_path: Path) -> Iterator[Shop]:
    namespace = f"cli-{secrets.token_hex(4)}"
    shop = Shop(tmp_path, {"COMMAND_BUS_URL": server.url, "COMMAND_BUS_NAMESPACE": namespace}, namespace)
    yield shop
    for process in shop.started:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
async def bus(server: EmbeddedServer, shop: Shop) -> AsyncIterator[CommandBus]:
    async with CommandBus(server.url, namespace=shop.namespace, registry=HandlerRegistry(), lease=LEASE) as bus:
        yield bus


async def send(bus: CommandBus, name: str, line: str, seconds: float) -> None:
    await bus.dispatch_raw("line", line, name, {"line": line, "seconds": seconds})


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return sys.platform != "linux" or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    @pytest.mark.parametrize("processes", quick(["1", "2"], ["1"]))
    async def test_a_signal_lets_handlers_finish_and_leaves_the_rest_in_line(
        self, shop: Shop, bus: CommandBus, number: signal.Signals, processes: str
    ) -> None:
        process = shop.start_worker("--processes", processes)
        await send(bus, "Work", "a", 0.5)
        await send(bus, "Work", "a", 0.0)
        assert shop.happened("start Work a")
        process.send_signal(number)
        assert process.wait(20) == 0
        assert [event[0] for event in shop.events()] == ["start", "end"]
        stats = await bus.stats()
        assert (stats.depth, stats.completed, stats.workers) == (1, 1, ())

    @pytest.mark.promise("SIGTERM")
    async def test_past_the_grace_time_a_handler_is_cancelled_and_runs_again_elsewhere(self, shop: Shop, bus: CommandBus) -> None:
        process = shop.start_worker("--grace", "0.2")
        await send(bus, "Work", "a", 30.0)
        assert shop.happened("start Work a 1")
        began = time.monotonic()
        process.terminate()
        assert process.wait(20) == 3
        assert time.monotonic() - began < 10
        shop.start_worker()
        assert shop.happened("start Work a 2")

    async def test_a_second_signal_ends_at_once(self, shop: Shop, bus: CommandBus) -> None:
        process = shop.start_worker()
        await send(bus, "Work", "a", 30.0)
        assert shop.happened("start Work a")
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert time.monotonic() - began < 2

    async def test_a_second_signal_ends_at_once_even_if_a_handler_blocks_the_loop(self, shop: Shop, bus: CommandBus) -> None:
        process = shop.start_worker()
        await send(bus, "Block", "a", 30.0)
        assert shop.happened("start Block a")
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 143

    @pytest.mark.slow
    async def test_a_thread_that_does_not_end_is_left_behind(self, shop: Shop, bus: CommandBus) -> None:
        process = shop.start_worker("--grace", "0.1")
        await send(bus, "Thread", "a", 40.0)
        assert shop.happened("start Thread a")
        process.terminate()
        assert process.wait(15) == 3
        assert "abandoning synchronous handlers" in shop.text()

    async def test_a_signal_ends_a_start_that_takes_long(self, shop: Shop) -> None:
        shop.write(
            "slow",
            "import asyncio, contextlib\nimport app\n"
            "@contextlib.asynccontextmanager\nasync def lifespan():\n"
            "    print('opening', flush=True)\n    try:\n        await asyncio.sleep(60)\n        yield\n"
            "    finally:\n        print('given up', flush=True)\n"
            "bus = app.CommandBus(lifespan=lifespan)\n",
        )
        process = shop.start("worker", "slow")
        assert eventually(lambda: "opening" in shop.text())
        process.terminate()
        assert process.wait(20) == 0
        assert "given up" in shop.text()


class TestProcesses:
    async def test_all_of_them_work_and_all_of_them_finish(self, shop: Shop, bus: CommandBus) -> None:
        process = shop.start_worker("--concurrency", "1", processes=2)
        for line in ("a", "b"):
            await send(bus, "Work", line, 1.0)
        assert shop.happened("start Work", times=2)
        assert len({event[4] for event in shop.events("start")}) == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert len(shop.events("end")) == 2

    async def test_one_that_is_killed_is_started_again_and_its_command_too(self, shop: Shop, bus: CommandBus) -> None:
        process = shop.start_worker(processes=2)
        await send(bus, "Work", "a", 1.0)
        assert shop.happened("start Work a 1")
        [[*_, victim]] = shop.events("start")
        os.kill(int(victim), signal.SIGKILL)
        assert shop.happened("end Work a 2")
        assert eventually(lambda: shop.text().count(WORKS) == 3), shop.text()
        assert f"worker process {victim} was ended by SIGKILL" in shop.text()
        process.terminate()
        assert process.wait(20) == 0

    @pytest.mark.slow
    async def test_the_exit_code_tells_that_one_was_cut_short(self, shop: Shop, bus: CommandBus) -> None:
        process = shop.start_worker("--grace", "0.1", processes=2)
        await send(bus, "Work", "a", 30.0)
        assert shop.happened("start Work a")
        process.terminate()
        assert process.wait(20) == 3

    @pytest.mark.slow
    async def test_a_second_signal_ends_all_at_once(self, shop: Shop, bus: CommandBus) -> None:
        process = shop.start_worker("--concurrency", "1", processes=2)
        for line in ("a", "b"):
            await send(bus, "Block", line, 30.0)
        assert shop.happened("start Block", times=2)
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 130
        assert eventually(lambda: not any(alive(int(event[4])) for event in shop.events()), within=5)

    @pytest.mark.slow
    async def test_none_outlives_a_supervisor_that_is_killed(self, shop: Shop, bus: CommandBus) -> None:
        process = shop.start_worker("--concurrency", "1", processes=2)
        for line in ("a", "b"):
            await send(bus, "Work", line, 1.0)
        assert shop.happened("start Work", times=2)
        process.kill()
        assert process.wait(5) == -9
        assert shop.happened("end Work", times=2)  # they stop in good order
        assert eventually(lambda: not any(alive(int(event[4])) for event in shop.events()))

    def test_what_cannot_start_is_not_tried_for_ever(self, shop: Shop) -> None:
        said = shop.refused("app:nothing", "--processes", "3")
        assert said.count("has no attribute 'nothing'; did you mean app:bus?") == 1
        assert "before it began" in said
        assert "Traceback" not in said

    @pytest.mark.slow
    async def test_the_development_server_belongs_to_the_supervisor(self, shop: Shop) -> None:
        (shop.folder / ".git").mkdir()
        with tempfile.TemporaryDirectory(dir="/tmp") as runtime:
            del shop.environment["COMMAND_BUS_URL"]
            shop.environment["XDG_RUNTIME_DIR"] = runtime
            process = shop.start_worker(processes=2)
            [address] = {Path(found) for found in re.findall(r"unix://(\S+\.sock)", shop.text())}
            server = process_id(address)
            assert server is not None
            status = Path(f"/proc/{server}/stat")
            if status.exists():
                assert int(status.read_text().rpartition(")")[2].split()[1]) == process.pid
            async with CommandBus(f"unix://{address}", namespace=shop.namespace, registry=HandlerRegistry()) as bus:
                victim = await bus.call(Work(line="a"), timeout=10)
                os.kill(victim, signal.SIGKILL)
                assert await bus.call(Work(line="a"), timeout=10) != victim
            assert eventually(
                lambda: f"worker process {victim} was ended by SIGKILL" in shop.text()
            )  # else it counts as cut short
            process.terminate()
            assert process.wait(20) == 0, shop.text()
            assert eventually(lambda: state_of(address) == "silent", within=5)


class TestTargets:
    @pytest.mark.parametrize("target", ["app:bus", "app:make", "app"])
    async def test_a_bus_or_what_gives_one(self, shop: Shop, bus: CommandBus, target: str) -> None:
        process = shop.start_worker(target=target)
        assert await bus.call(Work(line="a"), timeout=10) == process.pid

    async def test_a_bus_of_a_container(self, shop: Shop, bus: CommandBus) -> None:
        pytest.importorskip("dependency_injector")
        shop.write(
            "wired",
            "import app\nfrom command_bus.container import Container\n"
            "from dependency_injector import providers\n"
            "async def opened():\n    print('resource opened', flush=True)\n    yield 1\n    print('resource closed', flush=True)\n"
            "class Shop(Container):\n    resource = providers.Resource(opened)\n"
            "container = Shop()\n",
        )
        process = shop.start_worker(target="wired:container.bus")
        assert await bus.call(Work(line="a"), timeout=10) == process.pid
        assert "resource opened" in shop.text()
        assert "resource closed" not in shop.text()
        process.terminate()
        assert process.wait(20) == 0
        assert "resource closed" in shop.text()

    def test_the_first_line_says_what_is_started(self, shop: Shop) -> None:
        shop.start_worker("--concurrency", "7")
        [line] = [line for line in shop.text().splitlines() if "command_bus.cli: app" in line]
        assert line.endswith("7 entities at a time; handles Work, Block, Thread")
        assert f"namespace '{shop.namespace}' on unix:///" in line

    def test_an_application_that_fails_shows_its_own_traceback(self, shop: Shop) -> None:
        shop.write("broken", "def f():\n    raise LookupError('no shelf')\nf()\n")
        said = shop.refused("broken")
        assert "broken could not be started" in said
        assert "LookupError: no shelf" in said
        assert 'broken.py", line 3' in said
        assert "importlib" not in said

    def test_an_import_that_is_missing_in_the_application_is_not_taken_for_the_application(self, shop: Shop) -> None:
        shop.write("broken", "import no_such_library\n")
        said = shop.refused("broken")
        assert "No module named 'no_such_library'" in said
        assert 'broken.py", line 1' in said


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "advice"),
        [
            (["nowhere"], "there is no module 'nowhere' in "),
            (["app.py:bus"], "name the module as in an import, app:bus"),
            (["app:Work"], "is the class Work: name a CommandBus"),
            (["app", "--namespace", "other", "--production"], "--production refuses"),
        ],
    )
    def test_they_say_what_to_do(self, shop: Shop, arguments: list[str], advice: str) -> None:
        del shop.environment["COMMAND_BUS_URL"]
        said = shop.refused(*arguments)
        assert advice in said
        assert "Traceback" not in said

    def test_options_that_contradict_the_application(self, shop: Shop) -> None:
        shop.write("fixed", "import app\nbus = app.CommandBus('redis://u:hidden@localhost:1', namespace='mine')\n")
        assert "--url is not the server of fixed, which is redis://u:***@localhost:1" in shop.refused(
            "fixed", "--url", "redis://other"
        )
        assert "--namespace theirs is not the namespace of fixed, which is mine" in shop.refused("fixed", "--namespace", "theirs")
        assert "hidden" not in shop.text()

    @pytest.mark.slow
    def test_a_server_that_is_not_there(self, shop: Shop) -> None:
        shop.write("nowhere", "import app\nbus = app.CommandBus('redis://u:hidden@localhost:1')\n")
        said = shop.refused("nowhere")
        assert "cannot be reached" in said
        assert "hidden" not in said
        assert "Traceback" not in said

    def test_an_application_without_handlers(self, shop: Shop) -> None:
        shop.write("empty", "from command_bus import CommandBus\nbus = CommandBus()\n")
        assert "empty has no handler" in shop.refused("empty")

    def test_at_most_once_in_production_needs_a_file(self, shop: Shop, tmp_path: Path) -> None:
        shop.write(
            "careful",
            "from command_bus import Command, CommandBus, EntityId, handles\n"
            "class Pay(Command[None], entity='line', delivery='at_most_once'):\n    line: EntityId\n"
            "@handles(Pay)\nasync def pay(command: Pay) -> None: ...\n"
            "bus = CommandBus()\n",
        )
        said = shop.refused("careful", "--production")
        assert "keeps no append-only file" in said
        assert "at_most_once commands (Pay) may start twice" in said
        with EmbeddedServer.start(persistence=tmp_path / "data") as durable:
            process = shop.start("worker", "careful", "--production", "--url", durable.url)
            assert eventually(lambda: "handles 1 types of commands" in shop.text()), shop.text()
            process.terminate()
            assert process.wait(20) == 0


class TestLogsAndBurst:
    async def test_json_lines_name_the_command_that_runs(self, shop: Shop, bus: CommandBus) -> None:
        process = shop.start_worker("--log-format", "json")
        receipt = await bus.dispatch(Work(line="a"), headers={})
        assert shop.happened("end Work a")
        process.terminate()
        assert process.wait(20) == 0
        records = [json.loads(line) for line in shop.text().splitlines()]
        assert {"time", "level", "logger", "message", "process"} <= set.intersection(*(set(record) for record in records))
        [record] = [record for record in records if record["logger"] == "shop"]
        assert (record["level"], record["message"], record["shelf"]) == ("warning", "working for 0 s", 7)
        assert (record["command"], record["command_id"], record["entity"]) == ("Work", receipt.command_id, "line:a")

    async def test_the_garbage_collector_passes_over_what_is_loaded(self, shop: Shop, bus: CommandBus) -> None:
        shop.write("frozen", APP.replace("return os.getpid()", "return __import__('gc').get_freeze_count()"))
        receipt = await bus.dispatch(Work(line="a"), keep_result=True)
        assert shop.start("worker", "frozen", "--burst").wait(30) == 0, shop.text()
        assert await bus.result(receipt.command_id, timeout=5) > 10_000

    async def test_a_burst_ends_when_nothing_is_left(self, shop: Shop, bus: CommandBus) -> None:
        for line in "abc":
            await send(bus, "Work", line, 0.1)
        await bus.dispatch(Work(line="late"), delay=1.0)
        for processes in ("1", "2"):
            process = shop.start("worker", "app", "--burst", "--processes", processes)
            assert process.wait(30) == 0, shop.text()
        assert len(shop.events("end")) == 4
        assert (await bus.stats()).depth == 0
