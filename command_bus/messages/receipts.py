"""Answers to a sender: receipts and batch results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple

from typing_extensions import TypeVar

from command_bus.errors import CommandBusError, ResultNotKept

R = TypeVar("R", default=Any)  # so that `Receipt` alone is a type, too


class Receipt(NamedTuple, Generic[R]):
    """The server has the command.

    Attributes:
        command_id: Given or generated.
        status: `"accepted"`, or `"duplicate"` if the id was accepted before within the dedup window: it is not run twice. With a unique key
            also `"duplicate"` if another command holds the key, and `"replaced"` if this one was accepted in the place of another.
        other: The id of that other command; None where there is none.
    """

    command_id: str
    status: Literal["accepted", "duplicate", "replaced"]
    other: str | None = None

    async def result(self, *, timeout: float | None = None) -> R:
        """Return the result of the command as `call` would return it; it was dispatched with `keep_result=True`.

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
    """A `Receipt` of a `SyncCommandBus`."""

    def result(self, *, timeout: float | None = None) -> R:  # type: ignore[override]  # it waits; pyright: ignore[reportIncompatibleMethodOverride]
        raise _not_kept(self.command_id)


class KeptReceipt(Receipt[R]):
    """A receipt that knows whom to ask. Other processes get a plain one.

    Attributes:
        ask: Reads the result, with a timeout.
    """

    ask: Callable[..., Awaitable[R]]

    async def result(self, *, timeout: float | None = None) -> R:
        return await self.ask(running_id(self), timeout)

    def __reduce__(self) -> tuple[Any, ...]:
        return Receipt, tuple(self)


class KeptSyncReceipt(SyncReceipt[R]):
    """A blocking receipt that knows whom to ask. Other processes get a plain one.

    Attributes:
        ask: Reads the result, with a timeout.
    """

    ask: Callable[..., R]

    def result(self, *, timeout: float | None = None) -> R:  # type: ignore[override]  # as above; pyright: ignore[reportIncompatibleMethodOverride]
        return self.ask(running_id(self), timeout)

    def __reduce__(self) -> tuple[Any, ...]:
        return SyncReceipt, tuple(self)


def kept(receipt: Receipt[Any], ask: Callable[..., Awaitable[R]]) -> Receipt[R]:
    """Return the receipt with a result to ask for."""
    keeping: KeptReceipt[R] = KeptReceipt(*receipt)
    keeping.ask = ask
    return keeping


def kept_blocking(receipt: Receipt[Any], ask: Callable[..., R]) -> SyncReceipt[R]:
    """Return a blocking receipt with a result to ask for."""
    keeping: KeptSyncReceipt[R] = KeptSyncReceipt(*receipt)
    keeping.ask = ask
    return keeping


def running_id(receipt: Receipt[Any]) -> str:
    """Return the id of the command that runs: of a duplicate by a unique key that is the other one."""
    return receipt.other or receipt.command_id if receipt.status == "duplicate" else receipt.command_id


def _not_kept(command_id: str) -> ResultNotKept:
    return ResultNotKept(
        f"the result of command {command_id!r} cannot be asked for by this receipt: dispatch with keep_result=True; where the id was given "
        "or the receipt comes from another process, ask bus.result(command_id)"
    )


class BatchOutcome(NamedTuple):
    """The outcome of one command of a batch.

    Attributes:
        command_id: Given or generated; empty if the item was no command at all.
        status: As in `Receipt`, or `"rejected"`.
        error: Why it was rejected, else None.
        other: As in `Receipt`.
    """

    command_id: str
    status: Literal["accepted", "duplicate", "replaced", "rejected"]
    error: CommandBusError | None = None
    other: str | None = None


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The outcome of each command of a batch, in the order given.

    Attributes:
        outcomes: One per command.
        accepted: How many were accepted, those that replaced another with them.
        duplicates: How many were accepted before, or dropped because another command holds their unique key.
        rejected: How many were not accepted; nothing of their entity that came later in the batch was accepted either.
        replaced: How many of those accepted replaced another.
    """

    outcomes: tuple[BatchOutcome, ...]
    accepted: int
    duplicates: int
    rejected: int
    replaced: int = 0

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
