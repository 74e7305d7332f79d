"""What the bus answers: receipts, batch results, dead letters, statistics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple

from typing_extensions import TypeVar

from command_bus.errors import CommandBusError, ResultNotKept

__all__ = [
    "BatchOutcome",
    "BatchResult",
    "DeadLetter",
    "Receipt",
    "Stats",
    "SyncReceipt",
    "WorkerInfo",
    "kept",
    "kept_blocking",
]

R = TypeVar("R", default=Any)  # so that `Receipt` alone is a type, too


class Receipt(NamedTuple, Generic[R]):
    """The server has the command.

    Attributes:
        command_id: Given or generated.
        status: `"accepted"`, or `"duplicate"` if the id was accepted before within the dedup window: it is not run twice.
    """

    command_id: str
    status: Literal["accepted", "duplicate"]

    async def result(self, *, timeout: float | None = None) -> R:
        """What came of the command: as `call` would have given it; it was dispatched with `keep_result=True`.

        Args:
            timeout: Seconds to wait for it, by default `call_timeout`.

        Raises:
            ResultNotKept: It was dispatched without `keep_result=True`, or this is a copy from another process.
            CommandTimeout: No outcome in time; ask again later.
            UnknownCommand: Its time is over: it is kept for `dedup_window` seconds.
            CommandBusError: Its outcome, as `call` raises it.
        """
        raise _not_kept(self.command_id)


class SyncReceipt(Receipt[R]):
    """As `Receipt`, of a `SyncCommandBus`."""

    def result(self, *, timeout: float | None = None) -> R:  # type: ignore[override]  # it waits; pyright: ignore[reportIncompatibleMethodOverride]
        """See `Receipt.result`."""
        raise _not_kept(self.command_id)


class KeptReceipt(Receipt[R]):
    """A receipt that knows whom to ask. Other processes get a plain one.

    Attributes:
        ask: Reads the result, with a timeout.
    """

    ask: Callable[..., Awaitable[R]]

    async def result(self, *, timeout: float | None = None) -> R:
        """See `Receipt.result`."""
        return await self.ask(self.command_id, timeout)

    def __reduce__(self) -> tuple[Any, ...]:
        return Receipt, tuple(self)


class KeptSyncReceipt(SyncReceipt[R]):
    """A blocking receipt that knows whom to ask. Other processes get a plain one.

    Attributes:
        ask: Reads the result, with a timeout.
    """

    ask: Callable[..., R]

    def result(self, *, timeout: float | None = None) -> R:  # type: ignore[override]  # as above; pyright: ignore[reportIncompatibleMethodOverride]
        """See `Receipt.result`."""
        return self.ask(self.command_id, timeout)

    def __reduce__(self) -> tuple[Any, ...]:
        return SyncReceipt, tuple(self)


def kept(receipt: Receipt[Any], ask: Callable[..., Awaitable[R]]) -> Receipt[R]:
    """The receipt, with a result to ask for."""
    keeping: KeptReceipt[R] = KeptReceipt(*receipt)
    keeping.ask = ask
    return keeping


def kept_blocking(receipt: Receipt[Any], ask: Callable[..., R]) -> SyncReceipt[R]:
    """The same for blocking code."""
    keeping: KeptSyncReceipt[R] = KeptSyncReceipt(*receipt)
    keeping.ask = ask
    return keeping


def _not_kept(command_id: str) -> ResultNotKept:
    return ResultNotKept(
        f"the result of command {command_id!r} cannot be asked for by this receipt: dispatch with keep_result=True; where the id was given "
        "or the receipt comes from another process, ask bus.result(command_id)"
    )


class BatchOutcome(NamedTuple):
    """What became of one command of a batch.

    Attributes:
        command_id: Given or generated; empty if the item was no command at all.
        status: As in `Receipt`, or `"rejected"`.
        error: Why it was rejected, else None.
    """

    command_id: str
    status: Literal["accepted", "duplicate", "rejected"]
    error: CommandBusError | None = None


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of each command of a batch, in the order given.

    Attributes:
        outcomes: One per command.
        accepted: How many were accepted.
        duplicates: How many were accepted before.
        rejected: How many were not accepted; nothing of their entity that came later in the batch was accepted either.
    """

    outcomes: tuple[BatchOutcome, ...]
    accepted: int
    duplicates: int
    rejected: int

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def rejections(self) -> tuple[BatchOutcome, ...]:
        """The outcomes of what was rejected."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "rejected")

    def raise_for_rejected(self) -> None:
        """Raise the error of the first rejected command, if there is one."""
        for outcome in self.outcomes:
            if outcome.error is not None:
                raise outcome.error


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A command that was given up, with its cause.

    Attributes:
        id: Of the letter, for `replay` and `discard`.
        reason: `failed`, `interrupted`, `no_handler`, `undecodable`, `invalid`, `unsupported_version`, `bad_signature` or `expired`.
        command_id: Empty if the envelope could not be read.
        name: The wire name, empty likewise.
        entity_type: The entity's type, or None.
        entity_id: The entity's id, or None.
        error_type: The exception's qualified name.
        error_message: Its text.
        traceback: The frames, without local values.
        attempts: How many times it was started.
        accepted_ms: When the server accepted it, in ms since the epoch.
        first_started_ms: When it was first started.
        failed_ms: When it was given up.
        worker: Which worker gave it up.
        headers: As they were sent.
        parked: Whether its entity waits for a decision about it.
        payload: The decoded fields, or None if they cannot be read. Decoded when it is first asked for.
        raw: The original envelope.
    """

    id: str
    reason: str
    command_id: str
    name: str
    entity_type: str | None
    entity_id: str | None
    error_type: str
    error_message: str
    traceback: str
    attempts: int
    accepted_ms: int
    first_started_ms: int
    failed_ms: int
    worker: str
    headers: Mapping[str, str]
    parked: bool
    payload: Mapping[str, Any] | None
    raw: bytes = field(repr=False)

    @property
    def entity(self) -> str | None:
        """`"account:a-17"`, or None."""
        return None if self.entity_type is None else f"{self.entity_type}:{self.entity_id}"


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a live worker says of itself.

    Attributes:
        name: Its consumer name, random per start.
        host: Where it runs.
        pid: Its process.
        started_ms: When it started, by its wall clock.
        seen_ms: Its last sign of life, by the server's clock.
        concurrency: How many entities it runs at a time.
        running: How many it held then.
        commands: The wire names that it handles.
        lease: Seconds of its leases.
        longest: Seconds for which its longest attempt had run then.
        threads: How many synchronous handlers it runs at a time.
        awaiting_thread: Entities among `running` whose next command waited for one of its threads.
        awaiting_reply: Entities among `running` whose handler waited for a reply of the bus; they do not count against `concurrency`.
    """

    name: str
    host: str
    pid: int
    started_ms: int
    seen_ms: int
    concurrency: int
    running: int
    commands: tuple[str, ...]
    lease: float = 30.0
    longest: float = 0.0
    threads: int = 0
    awaiting_thread: int = 0
    awaiting_reply: int = 0

    @property
    def patience_ms(self) -> int:
        """After how long without a sign of life it is no longer counted as live."""
        return int(max(self.lease * 2, 5.0) * 1000)


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot of the namespace.

    Attributes:
        depth: Commands accepted and not settled (waiting, delayed, running, parked).
        in_flight: Entities held by workers.
        ready: Entities that wait for a worker.
        delayed: Commands and retries that wait for their time.
        paused: Entities, entity types and buses that were paused or drained; see `bus.entities.holds()`.
        parked: Entities held by a poisoned command.
        entities: Entities with work.
        oldest_age: Seconds for which the entity at the head of the line has waited for a worker, 0.0 if none waits.
        longest_running: Seconds for which the attempt that runs longest has run, as the workers said with their last sign of life.
        dead_letters: Letters in the dead-letter queue.
        accepted: Commands accepted since the namespace was made.
        settled: Commands settled since then, whatever the outcome.
        completed: Of those, their handler returned.
        rejected: Of those, refused by their handler.
        expired: Of those, not started in time for their caller.
        dead_lettered: Commands dead-lettered since then (a replayed one may count again).
        retried: Attempts since then that failed and were followed by another.
        handed_back: Starts since then that were no attempt: the worker did not know the command, or was leaving.
        workers: The live workers.
    """

    depth: int
    in_flight: int
    ready: int
    delayed: int
    paused: int
    parked: int
    entities: int
    oldest_age: float
    longest_running: float
    dead_letters: int
    accepted: int
    settled: int
    completed: int
    rejected: int
    expired: int
    dead_lettered: int
    retried: int
    handed_back: int
    workers: tuple[WorkerInfo, ...]
