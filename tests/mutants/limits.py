"""Breakages of limits: they are never exceeded, their places come back, and classes and tenants get their shares."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LUA = "transport/redis/lua"
_REDIS = "transport/redis"

LIMITS = (
    Mutant(
        "a rate lets everything start",
        f"{_LUA}/shared/limits.lua",
        "+ 0.000001 < min(cost, rule.burst) then return false end",
        "+ 1000000 < min(cost, rule.burst) then return false end",
    ),
    Mutant(
        "one more than its places runs",
        f"{_LUA}/shared/limits.lua",
        "    return has_place or is_lent or not rule.most or limits.taken(scope) < rule.most",
        "    return has_place or is_lent or not rule.most or limits.taken(scope) <= rule.most",
    ),
    Mutant(
        "newcomers pass a queue",
        f"{_LUA}/shared/limits.lua",
        "    if not is_first and not is_lent and (rule.tick or not has_place) and limits.is_queued(scope) then\n      return false\n    end\n",
        "",
        "tests/conformance/limits/test_limit_steps.py::test_a_free_token_is_the_first_one_s_in_the_queue",
    ),
    Mutant(
        "grants do not count",
        f"{_LUA}/shared/limits.lua",
        "max(bucket.full - now, 0) / rule.tick - bucket.reserved\n",
        "max(bucket.full - now, 0) / rule.tick\n",
        "tests/conformance/limits/test_limit_steps.py::test_no_more_are_woken_than_there_are_tokens",
    ),
    Mutant(
        "places do not return",
        f"{_LUA}/advance/9_end.lua",
        "if limits and is_home then end_limits() end\n",
        "if limits and is_home then limits.keep(ready, due) end\n",
        "tests/conformance/limits/test_limit_steps.py::test_a_place_returns_with_the_end_of_its_lease",
    ),
    Mutant(
        "a late end frees the place of another",
        f"{_LUA}/limits.lua",
        "if pass and pass.kind == PASS.START and pass.activation == activation then limits.drop(mailbox) end",
        "if pass and pass.kind == PASS.START then limits.drop(mailbox) end",
        "tests/conformance/limits/test_limit_steps.py::test_a_late_end_of_a_lease_frees_no_place_of_another",
    ),
    Mutant(
        "fetching starts what is limited",
        f"{_LUA}/fetch.lua",
        "call('EXISTS', KEYS[5], KEYS[6], KEYS[7])",
        "call('EXISTS', KEYS[5], KEYS[6])",
        "tests/conformance/limits/test_limits.py::test_no_more_than_its_concurrency_run_and_all_do",
    ),
    Mutant(
        "a raised rule waits for the old time",
        f"{_LUA}/rule.lua",
        "  redis.call('ZADD', due, now, 'l:' .. scope)\n",
        "",
        "tests/conformance/limits/test_limit_steps.py::test_a_raised_rule_tells_at_once",
    ),
    Mutant(
        "one of two limits is enough",
        f"{_LUA}/shared/limits.lua",
        "        return each[1], list\n      end\n    end\n    return nil, list",
        "        return each[1], list\n      end\n      if true then return nil, list end\n    end\n    return nil, list",
        "tests/conformance/limits/test_limit_steps.py::test_an_entity_under_two_limits_takes_of_both_or_none",
    ),
    Mutant(
        "a called command needs a place beside its caller's",
        f"{_LUA}/shared/limits.lua",
        "    return has_place or is_lent or not rule.most or limits.taken",
        "    return has_place or not rule.most or limits.taken",
        "tests/conformance/limits/test_limit_calls.py::test_callers_that_have_all_places_do_not_wait_for_each_other",
    ),
    Mutant(
        "a sweep believes every place",
        f"{_REDIS}/maintenance/waking.py",
        '        return "" if record.activation == each.activation else "over"\n',
        '        return ""\n',
        "tests/conformance/limits/test_limit_steps.py::test_a_sweep_frees_places_without_a_lease",
    ),
    Mutant(
        "the classes have no weights",
        f"{_LUA}/shared/line_turns.lua",
        "{[0] = 1, 4, 16}",
        "{[0] = 1, 1, 1}",
        "tests/conformance/steps/test_line_steps.py::test_three_classes_start_as_16_4_1",
    ),
    Mutant(
        "a flow that was served keeps its turn",
        f"{_LUA}/shared/line_turns.lua",
        "    paid[flow.flow] = flow.at\n",
        "",
        "tests/conformance/steps/test_line_steps.py::test_many_tenants_take_turns",
    ),
)
