"""Exit codes: the help of each command lists its own, and the codes that all share hold for all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")

from typer.main import get_command

from command_bus import cli
from command_bus.cli.app import app
from command_bus.cli.terminal import ExitCode
from command_bus.gateway.tokens import hash_token, new_token

# Arguments that each command needs besides the options of a target.
WORDS = {
    "send": ("Deposit", "{}"),
    "call": ("Deposit", "{}"),
    "publish": ("account.deposited", "{}"),
    "top": ("--once",),
    "entity": ("account:a-1",),
    "state show": ("account:a-1",),
    "state list": ("account",),
    "state export": ("account",),
    "state delete": ("account:a-1",),
    "obliterate": ("shop",),
    "pause": ("--all",),
    "drain": ("--all",),
    "resume": ("--all",),
    "purge": ("--all",),
    "cancel": ("id",),
    "commands cancel": ("--all",),
    "commands prioritize": ("low", "--all"),
    "command": ("id",),
    "signal": ("id", "go"),
    "history show": ("id",),
    "dlq show": ("0-1-0",),
    "dlq replay": ("--all",),
    "dlq discard": ("0-1-0",),
    "dlq purge": ("--all",),
    "events follow": (),
    "export": ("history", "--to", "ledger"),
    "webhooks put": ("crm", "https://crm.example", "--kind", "completed"),
    "webhooks remove": ("crm",),
    "webhooks pause": ("crm",),
    "webhooks resume": ("crm",),
    "webhooks test": ("crm",),
    "webhooks deliveries": ("crm",),
    "subscriptions show": ("ledger",),
    "subscriptions pause": ("ledger",),
    "subscriptions resume": ("ledger",),
    "subscriptions remove": ("ledger",),
    "shares put": ("acme", "3"),
    "shares remove": ("acme",),
    "types forget": ("account",),
    "schedules show": ("nightly",),
    "schedules next": ("nightly",),
    "schedules pause": ("nightly",),
    "schedules resume": ("nightly",),
    "schedules trigger": ("nightly",),
    "schedules remove": ("nightly",),
    "schedules import": ("-",),
    "schedules put": ("nightly", "Deposit", "{}", "--every", "30s"),
    "delayed promote": ("id",),
    "limits put": ("shopify", "--rate", "5"),
    "limits remove": ("shopify",),
    "limits release": ("shopify",),
    "schema check": ("--live", "--against", "schemas.json"),
    "serve": ("--tokens", "tokens.toml"),
    "outbox relay": ("--database", "sqlite://"),
    "outbox status": ("--database", "sqlite://"),
    "outbox list": ("--database", "sqlite://"),
    "outbox retry": ("1", "--database", "sqlite://"),
    "outbox discard": ("1", "--database", "sqlite://"),
}


def commands() -> Iterator[tuple[str, Any]]:
    top: Any = get_command(app)
    for name in top.commands:
        command = top.commands[name]
        for inner in getattr(command, "commands", {}):
            yield f"{name} {inner}", command.commands[inner]
        if not hasattr(command, "commands"):
            yield name, command


COMMANDS = dict(commands())
OPERATORS = [name for name in COMMANDS if name not in ("worker", "dev")]
OF_A_DATABASE = [name for name in OPERATORS if name.startswith("outbox ") and name != "outbox relay"]
OF_A_SERVER = [name for name in OPERATORS if name not in ("forget", "password", "token", "schema export", *OF_A_DATABASE)]
"""Without those that delete a folder, make a hash, look at classes, or ask a database."""


def ended(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    return int(stop.value.code or 0)


def codes(text: str) -> set[int]:
    """Return the exit codes that a help text lists."""
    return {int(code) for code in re.findall(r"(?:^|, |: |\s)(\d+) +[a-z]", text[text.index("Exit codes") :])}


def test_all_commands_are_covered() -> None:
    assert len(OPERATORS) > 20
    assert set(WORDS) <= set(OPERATORS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lists_the_exit_codes(name: str) -> None:
    text = COMMANDS[name].help
    assert "Exit codes:" in text
    if name in OPERATORS:
        assert {ExitCode.DONE, ExitCode.USAGE} <= codes(text) <= {*ExitCode}
        assert (ExitCode.UNREACHABLE in codes(text)) == (name in OF_A_SERVER)


def test_the_program_s_help_lists_shared_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--help") == 0
    assert codes(capsys.readouterr().out.partition("Options:")[0]) == {*ExitCode} - {ExitCode.INTERRUPTED}


@pytest.mark.parametrize("name", OF_A_SERVER)
def test_no_server_exits_with_4(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "export":  # it says first that the package is missing
        pytest.importorskip("pyarrow")
    monkeypatch.setenv("COMMAND_BUS_DISPATCH_TIMEOUT", "0.05")
    monkeypatch.chdir(tmp_path)
    Path("tokens.toml").write_text(f'[ops]\ntoken = "{hash_token(new_token())}"\nrights = ["*"]\n')
    Path("schemas.json").write_text('{"format": 1, "commands": {}}')
    place = ("--url", f"unix://{tmp_path}/none.sock", "--namespace", "shop")
    assert ended(*name.split(), *WORDS.get(name, ()), *place) == ExitCode.UNREACHABLE
    assert "none.sock" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_usage_exits_with_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(*name.split(), *WORDS.get(name, ()), "--no-such-option") == ExitCode.USAGE
    assert "--no-such-option" in capsys.readouterr().err
