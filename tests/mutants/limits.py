"""Breakages of limits: of what is compared before a start, of queues, places and grants."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["LIMITS"]

_LUA = "transport/redis/lua"
_LIMITS, _SCRIPT = f"{_LUA}/shared/limits.lua", f"{_LUA}/limits.lua"
_STEPS, _BUS = "tests/conformance/test_limit_steps.py", "tests/conformance/test_limits.py"
_CALLS = "tests/conformance/test_limit_calls.py"

LIMITS = (
    Mutant(
        "the first shard decides about limits for workers of a namespace that was deleted",
        _SCRIPT,
        "if is_of_another_time(KEYS[8], ARGV[3]) then return 'gone' end",
        "",
        "tests/conformance/test_limit_grants.py::test_a_lease_from_before_a_deletion_gets_no_place",
    ),
    Mutant(
        "a worker of a namespace that was deleted wakes what waits in the next one",
        f"{_LUA}/wake_limited.lua",
        "if is_of_another_time(KEYS[4], ARGV[2]) then return 'gone' end",
        "",
        "tests/conformance/test_limit_grants.py::test_a_step_from_before_a_deletion_writes_nothing",
    ),
    Mutant(
        "a rate lets everything start",
        _LIMITS,
        "+ 0.000001 < min(cost, rule.burst) then return false end",
        "+ 1000000 < min(cost, rule.burst) then return false end",
    ),
    Mutant(
        "one more than its places runs",
        _LIMITS,
        "limits.taken(scope) < rule.most",
        "limits.taken(scope) <= rule.most",
    ),
    Mutant(
        "newcomers pass a queue",
        _LIMITS,
        "    if not is_first and not is_lent and (rule.tick or not has_place) and limits.is_queued(scope) then return false end\n",
        "",
        f"{_STEPS}::test_a_free_token_is_the_first_one_s_in_the_queue",
    ),
    Mutant(
        "grants do not count",
        _LIMITS,
        "max(bucket.full - now, 0) / rule.tick - bucket.reserved\n",
        "max(bucket.full - now, 0) / rule.tick\n",
        f"{_STEPS}::test_no_more_are_woken_than_there_are_tokens",
    ),
    Mutant(
        "a bucket ahead of its time is believed",
        _LIMITS,
        "    if bucket.full > emptiest then bucket.full, bucket.cut = emptiest, true end\n",
        "",
        f"{_STEPS}::test_a_clock_that_went_back_costs_a_burst_at_most",
    ),
    Mutant(
        "a cost above the burst never fits",
        _LIMITS,
        "< min(cost, rule.burst) then return false end",
        "< cost then return false end",
        f"{_STEPS}::test_68_a_cost_above_the_burst_waits_for_a_full_bucket",
    ),
    Mutant(
        "places do not return",
        f"{_LUA}/advance/4_write.lua",
        "if limits and is_home then end_limits() end\n",
        "if limits and is_home then keep_limits(limits, KEYS[13], ready, due, micros) end\n",
        f"{_STEPS}::test_a_place_returns_with_the_end_of_its_lease",
    ),
    Mutant(
        "a late end frees the place of another",
        _SCRIPT,
        "if pass and pass.kind == 's' and pass.activation == activation then limits.drop(mailbox) end",
        "if pass and pass.kind == 's' then limits.drop(mailbox) end",
        f"{_STEPS}::test_a_late_end_of_a_lease_frees_no_place_of_another",
    ),
    Mutant(
        "a lease that is over takes the place of another",
        _SCRIPT,
        "    if is_behind(pass.activation, activation) then return '+' end",
        "    if false then return '+' end",
        f"{_STEPS}::test_a_late_end_of_a_lease_frees_no_place_of_another",
    ),
    Mutant(
        "a request that comes again late takes the place away",
        _SCRIPT,
        "pass.message ~= '' and not is_behind(message, pass.message) then",
        "false then",
        f"{_STEPS}::test_a_request_that_comes_again_late_takes_no_place_away",
    ),
    Mutant(
        "a kept place starves the queue",
        f"{_LUA}/advance/3a_states.lua",
        "  if limits and is_place_wanted(name) then return true end\n",
        "",
        f"{_STEPS}::test_a_place_is_kept_within_the_quantum_and_goes_past_it",
    ),
    Mutant(
        "what is paused is woken",
        _SCRIPT,
        "  if holds_of(paused, mailbox) then\n",
        "  if false then\n",
        f"{_STEPS}::test_what_is_paused_is_passed_over",
    ),
    Mutant(
        "leave for one message is good for another",
        f"{_LUA}/advance/3_guard.lua",
        "    if grants[step] == head[1] then return nil end\n",
        "    if grants[step] then return nil end\n",
        f"{_STEPS}::test_a_worker_that_does_not_know_of_limits_asks",
    ),
    Mutant(
        "a settlement that is asked again is gone",
        f"{_LUA}/advance/3c_perform.lua",
        "    elseif settling[verb] and limits and is_limited(name) then",
        "    elseif false then",
        f"{_STEPS}::test_a_worker_that_does_not_know_of_limits_asks",
    ),
    Mutant(
        "what was settled stands before who waits for a limit",
        f"{_LUA}/advance/3a_states.lua",
        "  return limits and judge(step, name, activation)\nend",
        "  return false\nend",
        f"{_STEPS}::test_a_limited_entity_runs_nothing_twice",
    ),
    Mutant(
        "who has yet to wait is taken for gone",
        _SCRIPT,
        "  if state and string.find(state, '^[rhHoOq]$') then return nil end\n",
        "",
        f"{_STEPS}::test_the_script_passes_over_who_has_yet_to_wait",
    ),
    Mutant(
        "fetching starts what is limited",
        f"{_LUA}/fetch.lua",
        "call('EXISTS', KEYS[5], KEYS[6], KEYS[7])",
        "call('EXISTS', KEYS[5], KEYS[6])",
        f"{_BUS}::test_no_more_than_its_concurrency_run_and_all_do",
    ),
    Mutant(
        "a raised rule waits for the old time",
        f"{_LUA}/rule.lua",
        "  redis.call('ZADD', due, now, 'l:' .. scope)\n",
        "",
        f"{_STEPS}::test_a_raised_rule_tells_at_once",
    ),
    Mutant(
        "a lower revision takes over",
        f"{_LUA}/rule.lua",
        "  if revision_of(before) > revision_of(text) then return 'older' end\n",
        "",
        f"{_BUS}::test_defaults_of_code_are_compared_by_revision",
    ),
    Mutant(
        "one of two limits is enough",
        _LIMITS,
        "then return each[1], list end\n    end\n    return nil, list",
        "then return each[1], list end\n      if true then return nil, list end\n    end\n    return nil, list",
        f"{_STEPS}::test_an_entity_under_two_limits_takes_of_both_or_none",
    ),
    Mutant(
        "a grant of another rule is good for this one",
        f"{_LUA}/shared/limit_queues.lua",
        "return is_lent or not rule.most or redis.call('ZSCORE', places_key, 's\\n' .. scope .. '\\n' .. mailbox)",
        "return true",
        "tests/conformance/test_limit_grants.py::test_a_grant_of_a_rate_has_no_place_of_the_rule_that_follows",
    ),
    Mutant(
        "a grant of places is good for tokens",
        f"{_LUA}/shared/limit_queues.lua",
        "+ bucket.reserved + 0.000001 < math.min(cost, rule.burst) then return false end",
        "+ bucket.reserved + 1000000 < math.min(cost, rule.burst) then return false end",
        "tests/conformance/test_limit_grants.py::test_grants_of_places_are_no_tokens_of_the_rate_that_follows",
    ),
    Mutant(
        "a called command needs a place beside its caller's",
        _LIMITS,
        "    return has_place or is_lent or not rule.most",
        "    return has_place or not rule.most",
        f"{_CALLS}::test_callers_that_have_all_places_do_not_wait_for_each_other",
    ),
    Mutant(
        "a called command waits behind those that wait for its caller's place",
        f"{_LUA}/shared/limit_queues.lua",
        "limits.micros_since(since) / (is_lent and 10 or 1)",
        "limits.micros_since(since)",
        f"{_CALLS}::test_a_called_command_takes_its_token_all_the_same",
    ),
    Mutant(
        "a caller is believed whose lease is over",
        _LIMITS,
        "      if pass and pass.kind == 's' and pass.activation == activation then\n        for scope",
        "      if pass and pass.kind == 's' then\n        for scope",
        f"{_CALLS}::test_a_caller_whose_lease_is_over_lends_nothing",
    ),
    Mutant(
        "a dispatch passes as a call does",
        "sending/envelope_builder.py",
        "callers = running.callers if running is not None and out.inbox else None",
        "callers = running.callers if running is not None else None",
        f"{_CALLS}::test_a_dispatch_waits_for_a_place",
    ),
    Mutant(
        "a sweep believes every place",
        "transport/redis/limits/waking.py",
        '        return "" if record.activation == each.activation else "over"\n',
        '        return ""\n',
        f"{_STEPS}::test_a_sweep_frees_places_without_a_lease",
    ),
)
