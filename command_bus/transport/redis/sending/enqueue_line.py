"""`EnqueueLine`: the line of commands in front of one shard.

Whatever is enqueued during one turn of the event loop leaves as one batch when the turn ends; what arrives while a batch is under way
leaves as the next. A batch has a number that grows per producer, and the server keeps how it answered the last one: asked again after a
lost reply, it is answered as the first time; an older one that was stuck on the way is refused.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from command_bus.clock import mono
from command_bus.errors import BusClosed, CommandBusError, TransportUnavailable, Unconfirmed, UnsuitableServer
from command_bus.randomness import token
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.outage_log import LoggedBackoff
from command_bus.transport.redis.connection.script_line import ScriptBatch, ScriptLine
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.scripts import ENQUEUE, ENQUEUE_ONE
from command_bus.transport.redis.sending.enqueue_arguments import enqueue_arguments, enqueue_one_arguments, renew
from command_bus.transport.redis.sending.unique_batches import ASK_AGAIN, admissions_of, goes_with, standers_in
from command_bus.transport.retention import Retention
from command_bus.transport.submissions import Admission, Submission

MAX_COMMANDS = 512
MAX_BYTES = 1024 * 1024
"""Most commands of one script call: a script then takes about 1 to 2 ms, and no other client waits longer."""
_log = logging.getLogger("command_bus.transport")

_ANSWER_KEPT = 3600.0
"""Seconds for which the last answer outlives the patience of those who wait for it: a request may be that late, or the server's clock jump.

When half of them are over, its absence says nothing any more: what is asked again then is taken as if it were the producer's first batch.
"""

_ADMISSIONS = {ord(admission.value): admission for admission in Admission}
_STALE = 0.1  # seconds in the queue after which envelopes with a deadline are packed again
_AGAIN = 1  # where the arguments say that the batch may have been applied before, and that an answer must be there
_ACCEPTED, _REPLACED = b"+", b"r"
_GONE = b"gone"
_UNUSUAL = b"?"
_GENERAL = 1.0  # seconds


@dataclass(slots=True)
class QueuedCommands:
    """Some commands of one caller that leave together."""

    submissions: Sequence[Submission]
    answer: asyncio.Future[Any]
    deadline: float
    alone: bool = False
    """Its answer is that of one command, not a list."""
    counted_off: bool = False
    """It is answered, and not counted as pending any more."""


@dataclass(slots=True)
class _Batch(ScriptBatch[QueuedCommands]):
    """Commands that leave together. Until the batch may have been applied, callers that give up leave it; then it stays as it is."""

    number: int
    stale: bool
    """Whether it waited for long before it left: deadlines in its envelopes are packed again."""


class EnqueueLine(ScriptLine[QueuedCommands, _Batch]):
    """The line in front of one shard.

    Args:
        connections: To the shard's server.
        keys: Names of the shard's keys.
        limit: How many commands and mailboxes it takes, as `KeySpace.limits` gives it.
        retention: For callers whose commands are replaced.

    Attributes:
        pending: Commands that wait for an answer.
    """

    def __init__(self, connections: Connections, keys: ShardKeys, limit: int | str, retention: Retention) -> None:
        super().__init__(connections, f"command_bus.producer{keys.prefix}")
        self._backoff = LoggedBackoff(connections.outage, "cannot send commands", _log, lasts=False)
        self._watch = connections.watch
        self._keys = keys
        self._head_keys = [
            keys.ready, keys.active, keys.stats, keys.due, keys.delayed, keys.delayed_counts, keys.paused, keys.last_batch(token(8).hex()),
            keys.watched, keys.arrivals, keys.lone, *keys.fair,
        ]  # fmt: skip
        self._head_keys_of_one = [
            keys.ready, keys.active, keys.stats, keys.delayed_counts, keys.paused, keys.watched, self._head_keys[7], keys.lone, keys.flows,
        ]  # fmt: skip
        self._limit = limit
        self._retention = retention
        self._in_general_until = -math.inf
        """Monotonic time until which single commands go to the script for many: something is paused, watched, delayed or full, or a line in use."""
        self._numbers = itertools.count(1)
        self._answer_kept_until = 0.0  # monotonic; before the first answer there is none
        self._left_at = math.inf
        self._alarm: asyncio.TimerHandle | None = None
        self._closed = False
        self.pending = 0

    def submit(self, submissions: Sequence[Submission], timeout: float, *, alone: bool = False) -> asyncio.Future[Any]:
        """Put commands into the line. Return their answers; with `alone`, that of the one command, not in a list.

        Raises:
            BusClosed: The line is closed.
            TransportUnavailable: The server is away, and senders do not wait for it.
        """
        if self._closed:
            raise BusClosed("the bus is closed")
        if self._watch.refuses:
            raise self._watch.refusal()
        answer = self._future()
        self._put(QueuedCommands(submissions, answer, mono() + timeout, alone))
        self.pending += len(submissions)
        return answer

    async def close(self) -> None:
        """Let what waits leave, then refuse more."""
        self._closed = True
        await self.rest()
        if self._alarm is not None:
            self._alarm.cancel()

    # The usual case.

    def _take(self) -> list[QueuedCommands]:
        items: list[QueuedCommands] = []
        commands, size = 0, 0
        unique: set[str] = set()
        while self._line:
            waiting = self._line[0]
            if (unique or waiting.submissions[0].unique is not None) and not goes_with(
                waiting.submissions, unique, first=not items
            ):
                break
            more = sum([len(submission.envelope) for submission in waiting.submissions])
            if items and (commands + len(waiting.submissions) > MAX_COMMANDS or size + more > MAX_BYTES):
                break
            self._line.popleft()
            if waiting.answer.cancelled():
                self.pending -= len(waiting.submissions)
                continue
            items.append(waiting)
            commands, size = commands + len(waiting.submissions), size + more
        return items

    def _batch(self, items: list[QueuedCommands]) -> _Batch:
        now = mono()
        stale, self._left_at = now - self._left_at > _STALE, now
        return self._numbered(items, next(self._numbers), now, stale=stale)

    def _numbered(self, items: list[QueuedCommands], number: int, now: float, *, stale: bool) -> _Batch:
        """Return a batch with a number. A single command goes to the script for one, unless that said lately that it cannot take any."""
        last = items[0].deadline if len(items) == 1 else max([waiting.deadline for waiting in items])
        head = [number, 0, int((_ANSWER_KEPT + max(0.0, last - now)) * 1000), self._limit]
        if len(items) == 1 and items[0].alone and now >= self._in_general_until:
            (submission,) = items[0].submissions
            if not (submission.delay_ms or submission.flow or submission.unique or submission.others):
                keys, args = enqueue_one_arguments(self._keys, self._head_keys_of_one, head, submission)
                return _Batch(ENQUEUE_ONE, keys, args, items, number, stale)
        keys, args = enqueue_arguments(self._keys, self._head_keys, head, _submissions(items), self._retention)
        return _Batch(ENQUEUE, keys, args, items, number, stale)

    def _may_post(self, batch: _Batch) -> bool:
        """Set the alarm for the first caller whose patience ends, too."""
        if batch.stale:
            return False
        deadline = _first_deadline(batch.items)
        left = deadline - self._left_at
        if left <= 0:
            return False
        self._ring_in(left)
        return True

    def _ring_in(self, seconds: float) -> None:
        """Have `_ring` called by then: one timer serves all batches, and an earlier one asks again."""
        at = self._loop.time() + seconds
        if self._alarm is not None:
            if self._alarm.when() <= at:
                return
            self._alarm.cancel()
        self._alarm = self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        """Take a batch whose first deadline has passed to the slow way: it may have been applied."""
        self._alarm = None
        if self._posted is None:
            return
        left = _first_deadline(self._posted.items) - mono()
        if left > 0:
            self._ring_in(left)
        else:
            self._give_up(self._no_answer())

    def _is_answer(self, answer: Any) -> bool:
        return type(answer) is bytes and answer != _UNUSUAL and answer[:1] != ASK_AGAIN

    def _refused(self, batch: _Batch, answer: Any) -> None:
        """Send a batch that replaces others again as soon as the answer says which."""
        if type(answer) is bytes and answer[:1] == ASK_AGAIN:
            self._send(self._told(batch, answer))
        else:
            super()._refused(batch, answer)

    def _told(self, batch: _Batch, answer: bytes) -> _Batch:
        """Return the batch again, with those that hold the keys, as the server told."""
        standers = standers_in(answer)
        for submission in _submissions(batch.items):
            if submission.unique is not None:
                submission.unique.known = standers.get(submission.unique.key, b"")
        again = batch.args[_AGAIN]
        batch = self._numbered(batch.items, batch.number, mono(), stale=batch.stale)
        batch.args[_AGAIN] = again
        return batch

    def _error_in(self, answer: Any) -> CommandBusError | None:
        if answer == _UNUSUAL:
            self._in_general_until = mono() + _GENERAL
            return None
        return super()._error_in(answer)

    def _hand_out(self, batch: _Batch, answer: bytes) -> None:
        self._resolve(batch.items, answer)

    def _rest(self) -> None:
        self._left_at = math.inf
        super()._rest()

    # Whatever is out of the ordinary.

    async def _send_slowly(self, batch: _Batch, error: CommandBusError | None) -> None:
        """Fail commands whose deadline passes before the answer."""
        self._backoff.begin()
        doubt: CommandBusError | None = None  # set once the batch may have been applied: from then on it must stay as it is
        left = batch.items
        if error is None:
            left = self._expire(left, TransportUnavailable("it could not leave in time: this process was busy or asleep"), 0.0)
        while left:
            if error is None:
                batch = self._again(batch, left, doubt)
                answer = await self._ask(batch, _first_deadline(left))
                if (asked := self._asked_again(batch, answer)) is not None:
                    batch = asked
                    continue
                if not isinstance(answer, CommandBusError):
                    self._backoff.worked()
                    return self._fail(left, doubt) if answer == _GONE and doubt else self._resolve(batch.items, answer)
                error = answer
            if not isinstance(error, TransportUnavailable | Unconfirmed):  # it may not be repeated
                return self._fail(left, error if doubt is None else _in_doubt(error))
            if isinstance(error, Unconfirmed) or (doubt is None and error.outcome_unknown):
                doubt = error
            pause = self._backoff.failed(error)
            if self._watch.refuses:
                pause = math.inf  # no caller waits for a next try
            left = self._expire(left, doubt or error, pause)
            self._line = deque(self._expire(list(self._line), unsent(error), pause))
            batch.stale, error = True, None
            if left:
                await asyncio.sleep(pause)
        return None

    def _asked_again(self, batch: _Batch, answer: bytes | CommandBusError) -> _Batch | None:
        """Return the batch to ask with if the answer is to ask in another way; else None."""
        if answer == _UNUSUAL:
            self._in_general_until = mono() + _GENERAL
            return batch
        return self._told(batch, answer) if type(answer) is bytes and answer[:1] == ASK_AGAIN else None

    def _again(self, batch: _Batch, left: list[QueuedCommands], doubt: CommandBusError | None) -> _Batch:
        """Return the batch for its next try: the same, or a new one without callers that gave up before it can have been applied."""
        if doubt is None and len(left) != len(batch.items):
            stale, batch = batch.stale, self._batch(left)
            batch.stale = stale
        if (batch.stale and renew(_submissions(batch.items))) or (
            batch.script is ENQUEUE_ONE and mono() < self._in_general_until
        ):
            batch = self._numbered(batch.items, batch.number, mono(), stale=batch.stale)
        batch.args[_AGAIN] = int(doubt is not None and mono() < self._answer_kept_until - _ANSWER_KEPT / 2)
        return batch

    async def _ask(self, batch: _Batch, deadline: float) -> bytes | CommandBusError:
        """Return the answer, or the error."""
        try:
            async with asyncio.timeout(max(deadline - mono(), 0.001)):
                answer, confirmed = await self._connections.run_confirmed(batch.script, batch.keys, batch.args, self._keys.stats)
        except TimeoutError:
            return self._no_answer()
        except CommandBusError as error:
            if isinstance(error, TransportUnavailable):
                self._connections.count_reconnect()
            return error
        if confirmed:
            return bytes(answer)
        return Unconfirmed(
            f"{self._connections.label} has the command, but too few replicas confirmed it in time (wait_replicas): it may be lost if "
            "the primary fails now. Sending the same command id again is safe"
        )

    def _no_answer(self) -> TransportUnavailable:
        return TransportUnavailable(f"no answer from {self._connections.label} in time", outcome_unknown=True)

    def _failed(self, items: Sequence[QueuedCommands], error: BaseException) -> None:
        """Fail those after it, too, if the task that sent them was ended."""
        if isinstance(error, asyncio.CancelledError):
            items = [*items, *self._line]
            self._line.clear()
            error = BusClosed("the bus was closed, or its event loop ended, in between")
        self._fail(items, error if isinstance(error, CommandBusError) else TransportUnavailable(f"it could not be sent: {error}"))

    def _resolve(self, asked: list[QueuedCommands], answer: bytes) -> None:
        """Give each caller its answer. Callers whose deadline has passed already have an error with an unknown outcome."""
        if asked[0].submissions[0].unique is not None:
            answer = admissions_of(_submissions(asked), answer)
        if _ACCEPTED in answer or _REPLACED in answer:  # else the server may have had no memory to keep it
            self._answer_kept_until = max(waiting.deadline for waiting in asked) + _ANSWER_KEPT
        start = 0
        for waiting in asked:
            end = start + len(waiting.submissions)
            if not waiting.counted_off:
                waiting.counted_off = True
                self.pending -= end - start
                if not waiting.answer.done():
                    codes = answer[start:end]
                    waiting.answer.set_result(_ADMISSIONS[codes[0]] if waiting.alone else [_ADMISSIONS[code] for code in codes])
            start = end

    def _fail(self, batch: Sequence[QueuedCommands], error: CommandBusError) -> None:
        for waiting in batch:
            if waiting.counted_off:
                continue
            waiting.counted_off = True
            self.pending -= len(waiting.submissions)
            if not waiting.answer.done():
                waiting.answer.set_exception(error)

    def _expire(self, batch: list[QueuedCommands], error: CommandBusError, pause: float) -> list[QueuedCommands]:
        """Fail those whose deadline passes before the next try; the others remain."""
        soon = mono() + pause
        late = [waiting for waiting in batch if waiting.deadline <= soon]
        if late:
            self._fail(late, error)
        return [waiting for waiting in batch if waiting.deadline > soon]


def _submissions(items: Sequence[QueuedCommands]) -> list[Submission]:
    return [submission for waiting in items for submission in waiting.submissions]


def _first_deadline(items: list[QueuedCommands]) -> float:
    return items[0].deadline if len(items) == 1 else min([waiting.deadline for waiting in items])


def _in_doubt(refusal: CommandBusError) -> CommandBusError:
    """Return the error of a batch that was refused, but may have been applied before that."""
    return TransportUnavailable(f"it may have been accepted before this: {refusal.message}", outcome_unknown=True)


def unsent(error: CommandBusError) -> CommandBusError:
    """Return the error of commands behind those that failed: they were certainly not sent."""
    if isinstance(error, TransportUnavailable | Unconfirmed):
        return TransportUnavailable(f"not sent, because what went before failed: {error.message}")
    return UnsuitableServer(error.message) if isinstance(error, UnsuitableServer) else error
