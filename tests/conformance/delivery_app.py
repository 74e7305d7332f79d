"""An application for tests of delivery: commands of every kind, and handlers that note what they see."""

from __future__ import annotations

import asyncio
from typing import Any

from command_bus import (
    Command,
    CommandContext,
    EntityId,
    Query,
    Reject,
    RetryPolicy,
)
from tests.conformance.conftest import Sandbox

__all__ = ["QUICK", "App", "Balance", "Deposit", "Flaky", "Free", "Parking", "Poison", "Refuse", "Slow", "Step"]


QUICK = RetryPolicy(attempts=3, delay=0.01, jitter=0.0)


class Deposit(Command[int], entity="account"):
    account_id: EntityId
    amount: int


class Balance(Query[int], entity="account"):
    account_id: EntityId


class Step(Command[None], entity="line", retry=QUICK):
    line: EntityId
    number: int


class Flaky(Command[str], entity="line", retry=QUICK):
    line: EntityId
    fail: int


class Refuse(Command[None], entity="account"):
    account_id: EntityId


class Poison(Command[None], entity="line", retry=RetryPolicy(attempts=1)):
    line: EntityId


class Parking(Command[None], entity="line", retry=RetryPolicy(attempts=1), on_poison="park"):
    line: EntityId


class Free(Command[int]):
    number: int


class Slow(Command[None], entity="line", retry=RetryPolicy(attempts=2, delay=0.0), attempt_timeout=0.05):
    line: EntityId


class App:
    """The handlers of these tests, and what they saw."""

    def __init__(self, sandbox: Sandbox) -> None:  # noqa: C901 - a list of handlers
        registry = sandbox.registry
        self.balances: dict[str, int] = {}
        self.seen: list[tuple[str, Any]] = []
        self.running: set[str] = set()
        self.overlaps = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.poison = True

        @registry.handles(Deposit)
        async def deposit(command: Deposit) -> int:
            balance = self.balances.get(str(command.account_id), 0)
            await asyncio.sleep(0)
            self.balances[str(command.account_id)] = balance + command.amount
            return balance + command.amount

        @registry.handles(Balance)
        async def balance(query: Balance) -> int:
            return self.balances.get(str(query.account_id), 0)

        @registry.handles(Step)
        async def step(command: Step) -> None:
            line = str(command.line)
            self.overlaps += line in self.running
            self.running.add(line)
            await self.gate.wait()
            await asyncio.sleep(0.0005 * (command.number % 3))
            self.running.discard(line)
            self.seen.append((line, command.number))

        @registry.handles(Flaky)
        async def flaky(command: Flaky, context: CommandContext) -> str:
            self.seen.append((str(command.line), context.attempt))
            if context.attempt <= command.fail:
                raise ValueError("not yet")
            return f"attempt {context.attempt}"

        @registry.handles(Refuse)
        def refuse(command: Refuse) -> None:
            raise Reject("no", code="nope", details={"left": 3})

        @registry.handles(Poison)
        async def poison(command: Poison) -> None:
            raise RuntimeError("bad")

        @registry.handles(Parking)
        async def parking(command: Parking) -> None:
            self.seen.append((str(command.line), "parking"))
            if self.poison:
                raise RuntimeError("bad")

        @registry.handles(Free)
        async def free(command: Free) -> int:
            return command.number * 2

        @registry.handles(Slow)
        async def slow(command: Slow) -> None:
            await asyncio.sleep(10)
