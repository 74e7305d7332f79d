"""Answers that end a connection because its server is not the primary any more, and what is then repeated."""

from __future__ import annotations

from typing import cast

import pytest
from redis.asyncio import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, ReadOnlyError, ResponseError

from command_bus.errors import TransportUnavailable
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import CutOff, NotPrimary
from command_bus.transport.redis.connection.factory import ClientFactory
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


class Factory:
    """Makes no client that anything is sent over."""

    label = "cluster"

    def at(self, tag: str) -> Factory:
        return self

    def commands(self) -> None: ...

    def pipe(self, block: float = 0.0) -> None: ...

    def thread(self, patience: float) -> None: ...


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (NotPrimary(MovedError("98 127.0.0.1:28081")), 2),
        (NotPrimary(ResponseError("ASK 98 127.0.0.1:28081")), 2),
        (NotPrimary(ReadOnlyError("You can't write against a read only replica.")), 1),
        (CutOff("given up: MovedError: 98 127.0.0.1:28081"), 1),
    ],
    ids=["moved", "ask", "read-only", "cut off"],
)
@pytest.mark.parametrize("again", [False, True])
async def test_a_plain_request_is_repeated_once_where_a_slot_has_moved_to(error: Exception, sent: int, again: bool) -> None:
    asked: list[object] = []

    async def request(client: object) -> str:
        asked.append(client)
        if again or len(asked) == 1:
            raise error
        return "answer"

    connections = Connections(cast("ClientFactory", Factory()))
    if sent == 2 and not again:
        assert await connections.ask(request) == "answer"
    else:
        with pytest.raises(TransportUnavailable):
            await connections.ask(request)
    assert len(asked) == sent
