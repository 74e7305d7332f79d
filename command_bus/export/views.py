"""The views that can be read, each a table with fixed columns.

| view | a row for each |
| --- | --- |
| `outcomes` | command of a dispatch that was settled; several for one that was dead-lettered or parked and then replayed |
| `deadLetters` | dead letter that was neither replayed nor discarded since |
| `rejects` | row of a dispatch that is no command |
| `entities` | entity that has work, or is paused |
| `dispatches` | dispatch that is remembered |
| `states` | entity that has a state |
| `history` | end of a command that has a history; several for one that was replayed |
| `steps` | step of a durable command whose history keeps them |
| `events` | event of a watched type |
| `audit` | act of an operator, and a further one for what came of it |

Columns are declared once, as names and kinds: the schemas of Spark and of Arrow are both made from these. Times are UTC.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["text", "int", "long", "real", "flag", "time"]
View = Literal["outcomes", "deadLetters", "rejects", "entities", "dispatches", "states", "history", "steps", "events", "audit"]

COLUMNS: dict[View, dict[str, Kind]] = {
    "outcomes": {
        "dispatch_id": "text", "command_id": "text", "command": "text", "entity_type": "text", "entity": "text", "status": "text",
        "attempt": "int", "worker": "text", "accepted_at": "time", "started_at": "time", "finished_at": "time", "fence": "long",
        "message": "text", "error_type": "text", "error_message": "text", "result": "text", "other": "text", "shard": "int", "entry": "text",
    },
    "deadLetters": {
        "id": "text", "dispatch_id": "text", "command_id": "text", "command": "text", "entity_type": "text", "entity": "text",
        "reason": "text", "error_type": "text", "error_message": "text", "traceback": "text", "attempts": "int",
        "accepted_at": "time", "first_started_at": "time", "failed_at": "time", "worker": "text", "parked": "flag", "payload": "text",
    },
    "rejects": {
        "dispatch_id": "text", "command_id": "text", "command": "text", "entity": "text", "reason": "text", "error": "text", "row": "text",
    },
    "entities": {
        "entity_type": "text", "entity": "text", "mailbox": "text", "state": "text", "depth": "long", "oldest_accepted_at": "time",
        "attempt": "int", "shard": "int",
    },
    "dispatches": {
        "dispatch_id": "text", "state": "text", "version": "long", "opened_at": "time", "committed_at": "time", "added": "long",
        "duplicates": "long", "folded": "long", "replaced": "long", "rejected": "long", "outcomes": "long", "trimmed": "long", "pending": "long",
        "outcomes_until": "time", "remembered_until": "time", "what": "text", "summary": "text",
    },
    "states": {
        "entity_type": "text", "entity": "text", "state": "text", "changed_at": "time", "revision": "long", "version": "int", "bytes": "long",
        "shard": "int",
    },
    "history": {
        "command_id": "text", "command": "text", "entity_type": "text", "entity": "text", "status": "text", "attempt": "int", "worker": "text",
        "accepted_at": "time", "started_at": "time", "finished_at": "time", "fence": "long", "message": "text", "error_type": "text",
        "error_message": "text", "result": "text", "other": "text", "others": "text", "payload": "text", "encrypted": "flag", "shard": "int",
        "entry": "text",
    },
    "steps": {
        "command_id": "text", "command": "text", "entity_type": "text", "entity": "text", "status": "text", "finished_at": "time", "number": "int",
        "kind": "text", "name": "text", "result": "text", "error": "text", "is_open": "flag", "called": "text", "until": "time", "cut": "flag",
        "encrypted": "flag", "shard": "int", "entry": "text",
    },
    "events": {
        "at": "time", "kind": "text", "entity_type": "text", "entity": "text", "scope": "text", "command_id": "text", "command": "text",
        "attempt": "int", "fence": "long", "worker": "text", "delay": "real", "letter_id": "text", "reason": "text", "schedule": "text",
        "count": "long", "shard": "int", "entry": "text",
    },
    "audit": {
        "at": "time", "who": "text", "act": "text", "target": "text", "why": "text", "outcome": "text", "ref": "text", "details": "text",
        "entry": "text",
    },
}  # fmt: skip
