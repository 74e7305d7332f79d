"""`Repair`: the rows that an earlier load rejected, sent in a dispatch of their own once they are valid.

A row is recognised by its command id. The commit of a load marks the rejects whose ids it has accepted otherwise, and the commit of a
repair marks those that it has accepted, before it drops the ids. So what is not marked was never accepted. The repair has the load's id
with `/repair` behind it and may run any number of times: each run is a version of it, and a crashed one is completed by the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from command_bus.errors import InvalidSettings
from command_bus.spark.report import DispatchReport, RepairCounts, dispatch_report
from command_bus.spark.target import Target, TargetConnection
from command_bus.spark.writing.task_results import REPAIR_OF, REPAIRABLE, REPAIRED
from command_bus.transport.ports.bulk import DispatchFacts, Version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ID = "command_id"


@dataclass(frozen=True)
class Repair:
    """One run of the repair of a load.

    Attributes:
        load: The dispatch id of the load.
        version: What this run commits.
        rows: Those that the caller has, with their ids.
        rejected: The ids that the load rejected, and whether they are `repaired`; Spark keeps it.
    """

    load: str
    version: Version
    rows: DataFrame
    rejected: DataFrame

    @classmethod
    def of(cls, connection: TargetConnection, target: Target, rows: DataFrame, load: str) -> Repair:
        """Read what a load rejected. The version is read first: while it is not committed, nothing of it is marked.

        Raises:
            InvalidSettings: The load is not known, or cannot be repaired.
        """
        loaded = dispatch_report(rows, load, url=target.url, namespace=target.namespace)
        facts, own = (connection.facts(name) or DispatchFacts(name) for name in (load, f"{load}/repair"))
        _check_load(loaded, facts)
        known = loaded.rejects().where(F.col("reason").isin(*REPAIRABLE, REPAIRED)).where(f"{_ID} is not null")
        ids = known.groupBy(_ID).agg(F.bool_or(F.col("reason") == REPAIRED).alias("repaired")).localCheckpoint()
        return cls(load, Version(own.dispatch_id, own.version + 1 if own.opened is None else own.opened), rows, ids)

    @property
    def candidates(self) -> DataFrame:
        """The rows to send: those of the rejected ids that are not repaired."""
        return self.rows.join(F.broadcast(self._waiting), _ID, "left_semi")

    @property
    def _waiting(self) -> DataFrame:
        return self.rejected.where("not repaired").select(_ID)

    def counted(self, report: DispatchReport) -> DispatchReport:
        """Return the report of this run, with the counts of the repair and all rows that belong to it."""
        rejected = self.rejected.count()
        accepted = report.added + report.folded
        if report.dry_run_rejects is not None:
            accepted += rejected - self._waiting.count()
        absent = self._waiting.join(self.rows, _ID, "left_anti").count()
        counts = RepairCounts(self.load, rejected, accepted, rejected - accepted - absent, absent)
        return replace(report, commands=self.rows.join(F.broadcast(self.rejected), _ID, "left_semi"), repair=counts)


def _check_load(loaded: DispatchReport, facts: DispatchFacts) -> None:
    """Check that a load can be repaired.

    Raises:
        InvalidSettings: It cannot.
    """
    if facts.owner.startswith(REPAIR_OF):
        why = "it is a repair itself: give the id of its load"
    elif facts.owner or facts.version > 0:
        why = "it is a stream: send mended rows through the stream, or as a load of their own"
    elif loaded.state == "open":
        why = "it is not complete: run it again without repair first, which sends what is valid by now"
    elif loaded.rejected and not facts.rejected:
        why = "it dropped its rejected rows (on_invalid), so that nothing is known of them"
    else:
        return
    raise InvalidSettings(f"dispatch {facts.dispatch_id!r} cannot be repaired: {why}")
