"""Options of a target before or after the command, entities named as they are printed, and completion of names that the server knows."""

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


class Shop:
    """A namespace with one account that has work, and an environment that names neither server nor namespace."""

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
        """Return what the shell would offer for the last word."""
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
        """Check what the shell offers. It is tried again, because on a busy machine the server may miss its deadline of one second."""
        found: list[str] = []
        for _ in range(10):
            found = self.completed(*words)
            if found == expected:
                return
        assert found == expected


@pytest.fixture
async def shop(server: EmbeddedServer) -> AsyncIterator[Shop]:
    namespace = f"target-{secrets.token_hex(4)}"
    registry = HandlerRegistry()

    @registry.handles(Deposit)
    async def deposit(command: Deposit) -> int:
        return 1

    async with CommandBus(server.url, namespace=namespace, registry=registry) as bus:
        await bus.entities.pause()
        await bus.dispatch(Deposit(account_id="a-1"))
        async with bus.worker():
            yield Shop(server.url, namespace)


def test_target_options_stand_before_or_after_the_command(shop: Shop) -> None:
    url, name = ("--url", shop.url), ("--namespace", shop.namespace)
    for words in (
        (*url, *name, "stats"),
        ("stats", *url, *name),
        (*url, "stats", *name),
        (*url, "dlq", *name, "list"),
        (*url, *name, "entity", "account:a-1"),
        ("--url", "redis://127.0.0.1:1", *name, "stats", *url),  # the last word counts
    ):
        done = shop.run(*words)
        assert done.returncode == 0, done.stderr
    assert "no namespace 'other'" in shop.run(*url, "-n", "other", "stats").stderr


def test_worker_and_dev_check_target_options(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "shop_app.py").write_text("from command_bus import CommandBus\nbus = CommandBus()\n")
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = shop.run("--url", shop.url, "--namespace", "elsewhere", "worker", "shop_app", **environment)
    assert (done.returncode, "shop_app has no handler" in done.stderr) == (1, True), done.stderr  # not: no such server
    for words, advice in (
        (("--app", "shop_app", "worker", "shop_app"), "`worker shop_app`"),
        (("--url", shop.url, "dev", "shop_app"), "leave --url out"),
    ):
        done = shop.run(*words, **environment)
        assert (done.returncode, advice in done.stderr) == (2, True), done.stderr


def test_suggested_commands_can_be_pasted(shop: Shop) -> None:
    options = ("--url", shop.url, "--namespace", shop.namespace)
    assert shop.run("entity", "account:a-1", "pause", *options).stdout == "account:a-1: paused\n"
    [line] = [line for line in shop.run("entity", "account", "a-1", *options).stdout.splitlines() if line.startswith("to go on")]
    words = line.split()[3:]
    assert words[1:4] == ["entity", "account:a-1", "resume"]
    assert shop.run(*words[1:]).stdout == "account:a-1: resumed\n"
    refused = shop.run("pause", "account:a-1", *options)
    assert (refused.returncode, "`command-bus entity account:a-1 pause`" in refused.stderr) == (2, True)


def test_a_delayed_entity_shows_its_due_time(shop: Shop) -> None:
    options = ("--url", shop.url, "--namespace", shop.namespace)
    assert shop.run("send", "Deposit", '{"account_id": "late"}', "--delay", "600", *options).returncode == 0
    paused = shop.run("entity", "account:late", *options).stdout
    assert re.search(r"^delayed +until \d{4}-\d\d-\d\d .*Z \(10 min from now\)$", paused, re.MULTILINE), paused
    assert shop.run("resume", "--all", *options).returncode == 0
    near = shop.run("entity", "account:late", *options).stdout
    assert re.search(r"^state +delayed until \d{4}-\d\d-\d\d .*Z \(10 min from now\)$", near, re.MULTILINE), near
    [line] = [line for line in shop.run("entities", *options).stdout.splitlines() if line.startswith("account:late")]
    assert re.search(r" delayed +1 .* until \d{4}-\d\d-\d\d", line), line
    [found] = [
        each for each in json.loads(shop.run("entities", "--json", *options).stdout)["entities"] if each["entity_id"] == "late"
    ]
    assert datetime.fromisoformat(found["due_at"]) > datetime.now(UTC) + timedelta(seconds=500)


def test_type_and_id_with_a_colon_select_one_entity(shop: Shop) -> None:
    options = ("--url", shop.url, "--namespace", shop.namespace)
    for words in (("dlq", "list", "--type", "account:a-1"), ("events", "list", "account:a-1")):
        done = shop.run(*words, *options)
        assert done.returncode == 0, done.stderr
        assert "known" not in done.stderr


@pytest.mark.slow
def test_completion_offers_names_from_the_server(shop: Shop) -> None:
    shop.offers(["entities", "entity"], "entit")
    shop.offers(["account"], "pause", "acc")
    shop.offers(["account:"], "entity", "acc")
    shop.offers(["account:a-1"], "entity", "account:a")
    shop.offers(["a-1"], "entity", "account", ":", "a")  # as bash splits words
    shop.offers(["pause", "prioritize", "purge"], "entity", "account:a-1", "p")
    shop.offers(["abort"], "entity", "account:a-1", "a")
    shop.offers(["resume"], "entity", "account", "a-1", "res")
    shop.offers(["Deposit"], "send", "Dep")
    assert shop.completed("--namespace", "nobody", "pause", "acc") == []


def test_completion_is_silent_without_a_server(shop: Shop) -> None:
    assert shop.completed("pause", "acc", COMMAND_BUS_URL="redis://127.0.0.1:1") == []
