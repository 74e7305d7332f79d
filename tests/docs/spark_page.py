"""Writes docs/api/spark.md, whose tables are those of the code: `python -m tests.docs.spark_page`. It needs PySpark, and no Java."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from command_bus.errors import InvalidSettings
from command_bus.spark.options import ReadOptions, View, WriteOptions

__all__ = ["PAGE", "known", "rendered"]

PAGE = Path(__file__).parents[2] / "docs" / "api" / "spark.md"

_HEAD = """# Spark

Extra `spark`. [Spark](../spark.md) tells how to use it and what is promised, [the quickstart](../spark-quickstart.md) shows it. The tables
of this page are written by `python -m tests.docs.spark_page`.

## DataFrames into commands

::: command_bus.spark.dispatch.dispatch_dataframe

::: command_bus.spark.dispatch.dispatch_batch_writer

::: command_bus.spark.writing.ordering.in_order

::: command_bus.spark.report.dispatch_report

::: command_bus.spark.report.DispatchReport

::: command_bus.spark.ids.command_id

::: command_bus.spark.ids.command_id_of

## Reconciliation

::: command_bus.spark.reconciliation.reconciliation.reconcile

::: command_bus.spark.reconciliation.reconciliation.Reconciliation

## One partition, without Spark

::: command_bus.spark.target.Target

::: command_bus.spark.writing.partition.PartitionDispatcher

::: command_bus.spark.writing.task_results.PartitionResult

## The data source

::: command_bus.spark.source.register
"""

_FIELDS = {
    "dispatchVersion": "version", "outcomes": "outcomes_ms", "rememberFor": "remember_ms", "minPartitions": "partitions",
    "pageSize": "page", "maxOffsetsPerTrigger": "max_offsets", "startingTimestamp": "since_ms", "endingTimestamp": "until_ms",
}  # fmt: skip
"""Options that are not named like the field that they set."""

_OPTIONS = {field: option for option, field in _FIELDS.items()} | {"dispatch_id": "dispatchId"}
"""What a docstring's fields are to a reader of the options."""

_ROWS: dict[View, str] = {
    "outcomes": "A row for each command of a dispatch that was settled, if the dispatch keeps outcomes; several for one that was dead-lettered "
    "or parked and then replayed. It can be read as a stream.",
    "deadLetters": "A row for each command that was given up and neither replayed nor discarded since; of one dispatch, or all.",
    "rejects": "A row for each row of a dispatch that is no command.",
    "entities": "A row for each entity that has work, or is paused, as it is when a task reads it.",
    "dispatches": "A row for each dispatch that is remembered.",
}

_DISPATCH = "the dispatch"
_NAME = "the wire name"
_COMMAND_ID = "derived from the row's key, or given"
_TYPE = "its type; NULL if it has no entity"
_ENTITY = "its id, as text"
_ACCEPTED = "when the server accepted it"

_MEANING: dict[View, dict[str, str]] = {
    "outcomes": {
        "dispatch_id": _DISPATCH,
        "command_id": _COMMAND_ID,
        "command": _NAME,
        "entity_type": _TYPE,
        "entity": _ENTITY,
        "status": "`completed`, `rejected` (by the handler), `expired`, `cancelled`, `discarded`; `dead_lettered` and `parked`, which a replay "
        "may follow; `unreadable`: written by a later version",
        "attempt": "the attempt that it ended with; 0 if it never started",
        "worker": "who settled it",
        "accepted_at": _ACCEPTED,
        "started_at": "its first start; NULL if it never started",
        "finished_at": "when it was settled, by the server's clock",
        "fence": "of the start that settled it; grows with every start in its shard",
        "message": "its place in its mailbox: the order of acceptance within its entity",
        "error_type": "the exception's type; of a rejection its code",
        "error_message": "the text of either",
        "result": "what the handler returned, as JSON; of a rejection its details",
        "shard": "of its entity",
        "entry": "id of this outcome within the shard; later ones are greater",
    },
    "deadLetters": {
        "id": "of the letter, for `command-bus dlq` and `bus.dead_letters`",
        "dispatch_id": "the dispatch, if it keeps outcomes; else NULL",
        "command_id": "NULL if the bytes cannot be read",
        "command": "the wire name; NULL likewise",
        "entity_type": _TYPE,
        "entity": _ENTITY,
        "reason": "[why](../dead-letters.md) it was given up",
        "error_type": "the exception's type",
        "error_message": "its text",
        "traceback": "its frames, without values",
        "attempts": "how often it was started",
        "accepted_at": _ACCEPTED,
        "first_started_at": "its first start; NULL if it never started",
        "failed_at": "when it was given up",
        "worker": "who gave it up",
        "parked": "whether its entity waits for a decision",
        "payload": "its fields, as JSON; NULL if they are encrypted or cannot be read",
    },
    "rejects": {
        "dispatch_id": _DISPATCH,
        "command_id": "NULL if the row has none",
        "command": "the wire name, as far as it is known",
        "entity": _ENTITY,
        "reason": "`invalid`, `unknown_command`, `conflict`, `out_of_sequence`, `wrong_type`",
        "error": "what the model, or the server, says",
        "row": "the row's columns, as JSON",
    },
    "entities": {
        "entity_type": "its type; NULL of a lane without one, and of what has no entity",
        "entity": "its id; NULL of a lane, and of an id so long that the mailbox has a digest of it",
        "mailbox": "the mailbox's name",
        "state": "`waiting`, `running`, `retrying`, `paused`, `parked`, `draining`",
        "depth": "commands that it holds, running and delayed ones included",
        "oldest_accepted_at": "when the first of them was accepted; NULL if all are delayed",
        "attempt": "how often the one at its head was started",
        "shard": "where it lives",
    },
    "dispatches": {
        "dispatch_id": _DISPATCH,
        "state": "`open` while it is loaded, or if that failed; `committed`",
        "version": "the last that was committed: 0, or a stream's batch number; NULL before the first",
        "opened_at": "when it was first opened",
        "committed_at": "when it was last committed; NULL if it never was",
        "added": "commands that it put into mailboxes",
        "duplicates": "commands that were there already when they came again",
        "rejected": "rows that are no commands",
        "outcomes": "outcomes that are kept; NULL if it keeps none",
        "trimmed": "outcomes that were dropped for `maxOutcomes`; NULL if that is not known",
        "pending": "commands without an outcome; NULL likewise",
        "outcomes_until": "how long they are kept, if none is added",
        "remembered_until": "how long the dispatch is, if nobody touches it",
        "what": "which commands",
        "summary": "of the last commit, as JSON: what each task did",
    },
}


def known(options: type[WriteOptions | ReadOptions]) -> list[str]:
    """The names of the options, as the parser knows them: it lists them to whoever names another."""
    try:
        options.parse({"no such option at all": "1"})
    except InvalidSettings as error:
        return error.message.rpartition("there are ")[2].split(", ")
    raise AssertionError


def rendered() -> str:
    """The page."""
    from command_bus.spark.reading.views import schema_of

    parts = [_HEAD]
    for title, options in (("Options of a write", WriteOptions), ("Options of a read", ReadOptions)):
        parts.append(f"### {title}\n\n| option | default | |\n| --- | --- | --- |\n" + "\n".join(_options(options)) + "\n")
    for view in get_args(View):
        rows = [
            f"| `{column.name}` | {column.dataType.simpleString()} | {_MEANING[view][column.name]} |"
            for column in schema_of(view)
        ]
        assert len(rows) == len(_MEANING[view]), f"{view} has fewer columns than are explained"
        parts.append(f"### View `{view}`\n\n{_ROWS[view]}\n\n| column | type | |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _options(options: type[WriteOptions | ReadOptions]) -> list[str]:
    told, defaults = _attributes(options), {each.name: each for each in fields(options)}
    rows: list[str] = []
    for name in known(options):
        field = _FIELDS.get(name) or re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
        text = re.sub(r"`(\w+)`", lambda named: f"`{_OPTIONS.get(named[1], named[1])}`", told[field])
        rows.append(f"| `{name}` | {_default(field, defaults[field])} | {text} |")
    return rows


def _attributes(kind: type) -> dict[str, str]:
    """What a docstring says of each attribute."""
    section = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
    return {
        name: " ".join(text.split())
        for name, text in re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", section, re.MULTILINE | re.DOTALL)
    }


def _default(name: str, field: Any) -> str:
    value = field.default
    if name.endswith("_ms") and value:
        return f"{value // 86_400_000} days"
    if name == "max_wait":
        return f"{value:g} s"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) and value else f"`{value}`" if isinstance(value, str) and value else ""


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
