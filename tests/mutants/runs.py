"""Breakages of runs: what the server knows of neighbours that one call of a handler takes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_STEPS, _BATCHES = "tests/conformance/steps/test_run_steps.py", "tests/conformance/test_entity_batches.py"
_ERRORS = "tests/conformance/test_raised_exits.py"
_LUA = "transport/redis/lua"

RUNS = (
    Mutant(
        "a batch that swallows its cancellation keeps its entities",
        "worker/batches.py",
        "                    each.run.lease.renew_until = mono() + timeout + self._grace\n",
        "                    pass\n",
        f"{_ERRORS}::test_a_call_that_swallows_its_cancellation_keeps_its_entities_no_longer_than_others",
    ),
    Mutant(
        "who waits for room is not looked at when a call ends",
        "worker/batches.py",
        "        if not self._calls and self._queues:\n",
        "        if not self._queues:\n",
        f"{_ERRORS}::test_what_waits_for_room_is_called_when_a_call_of_another_handler_ends",
    ),
    Mutant(
        "a run is extended over what was removed",
        f"{_LUA}/advance/6a_run.lua",
        "    if byte(record) == HELD_AND_CHANGED then return nil end\n",
        "",
        f"{_STEPS}::test_a_run_with_something_removed_in_it_is_not_extended",
    ),
    Mutant(
        "a run is settled that the record does not have",
        f"{_LUA}/advance/6a_run.lua",
        "    if step.members and step.run_part ~= run then return nil end\n",
        "    run, last, count = run or step.run_part, last or step.message, count or 1\n",
        f"{_STEPS}::test_a_run_that_the_record_does_not_have_settles_nothing",
    ),
    Mutant(
        "who fails in a run has the attempts of the first",
        f"{_LUA}/advance/7_perform.lua",
        "    attempt, first = '1', now_text\n",
        "",
        f"{_STEPS}::test_who_fails_is_retried_with_an_attempt_of_its_own",
    ),
    Mutant(
        "a lost run is an attempt of its first",
        f"{_LUA}/advance/6_wait.lua",
        "    if step.counts == '0' or step.is_shared then\n",
        "    if step.counts == '0' then\n",
        f"{_STEPS}::test_a_lost_run_is_halved_and_each_that_settles_something_doubles_the_next",
    ),
    Mutant(
        "a lost run comes again as large",
        f"{_LUA}/advance/6a_run.lua",
        "math.max(math.floor(count / 2), 1) or 1, true\n",
        "tonumber(count) or 1, true\n",
        f"{_STEPS}::test_a_lost_run_is_halved_and_each_that_settles_something_doubles_the_next",
    ),
    Mutant(
        "what may have run ends as never started",
        f"{_LUA}/advance/6a_run.lua",
        "    return (step.members and own_parts(parts) or parts) .. '|begun=' .. last\n",
        "    return step.members and own_parts(parts) or parts\n",
        f"{_STEPS}::test_what_was_behind_it_may_have_run_until_it_is_past",
    ),
    Mutant(
        "a command that runs behind the first is removed",
        f"{_LUA}/remove.lua",
        "local last = holds and last_running(running, parts)\n",
        "local last = running\n",
        f"{_BATCHES}::test_what_waits_behind_a_run_can_be_removed_and_is_not_called",
    ),
    Mutant(
        "a key is held by one that runs behind the first as if it waited",
        f"{_LUA}/shared/unique.lua",
        "    return is_behind(place, last_running(running, parts)) and (late or 'waits') or 'started'\n",
        "    return late or 'waits'\n",
        f"{_BATCHES}::test_a_key_of_one_that_runs_with_others_is_held",
    ),
    Mutant(
        "the halves of a run are called right one first",
        "worker/batches.py",
        "                parts += [(middle, high), (low, middle)]\n",
        "                parts += [(low, middle), (middle, high)]\n",
        f"{_BATCHES}::test_a_poisoned_one_is_found_and_those_before_it_are_settled_at_once",
    ),
    Mutant(
        "a call that fails leaves its state to its halves",
        "worker/entity_batches.py",
        "                if head.state is not None:\n                    head.state.is_void = True\n                raise\n",
        "                raise\n",
        "tests/conformance/test_entity_batch_ends.py::test_middleware_that_calls_again_gives_a_state_as_it_was_stored",
    ),
    Mutant(
        "a run goes on behind one that has failed",
        "worker/batches.py",
        "                if is_failed and not isinstance(value.error, WrongOutcomes):  # that ends all of a call\n                    return\n",
        "",
        f"{_BATCHES}::test_outcomes_end_where_one_has_failed",
    ),
)
