"""A durable handler whose body each test writes itself, and the commands of other entities that it calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from command_bus import Command, CommandContext, DurableContext, EntityId, Reject, RetryPolicy
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until

__all__ = ["Charge", "Fast", "Flow", "Mirror", "ParkedFlow", "Refund", "Reserve", "Shop"]

Script = Callable[[DurableContext], Awaitable[Any]]
Policy = RetryPolicy(attempts=3, delay=0.01, jitter=0)


class Flow(Command[Any], entity="order", durable=True, retry=Policy):
    order: EntityId
    script: str = "main"


class ParkedFlow(Command[Any], entity="order", durable=True, retry=Policy, on_poison="park"):
    order: EntityId
    script: str = "main"


class Fast(Command[int], entity="order"):
    """A plain command of the same entity."""

    order: EntityId


class Reserve(Command[int], entity="stock", retry=RetryPolicy(attempts=1)):
    sku: EntityId
    pieces: int = 1
    seconds: float = 0.0
    end: Literal["return", "reject", "fail"] = "return"


class Charge(Command[int], entity="account", retry=RetryPolicy(attempts=1), on_poison="park"):
    account: EntityId
    fails: bool = False


class Refund(Command[None], entity="account", retry=RetryPolicy(attempts=1)):
    account: EntityId
    fails: int = 0


class Mirror:
    """A cipher of no use: it turns the data around, and compares what it is bound to."""

    def encrypt(self, data: bytes, aad: bytes) -> bytes:
        return aad[::-1] + data[::-1]

    def decrypt(self, data: bytes, aad: bytes) -> bytes:
        if not data.startswith(aad[::-1]):
            raise ValueError("not of this place")
        return data[len(aad) :][::-1]


class Shop:
    """The handlers, what they did, and what holds them up.

    Attributes:
        log: What happened, in its order.
        scripts: The bodies of `Flow` and `ParkedFlow`, by name.
        gates: A `Reserve` of an article that has a gate waits for it.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.log: list[Any] = []
        self.scripts: dict[str, Script] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.refusals = 0
        self.context: Any = None
        self._sandbox = sandbox
        registry = sandbox.registry

        @registry.handles(Flow)
        async def flow(command: Flow, context: DurableContext) -> Any:
            return await self.scripts[command.script](context)

        @registry.handles(ParkedFlow)
        async def parked_flow(command: ParkedFlow, context: DurableContext) -> Any:
            return await self.scripts[command.script](context)

        @registry.handles(Fast)
        async def fast(command: Fast) -> int:
            self.log.append(("fast", str(command.order)))
            return 1

        @registry.handles(Reserve)
        async def reserve(command: Reserve) -> int:
            return await self._reserve(command)

        @registry.handles(Charge)
        async def charge(command: Charge, context: CommandContext) -> int:
            self.log.append(("charge", str(command.account)))
            if command.fails and self.refusals == 0:
                raise ValueError("no cover")
            return 5

        @registry.handles(Refund)
        async def refund(command: Refund) -> None:
            self.log.append(("refund", str(command.account)))
            if command.fails:
                await asyncio.sleep(0.2)  # its caller is suspended meanwhile
            if self.refusals < command.fails:
                self.refusals += 1
                raise ValueError("the bank is closed")

    async def _reserve(self, command: Reserve) -> int:
        self.log.append(("reserve", str(command.sku)))
        if str(command.sku) in self.gates:
            await self.gates[str(command.sku)].wait()
        await asyncio.sleep(command.seconds)
        if command.end == "reject":
            raise Reject("sold out", code="sold_out")
        if command.end == "fail":
            raise ValueError("no shelf")
        return command.pieces

    async def effect(self, name: str) -> str:
        """Do something that shows; the function of a step."""
        self.log.append(name)
        return name.upper()

    def count(self, what: Any) -> int:
        """Return how often something happened."""
        return self.log.count(what)

    async def is_suspended(self, order: str = "o-1") -> bool:
        """Return whether the command of an order is suspended, by the record of its mailbox."""
        for shard in range(4):
            client = self._sandbox.client(shard)
            record: Any = await client.hget(f"{{{self._sandbox.namespace}:{shard}}}:active", f"order:{order}")  # type: ignore[misc]
            await client.aclose()
            if record is not None:
                return bytes(record).lower().startswith(b"u|")
        return False

    async def suspended(self, order: str = "o-1") -> None:
        """Wait until the command of an order is suspended."""
        await until(lambda: self.is_suspended(order))

    async def side_records(self) -> list[str]:
        """Return the keys of what durable commands have stored."""
        return [key for key in await self._sandbox.keys() if "}:x:" in key]

    def script(self, function: Script) -> Script:
        """Make a function the body of the handlers."""
        self.scripts["main"] = function
        return function
