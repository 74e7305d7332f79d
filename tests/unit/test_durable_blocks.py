"""Inside of which blocks a durable handler can be suspended: none that lives in the event loop is missed, also where it is hidden."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from types import TracebackType
from typing import Any

import pytest

from command_bus.durable.run_tools import awaits_directly


class Awaited:
    """Something that a coroutine awaits."""

    def __init__(self) -> None:
        self.iterator: Any = None

    def __await__(self) -> Any:
        self.iterator = self._wait()
        return self.iterator

    def _wait(self) -> Generator[None]:
        yield


class Timed:
    """A block of the application that holds a timeout."""

    async def __aenter__(self) -> None:
        self.inner = asyncio.timeout(60)
        await self.inner.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.inner.__aexit__(kind, error, trace)


class Plain:
    """A block of the application that is no coroutine."""

    def __init__(self, inner: Any = None) -> None:
        self.inner = inner

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@contextlib.asynccontextmanager
async def generated(limits: bool) -> AsyncIterator[None]:
    async with asyncio.timeout(60) if limits else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    yield


@contextlib.asynccontextmanager
async def stacked(*blocks: Any) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for each in blocks:
            await stack.enter_async_context(each)
        yield


async def in_stack(awaited: Awaited, block: Any) -> None:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(block)
        stack.callback(print)
        await awaited


async def in_block(awaited: Awaited, block: Any) -> None:
    async with block:
        await awaited


async def in_plain(awaited: Awaited, block: Any) -> None:
    with block:
        await awaited


async def is_direct(body: Callable[[Awaited, Any], Any], block: Any) -> bool:
    """Return what is found while the body awaits inside of a block."""
    awaited = Awaited()
    root = body(awaited, block)
    found: list[bool] = []

    async def outer() -> None:
        root.send(None)
        found.append(awaits_directly(root, awaited.iterator))
        with contextlib.suppress(StopIteration):
            root.send(None)

    await outer()
    return found[0]


@pytest.mark.parametrize(
    ("body", "block"),
    [
        (in_block, lambda: asyncio.timeout(60)),
        (in_block, Timed),
        (in_block, lambda: generated(limits=True)),
        (in_block, lambda: stacked(generated(limits=True))),
        (in_stack, lambda: asyncio.timeout(60)),
        (in_stack, lambda: generated(limits=True)),
        (in_stack, Timed),
        (in_plain, lambda: Plain(asyncio.timeout(60))),
    ],
    ids=["timeout", "own", "generated", "stack in a generator", "stack", "generated in a stack", "own in a stack", "attribute"],
)
async def test_a_block_that_lives_in_the_event_loop_is_seen(body: Any, block: Callable[[], Any]) -> None:
    assert not await is_direct(body, block())


@pytest.mark.parametrize(
    ("body", "block"),
    [
        (in_block, lambda: generated(limits=False)),
        (in_block, contextlib.nullcontext),
        (in_block, lambda: stacked(generated(limits=False))),
        (in_stack, lambda: generated(limits=False)),
        (in_plain, plainly),
        (in_plain, Plain),
        (in_plain, lambda: contextlib.suppress(ValueError)),
    ],
    ids=["generated", "null", "stack in a generator", "stack", "plain", "own plain", "suppress"],
)
async def test_other_blocks_are_no_obstacle(body: Any, block: Callable[[], Any]) -> None:
    assert await is_direct(body, block())
