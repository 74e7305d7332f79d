"""Decisions about a schedule, without I/O: which tick fires next, what was missed, what clocks that jumped have done to it.

A tick is *pinned* before it fires: the record names it, and its number. Only the pinned tick can fire, and the script that fires it refuses a
number that was there before. So each tick fires once, whichever workers try, and who changes a schedule first ends what is pinned.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from command_bus.messages.schedule_specs import latest_ticks
from command_bus.scheduling.record import ScheduleRecord

MOST_CAUGHT_UP = 1000
"""Ticks that `missed="all"` fires at most, the last ones."""
_SKEW = 60_000
"""Milliseconds by which a worker's clock may be behind the server's before the server's is mistrusted."""


def present(server_ms: int, worker_ms: int) -> int:
    """Return the time by which ticks are judged: the smaller of both clocks, once they differ by more than clocks do.

    A server's clock that has jumped ahead must not fire what lies in the future.
    """
    return server_ms if server_ms - worker_ms <= _SKEW else worker_ms


def first_tick(record: ScheduleRecord, now_ms: int) -> int | None:
    """Return the first tick of a new schedule, or of one whose times have changed."""
    if record.policy.max_runs is not None and record.runs >= record.policy.max_runs:
        return None
    return record.after(record.last if now_ms < record.last < now_ms + _SKEW else now_ms)


def plan(record: ScheduleRecord, now_ms: int) -> ScheduleRecord | None:
    """Return the record with the tick pinned that fires now, or without those that do not fire any more; None if nothing is due."""
    if record.exported:
        return None
    if record.pinned:
        return record
    if record.triggers:
        first, *rest = record.triggers
        return replace(record, pinned=first, manual=True, triggers=tuple(rest), seq=record.seq + 1)
    if record.paused or record.next is None or record.at(record.next) > now_ms:
        return None
    oldest = now_ms - record.policy.catch_up_ms
    following = record.after(record.next)
    if record.at(record.next) >= oldest and (following is None or record.at(following) > now_ms):
        return _pin(record, record.next, 0, following)
    if record.policy.missed == "all":
        return _next_missed(record, now_ms, oldest)
    return _last_missed(record, now_ms, oldest)


def _next_missed(record: ScheduleRecord, now_ms: int, oldest: int) -> ScheduleRecord:
    """Pin the first of the missed ticks that is fired: they are fired one by one."""
    tick = record.next or 0
    if record.catching_up and record.at(tick) >= oldest:
        return _pin(record, tick, 0, record.after(tick), catching_up=True)
    ticks = _ticks(record, tick, now_ms, MOST_CAUGHT_UP + 1)
    fired = [each for each in ticks[-MOST_CAUGHT_UP:] if record.at(each) >= oldest]
    if not fired:
        return _move_on(record, ticks, now_ms)
    left_out = len(ticks) - len(fired)
    return _pin(record, fired[0], left_out, record.after(fired[0]), catching_up=len(fired) > 1)


def _last_missed(record: ScheduleRecord, now_ms: int, oldest: int) -> ScheduleRecord:
    """Pin the last of the missed ticks, if it is young enough."""
    ticks = _ticks(record, record.next or 0, now_ms, MOST_CAUGHT_UP)
    if not ticks or record.at(ticks[-1]) < oldest:
        return _move_on(record, ticks, now_ms)
    return _pin(record, ticks[-1], len(ticks) - 1, record.after(ticks[-1]))


def _ticks(record: ScheduleRecord, first: int, now_ms: int, most: int) -> list[int]:
    """Return the last due ticks, from `first` on: up to the first that its jitter still holds back."""
    end, ahead = record.policy.end_ms, record.ahead
    until = now_ms if end is None else min(now_ms, end)
    ticks = latest_ticks(record.spec, first - 1, until, record.origin, most)
    due = takewhile(lambda tick: record.at(tick) <= now_ms, ticks)
    return [each for each in due if not ahead or not ahead[0] <= each <= ahead[1]]


def _move_on(record: ScheduleRecord, ticks: list[int], now_ms: int) -> ScheduleRecord:
    """Leave out ticks that are too old."""
    return replace(
        record,
        next=record.after(ticks[-1] if ticks else now_ms),
        missed=record.missed + len(ticks),
        chain=0,
        floor=max(record.floor, record.last),
        catching_up=False,
    )


def _pin(record: ScheduleRecord, tick: int, left_out: int, following: int | None, *, catching_up: bool = False) -> ScheduleRecord:
    runs, most = record.runs + 1, record.policy.max_runs
    gapless = tick == record.next and record.chain
    return replace(
        record,
        pinned=tick,
        manual=False,
        seq=record.seq + 1,
        runs=runs,
        missed=record.missed + left_out,
        next=None if most is not None and runs >= most else following,
        chain=record.chain if gapless else tick,
        floor=record.floor if gapless or record.last > tick else max(record.last, record.floor),
        catching_up=catching_up,
    )


def unpin(record: ScheduleRecord, *, drop: bool = False) -> ScheduleRecord:
    """Return the record without the firing under way, which has not happened and never will under its number.

    Args:
        record: With a pinned tick.
        drop: Whether the tick counts as skipped; else it is the next one again.
    """
    if record.manual:
        asked = () if drop else (record.pinned, *record.triggers)
        return replace(record, pinned=0, manual=False, triggers=asked, skipped=record.skipped + drop)
    if drop:
        return replace(
            record, pinned=0, skipped=record.skipped + 1, runs=record.runs - 1, next=record.next or record.after(record.pinned)
        )
    return replace(record, pinned=0, runs=record.runs - 1, next=record.pinned)


def set_back(record: ScheduleRecord, now_ms: int) -> ScheduleRecord | None:
    """Return the record with the next tick that it ought to have, if clocks had jumped ahead and are back; None if it has that.

    Ticks that were fired are not fired again: neither those up to `floor`, nor those from `chain` to `last`.
    """
    if record.exported or record.pinned or record.paused or record.next is None or record.next <= now_ms:
        return None
    ahead = record.ahead
    if record.last > now_ms and 0 < record.chain <= record.last:
        ahead = (min(record.chain, *ahead[:1]), max(record.last, *ahead[1:])) if ahead else (record.chain, record.last)
    elif ahead and ahead[1] <= now_ms:
        ahead = ()
    looking = replace(record, ahead=ahead)
    first = looking.after(now_ms)
    if first is None or first >= record.next:
        return None
    return replace(looking, next=first, chain=0)
