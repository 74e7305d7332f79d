"""Breakages of deduplication: an id, a request and a unique key count once."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LUA = "transport/redis/lua"
_REDIS = "transport/redis"

DEDUPLICATION = (
    Mutant(
        "who is dropped leaves the window as it is",
        f"{_LUA}/shared/unique_line.lua",
        "    if command.extends then extend(command) end\n",
        "",
        "tests/conformance/unique/test_unique_windows.py::test_who_is_dropped_begins_the_window_again",
    ),
    Mutant(
        "a window is begun again beyond its bound",
        f"{_LUA}/shared/unique_line.lua",
        "math.min(now_ms() + command.window, tonumber(most) or math.huge)",
        "now_ms() + command.window",
        "tests/conformance/unique/test_unique_windows.py::test_max_wait_bounds_the_window_of_what_is_dropped",
    ),
    Mutant(
        "no deduplication",
        f"{_LUA}/shared/enqueue_all.lua",
        "call('SET', mark, MARK.ACCEPTED .. digest .. names[box], 'NX')",
        "call('SET', mark, MARK.ACCEPTED .. digest .. names[box])",
    ),
    Mutant(
        "a settled id is forgotten",
        f"{_LUA}/advance/5_settle.lua",
        "      call('SET', step.mark, value, 'PX', step.ttl)\n",
        "      call('DEL', step.mark)\n",
    ),
    Mutant(
        "an ambiguous batch is sent as a new one",
        f"{_REDIS}/sending/enqueue_line.py",
        "            batch.stale, error = True, None\n",
        "            batch, error = self._batch(left), None\n",
    ),
    Mutant(
        "a batch that was stuck on the way is accepted late",
        f"{_LUA}/enqueue.lua",
        "  if before > number then return",
        "  if false then return",
        "tests/conformance/steps/test_enqueue_steps.py::test_a_delayed_batch_is_refused_after_a_later_one_was_answered",
    ),
    Mutant(
        "a batch whose first answer is gone is applied again",
        f"{_LUA}/enqueue.lua",
        "elseif number > 1 and ARGV[2] == '1' then",
        "elseif false then",
        "tests/conformance/steps/test_enqueue_steps.py::test_a_batch_whose_first_answer_is_gone_is_not_applied_again",
    ),
    Mutant(
        "a single command that is asked again is accepted again",
        f"{_LUA}/enqueue_one.lua",
        "if before and before >= number then",
        "if before and before > number then",
    ),
    Mutant(
        "ids are not compared",
        f"{_LUA}/shared/known.lua",
        "string.sub(digest, 5) == unknown)\n    and '=' or '!'",
        "string.sub(digest, 5) == unknown)\n    and '=' or '='",
        "tests/tables/test_equality.py::test_the_table[an_id_that_waits]",
    ),
    Mutant(
        "a settled command is not compared",
        f"{_LUA}/advance/5_settle.lua",
        "    local value = keep_digest(step.mark, step.value)\n",
        "    local value = step.value\n",
        "tests/tables/test_equality.py::test_the_table[an_id_that_is_settled]",
    ),
    Mutant(
        "the one that is replaced stays in line",
        f"{_LUA}/shared/accept.lua",
        "    if command and command.replaced and batch.unique.replace(box, command) then\n",
        "    if command and command.replaced and not box then\n",
        "tests/conformance/unique/test_unique.py::test_the_latest_replaces_the_one_that_waits_and_joins_the_tail",
    ),
    Mutant(
        "what runs is replaced",
        f"{_LUA}/shared/unique.lua",
        "  if running == place then return 'started' end\n",
        "  if running == place then return 'waits' end\n",
        "tests/conformance/unique/test_unique.py::test_what_runs_is_not_touched_and_one_waits_beside_it",
    ),
    Mutant(
        "a settled command releases the key of another",
        f"{_LUA}/advance/5_settle.lua",
        "    if place == step.message and (tonumber(window) or 0) <= now then",
        "    if (tonumber(window) or 0) <= now then",
        "tests/property/test_unique_interleavings.py",
    ),
    Mutant(
        "a settled command keeps its key",
        f"{_LUA}/advance/5_settle.lua",
        "      call('HDEL', step.unique, step.key)\n    elseif",
        "    elseif",
        "tests/conformance/unique/test_unique.py::test_the_first_wins_until_it_is_settled",
    ),
    Mutant(
        "a parked command gives its key up",
        f"{_LUA}/advance/6_wait.lua",
        "    tell_end(step, true)\n",
        "    release_names(step)\n    tell_end(step, true)\n",
        "tests/conformance/unique/test_unique.py::test_a_parked_command_holds_its_key_until_an_operator_decides",
    ),
    Mutant(
        "a replaced caller is not told",
        f"{_LUA}/shared/unique_line.lua",
        "    if waits ~= '' and told.inbox and",
        "    if waits == '' and told.inbox and",
        "tests/conformance/unique/test_unique.py::test_a_replaced_caller_is_told_at_once",
    ),
    Mutant(
        "a batch that is asked again replaces again",
        f"{_LUA}/enqueue.lua",
        "  if before == number then return string.sub(answered, colon + 1) end\n",
        "",
        "tests/conformance/unique/test_unique_steps.py::test_the_same_batch_is_answered_as_the_first_time",
    ),
    Mutant(
        "a cancelled command keeps its key",
        f"{_LUA}/remove.lua",
        "    release_key(KEYS[13], ARGV[arg + 5], ARGV[arg])\n",
        "",
        "tests/conformance/unique/test_unique.py::test_cancelling_and_purging_release_the_key",
    ),
    Mutant(
        "the sweep believes the record",
        f"{_LUA}/sweep_unique.lua",
        "  return place == PLACE.DELAYED or redis.pcall('XRANGE', box, place, place)[1] ~= nil",
        "  return true",
        "tests/conformance/unique/test_unique_steps.py::test_the_sweep_releases_what_nobody_holds",
    ),
)
