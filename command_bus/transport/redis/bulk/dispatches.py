"""`RedisBulkDispatches`: dispatches in bulk, by the scripts bulk_load.lua and bulk_commit.lua.

Every request is idempotent under its version, so one whose reply was lost is simply asked again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from struct import pack
from typing import Any

from redis.asyncio import Redis

from command_bus.clock import mono
from command_bus.errors import DispatchConflict, DispatchFenced, Unconfirmed
from command_bus.serialization.odd_values import stored_number, stored_text
from command_bus.transport.ports.bulk import (
    DispatchFacts,
    EntityOwner,
    LoadAnswer,
    LoadItem,
    Opening,
    OpenState,
    Version,
)
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.retrying import RetryingRequests
from command_bus.transport.redis.kept_streams import RedisKeptStreams
from command_bus.transport.redis.keys import KeySpace, ShardKeys
from command_bus.transport.redis.scripts import BULK_COMMIT, BULK_LOAD, Script
from command_bus.transport.redis.sending.enqueue_arguments import flow_argument
from command_bus.transport.redis.sending.unique_batches import (
    ASK_AGAIN,
    fold_argument,
    named_standers,
    standers_in,
    texts_in,
)
from command_bus.transport.retention import Retention
from command_bus.transport.submissions import Admission
from command_bus.transport.unique_keys import LoadKey, dispatch_flag

_ADMISSIONS = {ord(admission.value): admission for admission in Admission}
_ACCEPTED = Admission.ACCEPTED.value.encode()
_DONE, _GONE, _FOREIGN, _FULL, _SPLIT = b"done", b"gone", b"foreign", b"full", b"split|"
_PAGE = 500


class RedisBulkDispatches(RetryingRequests):
    """Implements `BulkDispatches`.

    Args:
        connections: Clients that this process shares.
        keys: The shards.
        max_depth: Commands that one mailbox may hold.
        max_total_depth: Commands that the namespace may hold.
        patience: Seconds for which a request is repeated before the server counts as unavailable.
        retention: How long marks and replies of commands are kept that a load replaces.
        max_entities: Mailboxes that may have work at a time; None: any number.
    """

    def __init__(
        self,
        connections: Connections,
        keys: KeySpace,
        *,
        max_depth: int,
        max_total_depth: int,
        patience: float,
        retention: Retention,
        max_entities: int | None = None,
    ) -> None:
        super().__init__(connections, keys, patience=patience)
        self._max_depth = max_depth
        self._max_total_depth = max_total_depth
        self._max_entities = max_entities
        self._retention = retention
        self._remember_ms: dict[str, int] = {}
        self.outcomes = RedisKeptStreams(connections, keys, ShardKeys.outcomes, patience=patience)

    async def open(self, version: Version, opening: Opening) -> OpenState:
        self._remember_ms[version.dispatch_id] = opening.remember_ms
        args = (opening.owner, opening.keep_ms, opening.keep_max, opening.what)
        answers = {await self._step(shard, "open", version, args) for shard in self._keys.shards}
        if _FOREIGN in answers:
            raise DispatchConflict(
                f"dispatch {version.dispatch_id!r} belongs to another writer (a streaming query, say): give this one an id of its own"
            )
        return "done" if answers == {_DONE} else "open"

    async def load(
        self,
        version: Version,
        shard: int,
        items: Sequence[LoadItem],
        *,
        backlog: int | None = None,
        sequenced: bool = False,
        suspects: Collection[str] | None = None,
        entity_owner: EntityOwner | None = None,
    ) -> LoadAnswer:
        keys = self._keys.shards[shard]
        total = self._max_total_depth if backlog is None else min(backlog, self._max_total_depth)
        head = [
            version.number, self._keys.limits(total, self._max_entities), self._max_depth, len(keys.mailboxes),
            self._remembered(version.dispatch_id), int(sequenced),
        ]  # fmt: skip
        standers: dict[str, bytes] = {}
        while True:
            names, args = self._chunk(keys, version.dispatch_id, items, suspects, entity_owner, standers, sequenced=sequenced)
            answer: bytes = await self._retry(keys, BULK_LOAD, names, [*head, *args])
            if answer == _DONE:
                return LoadAnswer(done=True, admissions=[])
            if answer == _GONE:
                raise _fenced(version)
            if entity_owner is not None and answer[:6] == _SPLIT:
                raise _split(version, entity_owner, answer)
            if answer[: len(ASK_AGAIN)] != ASK_AGAIN:
                return _loaded(answer, len(items))
            standers = standers_in(answer)

    def _chunk(
        self,
        keys: ShardKeys,
        dispatch_id: str,
        items: Sequence[LoadItem],
        suspects: Collection[str] | None,
        owner: EntityOwner | None,
        standers: Mapping[str, bytes],
        *,
        sequenced: bool,
    ) -> tuple[list[str], list[Any]]:
        """Return the keys, and the arguments behind the first six; `standers` are those that the server has asked to name."""
        boxes: dict[str, int] = {mailbox: box for box, mailbox in enumerate(suspects or (), 1)}
        runs: list[int] = []
        entities: list[str] = []
        mailboxes, ids, checks, envelopes, of_rows, numbers, flows, uniques = zip(*items, strict=True)
        for (mailbox, entity), run in groupby(zip(mailboxes, of_rows, strict=True)):
            runs += (boxes.setdefault(mailbox, len(boxes) + 1), sum(1 for _ in run))
            entities.append(entity)
        names = [
            keys.ready, keys.active, keys.stats, keys.paused, keys.delayed_counts,
            keys.dispatch(dispatch_id), keys.ids(dispatch_id), keys.sequences(dispatch_id),
            keys.watched, keys.arrivals, keys.homes(dispatch_id), keys.lone, *keys.fair, keys.due, keys.delayed,
            *[keys.mailboxes + mailbox for mailbox in boxes],
        ]  # fmt: skip
        named, words = "", list[Any]()
        if any(uniques):
            replacing = dict.fromkeys(standers, "a row of a dispatch")
            others, words = named_standers(keys, standers, replacing, keys.mailbox(mailboxes[0]), self._retention)
            names += (keys.unique, keys.outcomes(dispatch_id), *others)
            named = f"{len(others) // 4} {self._retention.reply} {dispatch_flag(dispatch_id)}"
            words = [word for named in zip(uniques, ids, strict=True) for word in _fold_of(*named)] + words
        args: list[Any] = [
            len(boxes) if suspects is None else len(suspects),
            pack(f">{len(runs)}H", *runs), b"".join(checks),
            "" if owner is None else f"{owner.run}|{owner.partition}", int(owner is not None and owner.strict),
            flow_argument(flows), named, *envelopes,
        ]  # fmt: skip
        if sequenced:
            args += [*numbers, *entities]
        return names, [*args, *words, *(() if owner is None else owner.entities)]

    async def reject(self, version: Version, rows: Iterable[tuple[str, bytes]], limit: int | None) -> bool:
        rows = list(rows)
        for start in range(0, len(rows), _PAGE):
            pairs = [part for row in rows[start : start + _PAGE] for part in row]
            answer = await self._step(self._keys.shards[0], "reject", version, (-1 if limit is None else limit, *pairs))
            if answer == _GONE:
                raise _fenced(version)
            if answer == _FULL:
                return False
        return True

    async def mark_rejects(self, dispatch_id: str, by: str, mark: Callable[[bytes], bytes]) -> None:
        first = self._keys.shards[0]
        async for page in self._hash_pages(first, first.rejects(dispatch_id), _PAGE):
            ids = [name.rpartition(b"#")[0] for name in page]
            known = await asyncio.gather(*(self._ask(shard, Redis.hmget, shard.ids(by), ids) for shard in self._keys.shards))
            marked = [(name, mark(page[name])) for name, *checks in zip(page, *known, strict=True) if any(checks)]
            if marked:
                await self._step(first, "amend", Version(dispatch_id), [part for pair in marked for part in pair])

    async def note(self, version: Version, text: str) -> None:
        await self._step(self._keys.shards[0], "note", version, (text,))

    async def fingerprints(self, dispatch_id: str) -> dict[int, str]:
        first = self._keys.shards[0]
        found: Any = await self._ask(first, lambda client, key: client.hgetall(key), first.fingerprints(dispatch_id))
        return {int(number): stored_text(text) for number, text in found.items() if number.isdigit()}

    async def commit(self, version: Version, summary: str, remember_ms: int, fingerprint: str = "") -> None:
        self._remember_ms[version.dispatch_id] = remember_ms
        for number, shard in enumerate(self._keys.shards):
            if await self._step(shard, "commit", version, (summary, "" if number else fingerprint)) == _GONE:
                raise _fenced(version)

    async def facts(self, dispatch_id: str) -> DispatchFacts | None:

        async def read(client: Redis, key: str) -> Any:
            pipeline = client.pipeline(transaction=False)
            pipeline.hgetall(key)
            pipeline.pttl(key)
            return await pipeline.execute()

        answers = await asyncio.gather(*(self._ask(shard, read, shard.dispatch(dispatch_id)) for shard in self._keys.shards))
        records = [record for record, _ in answers if record]
        left = [int(ms) for _, ms in answers if ms > 0]
        return _facts(dispatch_id, records, min(left, default=0)) if records else None

    async def rejects(self, dispatch_id: str) -> AsyncIterator[tuple[str, bytes]]:
        first = self._keys.shards[0]
        seen: set[str] = set()  # a scan may give a field twice
        async for page in self._hash_pages(first, first.rejects(dispatch_id), _PAGE):
            for name, record in page.items():
                text = stored_text(name)
                if text not in seen:
                    seen.add(text)
                    yield text, record

    async def names(self) -> list[str]:
        found = await asyncio.gather(
            *(self._ask(shard, lambda client, key: client.zrange(key, 0, -1), shard.dispatches) for shard in self._keys.shards)
        )
        return list(dict.fromkeys(stored_text(name) for names in found for name in names))

    async def _step(self, shard: ShardKeys, verb: str, version: Version, args: Sequence[Any]) -> bytes:
        name = version.dispatch_id
        names = [
            shard.dispatch(name), shard.ids(name), shard.rejects(name), shard.dispatches, shard.homes(name),
            shard.fingerprints(name),
        ]  # fmt: skip
        answer: bytes = await self._retry(shard, BULK_COMMIT, names, [verb, version.number, name, self._remembered(name), *args])
        return answer

    def _remembered(self, dispatch_id: str) -> int:
        return self._remember_ms.get(dispatch_id) or Opening().remember_ms

    async def _retry(self, keys: ShardKeys, script: Script, names: list[str], args: list[Any]) -> Any:
        """Run a script, repeated until it is answered and, where replicas must have its effect, confirmed."""
        server = self._connections.at(keys.prefix)

        async def run() -> Any:
            answer, confirmed = await server.run_confirmed(script, names, args, keys.stats)
            if not confirmed:
                raise Unconfirmed(
                    f"{server.label}: too few replicas confirmed a step of a dispatch in time (wait_replicas); run it again"
                )
            return answer

        return await server.retry_until(run, mono() + self._patience)


def _fold_of(key: LoadKey | None, command_id: str) -> tuple[str, str]:
    return ("", "") if key is None else (key.key, fold_argument(key, key.delay_ms, f"||{key.name}|{command_id}"))


def _loaded(answer: bytes, count: int) -> LoadAnswer:
    """Return what became of a chunk of so many commands."""
    codes = answer[:count]
    shared, _, others = answer[count:].partition(b" ")
    admissions = (
        [Admission.ACCEPTED] * count
        if codes.count(_ACCEPTED) == count  # nearly always
        else [_ADMISSIONS[code] for code in codes]
    )
    names = tuple([name.decode(errors="replace") for name in texts_in(others, 0)])
    return LoadAnswer(False, admissions, int(shared or 0), names)


def _fenced(version: Version) -> DispatchFenced:
    return DispatchFenced(
        f"dispatch {version.dispatch_id!r} (version {version.number}) is not open: it was never opened, a later version is, or it was "
        "forgotten; nothing was added"
    )


def _split(version: Version, entity_owner: EntityOwner, answer: bytes) -> DispatchConflict:
    _, other, entity = answer.decode(errors="replace").split("|", 2)
    return DispatchConflict(
        f"dispatch {version.dispatch_id!r}: rows of {entity[:200]!r} are in two tasks (partitions {other} and {entity_owner.partition}), which "
        "write at the same time, so their order would be left to chance. Arrange the rows with command_bus.spark.in_order(…) just "
        "before they are written, without a join or another repartition behind it"
    )


def _facts(dispatch_id: str, records: list[dict[bytes, bytes]], left_ms: int) -> DispatchFacts:
    """Combine the shards' records into one: a version is committed when every shard has committed it."""
    totals: Counter[bytes] = Counter()
    for record in records:
        for name in (b"added", b"duplicates", b"folded", b"replaced", b"rejected"):
            totals[name] += stored_number("b", record.get(name))
    first = records[0]
    opened = [stored_number("b", record[b"open"]) for record in records if b"open" in record]
    return DispatchFacts(
        dispatch_id,
        version=min(stored_number("b", record.get(b"done"), -1) for record in records),
        opened=max(opened) if opened else None,
        first_ms=min(stored_number("b", record.get(b"first_ms")) for record in records),
        done_ms=max(stored_number("b", record.get(b"done_ms")) for record in records),
        added=totals[b"added"],
        duplicates=totals[b"duplicates"],
        folded=totals[b"folded"],
        replaced=totals[b"replaced"],
        rejected=totals[b"rejected"],
        keep_ms=stored_number("b", first.get(b"keep_ms")),
        what=stored_text(first.get(b"what", b"")),
        owner=stored_text(first.get(b"owner", b"")),
        summary=stored_text(first.get(b"summary", b"")),
        note=stored_text(first.get(b"note", b"")),
        left_ms=left_ms,
    )
