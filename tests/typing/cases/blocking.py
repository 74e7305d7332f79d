"""The blocking bus is typed as the asynchronous one.

Read by mypy and pyright, never run; see `registration.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any, assert_type

from command_bus import (
    Command,
    CommandEvent,
    CommandInfo,
    DeadLetter,
    EntityDetails,
    EntityId,
    EntityPage,
    HoldInfo,
    Receipt,
    SyncCommandBus,
    SyncEntityScope,
    SyncReceipt,
    WorkerStatus,
)


class Deposit(Command[int], entity="account"):
    account_id: EntityId
    amount: int


def calls(bus: SyncCommandBus) -> None:
    command = Deposit(account_id="a", amount=5)
    assert_type(bus.dispatch(command), SyncReceipt[int])
    assert_type(bus.dispatch(command, keep_result=True).result(timeout=5), int)
    receipt: Receipt = bus.dispatch(command)
    assert_type(receipt.command_id, str)
    assert_type(bus.call(command, timeout=5), int)
    assert_type(bus.call_raw("account", "a", "Deposit", {"amount": 5}), Any)
    assert_type(bus.result("d-1", Deposit), int)
    assert_type(bus.result("d-1"), Any)
    bus.call(command, timeuot=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    bus.dispatch_raw("account", "a", "Deposit", {}, timeout=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def parts(bus: SyncCommandBus) -> None:
    account = bus.entity("account", "a")
    assert_type(account, SyncEntityScope)
    assert_type(account.call(Deposit(account_id="a", amount=5), timeout=5), int)
    assert_type(account.depth(), int)
    assert_type(account.show(waiting=5), EntityDetails)
    assert_type(bus.entities.of("account").list(order="age", limit=10), EntityPage)
    assert_type(bus.entities.holds(), list[HoldInfo])
    assert_type(bus.fleet.workers(), list[WorkerStatus])
    assert_type(bus.fleet.command("Deposit"), CommandInfo | None)
    assert_type(bus.dead_letters.list(parked=True), Generator[DeadLetter, None, None])
    assert_type(bus.dead_letters.count(name="Deposit"), Counter[tuple[str, str]])
    assert_type(list(bus.events("account", kinds=["completed"])), list[CommandEvent])
    assert_type(bus.events.watched(), dict[str | None, int])
    bus.dead_letters.purge(nmae="Deposit")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    bus.events(kinds=["done"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    bus.entities.list(order="size")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    account.dispatch(Deposit(account_id="a", amount=5), dealy=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
