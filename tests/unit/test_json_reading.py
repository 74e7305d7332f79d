"""JSON that others write is read in one place, `json_forms.read_json`: Python's own reader takes NaN, and `1e400` for an infinity."""

from __future__ import annotations

import ast

import pytest

from command_bus import InvalidSettings
from command_bus.scheduling.predecessors import read_line
from command_bus.serialization.announcements import read_description
from tests.unit.syntax import FILES, trees

ELSEWHERE = {
    # Who reads JSON otherwise, and why it may.
    "command_bus.serialization.json_forms": "it is the place",
    "command_bus.serialization.announcements": "leaves out what is no number, and keeps the rest",
    "command_bus.cli.schemas.document": "what `schema export` has written; each description goes through the one above",
    "command_bus.notifications.notices": "takes texts and whole numbers only",
    "command_bus.cli.process.channel": "between processes of one program",
    "command_bus.dashboard.passwords": "what it has signed itself",
    "command_bus.dashboard.acts.letters": "for the names of changed fields; `read_json` has to take the payload",
    "command_bus.dashboard.pages.commands": "what it has written itself",
    "command_bus.spark.options": "takes texts only",
    "command_bus.export.files": "what an export has written",
    "command_bus.export.typed": "what the batch itself has written",
    "command_bus.spark.writing.dry_run": "of a task",
    "command_bus.spark.writing.writer": "of a task",
    "command_bus.spark.writing.task_results": "of this task",
    "command_bus.serialization.stored_fields": "records of webhooks and subscriptions, which are checked when they are put",
}


def test_json_of_others_is_read_in_one_place() -> None:
    readers = {
        module
        for module, tree in trees().items()
        if module.startswith("command_bus.") and ".testing." not in module
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("json.loads", "json.load", "from_json", "pydantic_core.from_json")
    }
    assert readers == set(ELSEWHERE)
    assert FILES


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1e400"])
def test_what_is_no_number_is_read_nowhere(number: str) -> None:
    with pytest.raises(InvalidSettings, match="line 3: is no exported schedule"):
        read_line(3, f'{{"format": 1, "times": ["e", {number}]}}')
    info = read_description(
        "x",
        f'{{"entity": null, "key": null, "delivery": "at_least_once", "schema": {{}}, "attempt_timeout": {number}}}'.encode(),
        (),
    )
    assert info is not None
    assert "attempt_timeout" not in info.policy
