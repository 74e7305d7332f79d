"""Connections notice that their server is no longer the primary."""

from __future__ import annotations

import pytest
from redis.asyncio import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, ReadOnlyError, ResponseError

from command_bus.transport.redis.connection.failover import following


class Place:
    """Counts how often it was asked to look again."""

    def __init__(self) -> None:
        self.forgotten = 0

    def locate(self) -> tuple[str, int]:
        """Return its address."""
        return "127.0.0.1", 1

    def moved(self) -> None:
        """Move it to another address."""
        self.forgotten += 1


@pytest.mark.parametrize(
    ("error", "leaves"),
    [
        (MovedError("98 127.0.0.1:28081"), True),
        (ResponseError("MOVED 98 127.0.0.1:28081"), True),  # redis-py before 6
        (ResponseError("ASK 98 127.0.0.1:28081"), True),
        (ReadOnlyError("You can't write against a read only replica."), True),
        (ResponseError("ERR Error running script: @user_script:3: -READONLY You can't write"), True),
        (ResponseError("UNBLOCKED force unblock from blocking operation, instance state changed"), True),
        (ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"), False),
        (ResponseError("ERR unknown command 'MOVED '"), False),
    ],
)
def test_an_answer_from_the_wrong_server_ends_the_connection(error: ResponseError, leaves: bool) -> None:
    place = Place()
    connection = following(Connection)(locator=place)
    assert isinstance(connection.left(error), RedisConnectionError) is leaves
    assert place.forgotten == int(leaves)
