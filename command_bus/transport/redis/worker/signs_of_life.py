"""`SignsOfLife`: the answers to what a worker publishes of itself with each renewal of its leases."""

from __future__ import annotations

import logging

_log = logging.getLogger("command_bus.worker")


class SignsOfLife:
    """The shards in which a worker has published itself."""

    def __init__(self) -> None:
        self._written: set[int] = set()

    def are_gone(self, shard: int, written: object) -> bool:
        """Return whether a shard had lost what was published there, from its answer to the next time."""
        if isinstance(written, Exception):  # at the server's memory limit, say: others do not see this worker, but it works
            _log.warning("cannot write the sign of life: %s", written)
            return False
        is_new, was_there = bool(written), shard in self._written
        self._written.add(shard)
        return is_new and was_there
