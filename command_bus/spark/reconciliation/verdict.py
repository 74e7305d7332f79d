"""The verdict of a reconciliation: counts by status, and notes that explain them. Decided from numbers, without Spark.

A command that is in neither the outcomes, the rejects nor a mailbox is *missing*, unless there is another explanation: its outcome may
have been trimmed (*forgotten*), or its row was invalid and `on_invalid="drop"` left no record of it (*dropped*).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from command_bus.spark.reconciliation.dispatch_state import DispatchState

STATUSES = (
    "completed", "rejected", "expired", "dead_lettered", "parked", "cancelled", "discarded", "folded", "superseded", "quarantined",
    "dropped", "pending", "forgotten", "missing", "unexpected",
)  # fmt: skip
"""Each command has one of these. `unexpected` commands belong to the dispatch, but to none of the rows."""
FLAGS = ("duplicated", "out_of_order")
"""Faults of a command that also has a status."""
EFFECT_FLAGS = ("effect_missing", "effect_twice", "effect_unexpected")
"""Faults of a command whose effects are known."""
EFFECTS = ("effects", *EFFECT_FLAGS, "effect_early", "effect_unasked")
"""All counts of effects. The last two are no faults: a pending command may have its effect, and a table may be shared."""
WRONG = ("missing", "forgotten", *FLAGS, *EFFECT_FLAGS)


@dataclass(frozen=True, slots=True)
class Tally:
    """The counts of a reconciliation.

    Attributes:
        statuses: Commands by status, `untraced` ones among them.
        duplicated: Commands with an outcome after their final one.
        out_of_order: Commands that ran too late.
        conflicts: Rows that were rejected because another row has their command id.
        repaired: Rejected rows whose commands a repair has sent since.
        traced: Commands with an outcome, or in a mailbox.
        outcomes: Those that were read.
        unreadable: Those that another version wrote, or that are damaged.
        effects: The counts by `EFFECTS`; empty if they are not known.
        spelled: The id of a command, and that of an effect, where no effect is of any of these commands.
    """

    statuses: Mapping[str, int]
    duplicated: int = 0
    out_of_order: int = 0
    conflicts: int = 0
    repaired: int = 0
    traced: int = 0
    outcomes: int = 0
    unreadable: int = 0
    effects: Mapping[str, int] = field(default_factory=dict[str, int])
    spelled: tuple[str, str] | None = None


@dataclass(frozen=True)
class Verdict:
    """The interpretation of the counts.

    Attributes:
        counts: Commands by `STATUSES` and `FLAGS`; where effects are known, `EFFECTS`.
        untraced_as: The status of commands without a trace.
        notes: Explanations that belong to the counts.
    """

    counts: dict[str, int]
    untraced_as: str = "missing"
    notes: list[str] = field(default_factory=list[str])

    @classmethod
    def of(cls, tally: Tally, before: DispatchState, after: DispatchState) -> Verdict:
        """Decide from the counts.

        Args:
            tally: The counts.
            before: The state of the dispatch before anything was read.
            after: Its state after that, which shows what was trimmed in between.
        """
        untraced = tally.statuses.get("untraced", 0)
        doubtful = after.lossy or tally.unreadable > 0
        lost = max(before.facts.added + before.facts.folded - tally.traced, 0)
        name = "missing"
        if untraced and doubtful:
            name = "forgotten"
        elif untraced and not lost and untraced <= before.dropped:
            name = "dropped"
        counts = {status: tally.statuses.get(status, 0) for status in STATUSES} | {name: untraced}
        counts |= {"duplicated": tally.duplicated, "out_of_order": tally.out_of_order, **tally.effects}
        return cls(counts, name, [*_notes(tally, counts, after, lost), *_effect_notes(tally)])

    @property
    def ok(self) -> bool:
        """Whether each row is accounted for, once and in order; some may be pending."""
        return not self._faults

    @property
    def _faults(self) -> list[str]:
        """The names of the counts that must be 0, and are not."""
        return [name for name in WRONG if self.counts.get(name)]

    @property
    def settled(self) -> bool:
        """Whether nothing is pending."""
        return not self.counts["pending"]

    @property
    def total(self) -> int:
        """Commands of the dispatched rows."""
        return sum(self.counts[name] for name in STATUSES if name != "unexpected")

    def __str__(self) -> str:
        wrong = [f"{self.counts[name]:,} {name.replace('_', ' ')}" for name in self._faults]
        if wrong:
            return (
                "not proven: " + ", ".join(wrong)
                if self.untraced_as == "forgotten" and len(wrong) == 1
                else "wrong: " + ", ".join(wrong)
            )
        if not self.settled:
            return f"right so far: {self.counts['pending']:,} pending, all others accounted for, once and in order"
        if "effects" in self.counts:
            return "right: every row is accounted for, once and in order, and its effect is there once"
        return "right: every row is accounted for, once and in order"


def _notes(tally: Tally, counts: Mapping[str, int], after: DispatchState, lost: int) -> Iterator[str]:
    if after.open:
        yield "The dispatch is open: not all of its rows are loaded. Run it again under its id to complete it."
    if tally.unreadable:
        yield f"{tally.unreadable:,} outcomes cannot be read: another version of command_bus wrote them, or they are damaged."
    if counts["forgotten"]:
        much = f"{after.trimmed:,}" if after.trimmed else "an unknown number"
        yield (
            f"Outcomes are kept no more ({much}; see outcomes and maxOutcomes): the {counts['forgotten']:,} commands without a trace may "
            "have been among them, or be missing. Reconcile earlier, or keep outcomes for longer."
        )
    elif after.lossy and counts["out_of_order"]:
        yield "Outcomes are kept no more: what looks out of order may be a replay whose first outcome is gone."
    if counts["missing"]:
        yield (
            f"{lost:,} commands were accepted, but have no outcome and wait in no mailbox."
            if lost
            else "All accepted commands are accounted for: what is missing never arrived. Were the rows others when they were dispatched, "
            "or were rows dropped as invalid?"
        )
    if tally.conflicts:
        yield f"{tally.conflicts:,} rows were set aside because another row has their command id: the key is not unique (see rejects)."
    if tally.repaired:
        yield f"{tally.repaired:,} quarantined rows were mended and sent since, by repair=True: reconcile the report of that as well."
    if counts["unexpected"]:
        yield f"{counts['unexpected']:,} commands of the dispatch belong to none of these rows: are these the rows that were dispatched?"


def _effect_notes(tally: Tally) -> Iterator[str]:
    if early := tally.effects.get("effect_early"):
        yield f"{early:,} pending commands have an effect already: it commits before the outcome is stored."
    if unasked := tally.effects.get("effect_unasked"):
        yield f"{unasked:,} effects belong to none of these commands; other dispatches may have made them."
    if tally.spelled is not None:
        ours, theirs = tally.spelled
        yield f"No effect is of these commands. Their ids are written as {ours!r}, those of effects as {theirs!r}: are these the same ids?"
