"""Breakages of settlement: what is settled is so once, with its reply, letter, follow-ups and counters; the rest stays."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LUA = "transport/redis/lua"

SETTLEMENT = (
    Mutant(
        "acknowledge before handling",
        f"{_LUA}/advance/4_start.lua",
        "  if publish then\n    local fence",
        "  settled = settled + call('XDEL', step.box, head[1])\n  if publish then\n    local fence",
    ),
    Mutant(
        "reply before settling",
        f"{_LUA}/advance/7_perform.lua",
        "  local record = records[name]\n  if not record then return 'gone' end\n",
        "  local record = records[name]\n"
        "  if step.inbox and (verb == 'd' or verb == 'n') then call('LPUSH', step.inbox, step.reply) end\n"
        "  if not record then return 'gone' end\n",
    ),
    Mutant(
        "no reply with the settling",
        f"{_LUA}/advance/5_settle.lua",
        "  if step.inbox and type(try('LPUSH', step.inbox, step.reply)) == 'number' then touched[step.inbox] = true end\n",
        "",
    ),
    Mutant(
        "a retry waits for ever",
        f"{_LUA}/advance/6_wait.lua",
        "  call('ZADD', due, at, 'r:' .. name)\n",
        "",
    ),
    Mutant(
        "a dead letter is dropped",
        f"{_LUA}/advance/5_settle.lua",
        "  if step.verb == VERB.BURY then write_letter(step, '0') end\n",
        "",
    ),
    Mutant(
        "the depth is not counted down",
        f"{_LUA}/advance/9_end.lua",
        "  try('HINCRBY', stats, 'depth', -settled - freed)\n",
        "",
    ),
    Mutant(
        "a cancelled command stays",
        f"{_LUA}/remove.lua",
        "redis.call('XDEL', box, id) == 0 then return false end",
        "redis.call('XLEN', box) == 0 then return false end",
    ),
    Mutant(
        "what is settled stays when a lease ends",
        f"{_LUA}/advance/6_wait.lua",
        "    trim(step, step.message)\n    if step.counts == '0' or step.is_shared then\n",
        "    if step.counts == '0' or step.is_shared then\n",
    ),
    Mutant(
        "an untouched give-back counts as an attempt",
        f"{_LUA}/advance/6_wait.lua",
        "      attempt = format('%d', math.max(attempt - 1, 0))\n",
        "      attempt = format('%d', attempt + 1)\n",
    ),
    Mutant(
        "a settlement that is asked again is gone",
        f"{_LUA}/advance/7_perform.lua",
        "    elseif settling[verb] and limits and is_limited(name) then",
        "    elseif false then",
        "tests/conformance/limits/test_limit_steps.py::test_a_worker_that_does_not_know_of_limits_asks",
    ),
    Mutant(
        "follow-ups are sent before the settlement",
        f"{_LUA}/advance/1a_read.lua",
        "        step.follow_ups[i] = {key",
        "        redis.call('HSET', lone, 'box:b', ARGV[arg - 1])\n        step.follow_ups[i] = {key",
        "tests/conformance/steps/test_follow_up_steps.py::test_who_has_lost_the_lease_sends_nothing",
    ),
    Mutant(
        "a settlement sends nothing",
        f"{_LUA}/advance/5_settle.lua",
        "    for _, each in ipairs(step.follow_ups or {}) do sending[#sending + 1] = each end\n",
        "",
        "tests/conformance/steps/test_follow_up_steps.py::test_it_is_sent_by_the_settlement_and_by_no_repetition",
    ),
    Mutant(
        "an attempt that failed sends all",
        "worker/executor.py",
        "run.follow_ups = await outbox.settled(completed=False)",
        "run.follow_ups = await outbox.settled(completed=True)",
        "tests/conformance/test_follow_ups.py::test_other_ends_send_only_what_is_always_sent",
    ),
    Mutant(
        "a mailbox that takes nothing loses what was sent",
        f"{_LUA}/shared/deliver.lua",
        "then at = keys.now + 1000 end",
        "then return end",
        "tests/conformance/steps/test_follow_up_steps.py::test_a_mailbox_that_takes_nothing_has_it_once_it_is_repaired",
    ),
    Mutant(
        "a relay's generation is ignored",
        f"{_LUA}/relay.lua",
        "if redis.call('HGET', relayed, RELAYED.GENERATION) ~= ARGV[2] then return false end",
        "if false then return false end",
        "tests/conformance/steps/test_follow_up_steps.py::test_a_slow_relay_is_not_believed",
    ),
    Mutant(
        "relays go by the entries' ids",
        f"{_LUA}/relay.lua",
        "  elseif not taken['c' .. id] then\n",
        "  end\n  local most = redis.call('HGET', relayed, 'most') or '0-0'\n"
        "  if flow ~= OUTCOME and is_behind(ARGV[i], most) then\n    redis.call('HSET', relayed, 'most', ARGV[i])\n",
        "tests/conformance/steps/test_follow_up_steps.py::test_ids_that_come_again_after_a_failover_lose_nothing",
    ),
    Mutant(
        "the end before a replay stays in the history",
        f"{_LUA}/shared/outcomes.lua",
        "    if type(before) == 'string' then redis.pcall('XDEL', stream, before) end\n",
        "",
        "tests/conformance/operating/test_history.py::test_a_letter_leaves_one_end",
    ),
    Mutant(
        "a snooze is an attempt",
        f"{_LUA}/advance/6_wait.lua",
        "local tried = why == '1' and attempt or",
        "local tried = why ~= '0' and attempt or",
        "tests/conformance/steps/test_snooze_steps.py::test_snoozes_use_no_attempt_and_keep_the_order",
    ),
)
