"""Clients over a simulated wire: `PipeRedis`, as in production, but requests are exchanged with a server in this process."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from command_bus.transport.redis.connection.clients import PipeRedis
from command_bus.transport.redis.connection.pipe import Requests, TaskRequests


class Wire(Protocol):
    """Carries the requests of one client."""

    async def exchange(self, requests: list[list[bytes]]) -> list[Any]:
        """Send requests that travel together; return their answers."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def _encoded(request: tuple[Any, ...]) -> list[bytes]:
    return [arg if type(arg) is bytes else arg.encode() if type(arg) is str else str(arg).encode() for arg in request]


def _raised(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


class WirePipe(TaskRequests, Requests):
    """Implements `Requests` for scripts and blocking reads: each request travels alone."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    async def request(self, *request: Any) -> Any:
        (answer,) = await self._wire.exchange([_encoded(request)])
        return _raised(answer)

    async def close(self) -> None:
        await super().close()
        self._wire.close()


class _PipelinePipe(WirePipe, Requests):
    """Implements `Requests` for one pipeline, whose requests begin in the same turn of the loop: they travel together."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._requests: list[list[bytes]] = []
        self._answers: asyncio.Future[list[Any]]

    async def request(self, *request: Any) -> Any:
        """Wait for the other requests, and send all, if this is the first."""
        index = len(self._requests)
        self._requests.append(_encoded(request))
        if index == 0:
            answers = self._answers = asyncio.get_running_loop().create_future()
            await asyncio.sleep(0)
            requests, self._requests = self._requests, []
            try:
                answers.set_result(await self._wire.exchange(requests))
            except Exception as error:  # noqa: BLE001 - raised below, by every request
                answers.set_exception(error)
            finally:
                answers.cancel()  # if this request was cancelled; else it is done
        else:
            answers = self._answers
        return _raised((await answers)[index])


class WireRedis(PipeRedis):
    """A client that owns its wire."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(WirePipe(wire))
        self._wire = wire

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:  # noqa: FBT002 - redis-py's signature
        """Return a pipeline whose requests travel together; never a transaction."""
        return PipeRedis(_PipelinePipe(self._wire)).pipeline()

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """See redis-py."""
        self._wire.close()
