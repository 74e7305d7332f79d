"""`Rehearsal`: a dispatch that sends nothing. Rows are checked and packed as for one, and counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from command_bus.spark.target import Link, link_to
from command_bus.spark.writing.columns import in_arrow
from command_bus.spark.writing.encoder import uncollected
from command_bus.spark.writing.partition import PartitionDispatcher
from command_bus.spark.writing.task_results import PartitionResult, Reject, unfit
from command_bus.spark.writing.writer import Writing, told
from command_bus.transport.bulk import LoadItem
from command_bus.transport.submissions import Admission

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Rehearsal", "RehearsedTask"]

_SHOWN = 1_000  # rejects that a task hands back


class _Spectator:
    """A link that agrees with everybody: agreements are written down, and a rehearsal writes nothing."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def agree(self, entity_type: str, max_wait: float = 0.0) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)


class Rehearsal(PartitionDispatcher):
    """Counts what would become of a partition's rows.

    Attributes:
        rejects: The records of the different rows that are no commands, at most a thousand.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rejects: dict[str, bytes] = {}
        self._checks: dict[str, bytes] = {}
        self._mailboxes: set[str] = set()

    @property
    def link(self) -> Any:
        """The connection of this process, to look up what the namespace is made of."""
        return _Spectator(link_to(self.target))

    def open(self) -> None:
        """Open nothing."""

    def flush(self) -> None:
        """Count entities."""
        self.result.entities = len(self._mailboxes)

    def add(self, shard: int, items: Iterable[LoadItem]) -> None:
        """Count commands as the server would: equal ones once, and those that contradict another as rejected."""
        for item in items:
            self.result.rows += 1
            mailbox, command_id, check = item[:3]
            self._mailboxes.add(mailbox)
            before = self._checks.get(command_id)
            if before is None:
                self._checks[command_id] = check
                self.result.added += 1
            elif before == check:
                self.result.duplicates += 1
            else:
                self.result.conflicts += 1
                self.reject(unfit(item, Admission.CONFLICT), read=False)

    def reject(self, reject: Reject, *, read: bool = True) -> None:
        """Count it, and keep it to be shown."""
        self.result.rows += read
        self.result.rejected += 1
        if len(self.rejects) < _SHOWN:
            self.rejects[reject.key] = reject.record


@dataclass(frozen=True)
class RehearsedTask:
    """Rehearses one partition, as a function for `mapInArrow`."""

    writing: Writing

    RESULT: ClassVar[str] = "result string, keys array<string>, records array<string>"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row: the counts, and the rejects."""
        rehearsal = told(self._run, batches)
        keys, records = [[*rehearsal.rejects]], [[record.decode() for record in rehearsal.rejects.values()]]
        columns = [[json.dumps(asdict(rehearsal.result))], keys, records]
        kinds = [pa.string(), pa.list_(pa.string()), pa.list_(pa.string())]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=["result", "keys", "records"])

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Rehearsal:
        with Rehearsal(self.writing.target, dispatch_id="rehearsal", opening=self.writing.opening) as rehearsal:
            encoder = self.writing.encoder(rehearsal)
            for batch in batches:
                with uncollected():
                    rows = encoder.encode(batch)
                rehearsal.add_all(rows)
        return rehearsal

    def run(self, rows: DataFrame) -> tuple[list[PartitionResult], list[bytes]]:
        """The counts of all partitions, and the different rejects."""
        found = in_arrow(rows, self, self.RESULT).collect()
        rejects = {key: record.encode() for row in found for key, record in zip(row[1], row[2], strict=True)}
        return [PartitionResult(**json.loads(row.result)) for row in found], [*rejects.values()]
