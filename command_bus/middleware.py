"""One hook around dispatch and handle, for tracing, logging, authorisation and the like.

A middleware is composed once, not per message; a bus without middleware pays nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from command_bus.context import CommandContext
    from command_bus.execution.decisions import Runnable
    from command_bus.outbound import Outbound

__all__ = ["Handling", "Middleware", "Sending", "around_batch", "around_call", "around_dispatch", "around_handle"]

Sending = Callable[["Outbound"], Awaitable[Any]]
Handling = Callable[["Runnable", "CommandContext | None"], Awaitable[Any]]


class Middleware:
    """Subclass and override what you need; call `proceed` exactly once (or raise)."""

    async def dispatch(self, outbound: Outbound, proceed: Sending) -> Any:
        """Around each dispatch and call in this process. `outbound.headers` may be changed before it proceeds."""
        return await proceed(outbound)

    async def call(self, outbound: Outbound, proceed: Sending) -> Any:
        """Around a whole call, until its result is there; `dispatch` is within it, around the sending."""
        return await proceed(outbound)

    async def batch(self, proceed: Callable[[], Awaitable[Any]]) -> Any:
        """Around a whole `dispatch_batch`; `dispatch` is within it, around the preparation of each command."""
        return await proceed()

    async def handle(
        self,
        command: Any,
        context: CommandContext,
        proceed: Callable[[], Awaitable[Any]],
    ) -> Any:
        """Around each attempt of a handler. What it raises counts as raised by the handler."""
        return await proceed()


def around_dispatch(middleware: Sequence[Middleware], send: Sending) -> Sending:
    """`send` inside the middleware, the first one outermost."""
    for layer in reversed(middleware):
        send = _sending(layer, send)
    return send


def around_call(middleware: Sequence[Middleware], exchange: Sending) -> Sending:
    """`exchange` inside the middleware, the first one outermost."""
    for layer in reversed(middleware):
        exchange = partial(_calling, layer, exchange)
    return exchange


async def _calling(layer: Middleware, inner: Sending, outbound: Outbound) -> Any:
    return await layer.call(outbound, inner)


def around_batch(middleware: Sequence[Middleware], send: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    """`send` inside the middleware, the first one outermost."""
    for layer in reversed(middleware):
        send = partial(layer.batch, send)
    return send


def _sending(layer: Middleware, inner: Sending) -> Sending:
    async def send(outbound: Outbound) -> Any:
        return await layer.dispatch(outbound, inner)

    return send


def around_handle(middleware: Sequence[Middleware]) -> Callable[[Handling], Handling] | None:
    """What wraps the call of a handler, or None without middleware."""
    if not middleware:
        return None

    def wrap(handle: Handling) -> Handling:
        for layer in reversed(middleware):
            handle = _handling(layer, handle)
        return handle

    return wrap


def _handling(layer: Middleware, inner: Handling) -> Handling:
    async def handle(run: Runnable, context: CommandContext | None) -> Any:
        assert context is not None  # noqa: S101 - a worker with middleware always makes one

        async def proceed() -> Any:
            return await inner(run, context)

        return await layer.handle(run.message, context, proceed)

    return handle
