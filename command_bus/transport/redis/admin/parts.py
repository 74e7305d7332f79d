"""`RedisOperatorSide`: the parts that only operators use."""

from __future__ import annotations

from command_bus.transport.redis.admin.dead_letters import RedisDeadLetters
from command_bus.transport.redis.admin.entities import RedisEntities
from command_bus.transport.redis.admin.events import RedisEventStreams
from command_bus.transport.redis.admin.history import RedisHistory
from command_bus.transport.redis.admin.holds import RedisHolds
from command_bus.transport.redis.admin.mailboxes import RedisMailboxes
from command_bus.transport.redis.admin.shares import RedisShares
from command_bus.transport.redis.admin.states import RedisStates
from command_bus.transport.redis.admin.statistics import RedisStatistics
from command_bus.transport.redis.admin.type_records import RedisObliteration, RedisTypeRecords
from command_bus.transport.redis.admin.views import RedisViews
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.interrupts import RedisInterrupts
from command_bus.transport.redis.kept_streams import RedisKeptStreams
from command_bus.transport.redis.keys import KeySpace, ShardKeys


class RedisOperatorSide:
    """Implements `OperatorSide`.

    Args:
        connections: Clients that this process shares.
        keys: The shards.
        patience: Seconds for which a request may be repeated.
        reply_ttl: Seconds that a reply waits for its caller.
    """

    def __init__(self, connections: Connections, keys: KeySpace, *, patience: float, reply_ttl: float) -> None:
        self.statistics = RedisStatistics(connections, keys, patience=patience)
        self.entities = RedisEntities(connections, keys, patience=patience)
        self.mailboxes = RedisMailboxes(connections, keys, patience=patience, reply_ttl=reply_ttl, entities=self.entities)
        self.dead_letters = RedisDeadLetters(connections, keys, patience=patience)
        self.holds = RedisHolds(connections, keys, patience=patience)
        self.shares = RedisShares(connections, keys, patience=patience)
        self.types = RedisTypeRecords(connections, keys, patience=patience)
        self.obliteration = RedisObliteration(connections, keys, patience=patience)
        self.events = RedisEventStreams(connections, keys, patience=patience)
        self.kept = RedisKeptStreams(connections, keys, _kept_key, patience=patience)
        self.history = RedisHistory(connections, keys, patience=patience)
        self.views = RedisViews(connections, keys, patience=patience, entities=self.entities)
        self.states = RedisStates(connections, keys, patience=patience)
        self.interrupts = RedisInterrupts(connections, keys, patience=patience)


def _kept_key(keys: ShardKeys, name: str) -> str:
    """Return the key of a stream that operators read: `history`, `events`, `arrivals`, `audit`, `dead`."""
    return str(getattr(keys, name))
