"""The result of a task: counts, and the rows that are no commands. Imports nothing of Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from command_bus.errors import InvalidRows
from command_bus.serialization.json_forms import read_json
from command_bus.serialization.odd_values import pass_over
from command_bus.serialization.stored_fields import stored_fields
from command_bus.spark.options import OnInvalid
from command_bus.transport.ports.bulk import LoadItem
from command_bus.transport.submissions import Admission

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
"""Refusals of commands that can never be accepted: the reason, and its explanation."""
REPAIRABLE = ("invalid", "unknown_command", "wrong_type")
"""Reasons of rejects that may be accepted once they are mended."""
REPAIRED, ACCEPTED_OTHERWISE = "repaired", "accepted_otherwise"
"""Reasons that take the place of these when the command id was accepted: by a repair, or by another row or attempt of the same load."""
REPAIR_OF = "repair of "
"""The begin of the owner of a repair; the id of the load is behind it."""


@dataclass(slots=True)
class PartitionResult:
    """The result of a partition.

    Attributes:
        partition: Its number, -1 if unknown.
        rows: Those that were read.
        added: Commands that this attempt has put into their mailboxes.
        duplicates: Rows whose command was there already: of an earlier attempt, or of an equal row.
        rejected: Rows that are no commands, or cannot be accepted (a conflict of ids, a decreasing sequence number).
        entities: Distinct mailboxes.
        waited: Seconds that limits blocked it.
        seconds: Total time.
        done: Whether its version was committed already, so that nothing was added.
        shared: Entities of which another task of the same run has rows too: their order is left to chance.
        digest: Sum over the rows' command ids, see `fingerprint`.
        conflicts: Rejected rows whose command id was accepted with another payload.
        folded: Rows that this attempt brought and that were dropped, because a command stood for their unique key.
        replaced: Commands of `added` that took the place of another one of their unique key.
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
    folded: int = 0
    replaced: int = 0

    def count(self, admissions: list[Admission]) -> int:
        """Count what became of rows that were sent; return how many were added."""
        replaced = admissions.count(Admission.REPLACED)
        added = admissions.count(Admission.ACCEPTED) + replaced
        self.added += added
        if added < len(admissions) or replaced:
            self.replaced += replaced
            self.duplicates += admissions.count(Admission.DUPLICATE)
            self.folded += admissions.count(Admission.FOLDED)
        return added


_SUMMED = ("rows", "added", "duplicates", "rejected", "conflicts", "entities", "waited")


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary that the commit of a version stores.

    Attributes:
        partitions: The results of its tasks.
        seconds: That this version and all before it took, added up.
        conflicts: Rejected rows whose command id was accepted with another payload, of this version and all before it.
        before: The results of the versions before it, added up.
    """

    partitions: tuple[PartitionResult, ...] = ()
    seconds: float = 0.0
    conflicts: int = 0
    before: PartitionResult = field(default_factory=PartitionResult)

    @property
    def total(self) -> PartitionResult:
        """The results of this version and all before it, added up."""
        results = (self.before, *self.partitions)
        sums: dict[str, Any] = {name: sum(getattr(each, name) for each in results) for name in _SUMMED}
        return PartitionResult(**sums)


def read_summary(text: str) -> Summary | None:
    """Return a summary that any release may have written; None if there is none, or it cannot be read."""
    try:
        found = read_json(text) if text else None
        if found is None:
            return None
        parts = tuple(PartitionResult(**stored_fields(PartitionResult, part)) for part in found["partitions"])
        before = PartitionResult(**stored_fields(PartitionResult, found.get("before", {})))
        return Summary(parts, **stored_fields(Summary, found, ("seconds", "conflicts")), before=before)
    except (ValueError, KeyError, TypeError) as error:
        pass_over("b", "summary", error)
        return None


@dataclass(slots=True, frozen=True)
class RowReject:
    """A row that is no command.

    Attributes:
        key: The same for the same row in every attempt.
        record: The reason and the row, as JSON.
    """

    key: str
    record: bytes

    @classmethod
    def of(
        cls, *, command_id: str | None, command: str, entity: str | None, reason: str, error: str, row: dict[str, Any]
    ) -> RowReject:
        """Return the reject of a row; long values are cut."""
        shown = {name: _shown(value) for name, value in row.items()}
        facts = {"command_id": command_id, "command": command, "entity": entity, "reason": reason, "error": error, "row": shown}
        record = json.dumps(facts, ensure_ascii=False, default=str).encode("utf-8", "replace")
        return cls(f"{command_id or ''}#{crc32(record):08x}", record)


def accepted_since(reason: str, record: bytes) -> bytes:
    """Return the record of a reject whose command id was accepted since, with the reason for that if it could be repaired before."""
    try:
        facts: Any = read_json(record)
        if facts["reason"] not in REPAIRABLE:
            return record
        return json.dumps({**facts, "reason": reason}, ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, KeyError, TypeError) as error:  # any client may have written it
        pass_over("b", "reject", error)
        return record


def permanent_reject(item: LoadItem, admission: Admission) -> RowReject:
    """Return the reject of a packed command that can never be accepted."""
    reason, text = PERMANENT_REFUSALS[admission]
    mailbox, command_id, check, _, entity, number, _, _ = item
    row = {"mailbox": mailbox, "sequence": number, "payload_check": check.hex()}
    return RowReject.of(command_id=command_id, command="", entity=entity or None, reason=reason, error=text, row=row)


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)  # noqa: PLR0124 - NaN is no JSON
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= 1000 else text[:1000] + "…"


_CHUNK = 200  # stored at a time


class RejectStore:
    """Rejects of one partition.

    Args:
        dispatch_id: Name of the dispatch.
        result: The partition's result, which counts them.
        store: Stores keys and records on the server; returns False once the dispatch has more than `max_rejects`.
        on_invalid: What to do with them.
        max_rejects: The number of them above which `InvalidRows` is raised.
    """

    def __init__(
        self,
        dispatch_id: str,
        result: PartitionResult,
        store: Callable[[list[tuple[str, bytes]]], bool],
        on_invalid: OnInvalid,
        max_rejects: int | None,
    ) -> None:
        self._dispatch_id = dispatch_id
        self._result = result
        self._store = store
        self._on_invalid = on_invalid
        self._max_rejects = max_rejects
        self._rejects: list[RowReject] = []

    def add(self, reject: RowReject) -> None:
        """Count a row, and do with it what `on_invalid` says.

        Raises:
            InvalidRows: `on_invalid` is `raise`, or there are too many rejects.
        """
        self._result.rejected += 1
        if self._on_invalid == "raise":
            raise self._invalid(json.loads(reject.record))
        if self._on_invalid == "quarantine":
            self._rejects.append(reject)
            if len(self._rejects) >= _CHUNK:
                self.flush()
        elif self._max_rejects is not None and self._result.rejected > self._max_rejects:
            raise self._too_many()

    def flush(self) -> None:
        """Store the rejects that are not stored yet, unless the version was committed already.

        Raises:
            InvalidRows: There are too many rejects.
        """
        rejects, self._rejects = self._rejects, []
        if not rejects or self._result.done:
            return
        if not self._store([(reject.key, reject.record) for reject in rejects]):
            raise self._too_many()

    def _invalid(self, facts: dict[str, Any]) -> InvalidRows:
        what = "in conflict" if facts["reason"] == "conflict" else "no valid command"
        return InvalidRows(
            f"dispatch {self._dispatch_id!r}: a row is {what}: {facts['error']} "
            f"(command id {facts['command_id']!r}); on_invalid = quarantine would set such rows aside",
            count=self._result.rejected,
        )

    def _too_many(self) -> InvalidRows:
        return InvalidRows(
            f"dispatch {self._dispatch_id!r}: more than {self._max_rejects} rows are no valid commands"
            f"{', or in conflict with commands that are in,' if self._result.conflicts else ''} (max_rejects); "
            "what was noted of them can be read as the view 'rejects'",
            count=self._result.rejected,
        )
