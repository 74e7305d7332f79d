"""Breakages of follow-ups: of what sends them, and of the relays between shards."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["FOLLOW_UPS"]

_LUA = "transport/redis/lua"
_BUS, _STEPS = "tests/conformance/test_follow_ups.py", "tests/conformance/steps/test_follow_up_steps.py"

FOLLOW_UPS = (
    Mutant(
        "follow-ups are sent before the settlement",
        f"{_LUA}/advance/1_read.lua",
        "        left.follow_ups[i].envelope, left.follow_ups[i].extra = ARGV[arg - 1], ARGV[arg]\n",
        "        left.follow_ups[i].envelope, left.follow_ups[i].extra = ARGV[arg - 1], ARGV[arg]\n"
        "        redis.call('HSET', lone, 'box:b', ARGV[arg - 1])\n",
        f"{_STEPS}::test_who_has_lost_the_lease_sends_nothing",
    ),
    Mutant(
        "a settlement sends nothing",
        f"{_LUA}/advance/3b_verbs.lua",
        "      for _, each in ipairs(left.follow_ups) do sending[#sending + 1] = each end\n",
        "",
        f"{_STEPS}::test_it_is_sent_by_the_settlement_and_by_no_repetition",
    ),
    Mutant(
        "an attempt that failed sends all",
        "worker/executor.py",
        "run.follow_ups = await outbox.settled(completed=False)",
        "run.follow_ups = await outbox.settled(completed=True)",
        f"{_BUS}::test_other_ends_send_only_what_is_always_sent",
    ),
    Mutant(
        "each attempt sends under other ids",
        "sending/follow_ups.py",
        'f"{command_id}\\0{number}"',
        "f\"{command_id}\\0{id(object())}{number}{__import__('time').monotonic_ns()}\"",
        f"{_BUS}::test_a_handler_that_fails_sends_nothing_until_it_returns",
    ),
    Mutant(
        "a mailbox that takes nothing loses what was sent",
        f"{_LUA}/shared/deliver.lua",
        "then at = keys.now + 1000 end",
        "then return end",
        f"{_STEPS}::test_a_mailbox_that_takes_nothing_has_it_once_it_is_repaired",
    ),
    Mutant(
        "a relay's generation is ignored",
        f"{_LUA}/relay.lua",
        "if redis.call('HGET', relayed, RELAYED.GENERATION) ~= ARGV[2] then return false end",
        "if false then return false end",
        f"{_STEPS}::test_a_slow_relay_is_not_believed",
    ),
    Mutant(
        "a relay reaches the namespace that follows",
        f"{_LUA}/relay.lua",
        "if is_of_another_time(stats, ARGV[4]) then return 'gone' end\n",
        "",
        f"{_STEPS}::test_a_relay_from_before_a_deletion_brings_nothing",
    ),
    Mutant(
        "what was relayed is not remembered",
        f"{_LUA}/relay.lua",
        "    redis.call('HSET', relayed, 'c' .. id, ARGV[i])\n",
        "",
        f"{_STEPS}::test_a_relay_that_died_before_it_deleted_doubles_nothing",
    ),
    Mutant(
        "relays go by the entries' ids",
        f"{_LUA}/relay.lua",
        "  elseif not taken['c' .. id] then\n",
        "  end\n  local most = redis.call('HGET', relayed, 'most') or '0-0'\n"
        "  if flow ~= OUTCOME and is_behind(ARGV[i], most) then\n    redis.call('HSET', relayed, 'most', ARGV[i])\n",
        f"{_STEPS}::test_ids_that_come_again_after_a_failover_lose_nothing",
    ),
    Mutant(
        "what was relayed is never forgotten",
        f"{_LUA}/relay.lua",
        "if #over > 0 then redis.call('HDEL', relayed, unpack(over)) end\n",
        "",
        f"{_STEPS}::test_what_is_forgotten_does_not_stand_there_any_more",
    ),
    Mutant(
        "a relayed command stays where it was",
        f"{_LUA}/relayed.lua",
        "  local deleted = redis.call('XDEL', KEYS[1], unpack(ids))\n",
        "  local deleted = #ids\n",
        f"{_STEPS}::test_a_relay_takes_all_and_leaves_nothing",
    ),
)
