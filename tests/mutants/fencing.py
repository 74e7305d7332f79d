"""Breakages of fencing: only the holder of a lease changes anything, and fences grow."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LUA = "transport/redis/lua"
_USUAL = "tests/conformance/steps/test_usual_steps.py"

FENCING = (
    Mutant(
        "settle under a stale fence",
        f"{_LUA}/advance/7_perform.lua",
        "find(record, ours, 2, true) == 2 then\n",
        "sub(record, 2, #activation + 3) == '|' .. activation .. '|' then\n",
    ),
    Mutant(
        "settle for every holder of a lease",
        f"{_LUA}/advance/7_perform.lua",
        "find(record, ours, 2, true) == 2 then\n",
        "true then\n",
    ),
    Mutant(
        "a started command is given to every lease that asks",
        f"{_LUA}/advance/7_perform.lua",
        "  if not runs or held_for ~= step.holder then return 'gone' end\n",
        "  if not runs then return 'gone' end\n",
        "tests/conformance/steps/test_steps.py::test_another_lease_of_the_same_worker_takes_no_started_command",
    ),
    Mutant(
        "a take of what is gone starts it again",
        f"{_LUA}/advance/7_perform.lua",
        "  if held_by ~= step.activation then return 'gone' end\n",
        "  if step.verb == 't' and state == 'h' then\n"
        "    return start(step, next_of(step), attempt, first, parts)\n"
        "  end\n"
        "  if held_by ~= step.activation then return 'gone' end\n",
    ),
    Mutant(
        "a usual step changes whatever is stored",
        f"{_LUA}/advance/2a_usual.lua",
        "record == ARGV[expected + i] and records[name] == nil",
        "record and records[name] == nil",
        f"{_USUAL}::test_a_record_that_differs_in_one_byte_goes_the_long_way",
    ),
    Mutant(
        "a usual step that is left answers its caller",
        f"{_LUA}/advance/2a_usual.lua",
        "if is_done and type(try('LPUSH', inbox, ARGV[left])) == 'number' then",
        "if type(try('LPUSH', inbox, ARGV[left])) == 'number' then",
        f"{_USUAL}::test_a_record_that_differs_in_one_byte_goes_the_long_way",
    ),
    Mutant(
        "the arguments of usual steps that are left are taken for those of others",
        f"{_LUA}/advance/2a_usual.lua",
        "        key, left = key + 1, left + 2\n        if is_done then\n",
        "        if is_done then\n          key, left = key + 1, left + 2\n",
        f"{_USUAL}::test_the_marks_and_replies_of_several_in_one_request",
    ),
    Mutant(
        "a usual step yields to nobody",
        f"{_LUA}/advance/2a_usual.lua",
        "is_done = not does_another_wait()",
        "is_done = true",
        f"{_USUAL}::test_who_yields_goes_the_short_way_as_long_as_nobody_waits",
    ),
    Mutant(
        "a usual step beside another one of its attempt",
        f"{_LUA}/advance/2a_usual.lua",
        " and records[name] == nil\n",
        "\n",
        f"{_USUAL}::test_another_step_of_the_same_attempt_in_one_request_wins",
    ),
    Mutant(
        "a usual step passes over holds and events",
        f"{_LUA}/advance/2a_usual.lua",
        "not is_special and call",
        "call",
        f"{_USUAL}::test_where_more_is_in_use_all_steps_go_the_long_way",
    ),
    Mutant(
        "a usual step that was left is forgotten",
        "transport/redis/worker/step_batcher.py",
        "                self._put(item)\n",
        "                pass\n",
        f"{_USUAL}::test_a_step_that_was_left_leaves_again_also_if_nobody_waits",
    ),
    Mutant(
        "a fence that does not grow",
        f"{_LUA}/shared/fences.lua",
        "    fence, low = fence + 1, low + 1\n",
        "",
    ),
    Mutant(
        "a fence that is not kept",
        f"{_LUA}/shared/fences.lua",
        "local fence, kept = time[1] * 1000000 + time[2] - 1, tonumber(redis.call('GET', key) or '0')",
        "local fence, kept = time[1] * 1000 - 1, nil",
    ),
    Mutant(
        "fetching keeps no fence",
        f"{_LUA}/fetch.lua",
        "keep_fence()\n",
        "",
        "tests/conformance/steps/test_fetch.py::test_the_fence_is_kept",
    ),
)
