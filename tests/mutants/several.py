"""Breakages of commands of several entities: run once at the head of all lines, accepted, held and left in all of them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LUA = "transport/redis/lua"
_SEVERAL = f"{_LUA}/shared/several.lua"
_TESTS = "tests/conformance/several/test_several_entities.py"
_FREE = "open_lines().free_all(call('XRANGE', step.box, step.message, step.message)[1][2], step.name, step.box)\n"

SEVERAL = (
    Mutant(
        "a command of several entities starts before it is first in all lines",
        _SEVERAL,
        "      if not self.is_first(text) then return nil,",
        "      if false then return nil,",
        f"{_TESTS}::test_a_skipped_one_frees_its_lines_and_a_replay_joins_the_end_of_all",
    ),
    Mutant(
        "a place that becomes the head does not wake its home",
        _SEVERAL,
        "string.find(record, '^b|') and string.find(record, '|w=', 3, true) then",
        "false then",
        "tests/conformance/several/test_several_reports.py::test_it_starts_as_soon_as_its_last_line_is_free",
    ),
    Mutant(
        "a retry leaves the other lines",
        f"{_LUA}/advance/6_wait.lua",
        "    -- Its worker has read it, and lives.\n",
        f"    {_FREE}",
        f"{_TESTS}::test_a_retry_keeps_all_lines",
    ),
    Mutant(
        "a parked command leaves the other lines",
        f"{_LUA}/advance/6_wait.lua",
        "    call('HSET', parked, step.name, write_letter(step, '1'))\n",
        f"    {_FREE}    call('HSET', parked, step.name, write_letter(step, '1'))\n",
        f"{_TESTS}::test_a_parked_one_holds_all_lines",
    ),
    Mutant(
        "a purge of another line than the home's does not reach it",
        "sending/waiting.py",
        "        return removed + await self._purge_places(mailbox, homes, entity)\n",
        "        return removed\n",
        f"{_TESTS}::test_a_purge_of_any_line_takes_it_out_of_all",
    ),
    Mutant(
        "a cancelled command stays in the other lines",
        f"{_LUA}/remove.lua",
        "  freed = freed + several.free_all(entry[2], name, box)\n",
        "",
        f"{_TESTS}::test_a_cancelled_one_leaves_all_lines",
    ),
    Mutant(
        "a discarded letter leaves its home only",
        f"{_LUA}/settle_dead_letter.lua",
        "'depth', -1 - several.free_all(head[2], name, box))",
        "'depth', -1)",
        f"{_TESTS}::test_a_parked_one_holds_all_lines",
    ),
    Mutant(
        "a replay at the end joins its home only",
        f"{_LUA}/settle_dead_letter.lua",
        "  places = several.join_all(replayed, name, box, flow)\n",
        "  places = 0\n",
        f"{_TESTS}::test_a_skipped_one_frees_its_lines_and_a_replay_joins_the_end_of_all",
    ),
    Mutant(
        "the end of a pause wakes no blocked line",
        f"{_LUA}/hold.lua",
        "  if (state ~= STATE.STOPPED and state ~= STATE.BLOCKED) or",
        "  if state ~= STATE.STOPPED or",
        f"{_TESTS}::test_a_pause_of_a_line_that_waits_already_ends_for_its_home",
    ),
    Mutant(
        "upkeep does not look at blocked lines",
        f"{_LUA}/reactivate.lua",
        "    if not is_overlooked(name, box, message) then return false end\n",
        "    if true then return false end\n",
        "tests/conformance/several/test_several_repairs.py::test_nothing_is_stuck_after_upkeep",
    ),
)
