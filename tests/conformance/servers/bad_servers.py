"""Commands, and checks of a server, for tests of bad servers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandBusError,
    EntityId,
    RetryPolicy,
)
from command_bus.embedded import EmbeddedServer

__all__ = ["Fails", "Long", "accepted", "differs", "fails", "refused", "server_clients"]


class Long(Command[str], entity="box", delivery="at_most_once"):
    box: EntityId


class Fails(Command[None], entity="box", retry=RetryPolicy(attempts=1)):
    box: EntityId


async def refused(url: str, **settings: Any) -> CommandBusError:
    """Return the error of opening a bus, which must be raised at once."""
    began = time.monotonic()
    with pytest.raises(CommandBusError) as error:
        async with CommandBus(url, **settings):
            pass
    assert time.monotonic() - began < 3
    return error.value


async def accepted(bus: CommandBus) -> bool:
    return (await bus.stats()).depth == 1


def server_clients(server: EmbeddedServer) -> Any:
    from command_bus.transport.redis.connection.factory import UrlClients

    return UrlClients(server.url)


async def differs(look: Callable[[], Awaitable[int]], before: int) -> bool:
    return await look() != before


async def fails(command: Fails) -> None:
    raise OSError("always")
