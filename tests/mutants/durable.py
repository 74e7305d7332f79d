"""Breakages of durable commands: a step runs once, a call is sent once, a wait ends, and what failed is undone in reverse."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LUA = "transport/redis/lua"
_REDIS = "transport/redis"

DURABLE = (
    Mutant(
        "a step is stored without the lease",
        f"{_LUA}/record_steps.lua",
        " and find(record, ours, 2, true) == 2 then\n",
        " then\n",
        "tests/conformance/durable/test_durable_steps.py::test_who_has_lost_the_lease_stores_nothing",
    ),
    Mutant(
        "a called command is sent whenever its call is stored",
        f"{_LUA}/record_steps.lua",
        "      if not known then sent[",
        "      if true then sent[",
        "tests/conformance/durable/test_durable_steps.py::test_a_field_is_stored_once_and_its_command_sent_once",
    ),
    Mutant(
        "an outcome that comes again takes the place of the first",
        f"{_LUA}/shared/arrive.lua",
        "  if there then return false end\n",
        "",
        "tests/conformance/durable/test_durable_records.py::test_the_first_outcome_stays",
    ),
    Mutant(
        "a called command is lost where its mailbox takes nothing",
        f"{_LUA}/record_steps.lua",
        " and put(box, envelope, flow) then at = now + 1000 end",
        " and put(box, envelope, flow) then at = nil end",
        "tests/conformance/durable/test_durable_steps.py::test_a_called_command_whose_mailbox_takes_nothing_comes_once_it_is_repaired",
    ),
    Mutant(
        "a signal that comes early is dropped",
        f"{_LUA}/tell.lua",
        "if redis.call('HEXISTS', side, 'm') == 0 then redis.call('PEXPIRE', side, ARGV[7]) end\n",
        "if redis.call('HEXISTS', side, 'm') == 0 then redis.call('DEL', side) end\n",
        "tests/conformance/durable/test_durable_steps.py::test_a_wait_of_which_nothing_was_stored_is_woken",
    ),
    Mutant(
        "a signal is taken whenever it is sent",
        f"{_LUA}/tell.lua",
        "elseif redis.call('HEXISTS', side, 'gi:' .. what .. '#' .. once) == 1 then\n",
        "elseif redis.call('HEXISTS', side, 'gi:' .. what .. '#' .. once) == 2 then\n",
        "tests/conformance/durable/test_durable.py::test_signals_come_in_their_order_and_each_id_once",
    ),
    Mutant(
        "what came before a suspension does not wake",
        f"{_LUA}/advance/6_wait.lua",
        "    if (#awaited > 0 and wanted <= 0) or",
        "    if (#awaited > 0 and wanted <= -9) or",
        "tests/conformance/durable/test_durable_steps.py::test_an_outcome_wakes_it",
    ),
    Mutant(
        "what comes behind a suspended command goes past it",
        f"{_LUA}/shared/lone.lua",
        "  return record and string.find(record, '^[oOUq]|')",
        "  return record and string.find(record, '^[oOq]|')",
        "tests/conformance/durable/test_durable_steps.py::test_the_only_command_of_an_entity_is_suspended_without_a_stream",
    ),
    Mutant(
        "the caller of a command that is taken out learns nothing",
        f"{_LUA}/remove.lua",
        "for _, each in ipairs(told) do tell_caller(keys, unpack(each)) end\n",
        "",
        "tests/conformance/durable/test_durable_ends.py::test_the_caller_learns_that_an_operator_took_its_call_out",
    ),
    Mutant(
        "the caller of a parked command that is discarded learns nothing",
        f"{_LUA}/settle_dead_letter.lua",
        "  if verb == 'discard' and ARGV[13] ~= '' then",
        "  if verb == 'none' and ARGV[13] ~= '' then",
        "tests/conformance/durable/test_durable_begun_calls.py::test_the_caller_learns_that_its_parked_call_was_discarded",
    ),
    Mutant(
        "compensations run in their order",
        "durable/compensation.py",
        "key=lambda each: each.place, reverse=True)",
        "key=lambda each: each.place)",
        "tests/conformance/durable/test_durable_ends.py::test_it_is_undone_in_reverse_before_the_caller_learns",
    ),
    Mutant(
        "what has begun is given up by a worker that takes it over and cannot read it",
        f"{_REDIS}/maintenance/recovery.py",
        "begun=record.first_ms < 0 and envelope is not None and await self._has_begun(record.message, envelope),",
        "begun=False,",
        "tests/tables/test_unrun_ends.py::test_what_has_begun_is_undone_or_waits_for_a_decision",
    ),
    Mutant(
        "what has begun expires",
        f"{_LUA}/record_steps.lua",
        "  if begun and byte(first) ~= 45 then first = '-' .. first end",
        "  if false then first = '-' .. first end",
        "tests/tables/test_unrun_ends.py::test_what_has_begun_has_no_deadline",
    ),
    Mutant(
        "a run that is over does not wait for what is in flight",
        "durable/in_flight.py",
        "        if not self._tasks:\n            return\n        began",
        "        return\n        began",
    ),
    Mutant(
        "a parked call leaves the mark of its failure",
        "transport/retention.py",
        '        left.mark if has_caller else b"",',
        "        left.mark,",
        "tests/conformance/durable/test_durable_circles.py::test_a_parked_call_is_not_taken_for_one_that_has_ended",
    ),
)
