"""redis-py's asyncio client over a wire of one's own: its commands and parsers are the real ones, pool and sockets are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from redis import exceptions as redis_errors
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

__all__ = ["Wire", "WiredPipe", "WiredRedis"]

_template: Any = Redis(protocol=2)
_CALLBACKS: dict[str, Callable[..., Any]] = dict(_template.response_callbacks)


class Wire(Protocol):
    """Carries the requests of one client."""

    async def exchange(self, requests: list[list[bytes]]) -> list[Any]:
        """The answers of requests that travel together."""
        ...

    def close(self) -> None:
        """End what is open."""
        ...


def _packed(args: tuple[Any, ...]) -> list[bytes]:
    packed: list[bytes] = []
    for arg in args:
        kind = type(arg)
        if kind is bytes:
            packed.append(arg)
        elif kind is str:
            packed.append(arg.encode())
        else:
            packed.append(str(arg).encode())
    if b" " in packed[0]:
        packed[:1] = packed[0].split()
    return packed


class _Commands:
    """What client and pipeline share: no connection pool."""

    wire: Wire
    response_callbacks: Any

    def parsed(self, name: str, answer: Any, options: dict[str, Any]) -> Any:
        """The answer as redis-py gives it."""
        callback = _CALLBACKS.get(name)
        return answer if callback is None or isinstance(answer, Exception) else callback(answer, **options)

    def __del__(self, *_: Any) -> None:
        pass


class WiredRedis(_Commands, Redis):  # type: ignore[misc]  # redis-py's own mixins disagree
    """A client whose requests travel over a wire."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.response_callbacks = _CALLBACKS

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """As redis-py's own."""
        (answer,) = await self.wire.exchange([_packed(args)])
        if isinstance(answer, Exception):
            raise answer
        options.pop("keys", None)
        return self.parsed(args[0], answer, options)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> WiredPipeline:  # noqa: FBT002 - redis-py's signature
        """As redis-py's own, never a transaction."""
        return WiredPipeline(self.wire)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """As redis-py's own."""
        self.wire.close()


class WiredPipeline(_Commands, Pipeline):  # type: ignore[misc]  # as above
    """A pipeline without transaction."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.command_stack: list[Any] = []
        self.response_callbacks = _CALLBACKS

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """As redis-py's own."""
        self.command_stack.append((args, options))
        return self

    async def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT002 - redis-py's signature
        """As redis-py's own."""
        stack, self.command_stack = self.command_stack, []
        if not stack:
            return []
        answers = await self.wire.exchange([_packed(args) for args, _ in stack])
        found = []
        for (args, options), answer in zip(stack, answers, strict=True):
            if raise_on_error and isinstance(answer, redis_errors.ResponseError):
                raise answer
            options.pop("keys", None)
            found.append(self.parsed(args[0], answer, options))
        return found


class WiredPipe:
    """Implements `Requests`: what scripts and blocking reads go over."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    async def request(self, *request: Any) -> Any:
        """See `Requests`."""
        (answer,) = await self.wire.exchange([_packed(request)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        """See `Requests`."""
        self.wire.close()
