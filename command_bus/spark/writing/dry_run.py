"""`DryRun`: a dispatch that sends nothing. Its rows are checked, packed and counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from command_bus.export.columns import batch_of, gc_paused, reject_row
from command_bus.spark.errors import without_spark_frames
from command_bus.spark.reading.views import schema_of
from command_bus.spark.writing.columns import map_in_arrow
from command_bus.spark.writing.partition import PartitionDispatcher
from command_bus.spark.writing.task_results import PartitionResult, RowReject, Summary, permanent_reject
from command_bus.spark.writing.writer import WritePlan
from command_bus.transport.ports.bulk import LoadItem
from command_bus.transport.submissions import Admission

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class DryRun(PartitionDispatcher):
    """Counts what a dispatch of a partition's rows would add.

    Attributes:
        mailboxes: Those of its commands.
        rejects: Records of the rows that are no commands, by their keys, until it is cleared.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rejects: dict[str, bytes] = {}
        self._checks: dict[str, bytes] = {}
        self.mailboxes: set[str] = set()

    def agree(self, entity_type: str) -> None:
        """Agree on nothing: that would be written to the server."""

    def open(self) -> None:
        """Open nothing."""

    def flush(self) -> None:
        """Send nothing."""

    def add(self, shard: int, items: Iterable[LoadItem]) -> None:
        """Count commands as the server would: equal ones once, contradicting ones as rejected."""
        for item in items:
            self.result.rows += 1
            mailbox, command_id, check = item[:3]
            self.mailboxes.add(mailbox)
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
        self.rejects[reject.key] = reject.record


@dataclass(frozen=True)
class DryRunTask:
    """A dry run of one partition, as a function for `mapInArrow`."""

    plan: WritePlan

    RESULT: ClassVar[str] = "kind string, key string, record string"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rejects by their keys, the mailboxes, and the counts."""
        with without_spark_frames(), DryRun(self.plan.target, dispatch_id="dry_run", opening=self.plan.opening) as dry_run:
            encoder = self.plan.encoder(dry_run)
            for batch in batches:
                with gc_paused():
                    rows = encoder.encode(batch)
                dry_run.add_all(rows)
                yield _found("reject", dry_run.rejects)
                dry_run.rejects.clear()
            yield _found("mailbox", dict.fromkeys(dry_run.mailboxes, b""))
            yield _found("result", {"": json.dumps(asdict(dry_run.result)).encode()})

    def run(self, rows: DataFrame, dispatch_id: str) -> tuple[Summary, int, DataFrame]:
        """Return the counts of all partitions, the number of entities, and the view of the distinct rejects, which Spark keeps.

        Args:
            rows: Those of one command id are in one partition.
            dispatch_id: What the view shows as the dispatch.
        """
        found = map_in_arrow(rows, self, self.RESULT).localCheckpoint()
        results = tuple(PartitionResult(**json.loads(row.record)) for row in found.where("kind = 'result'").collect())
        entities = found.where("kind = 'mailbox'").select("key").distinct().count()
        rejects = found.where("kind = 'reject'").dropDuplicates(["key"]).select("record")
        summary = Summary(results, conflicts=sum(each.conflicts for each in results))
        return summary, entities, rejects.mapInArrow(partial(_shown, dispatch_id), schema_of("rejects"))


def _found(kind: str, records: Mapping[str, bytes]) -> pa.RecordBatch:
    columns = [[kind] * len(records), [*records], map(bytes.decode, records.values())]
    return pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in columns], ["kind", "key", "record"])


def _shown(dispatch_id: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield records as rows of the view `rejects`."""
    for batch in batches:
        yield batch_of("rejects", [reject_row(dispatch_id, record) for record in batch.column(0).cast(pa.binary()).to_pylist()])
