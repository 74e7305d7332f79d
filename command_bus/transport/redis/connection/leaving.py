"""Connections that break when their server says that it is not the primary (any more).

A name or a balancer may lead to another server by then, and the next connection to it. A connection that stayed would be refused for as
long as both live: a primary that becomes a replica closes nothing. Once for asyncio and once for threads, as redis-py has its connections.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from redis import RedisError
from redis.exceptions import ResponseError

from command_bus.transport.redis.connection.errors import NotPrimary, is_read_only, was_unblocked

__all__ = ["Leaving", "SyncLeaving", "leaving", "sync_leaving"]


class _Judging:
    """What both have in common."""

    def left(self, error: Exception) -> Exception | None:
        """What ends the connection, if this error does: it failed, or its server is not the primary any more."""
        fatal: Exception = error
        if isinstance(error, ResponseError):
            if not self._is_of_another(error):
                return None
            fatal = NotPrimary(error)
        self.lost()
        return fatal

    def lost(self) -> None:
        """The connection is of no use any more."""

    def _is_of_another(self, error: ResponseError) -> bool:
        """Whether a server says that another is the primary."""
        return is_read_only(error) or was_unblocked(error)


class Leaving(_Judging):
    """An asyncio connection that leaves its server when that is no primary any more."""

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """As redis-py, but an answer from the wrong server breaks the connection."""
        connection: Any = self
        try:
            return await super().read_response(*args, **options)  # type: ignore[misc]
        except (OSError, RedisError, TimeoutError) as error:
            fatal = self.left(error)
            if fatal is None or fatal is error:
                raise
            await connection.disconnect()
            raise fatal from error


class SyncLeaving(_Judging):
    """The same for a thread."""

    def read_response(self, *args: Any, **options: Any) -> Any:
        """See `Leaving`."""
        connection: Any = self
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except (OSError, RedisError) as error:
            fatal = self.left(error)
            if fatal is None or fatal is error:
                raise
            connection.disconnect()
            raise fatal from error


@lru_cache
def leaving(kind: Any) -> Any:
    """The class of asyncio connections, made to leave."""
    return type(f"Leaving{kind.__name__}", (Leaving, kind), {})


@lru_cache
def sync_leaving(kind: Any) -> Any:
    """The class of synchronous connections, made to leave."""
    return type(f"Leaving{kind.__name__}", (SyncLeaving, kind), {})
