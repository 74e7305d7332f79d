"""The program `command-bus` without a server: options, loading of applications, decisions, logs, and imports."""

from __future__ import annotations

import ast
import io
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("typer")

import typer

import command_bus
from command_bus import cli
from command_bus.bus import CommandBus
from command_bus.cli.app import app
from command_bus.cli.loading import import_object, parse_import_string, resolve_bus
from command_bus.cli.options import LogFormat, LogLevel
from command_bus.cli.process.application import Application, check_options
from command_bus.cli.process.channel import decode_line, encode_line
from command_bus.cli.process.logs import JsonFormatter, TextFormatter
from command_bus.cli.process.supervisor import ProcessEnd, RestartBackoff, RestartDecision, combined_exit_code, decide_restart
from command_bus.cli.process.worker_options import WorkerOptions
from command_bus.cli.terminal import WorkerExitCode
from command_bus.errors import InvalidSettings
from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.context import Running, current_command

ROOT = Path(__file__).parents[2]
URL = "redis://u:hidden@localhost:1/0?socket_timeout=1"


def run(code: str) -> str:
    """Return what a new interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30).stdout


class TestProgram:
    @pytest.mark.parametrize("arguments", [["--version"], ["--version", "worker"]])
    def test_version(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 0
        assert capsys.readouterr().out == f"command-bus {command_bus.__version__}\n"

    def test_it_is_a_module_too(self) -> None:
        out = subprocess.run(
            [sys.executable, "-m", "command_bus", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert out.stdout == f"command-bus {command_bus.__version__}\n"

    def test_help_has_the_exit_codes_line_by_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            cli.main(["worker", "--help"])
        assert ended.value.code == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert [line[0] for line in lines if line and line[0] in {"0", "1", "2", "3", "128+n"}] == ["0", "1", "2", "3", "128+n"]
        assert [int(code) for code in WorkerExitCode] == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        "arguments", [[], ["worker"], ["worker", "app", "--processes", "0"], ["worker", "app", "--log-level", "loud"]]
    )
    def test_wrong_usage_is_2(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 2
        assert "Usage" in "".join(capsys.readouterr())

    def test_a_missing_package_is_one_line_and_2(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delitem(sys.modules, "command_bus.cli.app")
        monkeypatch.setitem(sys.modules, "typer", None)
        with pytest.raises(SystemExit) as ended:
            cli.main(["worker", "app"])
        assert ended.value.code == 2
        assert capsys.readouterr().err == "command-bus: the command line needs typer: pip install 'command-bus[cli]'\n"

    @pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["worker", "--help"]])
    def test_help_and_version_load_neither_client_nor_application(self, arguments: list[str]) -> None:
        code = (
            "import sys\nfrom command_bus.cli import main\n"
            f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
            "print('LOADED', *(name for name in ('redis', 'msgpack', 'asyncio', 'pydantic_settings') if name in sys.modules))"
        )
        assert run(code).splitlines()[-1] == "LOADED"

    def test_the_names_of_the_package_are_loaded_when_they_are_asked_for(self) -> None:
        code = (
            "import sys, command_bus\nassert 'pydantic' not in sys.modules\n"
            "command_bus.QueueFull\nassert 'pydantic' not in sys.modules\n"
            "command_bus.CommandBus\nassert 'redis' in sys.modules\nprint('fine')"
        )
        assert run(code) == "fine\n"

    def test_the_interpreter_and_type_checkers_find_the_same_names(self) -> None:
        tree = ast.parse((ROOT / "command_bus" / "__init__.py").read_text())
        [guarded] = [node for node in tree.body if isinstance(node, ast.If)]
        homes = {alias.name: node.module for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert sorted(homes) == sorted(command_bus.__all__)
        for name, module in homes.items():
            assert module is not None
            assert getattr(command_bus, name) is getattr(sys.modules[module], name)
        assert set(command_bus.__all__) <= set(dir(command_bus))
        with pytest.raises(AttributeError, match="has no attribute 'Comand'"):
            getattr(command_bus, "Com" + "and")


class TestOptions:
    def test_what_one_process_of_several_is_given_means_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given = WorkerOptions(
            import_string="shop.app:bus",
            processes=4,
            concurrency=7,
            grace=1.5,
            stuck_after=7.5,
            namespace="n",
            url=URL,
            production=True,
            burst=True,
            log_level=LogLevel.DEBUG,
            log_format=LogFormat.JSON,
        )
        seen: list[WorkerOptions] = []

        def run_worker(options: WorkerOptions) -> int:
            seen.append(options)
            return 0

        fake: Any = ModuleType("command_bus.cli.process.worker_process")
        fake.run_worker = run_worker
        monkeypatch.setitem(sys.modules, "command_bus.cli.process.worker_process", fake)
        monkeypatch.setattr("command_bus.cli.process.logs.configure_logging", lambda *_: None)
        words = given.child_arguments(9)
        assert not any("hidden" in word for word in words)  # every user of the machine can read arguments
        with pytest.raises(SystemExit):
            cli.main(words)
        expected = {name: getattr(given, name) for name in WorkerOptions.__slots__}
        expected |= {"processes": 1, "channel": 9, "url": None, "namespace": None}
        assert seen == [WorkerOptions(**expected)]
        assert given.environment() == {"COMMAND_BUS_URL": URL, "COMMAND_BUS_NAMESPACE": "n"}

    def test_nothing_is_passed_on_that_was_not_given(self) -> None:
        options = WorkerOptions("app")
        assert options.environment() == {}
        assert options.child_arguments(3) == ["worker", "app", "--log-format", "text", "--channel", "3", "--stuck-after", "10.0"]

    def test_every_option_of_the_command_reaches_the_options(self) -> None:
        command: Any = typer.main.get_command(app)
        assert {parameter.name for parameter in command.commands["worker"].params} == set(WorkerOptions.__slots__)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a current folder, and unload its modules afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


class TestLoading:
    @pytest.mark.parametrize(
        ("target", "parts"),
        [("app", ("app", "bus")), ("shop.app:make", ("shop.app", "make")), ("app:container.bus", ("app", "container.bus"))],
    )
    def test_targets(self, target: str, parts: tuple[str, str]) -> None:
        assert parse_import_string(target) == parts

    @pytest.mark.parametrize("target", ["", ":bus", "app:", "a b", "app:bus:more", "app..x", "1app", "app:bus()"])
    def test_no_targets(self, target: str) -> None:
        with pytest.raises(InvalidSettings, match="not of the form module:attribute"):
            parse_import_string(target)

    @pytest.mark.parametrize("target", ["shop/app.py", "shop/app.py:bus", "./shop/app:bus"])
    def test_a_path_is_not_a_module(self, target: str) -> None:
        with pytest.raises(InvalidSettings, match=r"name the module as in an import, shop\.app:bus"):
            parse_import_string(target)

    def test_the_current_folder_is_importable(self, modules: Path) -> None:
        (modules / "shop_cli").mkdir()
        (modules / "shop_cli" / "app.py").write_text("class box:\n    bus = 7\n")
        assert import_object("shop_cli.app:box.bus") == 7
        assert sys.path[0] == str(modules)

    def test_a_missing_part_is_named(self, modules: Path) -> None:
        (modules / "shop_cli.py").write_text("from command_bus import CommandBus\nmine = CommandBus()\n")
        with pytest.raises(InvalidSettings, match=r"no module 'shop_cli\.app'|no module 'shop_cli"):
            import_object("shop_cli.app:bus")
        with pytest.raises(InvalidSettings, match=r"has no attribute 'bus'; did you mean shop_cli:mine\?"):
            import_object("shop_cli")

    def test_what_the_module_raises_is_its_own(self, modules: Path) -> None:
        (modules / "shop_cli.py").write_text("import no_such_library\n")
        with pytest.raises(ModuleNotFoundError, match="no_such_library"):
            import_object("shop_cli")

    async def test_a_bus_or_what_gives_one(self) -> None:
        bus = CommandBus()

        async def later() -> CommandBus:
            return bus

        for found in (bus, lambda: bus, later, lambda default=1: bus):
            assert await resolve_bus("app:bus", found) is bus

    @pytest.mark.parametrize(
        ("found", "described"),
        [
            (HandlerRegistry(), "is of type HandlerRegistry"),
            (CommandBus, "is the class CommandBus"),
            (lambda needed: needed, "is of type function: name a CommandBus, or a function without arguments"),
            (lambda: 7, "gave something of type int, not a CommandBus"),
        ],
    )
    async def test_anything_else_is_refused(self, found: Any, described: str) -> None:
        with pytest.raises(InvalidSettings, match=described):
            await resolve_bus("app:bus", found)


def application(**values: Any) -> Application:
    registry = HandlerRegistry()
    bus = CommandBus(values.pop("url", None), namespace="shop", registry=registry)
    found = Application.from_bus(bus, WorkerOptions("app"))
    return Application.from_dict({**found.to_dict(), "handlers": ["Deposit", "Withdraw"], **values})


class TestApplication:
    def test_the_start_line_says_what_runs_where_without_password(self) -> None:
        assert application(url=URL, concurrency=7).start_line(2) == (
            "app: namespace 'shop' on redis://u:***@localhost:1/0, 7 entities at a time in each of 2 processes; handles Deposit, Withdraw"
        )
        assert "on the development server, 100 entities at a time; handles" in application().start_line(1)

    def test_it_survives_the_channel(self) -> None:
        found = application(url=URL)
        message = decode_line(encode_line({"loaded": found.to_dict()}))
        assert message is not None
        assert Application.from_dict(message["loaded"]) == found
        assert decode_line(b"") is None
        assert decode_line(b'{"cut') is None

    def test_options_go_before_the_settings_where_both_may_be(self) -> None:
        bus = CommandBus(registry=HandlerRegistry())
        found = Application.from_bus(bus, WorkerOptions("app", concurrency=3, grace=0.0))
        assert (found.concurrency, found.grace) == (3, 0.0)
        found = Application.from_bus(bus, WorkerOptions("app"))
        assert (found.concurrency, found.grace) == (bus.settings.concurrency, bus.settings.grace)

    @pytest.mark.parametrize(
        ("found", "options", "advice"),
        [
            (
                application(url=URL),
                WorkerOptions("app", url="redis://other"),
                r"--url is not the server of app, which is redis://u:\*",
            ),
            (application(), WorkerOptions("app", url="redis://other"), "which is the development server"),
            (
                application(),
                WorkerOptions("app", namespace="other"),
                "--namespace other is not the namespace of app, which is shop",
            ),
            (application(), WorkerOptions("app", production=True), "set COMMAND_BUS_URL"),
            (application(handlers=()), WorkerOptions("app"), "app has no handler"),
        ],
    )
    def test_contradictions_are_refused(self, found: Application, options: WorkerOptions, advice: str) -> None:
        with pytest.raises(InvalidSettings, match=advice) as refused:
            check_options(found, options)
        assert "hidden" not in refused.value.message

    def test_agreement_is_fine(self) -> None:
        check_options(application(url=URL), WorkerOptions("app", url=URL, namespace="shop", production=True))
        check_options(application(), WorkerOptions("app"))


class TestRestarts:
    @pytest.mark.parametrize(
        ("code", "ready", "state", "expected"),
        [
            (0, True, {"stopping": True}, RestartDecision.DONE),
            (-9, False, {"stopping": True}, RestartDecision.DONE),
            (0, True, {"burst": True}, RestartDecision.DONE),
            (3, True, {"burst": True}, RestartDecision.DONE),
            (1, True, {"burst": True}, RestartDecision.RESTART),
            (-9, True, {"burst": True}, RestartDecision.RESTART),
            (1, False, {"any_ready": False}, RestartDecision.GIVE_UP),
            (-11, False, {"any_ready": False}, RestartDecision.GIVE_UP),
            (1, False, {}, RestartDecision.RESTART),
            (0, True, {}, RestartDecision.RESTART),
            (-9, True, {}, RestartDecision.RESTART),
        ],
    )
    def test_verdicts(self, code: int, ready: bool, state: dict[str, bool], expected: RestartDecision) -> None:
        known = {"stopping": False, "any_ready": True, "burst": False, **state}
        assert decide_restart(ProcessEnd(code, ready=ready), **known) is expected

    @pytest.mark.parametrize(
        ("ended", "code"),
        [
            ([], 0),
            ([(0, True), (0, True)], 0),
            ([(0, True), (-15, False)], 0),
            ([(0, True), (3, True)], 3),
            ([(0, True), (-9, True)], 3),
            ([(143, True)], 3),
            ([(1, True), (0, True)], 1),
            ([(1, True), (3, True)], 3),
        ],
    )
    def test_the_code_of_all(self, ended: list[tuple[int, bool]], code: int) -> None:
        assert combined_exit_code(ProcessEnd(number, ready=ready) for number, ready in ended) == code

    def test_pauses_grow_and_start_again_after_a_long_life(self) -> None:
        pause = RestartBackoff()
        assert [pause.delay_after(0.1) for _ in range(10)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
        assert [pause.delay_after(60.0), pause.delay_after(1.0)] == [0.1, 0.2]

    @pytest.mark.parametrize(
        ("code", "story"),
        [
            (0, "ended with exit code 0"),
            (-signal.SIGKILL, "was ended by SIGKILL"),
            (-64, "was ended by SIGRTMAX"),
            (-99, "signal 99"),
        ],
    )
    def test_stories(self, code: int, story: str) -> None:
        if story.endswith("SIGRTMAX") and not hasattr(signal, "SIGRTMAX"):
            pytest.skip("no real-time signals here")
        assert story in ProcessEnd(code, ready=True).describe()


@pytest.fixture
def running() -> Iterator[None]:
    token = current_command.set(Running("line:a%2Fb", "c-1", "root", "Work"))
    yield
    current_command.reset(token)


class TestLogs:
    def logged(self, formatter: logging.Formatter, **extra: Any) -> str:
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        handler.setFormatter(formatter)
        logger = logging.Logger("shop")  # noqa: LOG001 - of this test alone
        logger.addHandler(handler)
        try:
            raise LookupError("no shelf")
        except LookupError:
            logger.warning("lost %d", 7, exc_info=True, extra=extra)
        return stream.getvalue()

    @pytest.mark.usefixtures("running")
    def test_text_names_the_running_command_before_the_traceback(self) -> None:
        first, *rest = self.logged(TextFormatter()).splitlines()
        assert first.endswith("shop: lost 7 [Work c-1 of line:a/b]")
        assert rest[-1] == "LookupError: no shelf"

    def test_text_without_a_command(self) -> None:
        assert "shop: lost 7\n" in self.logged(TextFormatter())

    @pytest.mark.usefixtures("running")
    def test_json_is_one_line_with_what_was_passed_as_extra(self) -> None:
        text = self.logged(JsonFormatter(), shelf=Path("s/1"))
        assert text.count("\n") == 1
        record = json.loads(text)
        assert record["message"] == "lost 7"
        assert record["shelf"] == "s/1"
        assert record["exception"].endswith("LookupError: no shelf")
        assert {"command": "Work", "command_id": "c-1", "correlation_id": "root", "entity": "line:a/b"}.items() <= record.items()

    def test_json_without_a_command_has_no_fields_of_one(self) -> None:
        assert set(json.loads(self.logged(JsonFormatter()))) == {"time", "level", "logger", "message", "process", "exception"}
