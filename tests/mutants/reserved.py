"""Breakages of what format 3 keeps of a later release: its states, parts, fields, members of `due` and flags."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["RESERVED"]

_LUA = "transport/redis/lua"
_STATES = "tests/conformance/steps/test_newer_states.py"
_KEPT = "tests/conformance/test_reserved.py"

RESERVED = (
    Mutant(
        "a command is taken out of an entity in a later release's state",
        f"{_LUA}/remove.lua",
        "if is_newer(record) then return 'newer' end\n",
        "",
        f"{_STATES}::test_none_of_its_commands_is_taken_out",
    ),
    Mutant(
        "a letter that parks an entity in a later release's state is settled",
        f"{_LUA}/settle_dead_letter.lua",
        "if is_parked and is_newer(record) then return 'newer' end\n",
        "",
        f"{_STATES}::test_a_letter_that_parks_it_stays",
    ),
    Mutant(
        "an operator gets no error for a later release's state",
        f"{_LUA}/hold.lua",
        "if is_newer(redis.call('HGET', active, scope)) then return 'newer' end\n",
        "",
        f"{_STATES}::test_an_operator_is_told",
    ),
    Mutant(
        "the lease of a later release's state is claimed",
        f"{_LUA}/claim.lua",
        " and not is_of_newer(ARGV[arg]) then",
        " then",
        f"{_STATES}::test_its_lease_is_not_taken_over",
    ),
    Mutant(
        "the lease of a later release's state is settled",
        "transport/redis/maintenance/recovery.py",
        "        if record.is_newer:\n            return",
        "        if False:\n            return",
        f"{_STATES}::test_its_lease_is_not_taken_over",
    ),
    Mutant(
        "a later release's state is repaired",
        f"{_LUA}/reactivate.lua",
        "  elseif state and string.find(state, '^[rhHoO]$') then\n",
        "  elseif state and state ~= 's' and state ~= 'w' then\n",
        f"{_STATES}::test_repair_makes_no_activation_of_it",
    ),
    Mutant(
        "the retry of a later release's state is dropped",
        f"{_LUA}/promote.lua",
        "  if is_newer(record) then return false end\n",
        "",
        f"{_STATES}::test_its_retry_stays_due_and_is_asked_for_once_a_second",
    ),
    Mutant(
        "what was left in `due` is asked for all the time",
        "transport/redis/maintenance/due_work.py",
        "        return self._left.get(member, now) > now\n",
        "        return False\n",
        f"{_STATES}::test_its_retry_stays_due_and_is_asked_for_once_a_second",
    ),
    Mutant(
        "a state that begins as one of ours is taken for it",
        f"{_LUA}/shared/newer.lua",
        "'^[rhHwsoOlquU]|'",
        "'^[rhHwsoOlquU]'",
        f"{_STATES}::test_none_of_its_commands_is_taken_out",
    ),
    Mutant(
        "a step drops the parts of a record",
        f"{_LUA}/advance/3c_perform.lua",
        "  local parts = find(record, '=', at, true) and string.match(record, '^[^|]*|[^|]*|[^|]*(|.*)', at) or ''\n",
        "  local parts = ''\n",
        f"{_KEPT}::test_parts_stay_from_command_to_command",
    ),
    Mutant(
        "a take drops the parts of a record",
        f"{_LUA}/advance/3c_perform.lua",
        "head, attempt, first, follow, parts)",
        "head, attempt, first, follow, '')",
        f"{_KEPT}::test_parts_stay_from_command_to_command",
    ),
    Mutant(
        "an entity that rests loses the parts of its record",
        f"{_LUA}/shared/record.lua",
        "'|||' .. attempt .. '|' .. first .. '|' .. (parts or '')\nend\n\nlocal lined",
        "'|||' .. attempt .. '|' .. first .. '|'\nend\n\nlocal lined",
        f"{_KEPT}::test_parts_stay_where_an_entity_is_paused",
    ),
    Mutant(
        "an entity that becomes ready loses the parts of its record",
        f"{_LUA}/hold.lua",
        "queue(ready, name, attempt, woken(first, parts), parts, lined and lined.head_of(box))",
        "queue(ready, name, attempt, first)",
        f"{_KEPT}::test_parts_stay_where_an_entity_is_paused",
    ),
    Mutant(
        "a parked entity loses the parts of its record",
        f"{_LUA}/settle_dead_letter.lua",
        "local first, _, kept = select(6, parse_record(record or ''))\n",
        "local first, kept = nil, nil\n",
        f"{_KEPT}::test_parts_stay_where_an_entity_is_parked",
    ),
    Mutant(
        "a delayed entry keeps its envelope only",
        f"{_LUA}/promote.lua",
        "local fields, flow = fields_in(text), '1'",
        "local fields, flow = {'e', envelope_of_text(text)}, '1'",
        f"{_KEPT}::test_all_fields_of_a_delayed_entry_enter_the_mailbox",
    ),
    Mutant(
        "a replayed entry keeps its envelope only",
        f"{_LUA}/settle_dead_letter.lua",
        "  local replayed = fields_in(fields['e'] or '')\n",
        "  local replayed = {'e', envelope_of_text(fields['e'] or '')}\n",
        f"{_KEPT}::test_all_fields_of_an_entry_come_back_from_a_dead_letter",
    ),
    Mutant(
        "members of `due` that are not known are asked for",
        "transport/redis/maintenance/due_work.py",
        "            if name[:2] in self._prefixes:\n",
        "            if name:\n",
        f"{_KEPT}::test_unknown_members_of_due_stay_and_hold_nobody_up",
        more=((f"{_LUA}/promote.lua", "    if kind ~= 'd:' then\n", "    if kind == 'r:' then\n"),),
    ),
    Mutant(
        "members of `due` that are not known hide what stands behind them",
        "transport/redis/maintenance/due_work.py",
        "            start, self._full = start + _PAGE, len(scored) == _PAGE\n",
        "            self._full = False\n",
        f"{_KEPT}::test_unknown_members_of_due_stay_and_hold_nobody_up",
    ),
    Mutant(
        "a critical flag is ignored",
        "serialization/envelope.py",
        "    if unknown:\n",
        "    if False:\n",
        "tests/conformance/test_bad_entries.py::test_16_a_later_version_waits_for_its_worker_then_is_kept",
    ),
)
