"""`ScheduleRecord`: a schedule as it is stored: what was put, and how far it has come.

The record is one value, written by compare-and-set only: who decides something from a record that has changed meanwhile writes nothing.
Two workers that decide the same write the same bytes, and both go on.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Self
from zlib import crc32

from command_bus.clock import time_of
from command_bus.messages.schedule_specs import Cron, SchedulePolicy, ScheduleSpec, every
from command_bus.serialization.native import Packer, unpackb
from command_bus.serialization.odd_values import pass_over
from command_bus.serialization.stored_fields import stored_fields

_VERSION = 1
_TIMES = ("triggers", "ahead", "origin", "next", "last", "last_at", "paused", "pinned", "chain", "floor", "exported")
_COUNTS = ("fired", "runs", "missed", "skipped", "late", "seq", "revision")


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """One schedule.

    Attributes:
        name: Its name.
        template: The envelope of its command, signed as a template, with the schedule's name as its id.
        spec: Its times.
        policy: Its rules.
        revision: Number in the code that declared it; 0 if none did.
        by_hand: Whether it was put by hand behind that.
        incarnation: Differs between two schedules of one name, one after the other.
        seq: Counts the firings, whether they have happened or not.
        origin: The place where the periods of `every` begin, in ms.
        next: When it ticks next; None: it does not.
        last: When it last fired; 0: it never did.
        last_id: The command id of the last firing; empty: there was none.
        last_at: When the last firing was accepted, about.
        fired: How many firings there were, those by hand included.
        runs: How many ticks were fired.
        missed: Ticks that were left out because no worker was there in time; of more than a thousand at a time, a thousand.
        skipped: Ticks that were left out because of `overlap`.
        late: Firings more than a second behind their time.
        paused: Since when it is paused, in ms; 0: it is not.
        reason: Why.
        pinned: The tick whose firing is under way; 0: none is.
        manual: Whether that firing was asked for by hand.
        triggers: The times at which firings by hand were asked for that are still to come.
        chain: The first of the ticks that were all fired up to `last`.
        floor: No tick up to here is fired any more.
        ahead: Ticks that were fired before their time, from the first to the last: clocks had jumped ahead. Empty, or two.
        catching_up: Whether missed ticks are being fired one by one.
        exported: Since when it is taken along to another place, in ms: nothing of it fires here; 0: it is not.
        tenant: The value of the class's `fair_by` field; empty if it names none.
    """

    name: str
    template: bytes
    spec: ScheduleSpec
    policy: SchedulePolicy
    revision: int
    by_hand: bool
    incarnation: str
    seq: int
    origin: int
    next: int | None
    last: int = 0
    last_id: str = ""
    last_at: int = 0
    fired: int = 0
    runs: int = 0
    missed: int = 0
    skipped: int = 0
    late: int = 0
    paused: int = 0
    reason: str = ""
    pinned: int = 0
    manual: bool = False
    triggers: tuple[int, ...] = ()
    chain: int = 0
    floor: int = 0
    ahead: tuple[int, ...] = ()
    catching_up: bool = False
    exported: int = 0
    tenant: str = ""

    def pack(self) -> bytes:
        """Return the stored bytes."""
        packed: bytes = Packer().pack(
            [_VERSION, self.name, self.template, self.spec.pack(), self.rules, list(self.state.values())]
        )
        return packed

    @property
    def rules(self) -> list[Any]:
        """The policy as plain data."""
        policy = self.policy
        moments = (policy.start_ms, policy.end_ms)
        return [policy.missed, policy.catch_up, policy.overlap, policy.jitter, *moments, policy.max_runs, policy.immediately]

    @property
    def state(self) -> dict[str, Any]:
        """How far it has come, as plain data."""
        return {name: getattr(self, name) for name in STATE}

    @classmethod
    def unpack(cls, name: str, data: bytes) -> Self | None:
        """Read the stored bytes of a schedule; None if they are of a later release, or odd."""
        try:
            if cls.is_later(data):
                return None
            _, own_name, template, spec, rules, values, *_ = unpackb(data)
            if own_name != name:
                raise ValueError(f"is of another schedule: {own_name!r}")
            state = stored_fields(cls, dict(zip(STATE, values, strict=False)), STATE)
            stored_fields(cls, {"template": template})
            return cls.of_rules(name, template, _spec(spec), rules, state)
        except Exception as error:  # noqa: BLE001 - any client may write there
            pass_over("schedules", name, repr(error))
            return None

    @staticmethod
    def is_later(data: bytes) -> bool:
        """Return whether stored bytes are a record of a later release."""
        try:
            version = unpackb(data)[0]
        except Exception:  # noqa: BLE001 - any client may write there
            return False
        return type(version) is int and version > _VERSION

    def _check_times(self) -> None:
        """Raise an error if something of it is no time, or no count."""
        for name in _TIMES + _COUNTS:
            value = getattr(self, name)
            for each in value if isinstance(value, tuple) else (value or 0,):
                if each < 0:
                    raise ValueError(f"{name} is {each}, which is below zero")
                if name in _TIMES:
                    time_of(each)
        if len(self.ahead) not in (0, 2):
            raise ValueError(f"ahead has {len(self.ahead)} ticks")

    @classmethod
    def of_rules(cls, name: str, template: bytes, spec: ScheduleSpec, rules: list[Any], state: dict[str, Any]) -> Self:
        """Return a schedule of rules and state as plain data.

        Raises:
            InvalidSettings: A rule is not what it may be.
            ValueError, TypeError, OverflowError: They are no such data.
        """
        missed, catch_up, overlap, jitter, start, end, max_runs, immediately, *_ = rules
        begin, until = (None if ms is None else time_of(ms) for ms in (start, end))
        policy = SchedulePolicy(missed, catch_up, overlap, jitter, begin, until, max_runs, immediately)
        record = cls(name=name, template=template, spec=spec, policy=policy, **state)
        record._check_times()
        return record

    @property
    def due(self) -> int | None:
        """When something is to be done: a firing that is under way, one that was asked for, or the next tick; in ms, None if nothing is."""
        if self.exported:
            return None
        if self.pinned:
            return self.pinned
        if self.triggers:
            return self.triggers[0]
        if self.paused or self.next is None:
            return None
        return self.at(self.next)

    @property
    def pinned_due(self) -> int:
        """When the firing that is under way was to come, in ms."""
        return self.pinned if self.manual else self.at(self.pinned)

    @property
    def pinned_id(self) -> str:
        """The command id of the firing that is under way."""
        return firing_id(self.name, self.pinned, manual=self.manual)

    def at(self, tick: int) -> int:
        """Return when the firing of a tick is to come: later than the tick by its share of the jitter, in ms."""
        return tick + spread(self.name, tick, self.policy.jitter)

    def after(self, tick: int) -> int | None:
        """Return the first tick behind a time that the policy allows and that was not fired before its time."""
        policy = self.policy
        if policy.start_ms is not None:
            tick = max(tick, policy.start_ms - 1)
        found = self.spec.after(max(tick, self.floor), self.origin)
        if found is not None and self.ahead and self.ahead[0] <= found <= self.ahead[1]:
            found = self.spec.after(self.ahead[1], self.origin)
        return None if found is None or (policy.end_ms is not None and found > policy.end_ms) else found

    def finished(self, now_ms: int) -> Self:
        """Return the record once the firing under way has happened."""
        late = self.late + (not self.manual and now_ms > self.pinned_due + 1000)
        return replace(
            self,
            pinned=0,
            manual=False,
            last=self.last if self.manual else self.pinned,
            last_id=self.pinned_id,
            last_at=now_ms,
            fired=self.fired + 1,
            late=late,
        )


def firing_id(name: str, tick: int, *, manual: bool = False) -> str:
    """Return the command id of a firing: the schedule's name and the planned time; a firing by hand has an exclamation mark behind it."""
    at: datetime = time_of(tick).astimezone(UTC)
    text = at.strftime("%Y-%m-%dT%H:%M:%S") + (f".{at.microsecond // 1000:03d}" if at.microsecond else "")
    return f"{name}@{text}Z{'!' if manual else ''}"


def spread(name: str, tick: int, jitter: float) -> int:
    """Return by how many ms the firing of a tick is put off: the same for every worker."""
    return crc32(f"{name}@{tick}".encode()) % (int(jitter * 1000) + 1) if jitter else 0


def _spec(packed: list[Any]) -> ScheduleSpec:
    kind, *rest = packed
    if kind == "e":
        return every(rest[0] / 1000)
    pattern, tz = rest
    if len(pattern.split()) != 5 or not tz:
        raise ValueError("no pattern of cron")
    return Cron(pattern, tz)


STATE = tuple(each.name for each in fields(ScheduleRecord) if each.name not in ("name", "template", "spec", "policy"))
"""The fields that say how far a schedule has come, in the order in which they are stored."""
