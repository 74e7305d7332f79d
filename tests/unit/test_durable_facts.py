"""The facts of a step's function: looked up once, and nothing that the function refers to is kept for it."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from command_bus.durable.values import facts_of


class Client:
    """A client that a step may refer to."""

    async def charge(self, cents: int) -> int:
        return cents


async def _charge(cents: int) -> int:
    return cents


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any) -> Any:
        return await function(*args)

    return wrapper


_WRAPPED = _wrapped(_charge)


def _annotated(client: Client) -> Callable[..., Any]:
    async def charge(cents: int) -> int:
        return await client.charge(cents)

    return charge


@pytest.mark.parametrize("function", [_charge, _WRAPPED, Client().charge, functools.partial(_charge, 1)])
def test_facts_are_looked_up_once(function: Callable[..., Any]) -> None:
    facts = facts_of(function, None)
    assert facts is facts_of(function, None)
    assert facts.unchanging is int
    assert facts.is_async
    assert facts_of(function, str).unchanging is str


@pytest.mark.parametrize("made", [_annotated, lambda client: lambda: client.charge(1), lambda client: client.charge])
def test_what_a_function_refers_to_is_freed_with_it(made: Callable[[Client], Callable[..., Any]]) -> None:
    client = Client()
    freed = weakref.ref(client)
    function = made(client)
    facts_of(function, None)
    del client, function
    gc.collect()
    assert freed() is None
