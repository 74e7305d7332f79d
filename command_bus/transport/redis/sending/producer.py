"""`StreamProducer`: puts commands into mailboxes, in few large steps.

Each shard has a line. A batch that is larger than a request goes in chunks; the shards' chunks go at the same time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from command_bus.errors import CommandBusError, InvalidCommand, TransportUnavailable, Unconfirmed
from command_bus.tasks import all_of
from command_bus.transport.mailboxes import mailbox_label
from command_bus.transport.ports.sender import Producer
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.sending.enqueue_line import MAX_BYTES, MAX_COMMANDS, EnqueueLine, unsent
from command_bus.transport.retention import Retention
from command_bus.transport.submissions import Admission, Submission, UnavailableShards

_REFUSALS = frozenset(
    {
        Admission.ENTITY_FULL,
        Admission.TOTAL_FULL,
        Admission.TOO_MANY_ENTITIES,
        Admission.PREDECESSOR_REFUSED,
        Admission.WRONG_TYPE,
        Admission.DRAINING,
        Admission.MAY_NOT_REPLACE,
    }
)


def _may_go(submission: Submission, refused: set[str]) -> bool:
    """Return whether no command before it was refused in one of its lines; else it holds those that follow there, too."""
    if refused.isdisjoint(submission.lines):
        return True
    refused.update(submission.lines)
    return False


class StreamProducer(Producer):
    """Implements `Producer` with the enqueue step (SET NX, XADD, one XADD to the ready stream per idle entity)."""

    def __init__(
        self,
        connections: Connections,
        keys: KeySpace,
        *,
        max_total_depth: int,
        max_pending: int,
        retention: Retention,
        max_entities: int | None = None,
    ) -> None:
        limit = keys.limits(max_total_depth, max_entities)
        self._lines = [EnqueueLine(connections.at(shard.prefix), shard, limit, retention) for shard in keys.shards]
        self._keys = keys
        self._max_pending = max_pending
        self._most = min(MAX_COMMANDS, max_pending)

    @property
    def window(self) -> int:
        """Return a full request for each shard, if so many may wait."""
        return min(MAX_COMMANDS * len(self._lines), self._max_pending)

    def enqueue(self, submission: Submission, timeout: float) -> asyncio.Future[Admission]:
        if submission.others and (fault := self._fault_of(submission)) is not None:
            raise fault
        lane = self._line_with_room(self._keys.shard_of(submission.mailbox), 1)
        return lane.submit((submission,), timeout, alone=True)

    async def enqueue_many(
        self, submissions: Sequence[Submission], timeout: float, unavailable: UnavailableShards | None = None
    ) -> list[Admission | CommandBusError]:
        noted: UnavailableShards = {} if unavailable is None else unavailable
        if self._keys.count == 1 and self._is_one_request(submissions):
            answers = await self._answers(0, submissions, timeout, noted)
            return [answers] * len(submissions) if isinstance(answers, CommandBusError) else [*answers]
        return await self._enqueue_in_chunks(submissions, timeout, noted)

    def _fault_of(self, submission: Submission) -> InvalidCommand | None:
        """Return what is wrong with the lines of a command: one script writes them, so they are in one shard."""
        home = self._keys.shard_of(submission.mailbox)
        for mailbox, _ in submission.others:
            if (shard := self._keys.shard_of(mailbox)) != home:
                return InvalidCommand(
                    f"{submission.name} stands in the lines of {mailbox_label(submission.mailbox)} in shard {home} and of "
                    f"{mailbox_label(mailbox)} in shard {shard}: give entities that belong together ids with a common part, and their types "
                    'EntityPolicy(mailbox=per_entity(shard_by="/")); or let its class say across_shards=True, with a weaker order'
                )
        return None

    def _by_shard(
        self, submissions: Sequence[Submission], outcomes: dict[int, Admission | CommandBusError], refused: set[str]
    ) -> dict[int, list[int]]:
        """Return which submissions go to each shard; note why one goes to none, and in whose lines it holds back others."""
        by_shard: dict[int, list[int]] = {}
        for index, submission in enumerate(submissions):
            if submission.others and (fault := self._fault_of(submission)) is not None:
                outcomes[index] = fault
                refused.update(submission.lines)
            elif _may_go(submission, refused):
                by_shard.setdefault(self._keys.shard_of(submission.mailbox), []).append(index)
        return by_shard

    async def _enqueue_in_chunks(
        self, submissions: Sequence[Submission], timeout: float, unavailable: UnavailableShards
    ) -> list[Admission | CommandBusError]:
        """Send to all shards at once, to each chunk by chunk. A refused command holds back the later ones of its mailbox."""
        outcomes: dict[int, Admission | CommandBusError] = dict.fromkeys(range(len(submissions)), Admission.PREDECESSOR_REFUSED)
        refused: set[str] = set()
        by_shard = self._by_shard(submissions, outcomes, refused)

        async def send(shard: int, indices: list[int]) -> None:
            chunks = self._chunks(submissions, indices)
            for position, chunk in enumerate(chunks):
                going = [index for index in chunk if _may_go(submissions[index], refused)]
                if not going:
                    continue
                answers = await self._answers(shard, [submissions[index] for index in going], timeout, unavailable)
                if isinstance(answers, CommandBusError):
                    outcomes.update(dict.fromkeys(going, answers))
                    outcomes.update(dict.fromkeys(itertools.chain(*chunks[position + 1 :]), unsent(answers)))
                    return
                for index, answer in zip(going, answers, strict=True):
                    outcomes[index] = answer
                    if answer in _REFUSALS:
                        refused.update(submissions[index].lines)

        if len(by_shard) == 1:
            await send(*next(iter(by_shard.items())))
        else:
            await asyncio.gather(*(send(shard, indices) for shard, indices in by_shard.items()))
        return list(outcomes.values())

    async def _answers(
        self, shard: int, submissions: Sequence[Submission], timeout: float, unavailable: UnavailableShards
    ) -> list[Admission] | CommandBusError:
        """Return a shard's answers, or the error. A shard that did not answer before is not asked."""
        if (error := unavailable.get(shard)) is not None:
            return unsent(error)
        try:
            answers = self._submit(shard, submissions, timeout)
        except CommandBusError as refusal:  # there is no room here: the shard is not to blame
            return refusal
        try:
            return await answers
        except (TransportUnavailable, Unconfirmed) as failed:
            unavailable[shard] = failed
            return failed
        except CommandBusError as refusal:
            return refusal

    def _submit(self, shard: int, submissions: Sequence[Submission], timeout: float) -> asyncio.Future[list[Admission]]:
        return self._line_with_room(shard, len(submissions)).submit(submissions, timeout)

    def _line_with_room(self, shard: int, commands: int) -> EnqueueLine:
        """Return the line to a shard if it may take so many commands more.

        Raises:
            TransportUnavailable: It may not.
        """
        line = self._lines[shard]
        if line.pending + commands > self._max_pending:
            raise TransportUnavailable(
                f"{line.pending} commands of this process wait for the server already (max_pending={self._max_pending}): slow down or try later"
            )
        return line

    def _is_one_request(self, submissions: Sequence[Submission]) -> bool:
        return (
            0 < len(submissions) <= self._most
            and sum(len(submission.envelope) for submission in submissions) <= MAX_BYTES
            and all(submission.unique is None for submission in submissions)
        )

    def _chunks(self, submissions: Sequence[Submission], indices: list[int]) -> list[list[int]]:
        """Return the chunks that are sent together: with unique keys apart from those without, and no two of the same key."""
        chunks: list[list[int]] = []
        size = MAX_BYTES + 1
        unique: set[str] = set()
        for index in indices:
            more, key = len(submissions[index].envelope), submissions[index].unique
            other_kind = (key is None) == bool(unique) or (key is not None and key.key in unique)
            if size + more > MAX_BYTES or len(chunks[-1]) >= self._most or other_kind:
                chunks.append([])
                size = 0
                unique.clear()
            if key is not None:
                unique.add(key.key)
            chunks[-1].append(index)
            size += more
        return chunks

    async def close(self) -> None:
        """Let what was enqueued leave, then refuse more."""
        await all_of(*(shard.close() for shard in self._lines))
