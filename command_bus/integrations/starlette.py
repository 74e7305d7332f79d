"""The bus in a Starlette or FastAPI application (extra `fastapi`): open while the application is, its errors as answers.

    app = Starlette(routes=…, lifespan=bus_lifespan(bus), exception_handlers=exception_handlers())

    async def deposit(request: Request) -> Response:
        balance = await bus_of(request).call(Deposit(…))

The bus's own lifespan (a container's resources, say) belongs to workers. Run them as processes of their own, `command-bus worker shop:bus`;
with `worker=True` one runs beside the application, which suits demos and small services.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from command_bus.bus import CommandBus
from command_bus.errors import (
    CommandBusError,
    CommandExpired,
    CommandRejected,
    CommandTimeout,
    IdempotencyConflict,
    InvalidCommand,
    MissingExtra,
    PayloadTooLarge,
    QueueFull,
    TransportUnavailable,
    Unconfirmed,
)

try:
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import JSONResponse, Response
except ImportError as error:  # pragma: no cover - depends on the environment
    raise MissingExtra("command_bus.integrations.starlette needs Starlette: pip install 'command-bus[fastapi]'") from error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]

_STATUS: dict[type[CommandBusError], int] = {
    CommandRejected: 409,
    IdempotencyConflict: 409,
    PayloadTooLarge: 413,
    InvalidCommand: 422,
    QueueFull: 503,
    TransportUnavailable: 503,
    Unconfirmed: 503,
    CommandExpired: 504,
    CommandTimeout: 504,
}
"""The HTTP status of each error; a subclass comes before its base. Other errors are internal: 500."""


def bus_lifespan(bus: CommandBus | Callable[[], CommandBus], *, worker: bool = False, inner: Lifespan | None = None) -> Lifespan:
    """Return a lifespan for `Starlette(lifespan=…)` or `FastAPI(lifespan=…)`.

    Args:
        bus: Opened and closed with the application, as often as it starts; or a function that returns one.
        worker: Whether a worker runs in the application's process.
        inner: The application's own lifespan, entered once the bus is open.
    """

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncGenerator[None]:
        opened = bus if isinstance(bus, CommandBus) else bus()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(opened)
            if worker:
                await stack.enter_async_context(opened.worker())
            app.state.command_bus = opened
            if inner is not None:
                await stack.enter_async_context(inner(app))
            yield

    return lifespan


def bus_of(connection: HTTPConnection) -> CommandBus:
    """Return the bus of the application that serves a request or websocket; for FastAPI `Depends(bus_of)`.

    Raises:
        RuntimeError: The application has no `bus_lifespan`, or has not started.
    """
    bus: CommandBus | None = getattr(connection.app.state, "command_bus", None)
    if bus is None:
        raise RuntimeError("there is no bus: start the application with lifespan=bus_lifespan(bus)")
    return bus


def exception_handlers() -> dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]]:
    """Return `exception_handlers` for Starlette or FastAPI: they answer errors of the bus as JSON `{"code", "message"}` with a fitting status.

    A rejection is 409 with the handler's code and details, a full queue 503 with `Retry-After`, a reply that is late 504 with the command's
    id. Messages of internal errors are not sent: they are for logs.
    """
    return {CommandBusError: _answer}


async def _answer(_request: Request, error: CommandBusError) -> Response:
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
    body: dict[str, Any] = {"code": error.code, "message": error.message if status < 500 else "the command was not carried out"}
    headers: dict[str, str] = {}
    if isinstance(error, CommandRejected):
        body["details"] = error.details
    if isinstance(error, QueueFull):
        headers["Retry-After"] = str(math.ceil(error.retry_after))
    if isinstance(error, CommandTimeout):
        body["command_id"] = error.command_id
        body["message"] = "the outcome is not known yet"
    return JSONResponse(body, status_code=status, headers=headers)
