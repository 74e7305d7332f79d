"""A misspelt or wrong option is an error where it is written, also where options are handed on.

Read by mypy and pyright, never run; see `registration.py`.
"""

from __future__ import annotations

from typing import Any, assert_type
from uuid import UUID

from command_bus import BusSettings, Command, CommandBus, EntityId, EntityPolicy, HandlerRegistry, Reject, SyncCommandBus
from command_bus.bus import BusArguments
from command_bus.messages.options import CallOptions
from command_bus.testing import TestBus


class Deposit(Command[int], entity="account"):
    account_id: EntityId
    amount: int


policies = {"account": EntityPolicy(max_depth=10)}
given: dict[str, Any] = {"lease": 3.0}
arguments: BusArguments = {"namespace": "shop", "lease": 3.0}
options: CallOptions = {"timeout": 3.0}

CommandBus("redis://localhost", namespace="shop", lease=3, entities=policies, registry=HandlerRegistry())
CommandBus(**given)
CommandBus(**arguments)
CommandBus(leese=3.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
CommandBus(lease="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
CommandBus(durability="fast")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
CommandBus.in_memory(lease=3.0, registry=HandlerRegistry())
CommandBus.in_memory(leese=3.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
BusSettings(url="redis://localhost", lease=3.0, signing_keys={"a": "secret"}, tls_ca="ca.pem")
BusSettings(leese=3.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
SyncCommandBus("redis://localhost", namespace="shop", lease=3.0)
SyncCommandBus(**arguments)
SyncCommandBus(namespcae="shop")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
TestBus(HandlerRegistry(), workers=2, lease=3.0)
TestBus(leese=3.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def sending(bus: CommandBus, kit: TestBus) -> None:
    command, command_id = Deposit(account_id="a", amount=5), UUID(int=1)
    scope = bus.entity("account", "a")
    await scope.dispatch(command, command_id=command_id, delay=2.5, headers={"a": "b"}, expires=60)
    await scope.dispatch(command, dealy=2.5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await scope.call(command, command_id=command_id, timeout=5)
    await scope.call(command, **options)
    await scope.call(command, priority="high")
    await scope.call(command, priority="hgih")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await scope.call(command, timeuot=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await kit.dispatch(command, delay=2.5)
    await kit.dispatch(command, timeout=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await kit.dispatch_batch([command, 5])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    assert_type(kit.assert_replied(Deposit, 5, account_id="a", count=1), int)
    assert_type(kit.assert_rejected(Deposit, "closed"), Reject)
    assert_type(kit.assert_dispatched(Deposit), Deposit)
    kit.assert_rejected(Deposit, 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await kit.call(command, timeout="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    [letter async for letter in bus.dead_letters.list(parked=True, name="Deposit")]
    await bus.dead_letters.count(nmae="Deposit")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
