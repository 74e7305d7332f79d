"""`command-bus schema`: the file, the exit codes and what is printed. No server is there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("typer")

from command_bus import cli
from command_bus.cli.schemas.document import read_document
from command_bus.errors import InvalidSettings

APP = """
from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from command_bus import Command, CommandBus, EntityId, EntityPolicy, HandlerRegistry, Query, lanes

registry = HandlerRegistry()


def even(number: int) -> int:
    if number % 2:
        raise ValueError("odd")
    return number


class Deposit(Command[int], entity="account", durable=True):
    account: EntityId
    cents: Annotated[int, Field(gt=0), AfterValidator(even)]


class Balance(Query[int], entity="account"):
    account: EntityId


@registry.handles(Deposit)
async def deposit(command: Deposit, context) -> int:
    return 0


@registry.handles(Balance)
async def balance(query: Balance) -> int:
    return 0


bus = CommandBus("redis://127.0.0.1:1", registry=registry, entities={"account": EntityPolicy(mailbox=lanes(8))})
"""

Program = Callable[..., tuple[int, str]]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Program]:
    """Return what runs the program in a folder with the application `till`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(source: str) -> None:
        (tmp_path / "till.py").write_text(source, encoding="utf-8")
        sys.modules.pop("till", None)

    def run(*words: str, source: str = APP) -> tuple[int, str]:
        write(source)
        with pytest.raises(SystemExit) as ended:
            cli.main(["schema", *words])
        out = capsys.readouterr()
        return int(ended.value.code or 0), out.out + out.err

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield run
    sys.modules.pop("till", None)


class TestExport:
    def test_it_says_what_workers_would_announce(self, program: Program) -> None:
        code, text = program("export", "till:bus")
        document = json.loads(text)
        deposit = document["commands"]["Deposit"]
        assert (code, document["format"], list(document["commands"])) == (0, 1, ["Balance", "Deposit"])
        assert (deposit["entity"], deposit["key"], deposit["durable"], deposit["mailbox"]) == (
            "account",
            "account",
            True,
            "lanes:8",
        )
        assert deposit["schema"]["properties"]["cents"] == {"exclusiveMinimum": 0, "title": "Cents", "type": "integer"}

    def test_the_same_classes_give_the_same_text(self, program: Program) -> None:
        first, second = program("export", "--app", "till:bus"), program("export", "till")
        assert first == second

    def test_it_keeps_values_that_the_class_has_taken(self, program: Program) -> None:
        program("export", "till:bus", "--out", "schemas.json")
        found = read_document(Path("schemas.json").read_text(encoding="utf-8"))["Deposit"]
        cents = [found.example["cents"], *found.values["cents"]]
        assert all(each % 2 == 0 and each > 0 for each in cents)
        assert {type(each) for each in (found.example["account"], *found.values["account"])} == {str, int}

    @pytest.mark.parametrize("words", [["export"], ["export", "nowhere:bus"], ["export", "till:bus", "--include", "nowhere"]])
    def test_an_application_that_is_not_there(self, program: Program, words: list[str]) -> None:
        code, text = program(*words)
        assert code == 2
        assert text.startswith("command-bus: ")

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2, "commands": {}}', '{"format": 1, "commands": {"A": 1}}'])
    def test_other_files_are_refused(self, text: str) -> None:
        with pytest.raises(InvalidSettings):
            read_document(text)


class TestCheck:
    @pytest.fixture(autouse=True)
    def exported(self, program: Program) -> None:
        program("export", "till:bus", "--out", "schemas.json")

    def test_nothing_has_changed(self, program: Program) -> None:
        assert program("check", "till:bus", "--against", "schemas.json") == (0, "no change\n")

    def test_workers_first(self, program: Program) -> None:
        code, text = program("check", "till:bus", "--against", "schemas.json", "--json", source=APP.replace("gt=0", "gt=-2"))
        change = {"command": "Deposit", "field": "cents", "verdict": "workers first", "compares": "forward"}
        found = json.loads(text)
        assert (code, found["verdict"]) == (3, "workers first")
        assert [{**each, "text": ""} for each in found["changes"]] == [{**change, "text": ""}]

    def test_it_breaks_unless_that_is_accepted(self, program: Program) -> None:
        narrower = APP.replace("gt=0", "gt=9")
        code, text = program("check", "till:bus", "--against", "schemas.json", source=narrower)
        assert code == 1
        assert "breaks   Deposit  cents  backward  at least 10 is read, and 1 may be sent" in text
        code, text = program("check", "till:bus", "--against", "schemas.json", "--accept", "Deposit.cents", source=narrower)
        assert code == 0
        assert "accepted: at least 10 is read" in text

    def test_a_command_is_gone(self, program: Program) -> None:
        less = APP.replace("@registry.handles(Balance)", "")
        words = ("check", "till:bus", "--against", "schemas.json")
        assert program(*words, source=less)[0] == 1
        assert program(*words, "--accept", "Balance", source=less)[0] == 1
        assert program(*words, "--removed", "Balance", source=less)[0] == 0

    def test_what_is_accepted_in_vain_is_told(self, program: Program) -> None:
        code, text = program(
            "check", "till:bus", "--against", "schemas.json", "--accept", "Deposit.cents", "--removed", "Balance"
        )
        assert code == 0
        assert "Balance is accepted, and nothing is said of it" in text
        assert "Deposit.cents is accepted, and nothing is said of it" in text

    @pytest.mark.parametrize(
        "words",
        [["till:bus"], ["till:bus", "--against", "none.json"], ["till:bus", "--live", "--against", "schemas.json"],
         ["--against", "schemas.json"], ["till:bus", "--against", "till.py"]],
    )  # fmt: skip
    def test_wrong_usage(self, program: Program, words: list[str]) -> None:
        assert program("check", *words)[0] == 2
