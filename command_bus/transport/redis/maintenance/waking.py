"""`LimitWork`: wakes the mailboxes that a limit holds when their time comes, and finds what broken requests have left.

Each limit that something waits for has one member of `due` in the first shard, at the time when the first may start. The worker that finds it due
wakes as many as have tokens or places, in the order of their first refusals. Mailboxes of the first shard are made ready in the same script.
Those of others are granted their start there, and then made ready in their own shard. What dies between leaves a grant, and a mailbox that
waits: `turn` compares them. Whatever else waits for a limit and is known to none asks again (`wake_forgotten`): workers find it when they look
over all mailboxes (`Upkeep`), so that those are read once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from command_bus.errors import CommandBusError
from command_bus.randomness import JITTER
from command_bus.serialization.odd_values import pass_over, stored_text
from command_bus.transport.redis.incarnations import Incarnations
from command_bus.transport.redis.keys import GROUP, ShardKeys
from command_bus.transport.redis.limits.rules import limit_keys
from command_bus.transport.redis.mailbox_record import LIMITED, LONE, READY, MailboxRecord, parse_record
from command_bus.transport.redis.maintenance.due_work import Member, PageResult
from command_bus.transport.redis.maintenance.periodic import Periodic
from command_bus.transport.redis.scripts import LIMITS, WAKE_LIMITED

_log = logging.getLogger("command_bus.worker")
_PAGE, _MOST_PAGES = 200, 20
_HOLDERS = (b"g\n", b"s\n")
"""The prefixes of members of `places` that name a mailbox with a grant, or one that runs with a place."""
_QUEUED = b"q\n"
"""The prefix of members of `places` that stand in a queue."""
_LATEST_MS = 2.0**53
_PAUSE = 5.0
"""Seconds between two pages of a sweep."""


_KEPT_US = 3_600_000_000
"""Microseconds for which the turns of classes and tenants are kept in a queue."""


class _Pass(NamedTuple):
    mailbox: str
    kind: str
    at_us: int
    shard: int
    activation: str


@dataclass(eq=False)
class LimitWork(Periodic):
    """Deals with the members `l:` of the first shard, whose keys it has.

    Attributes:
        incarnations: Lives of the shards, as this process has read them.
        lease: Seconds that a lease lives: a grant that is older, and whose mailbox still waits, was lost.
    """

    name = "limits"
    incarnations: Incarnations
    lease: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._names = limit_keys(self.keys)
        self._cursor = 0
        self._after = dict.fromkeys((*_HOLDERS, _QUEUED), b"")

    async def perform(self, members: Sequence[Member]) -> PageResult:
        """Wake what waits for the limits that they name."""
        flat: list[bytes] = await self._limits("wake", [member.name[2:] for member in members])
        await self._wake([(stored_text(name), int(shard)) for name, shard in zip(flat[::2], flat[1::2], strict=True)])
        return PageResult(len(members))

    async def _limits(self, verb: str, args: Sequence[Any]) -> Any:
        incarnation = await self.incarnations.of(self.keys)
        answer = await self.server.run(LIMITS, self._names, [GROUP, verb, incarnation, *args])
        self.incarnations.check(answer)
        return answer

    async def _make_ready(self, keys: ShardKeys, mailboxes: Sequence[str]) -> list[bytes]:
        """Return for each mailbox of a shard whether it is `woken`, waits not yet (`again`), or waits no more (`gone`)."""
        args = [GROUP, await self.incarnations.of(keys), *mailboxes]
        names = [keys.ready, keys.active, keys.paused, keys.stats]
        answer: Any = await self.connections.at(keys.prefix).run(WAKE_LIMITED, names, args)
        self.incarnations.check(answer)
        found: list[bytes] = answer
        return found

    async def _wake(self, granted: Sequence[tuple[str, int]]) -> None:
        """Make mailboxes ready in their shards; take the grants of those back that do not wait.

        A shard that fails costs no mailbox of another its turn. Its error is raised at the end, and `turn` finds its grants.
        """
        by_shard: dict[int, list[str]] = {}
        for mailbox, shard in granted:
            by_shard.setdefault(shard, []).append(mailbox)
        failed: CommandBusError | None = None
        for shard, mailboxes in by_shard.items():
            try:
                answers = await self._make_ready(self.space.shards[shard], mailboxes)
            except CommandBusError as error:
                failed = error
                continue
            for verb in (b"again", b"gone"):
                if those := [name for name, answer in zip(mailboxes, answers, strict=True) if answer == verb]:
                    await self._limits(verb.decode(), those)
        if failed is not None:
            raise failed

    # What was lost.

    async def turn(self) -> float:
        """Compare passes with their mailboxes, a page of grants and one of places, and set right what differs.

        Return the seconds until the next page.
        """
        if not await self.server.ask(lambda client: client.exists(self.keys.rules, self.keys.limits)):
            return _PAUSE
        await self.incarnations.all()  # before anything is read: what is decided from it is of this time
        await self._copy_rules()
        await self._remove_odd()
        await self._revive()
        seconds, micros = await self.server.ask(lambda client: client.time())
        now_us = int(seconds) * 1_000_000 + int(micros)
        await self._clean(now_us)
        passes = await self._passes()
        records = await self._records([(each.mailbox, each.shard) for each in passes])
        verbs: dict[str, list[str]] = {}
        for each in passes:
            verb = _verdict(each, records[each.mailbox], now_us - self.lease * 1e6)
            if verb == "over":
                await self._limits("over", [each.mailbox, each.activation])
            elif verb:
                verbs.setdefault(verb, []).append(each.mailbox)
        for verb, mailboxes in verbs.items():
            _log.info("limits: %d grants were lost (%s)", len(mailboxes), verb)
            await self._limits(verb, mailboxes)
        return _PAUSE * JITTER.uniform(0.8, 1.2)

    async def _remove_odd(self) -> None:
        """Remove members of `places` that have a score: beside them the others have no order."""
        places = self.keys.places
        for low, high in (("-inf", "(0"), ("(0", "+inf")):
            if odd := await self.server.ask(lambda client, ends: client.zremrangebyscore(places, *ends), (low, high)):
                pass_over("places", f"{odd} members", "members have the score 0; they are removed")

    async def _revive(self) -> None:
        """Look again at those queues of a page of `places` that have no time to come in `due`, or one beyond all times."""
        due = self.keys.due
        first = self._after[_QUEUED] or b"[" + _QUEUED
        page: Any = await self.server.ask(
            lambda client, since: client.zrangebylex(self.keys.places, since, b"(q\x0b", 0, _PAGE), first
        )
        self._after[_QUEUED] = b"(" + page[-1] if len(page) == _PAGE else b""
        scopes = sorted({member.split(b"\n")[1] for member in page})
        if not scopes:
            return

        async def times(client: Any) -> Any:
            pipeline = client.pipeline(transaction=False)
            for scope in scopes:
                pipeline.zscore(due, b"l:" + scope)
            return await pipeline.execute()

        scores = await self.server.ask(times)
        lost = [scope for scope, score in zip(scopes, scores, strict=True) if score is None or score >= _LATEST_MS]
        if lost:
            pass_over("due", b"l:" + lost[0], f"{len(lost)} queues of limits had lost their time")
            await self.perform([Member(stored_text(b"l:" + scope), 0.0) for scope in lost])

    async def _clean(self, now_us: int) -> None:
        """Forget what is over, a page of it; where most of that is, as after a rush of keys, further pages."""
        for _ in range(_MOST_PAGES):
            if await self._clean_page(now_us) < _PAGE / 2:
                return

    async def _clean_page(self, now_us: int) -> int:
        """Forget those buckets of a page that are full, and of classes and tenants what was not served for an hour; return how many."""
        page: Any = await self.server.ask(lambda client, at: client.hscan(self.keys.limits, at, "[bfv]\n*", _PAGE), self._cursor)
        self._cursor, fields = page
        if full := [stored_text(name[2:]) for name, value in fields.items() if name[:1] == b"b" and _is_full(value, now_us)]:
            await self._limits("clean", full)
        if over := [name for name, value in fields.items() if name[:1] != b"b" and _is_over(value, now_us)]:
            await self.server.ask(lambda client, names: client.hdel(self.keys.limits, *names), over)
        return len(full) + len(over)

    async def _passes(self) -> list[_Pass]:
        """Return the passes of the next page of grants, and of the next page of places."""
        mailboxes: list[bytes] = []
        for kind in _HOLDERS:
            first, end = self._after[kind] or b"[" + kind, b"(" + kind[:1] + b"\x0b"
            page: Any = await self.server.ask(
                lambda client, since, until: client.zrangebylex(self.keys.places, since, until, 0, _PAGE), first, end
            )
            self._after[kind] = b"(" + page[-1] if len(page) == _PAGE else b""
            mailboxes += [member.rpartition(b"\n")[2] for member in page]
        names = [b"p\n" + mailbox for mailbox in dict.fromkeys(mailboxes)]
        if not names:
            return []
        values: Any = await self.server.ask(lambda client: client.hmget(self.keys.limits, names))
        found = [_pass_in(name, value) for name, value in zip(names, values, strict=True) if value is not None]
        return [each for each in found if each is not None]

    async def wake_forgotten(self, shard: int, mailboxes: Sequence[str]) -> None:
        """Wake those of a shard's mailboxes that wait for a limit, stand in no queue and have no grant: they ask again.

        Args:
            shard: Its number.
            mailboxes: Those that waited a moment ago.
        """
        keys = self.space.shards[shard]
        await self.incarnations.of(keys)  # before anything is read
        names = [f"{kind}\n{mailbox}" for mailbox in mailboxes for kind in "wp"]
        known: Any = await self.server.ask(lambda client: client.hmget(self.keys.limits, names))
        forgotten = [mailbox for mailbox, *found in zip(mailboxes, known[::2], known[1::2], strict=True) if not any(found)]
        if forgotten and (woken := (await self._make_ready(keys, forgotten)).count(b"woken")):
            _log.warning("%s: %d mailboxes waited for a limit in no queue", keys.active, woken)

    async def _records(self, mailboxes: Sequence[tuple[str, int]]) -> dict[str, MailboxRecord]:
        records: dict[str, MailboxRecord] = {}
        by_shard: dict[int, list[str]] = {}
        for mailbox, shard in mailboxes:
            by_shard.setdefault(shard, []).append(mailbox)
        for shard, names in by_shard.items():
            keys = self.space.shards[shard]
            found: Any = await self.connections.at(keys.prefix).ask(
                lambda client, at, those: client.hmget(at, those), keys.active, names
            )
            records |= dict(zip(names, map(parse_record, found), strict=True))
        return records

    async def _copy_rules(self) -> None:
        """Give the other shards the rules of the first one, where a broken request left them different."""
        if self.space.count == 1:
            return
        rules = await self.server.ask(lambda client: client.hgetall(self.keys.rules))
        for keys in self.space.shards[1:]:
            server = self.connections.at(keys.prefix)
            theirs = await server.ask(lambda client, key: client.hgetall(key), keys.rules)
            if missing := {name: value for name, value in rules.items() if theirs.get(name) != value}:
                await server.ask(lambda client, key, values: client.hset(key, mapping=values), keys.rules, missing)
            if extra := [name for name in theirs if name not in rules]:
                await server.ask(lambda client, key, names: client.hdel(key, *names), keys.rules, extra)


def _pass_in(name: bytes, value: bytes) -> _Pass | None:
    """Return a pass; None if it is odd."""
    try:
        head, activation, *_ = value.decode().split("\n")
        kind, _, at, shard = head.split("|")
        return _Pass(name[2:].decode(), kind, int(at), int(shard), activation)
    except ValueError as error:
        pass_over("limits", name, error)
        return None


def _is_full(value: bytes, now_us: int) -> bool:
    """Return whether a bucket is full, as far as can be read: nothing is reserved or held, either."""
    try:
        full_us, reserved, held_us = map(float, value.split(b"|"))
    except ValueError:
        return True
    return full_us <= now_us and held_us <= now_us and not reserved


def _is_over(value: bytes, now_us: int) -> bool:
    """Return whether turns were written long ago: what waited then has been served, or waits for something else."""
    at = value.rpartition(b"|")[2]
    return not at.isdigit() or int(at) < now_us - _KEPT_US


def _verdict(each: _Pass, record: MailboxRecord, lost_before_us: float) -> str:
    """Return what a pass has become: `over` if its lease has ended, `again` or `gone` if its grant was lost; empty if it is good."""
    if each.kind == "s":
        return "" if record.activation == each.activation else "over"
    if record.state == LIMITED:
        return "again" if each.at_us < lost_before_us else ""
    return "" if record.state in (READY, LONE) else "gone"
