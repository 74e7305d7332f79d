"""`PipeRedis`: redis-py's commands and the parsers of their answers, over a pipe.

Rare requests share the connection of the scripts, so that a process has one connection for all requests that do not block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError, ResponseError

from command_bus.transport.redis.connection.pipe import Requests

_template: Any = Redis(protocol=2)
_PARSERS: Any = dict(_template.response_callbacks)


def _words(request: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a request as it goes over the wire: redis-py's 'CLIENT ID' are two words."""
    name = request[0]
    return (*name.split(), *request[1:]) if type(name) is str and " " in name else request


def _parsed(name: str, answer: Any, options: dict[str, Any]) -> Any:
    options.pop("keys", None)
    parse: Callable[..., Any] | None = _PARSERS.get(name)
    return answer if parse is None else parse(answer, **options)


class PipeRedis(Redis):
    """A client without a pool: it sends its requests over a pipe, and does not close it."""

    def __init__(self, pipe: Requests) -> None:
        self._pipe = pipe
        self.response_callbacks = _PARSERS

    def __del__(self, *_: Any) -> None:
        """Do nothing: there is no connection to close."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """See redis-py."""
        return _parsed(args[0], await self._pipe.request(*_words(args)), options)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> _PipedPipeline:  # noqa: FBT002 - redis-py's
        """Return a pipeline, whose requests are sent together; never a transaction."""
        return _PipedPipeline(self._pipe)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """See redis-py; the pipe stays."""


class _PipedPipeline(Pipeline):
    def __init__(self, pipe: Requests) -> None:
        self._pipe = pipe
        self.command_stack: list[Any] = []
        self.response_callbacks = _PARSERS

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.command_stack.append((args, options))
        return self

    async def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT002 - redis-py's
        stack, self.command_stack = self.command_stack, []
        answers = await asyncio.gather(*(self._pipe.request(*_words(args)) for args, _ in stack), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and (raise_on_error or not isinstance(answer, ResponseError)):
                raise answer
        return [
            answer if isinstance(answer, RedisError) else _parsed(args[0], answer, options)
            for (args, options), answer in zip(stack, answers, strict=True)
        ]
