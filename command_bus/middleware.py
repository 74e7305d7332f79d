"""Hooks around what is sent and what is handled, for tracing, logging, tenants, transactions and the like.

A middleware is composed once, not per message; a bus without middleware pays nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from command_bus.messages.context import CommandContext
    from command_bus.messages.outgoing import OutgoingMessage

Sending = Callable[["OutgoingMessage"], Awaitable[Any]]
"""What `dispatch` and `call` of a `Middleware` await: the next middleware, in the end the sending itself."""

Proceed = Callable[[], Awaitable[Any]]
"""What `batch` and `handle` of a `Middleware` await: the next middleware, in the end the batch or the handler."""

Handling = Callable[[Any, "CommandContext | None"], Awaitable[Any]]
"""Runs the handler of a delivery; what it gets first is the worker's own."""


class Middleware:
    """Hooks of your own around everything that a bus sends and handles: `CommandBus(middleware=[…])`, the first one outermost.

    Subclass it and override what you need. Await `proceed` once and return what it gave, or raise.
    """

    async def dispatch(self, outgoing: OutgoingMessage, proceed: Sending) -> Any:
        """Wrap one command on its way to the server; it may add to `outgoing.headers` before it proceeds.

        Every dispatch and call passes it, and each command of a batch, for which the server is asked only after all have passed.
        """
        return await proceed(outgoing)

    async def call(self, outgoing: OutgoingMessage, proceed: Sending) -> Any:
        """Wrap a whole call, until its result is there; `dispatch` is within it, around the sending."""
        return await proceed(outgoing)

    async def batch(self, proceed: Proceed) -> Any:
        """Wrap a whole `dispatch_batch`; `dispatch` is within it, around the preparation of each command."""
        return await proceed()

    async def handle(self, command: Any, context: CommandContext, proceed: Proceed) -> Any:
        """Wrap one attempt of a handler, in the worker. What it raises counts as raised by the handler.

        Args:
            command: The message; a model of its class.
            context: As the handler gets it.
            proceed: Runs the handler, and gives what it returns.
        """
        return await proceed()

    async def handle_many(self, commands: Sequence[Any], contexts: Sequence[CommandContext], proceed: Proceed) -> Any:
        """Wrap one call of a handler that takes neighbours of one entity.

        Where a middleware of a worker overrides `handle` and not this, such a handler gets its commands one by one, each through `handle`.

        Args:
            commands: The messages of the call, in their order.
            contexts: A context for each.
            proceed: Calls the handler, and gives an outcome for each command: a reply, or an exception.
        """
        return await proceed()


def around_dispatch(middleware: Sequence[Middleware], send: Sending) -> Sending:
    """Wrap `send` in the middleware, the first one outermost."""
    for layer in reversed(middleware):
        send = _sending(layer, send)
    return send


def around_call(middleware: Sequence[Middleware], exchange: Sending) -> Sending:
    """Wrap `exchange` in the middleware, the first one outermost."""
    for layer in reversed(middleware):
        exchange = partial(_calling, layer, exchange)
    return exchange


async def _calling(layer: Middleware, inner: Sending, outgoing: OutgoingMessage) -> Any:
    return await layer.call(outgoing, inner)


def around_batch(middleware: Sequence[Middleware], send: Proceed) -> Proceed:
    """Wrap `send` in the middleware, the first one outermost."""
    for layer in reversed(middleware):
        send = partial(layer.batch, send)
    return send


def _sending(layer: Middleware, inner: Sending) -> Sending:
    async def send(outgoing: OutgoingMessage) -> Any:
        return await layer.dispatch(outgoing, inner)

    return send


def around_handle(middleware: Sequence[Middleware]) -> Callable[[Handling], Handling] | None:
    """Return what wraps the call of a handler, or None without middleware."""
    if not middleware:
        return None

    def wrap(handle: Handling) -> Handling:
        for layer in reversed(middleware):
            handle = _handling(layer, handle)
        return handle

    return wrap


def takes_many(middleware: Sequence[Middleware]) -> bool:
    """Return whether calls with several commands of an entity pass all of what wraps handlers."""
    return not any(
        type(layer).handle is not Middleware.handle and type(layer).handle_many is Middleware.handle_many for layer in middleware
    )


def around_many(
    middleware: Sequence[Middleware], commands: Sequence[Any], contexts: Sequence[CommandContext], call: Proceed
) -> Proceed:
    """Wrap one call of a handler with several commands in the middleware, the first one outermost."""
    for layer in reversed(middleware):
        call = partial(layer.handle_many, commands, contexts, call)
    return call


def _handling(layer: Middleware, inner: Handling) -> Handling:
    async def handle(run: Any, context: CommandContext | None) -> Any:
        assert context is not None  # noqa: S101 - a worker with middleware always makes one

        async def proceed() -> Any:
            return await inner(run, context)

        return await layer.handle(run.message, context, proceed)

    return handle
