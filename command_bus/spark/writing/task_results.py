"""What a task tells of its rows: figures, and the rows that are no commands. Imports nothing of Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from command_bus.transport.bulk import LoadItem
from command_bus.transport.submissions import Admission

__all__ = ["PERMANENT_REFUSALS", "PartitionResult", "Reject", "permanent_reject"]

PERMANENT_REFUSALS = {
    Admission.CONFLICT: (
        "conflict",
        (
            "a command of this dispatch has the same id and another payload: the key is not unique, or an earlier run brought the row in "
            "and one of its columns changes with every run, as current_timestamp() does"
        ),
    ),
    Admission.WRONG_TYPE: (
        "wrong_type",
        "this entity's mailbox takes no commands: its key holds something else, or its stream's ids are used up: another program writes there",
    ),
    Admission.OUT_OF_SEQUENCE: ("out_of_sequence", "its sequence number is not above the last one of its entity"),
}
"""Of commands that can never be accepted: the reason, and what it means."""


@dataclass(slots=True)
class PartitionResult:
    """What became of the rows of a partition.

    Attributes:
        partition: Its number, -1 if unknown.
        rows: That were read.
        added: That are in their mailboxes because of this attempt.
        duplicates: That were there already: an earlier attempt, or the same row twice.
        rejected: That are no commands, or cannot be accepted (a conflict of ids, a sequence number that went back).
        conflicts: Of the rejected ones, those whose command id is in with another payload.
        entities: Distinct mailboxes.
        shared: Entities of which another task of the same run has rows as well: their order is left to chance.
        digest: Of the rows' command ids, see `fingerprints`.
        waited: Seconds that limits held it up.
        seconds: In all.
        done: Whether its version had been committed already, so that nothing was added.
    """

    partition: int = -1
    rows: int = 0
    added: int = 0
    duplicates: int = 0
    rejected: int = 0
    entities: int = 0
    waited: float = 0.0
    seconds: float = 0.0
    done: bool = False
    shared: int = 0
    digest: int = 0
    conflicts: int = 0


@dataclass(slots=True, frozen=True)
class Reject:
    """A row that is no command.

    Attributes:
        key: Tells it from others, whichever attempt meets it.
        record: Why, and what it was, as JSON.
    """

    key: str
    record: bytes

    @classmethod
    def of(
        cls, *, command_id: str | None, command: str, entity: str | None, reason: str, error: str, row: dict[str, Any]
    ) -> Reject:
        """The reject of a row; long values are cut."""
        shown = {name: _shown(value) for name, value in row.items()}
        facts = {"command_id": command_id, "command": command, "entity": entity, "reason": reason, "error": error, "row": shown}
        record = json.dumps(facts, ensure_ascii=False, default=str).encode("utf-8", "replace")
        return cls(f"{command_id or ''}#{crc32(record):08x}", record)


def permanent_reject(item: LoadItem, admission: Admission) -> Reject:
    """The reject of a packed command that cannot be accepted."""
    reason, text = PERMANENT_REFUSALS[admission]
    mailbox, command_id, check, _, entity, number = item
    row = {"mailbox": mailbox, "sequence": number, "payload_check": check.hex()}
    return Reject.of(command_id=command_id, command="", entity=entity or None, reason=reason, error=text, row=row)


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)  # noqa: PLR0124 - NaN is no JSON
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= 1000 else text[:1000] + "…"
