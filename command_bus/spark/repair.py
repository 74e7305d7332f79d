"""`Repair`: the rows that an earlier load rejected, sent in a dispatch of their own once they are valid.

A row is recognised by its command id. The commit of a load marks the rejects whose ids it has accepted otherwise, and the commit of a
repair marks those that it has accepted, before it drops the ids. So what is not marked was never accepted. A load has one repair, which
may run any number of times: each run is a version of it, and a crashed one is completed by the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from command_bus.errors import DispatchConflict, InvalidSettings
from command_bus.spark.report import DispatchReport, RepairCounts
from command_bus.spark.target import Target, TargetConnection
from command_bus.spark.writing.task_results import REPAIRABLE, REPAIRED, read_summary
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
    def of(cls, connection: TargetConnection, target: Target, rows: DataFrame, load: str, name: str, *, dry_run: bool) -> Repair:
        """Make `name` the repair of a load, and read what that rejected.

        Raises:
            InvalidSettings: The load cannot be repaired.
            DispatchConflict: It has another repair, or `name` is no repair of it.
        """
        _check_load(connection.facts(load), load, name)
        own, bulk = connection.facts(name), connection.transport.bulk
        if own is not None and own.owner != owner_of_repair(load):
            raise DispatchConflict(f"dispatch {name!r} is no repair of {load!r}: give the repair an id of its own")
        holder = name if dry_run else connection.wait(bulk.claim_repair(load, name))
        if holder != name:
            raise DispatchConflict(
                f"dispatch {load!r} has the repair {holder!r}: run it again under that id, and it sends what is valid by now"
            )
        number = 0 if own is None else own.version + 1 if own.opened is None else own.opened
        reader = rows.sparkSession.read.format("command_bus").option("view", "rejects").option("dispatchId", load)
        rejects = reader.options(url=target.url, namespace=target.namespace).load()
        known = rejects.where(F.col("reason").isin(*REPAIRABLE, REPAIRED)).where(f"{_ID} is not null")
        ids = known.groupBy(_ID).agg(F.bool_or(F.col("reason") == REPAIRED).alias("repaired"))
        return cls(load, Version(name, number), rows, ids.localCheckpoint())

    @property
    def candidates(self) -> DataFrame:
        """The rows to send: those of the rejected ids that are not repaired."""
        return self.rows.join(F.broadcast(self._waiting), _ID, "left_semi")

    @property
    def _waiting(self) -> DataFrame:
        return self.rejected.where("not repaired").select(_ID)

    def counted(self, report: DispatchReport) -> DispatchReport:
        """Return the report of this run, with the counts of the repair and all rows that belong to it."""
        rejected, waiting = self.rejected.count(), self._waiting.count()
        accepted = report.added + report.folded + (rejected - waiting if report.dry_run_rejects is not None else 0)
        absent = self._waiting.join(self.rows.select(_ID), _ID, "left_anti").count()
        counts = RepairCounts(self.load, rejected, accepted, rejected - accepted - absent, absent)
        return replace(report, commands=self.rows.join(F.broadcast(self.rejected), _ID, "left_semi"), repair=counts)


def owner_of_repair(load: str) -> str:
    """Return the owner of the dispatch that repairs a load."""
    return f"repair of {load}"


def _check_load(facts: DispatchFacts | None, load: str, name: str) -> None:
    """Check that a load can be repaired.

    Raises:
        InvalidSettings: It cannot.
    """
    summary = None if facts is None or facts.rejected else read_summary(facts.summary)
    for wrong, why in (
        (load == name, "give the repair a dispatch id of its own, such as the load's with '-repair'"),
        (facts is None, "there is no such dispatch: it was never opened, had no rows, or is forgotten"),
        (facts and facts.owner.startswith(owner_of_repair("")), "it is a repair itself: run it again under its id, as the repair of its load"),
        (facts and (facts.owner or facts.version > 0), "it is a stream: send mended rows through the stream, or as a load of their own"),
        (facts and facts.state == "open", "it is not complete: run it again under its id first, which sends what is valid by now"),
        (summary and summary.total.rejected, "it dropped its rejected rows (on_invalid), so that nothing is known of them"),
    ):  # fmt: skip
        if wrong:
            raise InvalidSettings(f"repair = {load!r}: {why}")
