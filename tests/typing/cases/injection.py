"""Findings of type checkers on injected handlers and of providers.

Read by mypy and pyright, never run; see `registration.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import assert_type

from dependency_injector import containers, providers
from dependency_injector.wiring import Provide, inject

from command_bus.handlers.handler import Handler
from command_bus.handlers.injection import check_wired, close_resources, open_resources
from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.context import CommandContext
from command_bus.messages.message import Command, EntityId


class Deposit(Command[int], entity="account"):
    account_id: EntityId


class Service: ...


class Container(containers.DeclarativeContainer):
    service = providers.Factory(Service)


registry = HandlerRegistry()


@registry.handles(Deposit)
@inject
async def deposit(command: Deposit, context: CommandContext, service: Service = Provide[Container.service]) -> int:
    return context.attempt


@registry.handles(Deposit)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
@inject
async def wrong_reply(command: Deposit, service: Service = Provide[Container.service]) -> str:
    return ""


class Accounts:
    @registry.handles(Deposit)
    @inject
    async def deposit(self, command: Deposit, service: Service = Provide[Container.service]) -> int:
        return 1


@asynccontextmanager
async def accounts() -> AsyncGenerator[Accounts]:
    yield Accounts()


registry.include(Accounts())
registry.include(Accounts)
registry.include(accounts)
registry.include(lambda: Accounts() if registry else None, of=Accounts)
registry.include("shop.handlers")
assert_type(registry.lookup("Deposit"), Handler | None)
assert_type(registry.names(), tuple[str, ...])
assert_type(registry.unhandled(), tuple[str, ...])
for handler in registry:
    assert_type(handler, Handler)


async def started(container: Container) -> None:
    await open_resources(container)
    check_wired(registry)
    assert_type(await deposit(Deposit(account_id=1), CommandContext(), service=Service()), int)
    assert_type(await Accounts().deposit(Deposit(account_id=1), service=Service()), int)
    await close_resources(container)
