"""`DueWork`: promotes retries and delayed commands when they are due, usually by one worker of many.

The times in `due` are the server's. All workers read them, so all would wake at the same moment, and all but one in vain. Therefore a
worker that loses the race waits longer next time, and the winner does not wait: soon one worker promotes, on time, and the others would
only if it did not. One worker gets a tick when there is a new earliest time; it does not wait either. And the worker that promotes reads
the next time: so for each time there is a worker that is not late.

A server's clock that goes back moves all times into the future. Members that a worker has read before also have a time on the worker's
own clock, and are promoted when that time comes.

A delayed command may have many megabytes. Its envelope stays on the server when it moves into its mailbox, and one script moves about a
megabyte, so that other clients are served in between.

Other parts keep members of their own kind in `due`, told apart by their first letter; a `DueJob` performs those of one kind.

A later release may keep members of its own there. They stay, and are passed over. So is the retry of a mailbox whose state only that release
knows: the script leaves it, and it is tried again a second later.

Any producer may write members, and what they name may be anything. Where what is due of a kind cannot be dealt with together, each member is
dealt with alone: the odd ones are passed over, and tried again a minute later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.asyncio import Redis

from command_bus.clock import mono
from command_bus.errors import NewerState
from command_bus.randomness import JITTER
from command_bus.serialization.odd_values import pass_over, stored_ms
from command_bus.transport.ports.schedules import DueSchedules
from command_bus.transport.redis.admin.holds import PAUSE_END, RedisHolds
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import is_of_a_value
from command_bus.transport.redis.connection.retrying import server_ms
from command_bus.transport.redis.keys import GROUP, KeySpace, ShardKeys, delayed_id
from command_bus.transport.redis.maintenance.periodic import Beat, Periodic
from command_bus.transport.redis.scheduling.store import RedisSchedules
from command_bus.transport.redis.scripts import DELAYED_MAILBOXES, PROMOTE
from command_bus.transport.redis.worker.step_batcher import LineUse

_PAGE = 200
_MOST = 1024 * 1024
"""Bytes of delayed commands that one script moves, and one more command: a server copies that in a few milliseconds."""
_STEP = 0.5
"""Seconds by which the server's clock must have gone back to be mistrusted: what is less (it is set right, slowly) is followed."""
_FIRST_LATENESS, _MOST_LATENESS = 0.005, 0.1
_PROMOTED = "rd"
"""First letters of the members that the script promotes."""
_LEFT = 1.0
"""Seconds until a member is tried again that the script left."""
_ODD = 60.0
"""Seconds until a member is tried again that could not be dealt with."""


class Member(NamedTuple):
    """A member of `due` whose time has come: what it is, and its time in ms by the server's clock, as it was seen."""

    name: str
    score: float


class PageResult(NamedTuple):
    """The result of a page of members: how many this worker dealt with, and those that are to be tried again a second later."""

    done: int
    left: Collection[str] = ()


DueJob = Callable[[Sequence[Member]], Awaitable[PageResult]]
"""Deals with members of one kind that are due. Afterwards each is gone from `due`, has another time there, or is among those left."""


class _Seen(NamedTuple):
    score: float
    at: float
    """When it is due, by our clock."""


class DueTimes:
    """The next due times by this process's own clock, and whether this worker promotes without a wait."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._left: dict[tuple[str, float], float] = {}
        self._dealt: set[tuple[str, float]] = set()
        self._next: float | None = None
        self.lateness = 0.0
        """Seconds that this worker lets pass, because another is faster."""

    def ticked(self) -> None:
        """Record a tick: there is a new earliest time, and only this worker knows it."""
        self.lateness = 0.0

    def begin(self) -> None:
        """Begin to deal with what is due: what was dealt with since, and is still there, is left for a moment."""
        self._dealt.clear()

    def looked(self, members: Sequence[tuple[str, float]], server_ms: int, now: float, *, took: float = 0.0) -> list[Member]:
        """Record the earliest members in their order; return those that are due.

        Args:
            members: Names and times.
            server_ms: The server's time of the look.
            now: This process's time when it was answered.
            took: Seconds until it was answered. After a long one the server's clock only seems to have gone back.
        """
        first = min(self._seen.items(), key=lambda item: item[1].at, default=None)
        self._left |= {member: now + _LEFT for member in members if member in self._dealt and not self.is_left(member, now)}
        seen: dict[str, _Seen] = {}
        due: list[Member] = []
        for name, score in members:
            at, before = now + (score - server_ms) / 1000, self._seen.get(name)
            if before is not None and before.score == score and at > before.at + _STEP + took:
                at = before.at  # the server's clock has gone back
            if self.is_left((name, score), now):
                seen[name] = _Seen(score, self._left[name, score])
                continue
            seen[name] = _Seen(score, at)
            if score <= server_ms or at <= now:
                due.append(Member(name, score))
        if first is not None and first[1].at <= now and not due and seen.get(first[0], _NEVER).score != first[1].score:
            self._beaten()
        self._seen = seen
        self._set_next()
        return due

    def promoted(self, members: Collection[Member], count: int, left_ms: int, now: float, *, left: Collection[str] = ()) -> None:
        """Record which members this worker asked to promote, how many of them it did promote or leave, and when the next is due.

        `left_ms` is by the server's clock; -1 if there is none.
        """
        self._left = {each: at for each, at in self._left.items() if at > now}
        self._left |= {member: now + _LEFT for member in members if member.name in left}
        self._dealt.update(members)
        for member in members:
            self._seen.pop(member.name, None)
        if count or left:
            self.lateness = 0.0
        else:
            self._beaten()
        self._set_next()
        if left_ms >= 0 and (self._next is None or self._next > now + left_ms / 1000):
            self._next = now + left_ms / 1000

    def leave(self, members: Collection[Member], until: float) -> None:
        """Let members be until a time: trying them now is in vain."""
        self._left |= dict.fromkeys(members, until)

    def is_left(self, member: tuple[str, float], now: float) -> bool:
        """Return whether a member is not tried now: the script left it a moment ago, or it is odd."""
        return self._left.get(member, now) > now

    def pause(self, now: float, longest: float) -> float:
        """Return the seconds until the next look."""
        if self._next is None:
            return longest
        late = self.lateness * JITTER.uniform(0.5, 1.0) if self.lateness else 0.0
        return min(longest, max(0.0, self._next - now) + late)

    def _beaten(self) -> None:
        self.lateness = min(_MOST_LATENESS, max(_FIRST_LATENESS, self.lateness * 2))

    def _set_next(self) -> None:
        self._next = min((seen.at for seen in self._seen.values()), default=None)


_NEVER = _Seen(-1.0, 0.0)


@dataclass(eq=False)
class DueWork(Periodic):
    """One shard's due work.

    Attributes:
        beat: Says when to look at the latest: the tick of a new time may have gone to a worker that was lost.
        jobs: What deals with members of other kinds, by their first letter.
        line: Told whether the shard's line is in use.
    """

    name = "due work"
    beat: Beat
    jobs: Mapping[str, DueJob]
    line: LineUse

    def __post_init__(self) -> None:
        super().__post_init__()
        self._line_in_use = False
        self._known = _PROMOTED + "".join(self.jobs)
        self._prefixes = frozenset(f"{letter}:".encode() for letter in self._known)
        self._times = DueTimes()
        self._full = False  # whether there may be more in `due` than was read

    def wake(self) -> None:
        """Check due times again now."""
        self._times.ticked()
        self._woken.set()

    async def turn(self) -> float:
        """Promote what is due, and see to the line; return the seconds until the next look."""
        await self.promote()
        await self.line.seen(self.server, self.keys, in_use=self._line_in_use)
        return self._times.pause(now := mono(), self.beat.left(now))

    async def promote(self) -> None:
        """Let what is due take its place."""
        self._times.begin()
        while due := await self._due():
            kinds: dict[str, list[Member]] = {}
            for member in due:
                kinds.setdefault(member.name[0], []).append(member)
            for kind, members in kinds.items():
                if kind in self.jobs:
                    await self._each_if_not_all(members, self._perform)
            promoted = [member for member in due if member.name[0] in _PROMOTED]
            if promoted and await self._each_if_not_all(promoted, self._promote) and len(promoted) == len(due):
                return

    async def _each_if_not_all(self, members: Sequence[Member], deal: Callable[[Sequence[Member]], Awaitable[bool]]) -> bool:
        """Deal with members together; where a stored value prevents that, with each alone. Return what `deal` returns, then False."""
        try:
            return await deal(members)
        except Exception as error:
            if not is_of_a_value(error):
                raise
            if len(members) == 1:
                self._pass_over(members[0], error)
                return False
        for member in members:
            await self._each_if_not_all([member], deal)
        return False

    def _pass_over(self, member: Member, why: object) -> None:
        pass_over("due", member.name, why)
        self._times.leave([member], mono() + _ODD)

    async def _perform(self, members: Sequence[Member]) -> bool:
        performed = await self.jobs[members[0].name[0]](members)
        self._times.promoted(members, performed.done, -1, mono(), left=performed.left)
        return False

    async def _promote(self, due: Sequence[Member]) -> bool:
        """Promote retries and delayed commands; return whether there is nothing more to promote now."""
        keys = self.keys
        placed = await self._placed(due)
        args: list[Any] = [GROUP, self._known]
        names = [keys.ready, keys.active, keys.due, keys.delayed, keys.delayed_counts, keys.paused, keys.unique]
        names += [*keys.fair, keys.suspended, keys.stats, keys.lone]
        for member, mailbox in placed:
            args += (member.name, mailbox, stored_ms(member.score))
            names.append(keys.mailbox(mailbox))
        count, left_ms, left = await self.server.run(PROMOTE, names, args)
        left = [name.decode() for name in left]
        self._times.promoted([member for member, _ in placed], count, left_ms, mono(), left=left)
        return left_ms != 0 and len(placed) == len(due) < _PAGE and not (left_ms < 0 and self._full)

    async def _due(self) -> list[Member]:
        """Return what is due of the first members: a page, or more where a page has nothing that this worker can promote."""
        members: list[tuple[str, float]] = []
        start, now_ms, now, asked = 0, 0, 0.0, mono()
        self._full = True
        while self._full and all(self._times.is_left(member, now) for member in members):
            time, scored, in_use = await self.server.ask(self._look, start)
            self._line_in_use = bool(in_use)
            now_ms, now = server_ms(time), mono()
            members += self._read(scored)
            start, self._full = start + _PAGE, len(scored) == _PAGE
        return self._times.looked(members, now_ms, now, took=now - asked)

    def _read(self, scored: Sequence[tuple[bytes, float]]) -> list[tuple[str, float]]:
        """Return the members that this worker knows."""
        members: list[tuple[str, float]] = []
        for name, score in scored:
            if name[:2] in self._prefixes:
                try:
                    members.append((name.decode(), score))
                except UnicodeDecodeError as error:
                    pass_over("due", name, error)
        return members

    async def _look(self, client: Redis, start: int) -> Any:
        pipeline = client.pipeline(transaction=False)
        pipeline.time()
        pipeline.zrange(self.keys.due, start, start + _PAGE - 1, withscores=True)
        pipeline.exists(self.keys.flows)
        return await pipeline.execute()

    async def _placed(self, members: Sequence[Member]) -> list[tuple[Member, str]]:
        """Return members with their mailboxes: as many of the first as may be promoted at once, by the bytes that this moves."""
        delayed = [delayed_id(member.name) for member in members if member.name[:2] == "d:"]
        found: list[bytes] = await self.server.run(DELAYED_MAILBOXES, [self.keys.delayed], [_MOST, *delayed]) if delayed else []
        homes = iter([name.decode(errors="backslashreplace") for name in found])
        placed: list[tuple[Member, str]] = []
        for member in members:
            home = member.name[2:] if member.name[:2] == "r:" else next(homes, None)
            if home is None:
                break
            placed.append((member, home))
        return placed


_PATIENCE = 2.0
"""Seconds for which one request is repeated: other due work waits meanwhile."""
_ROUND = 60.0
"""Seconds in which a worker looks over all schedules of a shard, if they are one page; with more pages it takes as much longer."""
_SHORTEST_PAUSE = 2.0


class PauseJob:
    """Ends pauses of one shard whose time has come.

    Args:
        connections: Clients that this process shares.
        keys: All shards.
        shard: This one.
    """

    def __init__(self, connections: Connections, keys: KeySpace, shard: ShardKeys) -> None:
        self._holds = RedisHolds(connections, keys, patience=_PATIENCE)
        self._shard = shard

    async def perform(self, members: Sequence[Member]) -> PageResult:
        """End them."""
        done, left = 0, list[str]()
        for member in members:
            try:
                done += await self._holds.over(self._shard, member.name.removeprefix(PAUSE_END), member.score)
            except NewerState:  # a worker of that release ends it
                left.append(member.name)
        return PageResult(done, left)


async def fire_schedules(schedules: DueSchedules, members: Sequence[Member]) -> PageResult:
    """Fire the schedules of one shard that are due."""
    done, left = await schedules.fire_due([member.name[2:] for member in members])
    return PageResult(done, [f"s:{name}" for name in left])


@dataclass(eq=False)
class ScheduleSweep(Periodic):
    """Looks over all schedules of a shard, a page at a time.

    Attributes:
        schedules: Knows what to do about them.
    """

    name = "schedules"
    schedules: DueSchedules

    def __post_init__(self) -> None:
        super().__post_init__()
        self._store = RedisSchedules(self.connections, self.space, patience=_PATIENCE, max_total_depth=0)
        self._cursor = 0

    async def turn(self) -> float:
        """Look over a page; return the seconds until the next turn."""
        self._cursor, page = await self._store.page(self.keys, self._cursor)
        if page:
            await self.schedules.look_over(page)
        return (_SHORTEST_PAUSE if self._cursor else _ROUND) * JITTER.uniform(0.8, 1.2)
