"""`Fingerprint`: identifies the rows of a version of a dispatch without storing them.

It holds the number of rows and the sum of the CRC-32 of their command ids, which depend on neither order nor partitions; Spark computes
the same as `sum(crc32(command_id))`. Payloads are not part of it: a column such as the time of the run may differ for the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from zlib import crc32

from command_bus.errors import DispatchConflict
from command_bus.serialization.json_forms import read_json
from command_bus.serialization.odd_values import pass_over
from command_bus.serialization.stored_fields import stored_fields
from command_bus.spark.writing.task_results import read_summary
from command_bus.transport.ports.bulk import DispatchFacts, Version


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The fingerprint of rows.

    Attributes:
        rows: Number of rows.
        digest: Sum over their command ids; None if unknown.
        commands: The wire names, sorted; empty if unknown.
        columns: Those that the commands are made of, with types; empty if unknown.
    """

    rows: int
    digest: int | None = None
    commands: str = ""
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if value not in (None, "", ())})

    @classmethod
    def parse(cls, text: str) -> Fingerprint | None:
        """Return the fingerprint that a commit stored; None if it cannot be read."""
        try:
            return cls(**stored_fields(cls, read_json(text)))
        except (ValueError, TypeError) as error:
            pass_over("b", "load", error)
            return None

    def difference(self, now: Fingerprint) -> str | None:
        """Return how other rows differ from these, as far as known; None if they do not."""
        if self.rows != now.rows:
            return f"{self.rows:,} rows then, {now.rows:,} now"
        if self.digest is not None and now.digest is not None and self.digest != now.digest:
            return f"as many rows ({self.rows:,}), but with other command ids"
        if self.commands and now.commands and self.commands != now.commands:
            return f"the command was {self.commands} then, it is {now.commands} now"
        then, these = set(self.columns), set(now.columns)
        if self.columns and now.columns and then != these:
            return f"columns then: {', '.join(sorted(then - these)) or 'none besides'}; now: {', '.join(sorted(these - then)) or 'none besides'}"
        return None


def ids_digest(command_ids: Iterable[bytes]) -> int:
    """Return the part of the digest for these ids."""
    return sum(map(crc32, command_ids))


def check_same_rows(version: Version, facts: DispatchFacts, known: Mapping[int, str], now: Fingerprint) -> Fingerprint | None:
    """Check that a committed version was made of these rows. Return what is known of the committed rows; None if nothing is.

    Args:
        version: What is committed.
        facts: The record of the dispatch.
        known: The fingerprints of its versions.
        now: The fingerprint of the rows at hand.

    Raises:
        DispatchConflict: It was made of other rows. Going on would lose these without an error.
    """
    before = Fingerprint.parse(known[version.number]) if version.number in known else None
    if before is None and version.number == facts.version:  # a release without fingerprints committed it
        rows = rows_of_summary(facts.summary)
        before = None if rows is None else Fingerprint(rows)
    if before is None and now.rows and any(number < version.number for number in known):
        before = Fingerprint(0)  # it was empty: empty micro-batches store nothing
    difference = None if before is None else before.difference(now)
    if difference is None:
        return before
    name = f"dispatch {version.dispatch_id!r}"
    if version.number or facts.owner:
        raise DispatchConflict(
            f"{name}: micro-batch {version.number} was committed before, with other rows: {difference}. None of these were sent. Was an "
            "old checkpoint restored? Then its batch numbers begin again, and the dispatch has gone on: use a new dispatch id with it, "
            "and leave out the rows that are in already (their command ids tell)"
        )
    raise DispatchConflict(
        f"{name} was committed before, at {utc_text(facts.done_ms)}, with other rows: {difference}. Nothing was sent. "
        "Give other rows a dispatch id of their own"
    )


def rows_of_summary(summary: str) -> int | None:
    """Return the number of rows in a summary; None if it has none."""
    found = read_summary(summary)
    return None if found is None else sum(each.rows for each in found.partitions)


def utc_text(ms: int) -> str:
    """Return a time for people."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
