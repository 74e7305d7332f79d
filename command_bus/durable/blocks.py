"""Tells whether a handler awaits something directly: then its command can be suspended there.

A block such as `async with asyncio.timeout(60)` lives in the event loop only: suspended, its time would be forgotten, and a `TaskGroup` would cancel
what runs in it. So the command stays with its worker inside of one. What is open shows in what the frames of the handler's coroutines refer to: the
exit methods of their blocks. An `AsyncExitStack` is looked into, and so is a function with `@asynccontextmanager`. What a class of the application
does in its `__aexit__` is not known, so the command stays.
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import AsyncExitStack, ExitStack
from types import CoroutineType, MethodType
from typing import Any

from command_bus.messages.durable import Durable

_LIMITING = frozenset({"asyncio", "anyio", "async_timeout", "trio"})
"""Modules whose blocks time or group what is awaited in them."""
_EXITS = frozenset({"__aexit__", "__exit__"})
_DEEPEST = 500


async def is_awaited_directly(root: object, durable: Durable[Any]) -> bool:
    """Return whether a handler awaits this directly. It is looked at from outside while it waits."""
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[bool] = loop.create_future()

    def look() -> None:
        if not seen.done():
            seen.set_result(awaits_directly(root, durable.awaited))

    loop.call_soon(look)
    return await seen


def awaits_directly(root: object, awaited: object) -> bool:
    """Return whether a handler's coroutine awaits this, by coroutines only, and outside of blocks that live in the event loop.

    Args:
        root: The handler's coroutine, which waits.
        awaited: The iterator that the innermost of them awaits.
    """
    coroutine: Any = root
    for _ in range(_DEEPEST):
        if not isinstance(coroutine, CoroutineType) or _has_open_block(coroutine):
            return False
        if coroutine.cr_await is awaited:
            return awaited is not None
        coroutine = coroutine.cr_await
    return False


def _has_open_block(frame: object) -> bool:
    """Return whether a coroutine or generator is inside of a block that limits or groups what it awaits."""
    methods = [each for each in gc.get_referents(frame) if isinstance(each, MethodType) and each.__name__ in _EXITS]
    return any(_limits(method.__self__) for method in methods)


def _limits(block: Any) -> bool:
    """Return whether a block times or groups what is awaited in it, or may do so."""
    if _is_limiting(block):
        return True
    if isinstance(block, ExitStack | AsyncExitStack):
        entered: Any = getattr(block, "_exit_callbacks", ())
        return any(isinstance(leave, MethodType) and _limits(leave.__self__) for _, leave in entered)
    if type(block).__module__ == "contextlib":
        generator = getattr(block, "gen", None)  # of a function with @contextmanager: what it has open counts
        return generator is not None and _has_open_block(generator)
    return hasattr(type(block), "__aexit__") or any(map(_is_limiting, getattr(block, "__dict__", {}).values()))


def _is_limiting(block: Any) -> bool:
    kind = type(block)
    return kind.__module__.partition(".")[0] in _LIMITING and (hasattr(kind, "__aexit__") or hasattr(kind, "__exit__"))
