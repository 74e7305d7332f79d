"""Breakages of operating: operators' acts, schedules, deletions and workers of another release break nothing."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LUA = "transport/redis/lua"
_REDIS = "transport/redis"
_WORLDS = "tests/property/test_export_worlds.py"

OPERATING = (
    Mutant(
        "a paused entity is started",
        f"{_LUA}/advance/4_start.lua",
        "  if any_paused and holds_of(paused, name) then\n    release",
        "  if false then\n    release",
    ),
    Mutant(
        "a drained entity starts nothing",
        f"{_LUA}/shared/holds.lua",
        "held or (value and not draining)",
        "held or (value and true)",
        "tests/conformance/steps/test_hold_steps.py::test_a_drain_refuses_new_commands_and_starts_waiting_ones",
    ),
    Mutant(
        "draining accepts what is new",
        f"{_LUA}/shared/accept.lua",
        "    if drained[box] then return ADMISSION.DRAINING end\n",
        "",
        "tests/conformance/steps/test_hold_steps.py::test_a_drain_refuses_new_commands_and_starts_waiting_ones",
    ),
    Mutant(
        "a settled command is cancelled",
        f"{_LUA}/remove.lua",
        "  if holds and not is_behind(id, last) then return false end",
        "  if holds and id == running then return false end",
        "tests/conformance/steps/test_read_ahead.py::test_what_is_settled_or_runs_cannot_be_cancelled",
    ),
    Mutant(
        "what runs in a namespace that is deleted keeps its lease",
        f"{_REDIS}/admin/type_records.py",
        "            keys.active,\n            keys.ready,\n",
        "            keys.ready,\n",
        "tests/conformance/operating/test_obliterate.py::test_one_that_broke_off_leaves_a_drained_namespace_and_is_repeated",
    ),
    Mutant(
        "an armed firing is accepted by another namespace of the name",
        f"{_LUA}/schedule_fire.lua",
        "if is_of_another_time(stats, ARGV[2]) then return 'gone' end",
        "",
        "tests/conformance/operating/test_obliterate.py::test_an_armed_firing_meets_another_namespace_of_the_name",
    ),
    Mutant(
        "the lease of a later release's state is claimed",
        f"{_LUA}/claim.lua",
        " and not is_of_newer(ARGV[arg]) then",
        " then",
        "tests/conformance/steps/test_newer_states.py::test_its_lease_is_not_taken_over",
    ),
    Mutant(
        "a step drops the parts of a record",
        f"{_LUA}/advance/7_perform.lua",
        "  local parts = has_parts and string.match(record, '^[^|]*|[^|]*|[^|]*(|.*)', at) or ''\n",
        "  local parts = ''\n",
        "tests/conformance/test_reserved.py::test_parts_stay_from_command_to_command",
    ),
    Mutant(
        "a firing is accepted whatever was fired before",
        f"{_LUA}/schedule_fire.lua",
        "return tonumber(last) >= number and '=' or nil",
        "return nil",
        "tests/conformance/schedules/test_schedules.py::test_nothing_fires_behind_a_change",
    ),
    Mutant(
        "a record is written over another one",
        f"{_LUA}/schedule_change.lua",
        "local same = now == before or now == after",
        "local same = true",
        "tests/conformance/schedules/test_schedule_changes.py::test_a_record_that_has_changed_is_left_alone",
    ),
    Mutant(
        "a schedule moves on from a firing that no replica has",
        f"{_REDIS}/scheduling/store.py",
        '        return list(letters) if confirmed else ["?" if letter in _CONFIRMED else letter for letter in letters]\n',
        "        return list(letters)\n",
        "tests/integration/test_schedule_topologies.py::test_a_firing_that_no_replica_has_is_fired_again_after_a_failover",
    ),
    Mutant(
        "settled commands that stand in a mailbox are counted again",
        f"{_LUA}/recount.lua",
        "return length - #redis.pcall('XRANGE', box, '-', '(' .. message, 'COUNT', 100)",
        "return length - 0 * #redis.pcall('XRANGE', box, '-', '(' .. message, 'COUNT', 100)",
        "tests/conformance/operating/test_recount.py",
    ),
    Mutant(
        "export: rows that a file has are written again",
        "export/files.py",
        "        if not over:\n",
        "        if over or not over:\n",
        _WORLDS,
    ),
    Mutant(
        "export: a server that has changed is not read again",
        "export/exporter.py",
        "        if is_new := before.lineage != lineage:",
        "        if is_new := False and before.lineage != lineage:",
        _WORLDS,
    ),
    Mutant(
        "export: a file is written in its place",
        "export/files.py",
        '    beside = path.with_name(f".{path.name}")\n',
        "    beside = path\n",
        _WORLDS,
    ),
    Mutant(
        "export: what was deleted within a file is not noticed",
        "export/cursors.py",
        "sum(each >= first for each in ids)",
        "len(ids)",
        _WORLDS,
    ),
    Mutant(
        "export: the cursor stands still at a gap without an entry behind it",
        "export/exporter.py",
        "        while is_new or lost != 0 or cursor.last < until:",
        "        while cursor.last < until:",
        _WORLDS,
    ),
)
