"""The downstream of the handlers, on a separate server without faults.

It does what the docs require of a downstream: it refuses an effect with an older fence than the newest of its entity. Lines keep
every accepted effect, repeated ones too. Accounts are idempotent by command id, as in a bank.
"""

from __future__ import annotations

import json
from typing import Any

from redis import Redis as SyncRedis
from redis.asyncio import Redis

from tests.chaos.history import Effect, StepEffect

__all__ = ["Fenced", "Ledger"]

_PUT = """
local highest = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0')
if tonumber(ARGV[2]) < highest then return 'fenced' end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('RPUSH', KEYS[2], ARGV[3])
return 'put'
"""
_MOVE = """
local highest = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0')
if tonumber(ARGV[2]) < highest then return 'fenced' end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
if redis.call('HEXISTS', KEYS[3], ARGV[4]) == 1 then return 'again' end
local left = tonumber(redis.call('HGET', KEYS[4], ARGV[1]) or '0') + tonumber(ARGV[5])
if left < 0 then return 'short' end
redis.call('HSET', KEYS[4], ARGV[1], left)
redis.call('HSET', KEYS[3], ARGV[4], ARGV[5])
redis.call('RPUSH', KEYS[2], ARGV[3])
return 'moved'
"""
_TRANSFER = """
for i = 1, 2 do
  if tonumber(ARGV[3]) < tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0') then return 'fenced' end
end
for i = 1, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[3]) end
if redis.call('HEXISTS', KEYS[3], ARGV[4]) == 1 then return 'again' end
redis.call('HSET', KEYS[3], ARGV[4], ARGV[5])
redis.call('HINCRBY', KEYS[4], ARGV[1], -ARGV[5])
redis.call('HINCRBY', KEYS[4], ARGV[2], ARGV[5])
for i = 6, #ARGV do redis.call('RPUSH', KEYS[2], ARGV[i]) end
return 'moved'
"""
_STEP = """
local highest = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0')
if tonumber(ARGV[2]) < highest then return 'fenced' end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
local value = ARGV[4] .. ' ' .. redis.call('HINCRBY', KEYS[3], ARGV[5], 1)
redis.call('RPUSH', KEYS[2], cjson.encode({ARGV[3], ARGV[4], ARGV[5], ARGV[2], value}))
return value
"""
_STEPS = ["fences", "steps", "tokens"]


class Fenced(Exception):
    """The ledger has a newer fence: the handler that raises this has lost its lease."""


class Ledger:
    """A client of the downstream.

    Args:
        url: Of its server.
    """

    def __init__(self, url: str) -> None:
        self._client: Any = Redis.from_url(url, decode_responses=True)  # redis types replies for both of its clients at once
        self._sync: Any = SyncRedis.from_url(url, decode_responses=True)
        self._put_now = self._sync.register_script(_PUT)
        self._put = self._client.register_script(_PUT)
        self._move = self._client.register_script(_MOVE)
        self._transfer = self._client.register_script(_TRANSFER)
        self._step = self._client.register_script(_STEP)
        self._step_now = self._sync.register_script(_STEP)

    async def put(self, effect: Effect) -> str:
        """Add to a line: `put` or `fenced`."""
        return str(await self._put(keys=["fences", "effects"], args=[effect.entity, effect.fence, _packed(effect)]))

    def put_now(self, effect: Effect) -> str:
        """Put an effect from a handler in a thread."""
        return str(self._put_now(keys=["fences", "effects"], args=[effect.entity, effect.fence, _packed(effect)]))

    async def move(self, effect: Effect, amount: int) -> str:
        """Change an account: `moved`, `again` (this command did before), `short` (no money) or `fenced`."""
        keys = ["fences", "effects", "done", "balances"]
        return str(await self._move(keys=keys, args=[effect.entity, effect.fence, _packed(effect), effect.id, amount]))

    async def transfer(self, effects: list[Effect], amount: int) -> str:
        """Move from the first entity to the last, which may be the same: `moved`, `again` or `fenced`, in both or in none."""
        first, last = effects[0], effects[-1]
        args: list[str | int] = [first.entity, last.entity, first.fence, first.id, amount, *map(_packed, effects)]
        return str(await self._transfer(keys=["fences", "effects", "done", "balances"], args=args))

    async def step(self, run: Effect, key: str, token: str) -> str:
        """Do the effect of a durable command's step: which effect under this token it was, the first say `key 1`; or `fenced`."""
        return str(await self._step(keys=_STEPS, args=[run.entity, run.fence, run.id, key, token]))

    def step_now(self, run: Effect, key: str, token: str) -> str:
        """Do the effect of a step from a thread."""
        return str(self._step_now(keys=_STEPS, args=[run.entity, run.fence, run.id, key, token]))

    async def is_first_time(self, what: str) -> bool:
        """Return whether nobody has asked for this before."""
        return bool(await self._client.hincrby("asked", what, 1) == 1)

    async def fund(self, accounts: dict[str, int]) -> None:
        """Give accounts what they begin with."""
        await self._client.hset("balances", mapping=accounts)

    async def read(self) -> tuple[list[Effect], int]:
        """Return all effects in the ledger's order, and the sum of the accounts."""
        effects: list[Any] = await self._client.lrange("effects", 0, -1)
        balances: dict[str, str] = await self._client.hgetall("balances")
        return [Effect(*json.loads(text)) for text in effects], sum(map(int, balances.values()))

    async def steps(self) -> list[StepEffect]:
        """Return the effects of all steps in the ledger's order."""
        told: list[Any] = await self._client.lrange("steps", 0, -1)
        found = [json.loads(text) for text in told]
        return [StepEffect(id, key, token, int(fence), value) for id, key, token, fence, value in found]

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
        self._sync.close()


def _packed(effect: Effect) -> str:
    return json.dumps([effect.id, effect.entity, effect.number, effect.fence])
