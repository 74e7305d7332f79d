"""`LimitAsks`: asks the first shard whether commands may start, in few large batches, and tells it when their leases have ended.

A question is idempotent under its lease: asked again after a lost answer, it finds its own places. Tokens it takes again then: a lost answer
costs tokens, and never lets one start too many.

A question names the incarnation of the shard that was known when it was asked (`incarnations.py`). If the namespace was deleted since then, nothing
is written, and the answer is a refusal: its lease is gone, and the script of its own shard says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.script_line import ScriptBatch, WorkerLine
from command_bus.transport.redis.incarnations import Incarnations
from command_bus.transport.redis.keys import GROUP, KeySpace
from command_bus.transport.redis.limits.rules import limit_keys
from command_bus.transport.redis.scripts import LIMITS
from command_bus.transport.steps import Lease

_GONE = b"gone"
_INCARNATION = 2
"""Its place in the arguments of limits.lua."""
_log = logging.getLogger("command_bus.transport")


class _Question(NamedTuple):
    """The request for one mailbox; `over` has no message and no answer. The incarnation is empty if it was not known yet."""

    verb: str
    incarnation: str
    args: tuple[Any, ...]
    answer: asyncio.Future[bool | None]


class LimitAsks(WorkerLine[_Question]):
    """The questions of one worker.

    Args:
        connections: Clients that this process shares.
        keys: The shards.
        incarnations: Lives of the shards, as this process has read them.
    """

    def __init__(self, connections: Connections, keys: KeySpace, incarnations: Incarnations) -> None:
        first = keys.shards[0]
        super().__init__(connections.at(first.prefix), f"command_bus.limits{first.prefix}", "cannot ask limits")
        self._first = first
        self._incarnations = incarnations
        self._names = limit_keys(first)

    def ask(self, lease: Lease, message: str, keyed: str, *, must_yield: bool) -> asyncio.Future[bool | None]:
        """Return whether a message may start. If not, its mailbox stands in the queue of the limit that refused it; None if nothing was decided.

        Args:
            lease: Holds its mailbox.
            message: Its id.
            keyed: Costs and scopes by key, and callers: see shared/limits.lua.
            must_yield: Whether it must give up a place that another entity waits for.
        """
        args = (lease.mailbox, lease.shard, lease.activation, message, keyed, int(must_yield))
        return self._ask("ask", args)

    def over(self, mailbox: str, activation: str) -> asyncio.Future[bool | None]:
        """Give the places of a lease back that has ended."""
        return self._ask("over", (mailbox, activation))

    def gone(self, mailbox: str) -> asyncio.Future[bool | None]:
        """Give the grant of a mailbox back that cannot be started; it asks again once it can."""
        return self._ask("gone", (mailbox,))

    def _ask(self, verb: str, args: tuple[Any, ...]) -> asyncio.Future[bool | None]:
        answer: asyncio.Future[bool | None] = self._future()
        self._put(_Question(verb, self._incarnations.known(self._first), args, answer))
        return answer

    def _take(self) -> list[_Question]:
        """Take the first questions that have one verb and one incarnation."""
        items = [self._line.popleft()]
        kind = (items[0].verb, items[0].incarnation)
        while self._line and len(items) < self._most and (self._line[0].verb, self._line[0].incarnation) == kind:
            items.append(self._line.popleft())
        return items

    def _batch(self, items: list[_Question]) -> ScriptBatch[_Question]:
        args: list[Any] = [GROUP, items[0].verb, items[0].incarnation]
        for item in items:
            args += item.args
        return ScriptBatch(LIMITS, self._names, args, items)

    def _is_answer(self, answer: Any) -> bool:
        return type(answer) is list or type(answer) is int or answer == _GONE

    def _may_post(self, batch: ScriptBatch[_Question]) -> bool:
        return bool(batch.args[_INCARNATION])

    def _heard(self, batch: ScriptBatch[_Question], answer: Any) -> None:
        if answer == _GONE and batch.args[_INCARNATION] == self._incarnations.known(self._first):
            self._incarnations.forget()

    def _hand_out(self, batch: ScriptBatch[_Question], answer: Any, *, confirmed: bool = True) -> None:
        del confirmed
        answers: Sequence[Any] = answer if type(answer) is list else [answer if answer == _GONE else b"+"] * len(batch.items)
        for item, value in zip(batch.items, answers, strict=True):
            if not item.answer.done():
                item.answer.set_result(None if value == _GONE else value == b"+")

    async def _run(self, batch: ScriptBatch[_Question]) -> tuple[Any, bool]:
        batch.args[_INCARNATION] = batch.args[_INCARNATION] or await self._incarnations.of(self._first)
        return await super()._run(batch)

    def _failed(self, items: Sequence[_Question], error: BaseException) -> None:
        super()._failed([item for item in items if item.verb == "ask"], error)
