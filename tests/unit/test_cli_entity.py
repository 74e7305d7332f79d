"""Names of entities on the command line, and the commands that it suggests for one that does not go on."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

pytest.importorskip("typer")

import typer

from command_bus.admin.info import EntityDetails, EntityInfo, Stats
from command_bus.cli.commands.entity import parse_entity_words
from command_bus.cli.commands.entity_view import suggest_commands
from command_bus.cli.options import Action, Target
from command_bus.cli.terminal import print_error
from command_bus.doctor.diagnosis import check_work
from command_bus.transport.records import HoldInfo


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("account:a-17", ("account", "a-17", Action.SHOW)),
        ("account a-17", ("account", "a-17", Action.SHOW)),
        ("account:a-17 pause", ("account", "a-17", Action.PAUSE)),
        ("account a-17 pause", ("account", "a-17", Action.PAUSE)),
        ("account:a:17 purge", ("account", "a:17", Action.PURGE)),
        ("account a:17 purge", ("account", "a:17", Action.PURGE)),
        ("account:pause", ("account", "pause", Action.SHOW)),
        ("account pause resume", ("account", "pause", Action.RESUME)),
        ("account:a-17 prioritize low", ("account", "a-17", Action.PRIORITIZE)),
        ("account a-17 prioritize low", ("account", "a-17", Action.PRIORITIZE)),
        ("account prioritize resume", ("account", "prioritize", Action.RESUME)),
    ],
)
def test_an_entity_is_named_with_a_colon_or_in_two_words(words: str, meant: tuple[str, str, Action]) -> None:
    assert parse_entity_words(words.split()) == meant


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("account", "name one entity as TYPE:ID or TYPE ID"),
        ("account:", "name one entity as TYPE:ID or TYPE ID"),
        ("account a-1 pause now", "name one entity as TYPE:ID or TYPE ID"),
        (
            "account:a-1 paus",
            "'paus' is no action: show, pause, resume, prioritize, drain, purge, abort, forget, keys; did you mean 'pause'?",
        ),
    ],
)
def test_wrong_words_get_advice(words: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        parse_entity_words(words.split())
    assert ended.value.exit_code == 2
    assert advice in capsys.readouterr().err


class TestSuggestedCommands:
    def test_they_contain_the_target_without_its_password(self) -> None:
        place = Target("redis://u:hidden@redis-1:6379/0", "shop", "shop.app:bus")
        line = place.command("entity", "order:o 7", "resume")
        assert shlex.split(line) == [
            "command-bus", "entity", "order:o 7", "resume", "--url", "redis://u:***@redis-1:6379/0", "--namespace", "shop", "--app", "shop.app:bus",
        ]  # fmt: skip
        assert Target().command("dlq", "list") == "command-bus dlq list"

    @pytest.mark.parametrize(
        ("what", "entity_type", "line"),
        [
            ("order:o-7", "order", "command-bus entity order:o-7 resume -n shop"),
            ("all order", "order", "command-bus resume order -n shop"),
            ("everything", None, "command-bus resume --all -n shop"),
        ],
    )
    def test_a_hold_suggests_resume(self, what: str, entity_type: str | None, line: str) -> None:
        hold = HoldInfo(what, entity_type, "paused", 1, "")
        found = EntityDetails(_entity(state="paused", hold=hold), None, None, None, None, (), None, None)
        assert suggest_commands(found, Target(namespace="shop")) == [("to go on", line.replace("-n", "--namespace"))]

    def test_a_hung_handler_suggests_abort(self) -> None:
        abort, pause, resume = (f"command-bus entity order:o-7 {action}" for action in ("abort", "pause", "resume"))
        hanging = {"state": "running", "running_for": 31.0}
        assert _suggestions(**hanging) == [
            ("if it hangs", f"{abort}  (ends this attempt)"),
            ("before", f"{pause}  (to keep the next attempt from starting)"),
        ]
        own = HoldInfo("order:o-7", "order", "paused", 1, "")
        assert _suggestions(**hanging, hold=own) == [("if it hangs", f"{abort}  (ends this attempt)"), ("to go on", resume)]
        assert _suggestions(running_for=1.0) == []

    def test_the_doctor_suggests_commands_for_the_same_target(self) -> None:
        figures: dict[str, Any] = {**dict.fromkeys(Stats.__slots__, 0), "parked": 1, "dead_letters": 2, "workers": ()}
        stats = Stats(**figures)
        holds = [HoldInfo("all order", "order", "paused", 1, ""), HoldInfo("everything", None, "draining", 1, "")]
        advice = [each.advice for each in check_work(stats, [], holds, [], Target(namespace="shop").command)]
        assert advice[-4:] == [
            "command-bus resume order --namespace shop, when it is time",
            "command-bus resume --all --namespace shop, when it is time",
            "command-bus entities --state parked --namespace shop",
            "command-bus dlq list --namespace shop",
        ]


def _suggestions(**values: Any) -> list[tuple[str, str]]:
    return suggest_commands(EntityDetails(_entity(**values), None, None, None, None, (), None, None), Target())


def _entity(**values: Any) -> EntityInfo:
    known: dict[str, Any] = {
        "name": "order:o-7", "entity_type": "order", "entity_id": "o-7", "state": "waiting", "depth": 1, "age": 1.0, "attempt": 1,
        "running_for": None, "worker": None, "retry_at_ms": None, "hold": None, "letter_id": None,
    }  # fmt: skip
    return EntityInfo(**{**known, **values})


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("the server refuses: out of memory.. Ask again", "the server refuses: out of memory. Ask again"),
        ("it ends with a library's stop..", "it ends with a library's stop."),
        ("one is left.", "one is left."),
        ("none is made", "none is made"),
        ("no file in ../.. or in .. or a..b, and so on ...", "no file in ../.. or in .. or a..b, and so on ..."),
    ],
)
def test_errors_have_no_double_full_stop(message: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_error(message)
    assert capsys.readouterr().err == f"command-bus: {line}\n"
