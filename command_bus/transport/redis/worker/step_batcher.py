"""`StepBatcher`: sends the steps of held mailboxes in few large batches.

The steps of all entities that are ready in one turn of the event loop are sent as one *advance*; while it is in flight the next ones
gather. A step is idempotent under its lease (activation, fence, message), so after a lost reply it is repeated, without end: a worker
without its server has nothing else to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from command_bus.clock import mono
from command_bus.serialization.odd_values import pass_over
from command_bus.tasks import all_of
from command_bus.transport.mailboxes import type_of
from command_bus.transport.ports.worker import Steps
from command_bus.transport.redis.connection.connections import Connections, PageSize
from command_bus.transport.redis.connection.script_line import ScriptBatch, WorkerLine
from command_bus.transport.redis.keys import GROUP, KeySpace, ShardKeys
from command_bus.transport.redis.mailbox_record import (
    AGAIN,
    HELD,
    LONE_HELD,
    PLACE,
    held_record,
    is_first_start,
    parse_started,
    runs_of,
    snoozes_of,
)
from command_bus.transport.redis.scripts import ADVANCE, ADVANCE_AND_SEND, FILL_LINE
from command_bus.transport.redis.step_arguments import encode_left, encode_step
from command_bus.transport.redis.worker.reads import Behind, MailboxReads
from command_bus.transport.steps import (
    GIVE_BACK_UNCOUNTED,
    NO_RUN,
    NO_SETTLEMENT,
    NO_SNOOZES,
    Answer,
    ChildOutcome,
    DeadLetterStep,
    Done,
    Extended,
    FollowUp,
    Lease,
    LeaseLost,
    LimitQuestion,
    Park,
    Released,
    RunStep,
    Settlement,
    Started,
    Step,
    StepFailed,
    Take,
    attempt_id,
)

_NONE: tuple[str, ...] = ()


class KnownLimits:
    """The knowledge of a worker about limits.

    Args:
        first: Keys of the first shard, which decides about all limits.

    Attributes:
        known: Whether limits are in use, as far as is known.
    """

    def __init__(self, first: ShardKeys) -> None:
        self._first = first
        self.known = False

    def keys(self, keys: ShardKeys) -> tuple[str, ...]:
        """Return the keys of limits that a request to a shard names: none if it does not decide, or limits are not known to be in use."""
        return (keys.limits, keys.places) if self.known and keys is self._first else _NONE


_MOST = 500
"""Activations that one script brings back: a few milliseconds."""


class LineUse:
    """The knowledge of a worker about the lines of all shards."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def keys(self, keys: ShardKeys) -> tuple[str, ...]:
        """Return the keys of a shard's line that a request names: none if the line is not in use."""
        return keys.fair if keys.prefix in self._used else _NONE

    async def seen(self, connections: Connections, keys: ShardKeys, *, in_use: bool) -> None:
        """Note whether the line is in use; if so fill the ready stream up, and bring back what it has too much.

        Raises:
            CommandBusError: The server cannot be asked.
        """
        if not in_use:
            self._used.discard(keys.prefix)
            return
        self._used.add(keys.prefix)
        back = _MOST
        while back == _MOST:
            back, odd = await connections.run(FILL_LINE, [keys.ready, keys.active, *keys.fair], [GROUP, _MOST])
            if odd:
                pass_over("line", f"{odd} members", "places have the score 0; they are removed")


MAX_STEPS = 256
MAX_AHEAD = 12
AHEAD_BYTES = 64 * 1024
"""Most commands of a mailbox, and bytes, that are read at a time. They are still started and settled one by one."""
_DEEP = 2_000
"""Commands that a mailbox may hold, at least, if its commands are read ahead: up to eleven settled ones that stand in it count, too."""
_MOST_READ = 1_200
"""Most commands that a request has the server read."""
_SMALL = 100  # bytes of a step that carries nothing
_MEMBER = (
    1_000  # as if it had so many: a request settles about a thousand commands of runs, which takes the server a few milliseconds
)
_log = logging.getLogger("command_bus.transport")
_SETTLED: dict[bytes, Answer] = {reason.encode(): Released(reason) for reason in ("idle", "yield", "wait", "stop")}
_SETTLED[b"gone"] = LeaseLost()
_SETTLED[b"run"] = Extended()
_UNUSUAL = 1.0
"""Seconds for which steps take the long way after a request whose usual steps were all left: holds, events or limits are in use, it seems."""
_DONE = ord("+")
_NO_FIELDS: list[bytes] = []
_DEAD_LETTERING = (DeadLetterStep, Park)

_Waiting = tuple[Lease, Step, "asyncio.Future[Answer]"]


class StepBatcher(Steps):
    """Implements `Steps` with the advance step."""

    def __init__(
        self,
        connections: Connections,
        keys: KeySpace,
        *,
        worker: str,
        reply_ttl: float,
        line: LineUse | None = None,
        limits: KnownLimits | None = None,
        max_depth: Callable[[str | None], int] = lambda _: _DEEP,
    ) -> None:
        limits = limits or KnownLimits(keys.shards[0])
        self._reads = [MailboxReads(connections.at(shard.prefix), shard) for shard in keys.shards]
        self._shards = [
            _Shard(
                connections.at(shard.prefix),
                keys,
                shard,
                worker,
                int(reply_ttl * 1000),
                max_depth,
                line or LineUse(),
                limits=limits,
            )
            for shard in keys.shards
        ]

    def advance(self, lease: Lease, step: Step) -> asyncio.Future[Answer]:
        if lease.begun is not None and type(step) is Take:
            answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            answer.set_result(lease.begun)
            lease.begun = None
            return answer
        return self._shards[lease.shard].submit(lease, step)

    def behind(self, lease: Lease, message: str, count: int) -> asyncio.Future[Behind]:
        return self._reads[lease.shard].behind(lease.mailbox, message, count)

    async def close(self, patience: float) -> None:
        """Wait for steps in flight, at most `patience` seconds; then drop them (the leases end by themselves)."""
        await all_of(*(each.close(patience) for each in self._shards), *(each.close(patience) for each in self._reads))


class _Shard(WorkerLine[_Waiting]):
    """The steps that wait for one shard."""

    def __init__(
        self,
        connections: Connections,
        space: KeySpace,
        keys: ShardKeys,
        worker: str,
        reply_ttl_ms: int,
        max_depth: Callable[[str | None], int],
        line: LineUse,
        *,
        limits: KnownLimits,
    ) -> None:
        name = f"command_bus.steps{keys.prefix}"
        super().__init__(connections, name, "cannot start or settle commands", confirmed=keys.stats)
        self._space = space
        self._keys = keys
        self._head_keys = [keys.ready, keys.active, keys.fence, keys.stats, keys.due, keys.paused, keys.parked, keys.dead]
        self._head_keys += [keys.watched, keys.events, keys.lone, keys.rules]
        self._head_args: list[Any] = [GROUP, worker, reply_ttl_ms]
        self._answers = PageSize(MAX_STEPS)
        self._most = self._answers.count
        self._ahead = PageSize(MAX_AHEAD, wanted=AHEAD_BYTES)
        self._is_deep_type = cache(lambda entity_type: max_depth(entity_type) >= _DEEP)
        self._reads_ahead: Callable[[str], bool] = self._is_deep
        self._line_use, self._known_limits = line, limits
        self._usual_from = 0.0

    def submit(self, lease: Lease, step: Step) -> asyncio.Future[Answer]:
        answer: asyncio.Future[Answer] = self._future()
        self._put((lease, step, answer))
        return answer

    def _size(self, item: _Waiting) -> int:
        step = item[1]
        if type(step) is RunStep:
            return _step_size(step.step) + len(step.state or b"") + sum([_MEMBER + _step_size(end) for _, end in step.before])
        return _step_size(step)

    def _batch(self, items: list[_Waiting]) -> ScriptBatch[_Waiting]:
        limits = self._known_limits.keys(self._keys)
        line = self._line_use.keys(self._keys)
        if limits or line or mono() < self._usual_from:
            return self._full(items, limits, line)
        others, usual = list[_Waiting](), list[_Waiting]()
        becoming, letters, names = list[str](), list[str](), list[str]()
        left: list[Any] = []
        states: tuple[str, ...] = (self._keys.states,)  # once
        for item in items:
            lease, step, _ = item
            if type(step) is Done and (change := _usual_change(lease, step)):
                usual.append(item)
                becoming.append(change)
                letter = ""
                if step.state is not None:
                    letter = "s"
                    names += states
                    left.append(step.state)
                    states = ()
                if step.left is not NO_SETTLEMENT:
                    letter += encode_left(self._space, lease, step.left, names, left, [])
                letters.append(letter)
                if step.follow == "yield" and lease.ahead:
                    letters[-1] = "y" + letters[-1]
            else:
                others.append(item)
        batch = self._full(others, limits, line)
        if usual:
            batch.args.append(len(usual))
            batch.args += [lease.mailbox for lease, _, _ in usual]
            batch.args += [lease.record for lease, _, _ in usual]
            batch.args += becoming
            if any(letters):
                batch.args += letters + left
                batch.keys += names
            batch.items = others + usual
        return batch

    def _full(self, items: list[_Waiting], limits: tuple[str, ...], line: tuple[str, ...]) -> ScriptBatch[_Waiting]:
        prefix = self._keys.mailboxes
        head, sign = (*self._head_keys, *limits), -1 if limits else 1
        ahead = self._to_read([lease for lease, _, _ in items if not lease.ahead])
        args = [*self._head_args, sign * len(prefix), len(items), ahead]
        names: list[str] = []
        sent: list[FollowUp | ChildOutcome] = []
        for lease, step, _ in items:
            encode_step(self._space, lease, step, names, args, sent)
        if sent and any(type(each) is FollowUp and each.flow for each in sent):
            line = self._keys.fair
        keys = [*head, *[prefix + lease.mailbox for lease, _, _ in items], *names, *line]
        return ScriptBatch(ADVANCE_AND_SEND if sent else ADVANCE, keys, args, items)

    def _to_read(self, leases: list[Lease]) -> int:
        """Return how many commands the server reads for each of these mailboxes, of which none is read ahead."""
        if not any(self._reads_ahead(lease.mailbox) for lease in leases):
            return 1
        return max(1, min(self._ahead.count, _MOST_READ // len(leases)))

    def _is_deep(self, mailbox: str) -> bool:
        return self._is_deep_type(type_of(mailbox))

    def _heard(self, batch: ScriptBatch[_Waiting], answer: list[Any]) -> None:
        size = commands = 0
        for body in filter(None, answer[2::2]):  # most commands were read ahead
            if type(body) is bytes:
                size, commands = size + len(body), commands + 1
            elif type(body[-1]) is list:
                size += len(body[0]) + sum(map(len, body[1]))
                commands += 1 + len(body[1]) // 2
        self._answers.observe(size, len(batch.items))
        self._most = self._answers.count
        self._ahead.observe(size, commands)

    def _hand_out(self, batch: ScriptBatch[_Waiting], answer: list[Any], *, confirmed: bool = True) -> None:
        now = answer[0].decode()
        items = batch.items
        if len(answer) % 2 == 0:  # behind the answers to the others
            others = len(answer) // 2 - 1
            self._hand_out_usual(items[others:], answer.pop(), now, confirmed=confirmed)
            items = items[:others]
        for (lease, _, waiting), state, body in zip(items, answer[1::2], answer[2::2], strict=True):
            result = _SETTLED.get(state)
            if result is None:
                try:
                    result = _decode(lease, state, body, now, confirmed)
                except ValueError as error:  # of this mailbox alone
                    if not waiting.done():
                        waiting.set_exception(error)
                    continue
                if lease.ahead and not self._reads_ahead(lease.mailbox):
                    lease.ahead = None
                if type(result) is LimitQuestion:
                    self._known_limits.known = True
            if not waiting.done():
                waiting.set_result(result)
            elif type(result) is Started or type(result) is LimitQuestion:
                self._give_back(lease)

    def _hand_out_usual(self, items: list[_Waiting], answer: bytes, now: str, *, confirmed: bool) -> None:
        """Hand out what came of the usual steps: of those that were started, each has the fence behind that of the last."""
        first, _, marks = answer.partition(b"|")
        fence, now_ms = int(first), int(now)
        if _DONE not in marks and not any(type(step) is Done and step.follow == "yield" for _, step, _ in items):
            self._usual_from = mono() + _UNUSUAL
        for item, mark in zip(items, marks, strict=True):
            lease, _, waiting = item
            if mark != _DONE:
                lease.record = ""
                self._put(item)
            elif not lease.ahead:
                if not waiting.done():
                    waiting.set_result(_SETTLED[b"idle"])
            else:
                message, envelope = lease.ahead.pop()
                number = str(fence)
                lease.attempt_id = attempt_id(number, message)
                lease.record = held_record(HELD, lease.activation, lease.attempt_id, "1", now, lease.holder)
                fence += 1
                if waiting.done():
                    self._give_back(lease)
                else:
                    waiting.set_result(
                        Started(number, message, 1, now_ms, now_ms, envelope, _NO_FIELDS, confirmed, is_first=True)
                    )

    def _give_back(self, lease: Lease) -> None:
        """Give back a command that was started for a task that is cancelled by now: no task runs it."""
        self.submit(lease, GIVE_BACK_UNCOUNTED)


def _usual_change(lease: Lease, step: Done) -> str:
    """Return the new record after a usual step, as `lua/advance/2a_usual.lua` has it; empty of any other step."""
    if not lease.record or step.status != "completed" or not _is_usual(step.left):
        return ""
    if not lease.ahead:
        return lease.activation if lease.record[0] == LONE_HELD else ""
    if step.follow == "leave":
        return ""
    return held_record(HELD, lease.activation, attempt_id("%s", lease.ahead[-1][0]), "1", "%s", lease.holder.replace("%", "%%"))


def _is_usual(left: Settlement) -> bool:
    """Return whether a command leaves at most a mark and a reply."""
    if left is NO_SETTLEMENT:
        return True
    return not (left.outcome or left.unique or left.side or left.follow_ups or left.waits_ms or left.waiting)


def _step_size(step: Step) -> int:
    if isinstance(step, _DEAD_LETTERING):
        return _SMALL + _size_of(step.left) + len(step.record) + len(step.raw)
    if type(step) is not Done:
        return _SMALL
    size = _SMALL if step.left is NO_SETTLEMENT else _SMALL + _size_of(step.left)
    return size if step.state is None else size + len(step.state)


def _size_of(left: Settlement) -> int:
    size = len(left.mark) + len(left.reply) + len(left.outcome)
    if left.waiting is not None:
        size += len(left.waiting.reply)
    return size + sum([_SMALL + len(each.envelope) for each in left.follow_ups]) if left.follow_ups else size


def _decode(lease: Lease, state: bytes, body: Any, now: str, confirmed: bool) -> Answer:
    """Return the answer of a step that kept its lease, or failed, from its two values. Keep what was read ahead of the next steps."""
    if state == b"error":
        return StepFailed(body.decode(errors="replace"))
    if state == b"ask":
        return _asked(lease, body, now)
    fence, message, attempt, first, *parts = parse_started(state)
    lease.attempt_id = attempt_id(fence, message)
    if parts and parts[-1] == AGAIN:
        parts.pop()
        lease.state = None
    fields = _NO_FIELDS
    if body is None:
        if not lease.ahead or lease.ahead[-1][0] != message:
            raise ValueError(f"{message} of {lease.mailbox} was started, but not read ahead")
        body = lease.ahead.pop()[1]
    else:
        lease.ahead = None
        if type(body) is not bytes:
            if type(body[-1]) is list:
                body, behind = body
                lease.ahead = [(entry.decode(), envelope) for entry, envelope in zip(behind[::2], behind[1::2], strict=True)][
                    ::-1
                ]
            else:
                body, fields = _envelope_in(body), body
    snoozes, run = (snoozes_of(parts, message), runs_of(parts)) if parts else (NO_SNOOZES, NO_RUN)
    lease.record = "" if parts else held_record(HELD, lease.activation, lease.attempt_id, attempt, first, lease.holder)
    lease.has_place = PLACE in parts
    is_first = fields is _NO_FIELDS and is_first_start(attempt, first, now, parts)  # an entry of a replay has further fields
    return Started(fence, message, int(attempt), int(first), int(now), body, fields, confirmed, snoozes, is_first, run=run)


def _asked(lease: Lease, body: list[Any], now: str) -> LimitQuestion:
    """Return what has to be asked for before the next command starts. It may have been read ahead; it will be read again."""
    message: str = body[0].decode("utf-8", "backslashreplace")
    entry, paid, flow, is_due, suspect, others = body[1:]
    if entry is None:
        envelope = lease.ahead[-1][1] if lease.ahead and lease.ahead[-1][0] == message else None
    elif type(entry) is bytes:
        envelope = entry
    else:
        envelope = entry[0] if type(entry[-1]) is list else _envelope_in(entry)
    lease.ahead, lease.attempt_id, lease.state = None, "", None
    flow, others = (each.decode("utf-8", "backslashreplace") for each in (flow, others))
    return LimitQuestion(message, envelope, bool(paid), flow, int(now) if is_due else 0, bool(suspect), others)


def _envelope_in(fields: list[bytes]) -> bytes | None:
    pairs = dict(zip(fields[::2], fields[1::2], strict=False))
    return pairs.get(b"e")
