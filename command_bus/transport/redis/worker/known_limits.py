"""`KnownLimits`: whether a worker knows that limits are in use.

Only then its requests to the first shard name the keys of limits: who uses none pays nothing for them. A worker learns it from the first
answer that has it ask. Until then it asks before each limited start, which is harmless.
"""

from __future__ import annotations

from command_bus.transport.redis.keys import ShardKeys

_NONE: tuple[str, ...] = ()


class KnownLimits:
    """The knowledge of a worker about limits.

    Args:
        first: Keys of the first shard, which decides about all limits.

    Attributes:
        known: Whether limits are in use, as far as is known.
    """

    def __init__(self, first: ShardKeys) -> None:
        self._first = first
        self.known = False

    def keys(self, keys: ShardKeys) -> tuple[str, ...]:
        """Return the keys of limits that a request to a shard names: none if it does not decide, or limits are not known to be in use."""
        return (keys.limits, keys.places) if self.known and keys is self._first else _NONE
