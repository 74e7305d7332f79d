"""Breakages of small capabilities: limits, retention, recounts, edited replays, what is old or compressed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["SMALL"]

_LUA = "transport/redis/lua"
_AWAY = "tests/conformance/test_server_away.py"
_ENTITIES = "tests/conformance/test_max_entities.py"

SMALL = (
    Mutant(
        "one entity more has work than there may",
        f"{_LUA}/enqueue.lua",
        "or (newcomers and newcomers < 1 and not records[box])",
        "or (newcomers and newcomers < 0 and not records[box])",
        _ENTITIES,
    ),
    Mutant(
        "a single command begins an entity too many",
        f"{_LUA}/enqueue_one.lua",
        "  if not record and call('HLEN', active) >= tonumber(mailboxes) then return '?' end\n",
        "",
        _ENTITIES,
    ),
    Mutant(
        "what is sent while the server is away waits",
        "transport/redis/sending/enqueue_line.py",
        "        if self._watch.refuses:\n            raise self._watch.refusal()\n",
        "",
        f"{_AWAY}::test_sends_fail_at_once_until_a_probe_succeeds",
    ),
    Mutant(
        "a cut connection counts as an outage",
        "transport/redis/connection/server_watch.py",
        "        self._probing = loop",
        "        self._away(error)\n        self._probing = loop",
        f"{_AWAY}::test_a_cut_connection_is_no_outage",
    ),
    Mutant(
        "a batch does not count the entities that it begins",
        f"{_LUA}/enqueue.lua",
        "      if newcomers and idle and records[box] then newcomers = newcomers - 1 end\n",
        "",
        _ENTITIES,
    ),
)
