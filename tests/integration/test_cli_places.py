"""Where a command goes, before its name or behind it; entities named as they are shown; completion of what only the server knows."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("typer")

from command_bus import Command, CommandBus, EntityId, HandlerRegistry
from command_bus.embedded import EmbeddedServer
from tests.program import run_program

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]


class Deposit(Command[int], entity="account"):
    account_id: EntityId


class Stage:
    """A namespace with one account that has work, and the program in an environment that names neither server nor namespace."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url, self.namespace = url, namespace
        hidden = ("COMMAND_BUS_URL", "COMMAND_BUS_NAMESPACE", "REDIS_URL", "COMMAND_BUS_EMBEDDED_URL")
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden} | {
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "400",
        }

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, **environment}
        return run_program(*words, env=environment)

    def completed(self, *words: str, **environment: str) -> list[str]:
        """What the shell would offer for the last word."""
        code = "from command_bus.cli import main; main()"
        given = {
            "COMP_WORDS": " ".join(["command-bus", *words]), "COMP_CWORD": str(len(words)), "_COMMAND_BUS_COMPLETE": "complete_bash",
            "COMMAND_BUS_URL": self.url, "COMMAND_BUS_NAMESPACE": self.namespace,
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**self.environment, **given, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()

    def offers(self, expected: list[str], *words: str) -> None:
        """Assert what the shell offers: at last, for on a busy machine the server may not answer in the second that it has."""
        found: list[str] = []
        for _ in range(10):
            found = self.completed(*words)
            if found == expected:
                return
        assert found == expected


@pytest.fixture
async def stage(server: EmbeddedServer) -> AsyncIterator[Stage]:
    namespace = f"places-{secrets.token_hex(4)}"
    registry = HandlerRegistry()

    @registry.handles(Deposit)
    async def deposit(command: Deposit) -> int:
        return 1

    async with CommandBus(server.url, namespace=namespace, registry=registry) as bus:
        await bus.entities.pause()
        await bus.dispatch(Deposit(account_id="a-1"))
        async with bus.worker():
            yield Stage(server.url, namespace)


def test_a_place_is_named_before_the_command_or_behind_it(stage: Stage) -> None:
    url, name = ("--url", stage.url), ("--namespace", stage.namespace)
    for words in (
        (*url, *name, "stats"),
        ("stats", *url, *name),
        (*url, "stats", *name),
        (*url, "dlq", *name, "list"),
        (*url, *name, "entity", "account:a-1"),
        ("--url", "redis://127.0.0.1:1", *name, "stats", *url),  # the last word counts
    ):
        done = stage.run(*words)
        assert done.returncode == 0, done.stderr
    assert "no namespace 'other'" in stage.run(*url, "-n", "other", "stats").stderr


def test_the_worker_takes_it_too_and_what_contradicts_it_is_refused(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "placed_shop.py").write_text("from command_bus import CommandBus\nbus = CommandBus()\n")
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = stage.run("--url", stage.url, "--namespace", "elsewhere", "worker", "placed_shop", **environment)
    assert (done.returncode, "placed_shop has no handler" in done.stderr) == (1, True), done.stderr  # not: no such server
    for words, advice in (
        (("--app", "placed_shop", "worker", "placed_shop"), "`worker placed_shop`"),
        (("--url", stage.url, "dev", "placed_shop"), "leave --url out"),
    ):
        done = stage.run(*words, **environment)
        assert (done.returncode, advice in done.stderr) == (2, True), done.stderr


def test_what_is_printed_about_an_entity_can_be_pasted(stage: Stage) -> None:
    place = ("--url", stage.url, "--namespace", stage.namespace)
    assert stage.run("entity", "account:a-1", "pause", *place).stdout == "account:a-1: paused\n"
    [line] = [line for line in stage.run("entity", "account", "a-1", *place).stdout.splitlines() if line.startswith("to go on")]
    words = line.split()[3:]
    assert words[1:4] == ["entity", "account:a-1", "resume"]
    assert stage.run(*words[1:]).stdout == "account:a-1: resumed\n"
    refused = stage.run("pause", "account:a-1", *place)
    assert (refused.returncode, "`command-bus entity account:a-1 pause`" in refused.stderr) == (2, True)


def test_an_entity_whose_commands_are_all_delayed_says_until_when(stage: Stage) -> None:
    place = ("--url", stage.url, "--namespace", stage.namespace)
    assert stage.run("send", "Deposit", '{"account_id": "late"}', "--delay", "600", *place).returncode == 0
    paused = stage.run("entity", "account:late", *place).stdout
    assert re.search(r"^delayed +until \d{4}-\d\d-\d\d .*Z \(10 min from now\)$", paused, re.MULTILINE), paused
    assert stage.run("resume", "--all", *place).returncode == 0
    near = stage.run("entity", "account:late", *place).stdout
    assert re.search(r"^state +delayed until \d{4}-\d\d-\d\d .*Z \(10 min from now\)$", near, re.MULTILINE), near
    [line] = [line for line in stage.run("entities", *place).stdout.splitlines() if line.startswith("account:late")]
    assert re.search(r" delayed +1 .* until \d{4}-\d\d-\d\d", line), line
    [found] = [
        each for each in json.loads(stage.run("entities", "--json", *place).stdout)["entities"] if each["entity_id"] == "late"
    ]
    assert datetime.fromisoformat(found["due_at"]) > datetime.now(UTC) + timedelta(seconds=500)


def test_one_entity_is_a_filter_with_a_colon_too(stage: Stage) -> None:
    place = ("--url", stage.url, "--namespace", stage.namespace)
    for words in (("dlq", "list", "--type", "account:a-1"), ("events", "list", "account:a-1")):
        done = stage.run(*words, *place)
        assert done.returncode == 0, done.stderr
        assert "known" not in done.stderr


def test_the_shell_completes_what_the_server_knows(stage: Stage) -> None:
    stage.offers(["entities", "entity"], "entit")
    stage.offers(["account"], "pause", "acc")
    stage.offers(["account:"], "entity", "acc")
    stage.offers(["account:a-1"], "entity", "account:a")
    stage.offers(["a-1"], "entity", "account", ":", "a")  # as bash splits words
    stage.offers(["pause", "purge"], "entity", "account:a-1", "p")
    stage.offers(["abort"], "entity", "account:a-1", "a")
    stage.offers(["resume"], "entity", "account", "a-1", "res")
    stage.offers(["Deposit"], "send", "Dep")
    assert stage.completed("--namespace", "nobody", "pause", "acc") == []


def test_completion_is_silent_where_there_is_no_server(stage: Stage) -> None:
    assert stage.completed("pause", "acc", COMMAND_BUS_URL="redis://127.0.0.1:1") == []
