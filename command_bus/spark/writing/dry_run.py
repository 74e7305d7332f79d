"""`DryRun`: a dispatch that sends nothing. Its rows are checked, packed and counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from command_bus.spark.errors import without_spark_frames
from command_bus.spark.writing.columns import map_in_arrow
from command_bus.spark.writing.encoder import gc_paused
from command_bus.spark.writing.partition import PartitionDispatcher
from command_bus.spark.writing.task_results import PartitionResult, RowReject, permanent_reject
from command_bus.spark.writing.writer import WritePlan
from command_bus.transport.ports.bulk import LoadItem
from command_bus.transport.submissions import Admission

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHOWN = 1_000  # rejects that a task returns


class DryRun(PartitionDispatcher):
    """Counts what a dispatch of a partition's rows would add.

    Attributes:
        rejects: Records of the distinct rows that are no commands, at most a thousand.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rejects: dict[str, bytes] = {}
        self._checks: dict[str, bytes] = {}
        self._mailboxes: set[str] = set()

    def agree(self, entity_type: str) -> None:
        """Agree on nothing: that would be written to the server."""

    def open(self) -> None:
        """Open nothing."""

    def flush(self) -> None:
        """Count the entities."""
        self.result.entities = len(self._mailboxes)

    def add(self, shard: int, items: Iterable[LoadItem]) -> None:
        """Count commands as the server would: equal ones once, contradicting ones as rejected."""
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
                self.reject(permanent_reject(item, Admission.CONFLICT), read=False)

    def reject(self, reject: RowReject, *, read: bool = True) -> None:
        """Count a row that is no command, and keep it to be shown."""
        self.result.rows += read
        self.result.rejected += 1
        if len(self.rejects) < _SHOWN:
            self.rejects[reject.key] = reject.record


@dataclass(frozen=True)
class DryRunTask:
    """A dry run of one partition, as a function for `mapInArrow`."""

    plan: WritePlan

    RESULT: ClassVar[str] = "result string, keys array<string>, records array<string>"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row: the counts and the rejects."""
        with without_spark_frames():
            dry_run = self._run(batches)
        keys, records = [[*dry_run.rejects]], [[record.decode() for record in dry_run.rejects.values()]]
        columns = [[json.dumps(asdict(dry_run.result))], keys, records]
        kinds = [pa.string(), pa.list_(pa.string()), pa.list_(pa.string())]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=["result", "keys", "records"])

    def _run(self, batches: Iterator[pa.RecordBatch]) -> DryRun:
        with DryRun(self.plan.target, dispatch_id="dry_run", opening=self.plan.opening) as dry_run:
            encoder = self.plan.encoder(dry_run)
            for batch in batches:
                with gc_paused():
                    rows = encoder.encode(batch)
                dry_run.add_all(rows)
        return dry_run

    def run(self, rows: DataFrame) -> tuple[list[PartitionResult], list[bytes]]:
        """Return the counts of all partitions, and the distinct rejects."""
        found = map_in_arrow(rows, self, self.RESULT).collect()
        rejects = {key: record.encode() for row in found for key, record in zip(row[1], row[2], strict=True)}
        return [PartitionResult(**json.loads(row.result)) for row in found], [*rejects.values()]
