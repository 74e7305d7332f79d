"""An operator's mistakes: wrong usage, no server, misspelt names, and changes that were not confirmed."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

pytest.importorskip("typer")

from command_bus.cli import main
from tests.docs.trouble import Trouble
from tests.integration.operator_cli import one_line, run, run_json

pytestmark = pytest.mark.server

UNKNOWN = "no entity type 'acount' is known here; did you mean 'account'?"


class TestMistakes:
    @pytest.mark.parametrize("command", [("stats",), ("doctor",), ("dlq", "list"), ("pause", "--all"), ("send", "Deposit", "{}")])
    def test_no_server_exits_with_4(self, troubled_shop: Trouble, command: tuple[str, ...]) -> None:
        text = one_line(run(troubled_shop, *command, "--url", "redis://127.0.0.1:1", code=4, COMMAND_BUS_DISPATCH_TIMEOUT="0.2"))
        assert "redis://127.0.0.1:1" in text

    def test_passwords_are_masked(self, troubled_shop: Trouble) -> None:
        text = run(troubled_shop, "stats", "--url", "redis://u:hidden@127.0.0.1:1", code=4, COMMAND_BUS_DISPATCH_TIMEOUT="0.2")
        assert "hidden" not in text

    def test_unknown_namespaces_are_not_created(self, troubled_shop: Trouble) -> None:
        assert "no namespace 'shopp'" in one_line(run(troubled_shop, "stats", "-n", "shopp", code=2))
        assert "no namespace 'shopp'" in one_line(run(troubled_shop, "pause", "--all", "-n", "shopp", code=2))

    def test_advice_without_a_server(self, troubled_shop: Trouble, tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "command_bus", "stats"],
            cwd=tmp_path,
            env={name: value for name, value in troubled_shop.environment.items() if name != "COMMAND_BUS_URL"}
            | {"XDG_RUNTIME_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert "COMMAND_BUS_URL" in one_line(done.stderr)

    @pytest.mark.parametrize(
        "command",
        [("pause",), ("pause", "account", "--all"), ("dlq", "replay"), ("dlq", "purge"), ("dlq", "list", "--id", "x"),
         ("dlq", "list", "--since", "yesterday"), ("entities", "--cursor", "x"), ("generate", "--check"), ("call", "Deposit", "{}", "--header", "x"),
         ("entity", "order", "o-7", "pause", "--dry-run"), ("stats", "--app", "shop:nothing"), ("stats", "--app", "nowhere"),
         ("dlq", "replay", "1-0", "--limit", "5"), ("dlq", "replay", "--limit", "5")],
        ids=" ".join,
    )  # fmt: skip
    def test_wrong_usage_exits_with_2(self, troubled_shop: Trouble, command: tuple[str, ...]) -> None:
        one_line(run(troubled_shop, *command, code=2))

    @pytest.mark.parametrize(
        "command",
        [("purge", "report"), ("purge", "--all"), ("entity", "report", "sales", "purge"), ("dlq", "purge", "--all"), ("dlq", "replay", "--all"),
         ("dlq", "discard", "PARKED")],
        ids=" ".join,
    )  # fmt: skip
    def test_nothing_is_deleted_without_confirmation(self, troubled_shop: Trouble, command: tuple[str, ...]) -> None:
        before = run_json(troubled_shop, "stats")
        (parked,) = run_json(troubled_shop, "dlq", "list", "--parked")["letters"]
        text = run(troubled_shop, *(parked["id"] if word == "PARKED" else word for word in command), code=2)
        assert "pass --yes" in text
        assert "PARKED" not in command or f"{parked['id']}: Charge charge-995 of order:o-7, failed" in text
        after = run_json(troubled_shop, "stats")
        assert (before["dead_letters"], before["parked"]) == (after["dead_letters"], after["parked"])
        assert after["depth"] >= before["depth"]

    def test_purge_counts_before_it_asks(self, troubled_shop: Trouble) -> None:
        assert run(troubled_shop, "entity", "order", "o-7", "purge", "--dry-run") == "order:o-7: 3 waiting commands\n"
        assert run_json(troubled_shop, "entity", "order", "o-7")["entity"]["depth"] == 3
        assert run(troubled_shop, "entity", "order", "never", "purge") == "order:never: 0 waiting commands\n"

    def test_purge_asks_on_a_terminal(self, troubled_shop: Trouble, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[str] = []

        def confirm(question: str) -> bool:
            asked.append(question)
            return False

        for name, value in troubled_shop.environment.items():
            if name.startswith("COMMAND_BUS"):
                monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("typer.confirm", confirm)
        assert _in_thread(["purge", "report"]) == 1
        assert asked == ["Remove them? It cannot be undone."]


class TestUnknownNames:
    """An unknown name must not look like success."""

    @pytest.mark.parametrize(
        ("command", "code", "answer"),
        [
            (("entities", "acount"), 0, "no entity matches"),
            (("entity", "acount", "a-3"), 0, "idle"),
            (("entity", "acount", "a-3", "purge"), 0, "acount:a-3: 0 waiting commands"),
            (("entity", "acount", "a-3", "resume"), 1, "was neither paused nor drained"),
            (("resume", "acount"), 1, "was neither paused nor drained"),
            (("purge", "acount"), 0, "0 waiting commands of 0 entities"),
            (("dlq", "list", "--type", "acount"), 0, "no letter matches"),
            (("dlq", "purge", "--type", "acount"), 0, "no letter matches"),
            (("events", "list", "acount"), 0, "not watched"),
        ],
    )
    def test_unknown_types_are_reported(self, troubled_shop: Trouble, command: tuple[str, ...], code: int, answer: str) -> None:
        done = troubled_shop.run(*command)
        assert done.returncode == code, done.stderr
        assert UNKNOWN in done.stderr
        assert answer in done.stdout + done.stderr

    @pytest.mark.parametrize(
        ("command", "back", "done"),
        [
            (("pause", "acount"), ("resume", "acount"), "all acount: paused\n"),
            (("drain", "acount"), ("resume", "acount"), "all acount: draining\n"),
            (("entity", "acount", "a-3", "pause"), ("entity", "acount:a-3", "resume"), "acount:a-3: paused\n"),
            (("events", "watch", "acount"), ("events", "unwatch", "acount"), "watched: acount\n"),
        ],
    )
    def test_changes_apply_and_can_be_undone(
        self, troubled_shop: Trouble, command: tuple[str, ...], back: tuple[str, ...], done: str
    ) -> None:
        first, again = troubled_shop.run(*command), troubled_shop.run(*command)
        assert (first.returncode, first.stdout, again.returncode) == (0, done, 0)
        for each in (first, again):  # being paused does not make a name known
            assert UNKNOWN in one_line(each.stderr)
            assert f"`command-bus {' '.join(back)}` undoes that" in each.stderr
        undone = troubled_shop.run(*back)
        assert (undone.returncode, undone.stderr) == (0, "")

    def test_unknown_commands_are_reported(self, troubled_shop: Trouble) -> None:
        unknown = "no command 'Chagre' is known here; did you mean 'Charge'?"
        assert unknown in run(troubled_shop, "dlq", "list", "--command", "Chagre")
        assert unknown in run(troubled_shop, "dlq", "replay", "--command", "Chagre")
        assert "'failed'" in run(troubled_shop, "dlq", "list", "--reason", "faild", code=2)
        assert "did you mean 'Deposit'?" in one_line(run(troubled_shop, "introspect", "Depost", code=1))
        assert "did you mean 'Deposit'?" in one_line(run(troubled_shop, "send", "Depost", "{}", code=2))
        assert "did you mean 'Deposit'?" in one_line(run(troubled_shop, "generate", "Depost", code=1))

    @pytest.mark.parametrize(
        "command",
        [("entities", "parcel"), ("entities", "~"), ("dlq", "list", "--command", "Deposit"), ("entity", "parcel", "p")],
        ids=" ".join,
    )
    def test_known_names_are_not_reported(self, troubled_shop: Trouble, command: tuple[str, ...]) -> None:
        assert troubled_shop.run(*command).stderr == ""

    def test_an_application_adds_known_names(self, troubled_shop: Trouble) -> None:
        assert UNKNOWN in run(troubled_shop, "entities", "acount", "--app", "shop")


def _in_thread(arguments: list[str]) -> int:
    """Run the program in a thread, since it runs its own event loop, and return the exit code."""
    ended: Future[int] = Future()

    def run() -> None:
        try:
            main(arguments)
        except SystemExit as stop:
            ended.set_result(int(stop.code or 0))

    threading.Thread(target=run).start()
    return ended.result(30)
