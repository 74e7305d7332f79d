"""Breakages of the line: of how entities wait behind the ready stream, in which order they come, and what lifts them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["LINE"]

_LUA = "transport/redis/lua"
_SHARED = f"{_LUA}/shared/line.lua"
_TURNS = f"{_LUA}/shared/line_turns.lua"
_TEST = "tests/conformance/test_line_steps.py"
_OTHERS = "tests/conformance/test_line_with_others.py"

LINE = (
    Mutant(
        "the ready stream is filled without a limit",
        _SHARED,
        "math.min(self.most - self.undelivered(), MOST_AT_ONCE)",
        "100000",
        f"{_TEST}::test_the_ready_stream_holds_64_and_the_line_the_others",
    ),
    Mutant(
        "the classes have no weights",
        _TURNS,
        "{[0] = 1, 4, 16}",
        "{[0] = 1, 1, 1}",
        f"{_TEST}::test_three_classes_start_as_16_4_1",
    ),
    Mutant(
        "a class that was idle saves its turns up",
        _TURNS,
        "        if not firsts[class] then used[class] = math.max(used[class], used[next_class]) end\n",
        "",
        f"{_TEST}::test_a_class_that_was_idle_saves_nothing_up",
    ),
    Mutant(
        "weights are not read",
        _TURNS,
        "    return math.max(1, math.floor(TURN / weights[tenant] + 0.5))\n",
        "    return TURN\n",
        f"{_TEST}::test_tenants_share_by_weight_and_one_alone_gets_all",
    ),
    Mutant(
        "the weights of many tenants are not read",
        _TURNS,
        "weights[tenants[i]] = tonumber(weight or 1) or 1",
        "weights[tenants[i]] = 1",
        f"{_TEST}::test_tenants_share_by_weight_and_one_alone_gets_all",
    ),
    Mutant(
        "the flows that were read are taken for all there are",
        _TURNS,
        "#read == most and read[#read].at",
        "false",
        f"{_TEST}::test_idle_flows_in_front_keep_nobody_waiting",
    ),
    Mutant(
        "a flow that was served keeps its turn",
        _TURNS,
        "    paid[flow.flow] = flow.at\n",
        "",
        f"{_TEST}::test_many_tenants_take_turns",
    ),
    Mutant(
        "what joins the line gets no place",
        _SHARED,
        "    if #joined > 1 then try('ZADD', unpack(joined)) end\n",
        "",
        f"{_TEST}::test_the_ready_stream_holds_64_and_the_line_the_others",
    ),
    Mutant(
        "further starts of an entity are not charged",
        f"{_LUA}/advance/3a_states.lua",
        "  if queue_up and verbs[step] ~= 't' then queue_up.charge(parts, head[1]) end\n",
        "",
        f"{_TEST}::test_what_an_entity_runs_is_charged_to_its_tenant",
    ),
    Mutant(
        "an urgent command does not lift its entity",
        _SHARED,
        "    if place and class < sub(place, 1, 1) then\n",
        "    if false then\n",
        f"{_TEST}::test_an_urgent_command_lifts_its_entity_until_it_has_run",
    ),
    Mutant(
        "a lifted entity keeps its former place",
        _SHARED,
        "      try('ZREM', line, place .. '/' .. name)\n",
        "",
        f"{_TEST}::test_an_urgent_command_lifts_its_entity_until_it_has_run",
    ),
    Mutant(
        "an entity stays high when its urgent command has run",
        _SHARED,
        "    return not head or bound == head or is_behind(bound, head)\n",
        "    return true\n",
        f"{_TEST}::test_an_urgent_command_lifts_its_entity_until_it_has_run",
    ),
    Mutant(
        "low commands behind normal ones stay normal",
        _SHARED,
        "    if sub(bound, 1, 1) == '<' then return not head or is_behind(sub(bound, 2), head) end\n",
        "    if sub(bound, 1, 1) == '<' then return true end\n",
        f"{_TEST}::test_low_ones_behind_normal_ones_are_low_once_those_have_run",
    ),
    Mutant(
        "a place is believed whatever its entity's record says",
        _TURNS,
        "    if not at or sub(record, 1, 2) ~= 'q|' or at ~= place then return false end\n",
        "    if not at then return false end\n",
        f"{_TEST}::test_places_of_what_is_gone_are_passed_over",
    ),
    Mutant(
        "a script does not fill the ready stream up",
        f"{_LUA}/advance/4_write.lua",
        "if queue_up then queue_up.finish() end\n",
        "",
        f"{_TEST}::test_the_ready_stream_holds_64_and_the_line_the_others",
    ),
    Mutant(
        "what was ready before the line came into use stays so",
        f"{_LUA}/fill_line.lua",
        "if surplus > 0 then\n",
        "if false then\n",
        f"{_TEST}::test_what_was_ready_before_is_brought_back_when_the_line_comes_into_use",
    ),
    Mutant(
        "what a worker holds is brought back",
        f"{_LUA}/fill_line.lua",
        "(state ~= 'r' and state ~= 'o') then return false end",
        "false then return false end",
        f"{_TEST}::test_bringing_back_leaves_what_is_not_ready",
        more=((f"{_LUA}/fill_line.lua", "if activation ~= id or ", "if "),),
    ),
    Mutant(
        "a lone command gets a new id in the line",
        _TURNS,
        "    local state = message == '' and 'r|' or 'o|'\n",
        "    local state = message == '' and 'r|' or 'o|'\n    message = ''\n",
        f"{_TEST}::test_a_lone_command_keeps_its_id_through_the_line",
    ),
    Mutant(
        "a lone command in line is no lone one",
        f"{_LUA}/shared/lone.lua",
        " or string.find(record, '^q|||%d'))",
        ")",
        f"{_TEST}::test_a_second_command_lines_up_behind_a_lone_one",
    ),
    Mutant(
        "a lost place is not given back",
        f"{_LUA}/reactivate.lua",
        "    if queue_up and queue_up.has(name, place) then return false end\n",
        "    if queue_up then return false end\n",
        f"{_TEST}::test_a_place_that_was_lost_is_given_back",
    ),
    Mutant(
        "a delayed command forgets its class",
        f"{_LUA}/shared/postpone.lua",
        "  if flow == '1' then return entry end\n",
        "  if true then return entry end\n",
        f"{_TEST}::test_a_delayed_command_keeps_its_class",
    ),
    Mutant(
        "a record that only a later release knows gets a class",
        _SHARED,
        "    if not fields or is_newer(record) then return record end\n",
        "    if not fields then return record end\n",
        f"{_TEST}::test_an_unknown_state_is_left_alone",
    ),
    Mutant(
        "flows without anybody in line are never forgotten",
        _SHARED,
        "      try('DEL', turns)\n",
        "",
    ),
    Mutant(
        "a lone command that was in the line forgets its id while its limit is asked",
        f"{_LUA}/advance/3a_states.lua",
        "local id = head[3] and head[1] ~= activation and head[1] or ''",
        "local id = ''",
        f"{_OTHERS}::test_a_lone_command_that_was_in_the_line_keeps_its_id_while_its_limit_is_asked",
    ),
    Mutant(
        "who waits in the line is taken for gone at its limit",
        f"{_LUA}/limits.lua",
        "'^[rhHoOq]$'",
        "'^[rhHoO]$'",
        f"{_OTHERS}::test_what_waits_in_the_line_keeps_its_place_at_the_limit",
    ),
    Mutant(
        "a unique command has no class",
        f"{_LUA}/enqueue_unique/2_accept.lua",
        "put(box, envelope, ARGV[at + 15])",
        "put(box, envelope, '1')",
        f"{_OTHERS}::test_a_unique_command_lifts_its_entity_and_is_replaced_in_the_line",
    ),
    Mutant(
        "a delayed unique command forgets its class",
        f"{_LUA}/enqueue_unique/2_accept.lua",
        "with_flow(entry, ARGV[at + 15])",
        "entry",
        f"{_OTHERS}::test_a_delayed_unique_command_keeps_its_class_and_its_key",
    ),
    Mutant(
        "a unique command does not put the line into use",
        f"{_LUA}/enqueue_unique/2_accept.lua",
        "call('HSET', flows, 'c0', '0') end",
        "call('HLEN', flows) end",
        f"{_OTHERS}::test_the_first_unique_command_with_a_class_puts_the_line_into_use",
    ),
    Mutant(
        "a firing has no class",
        "scheduling/templates.py",
        "            flow=envelope_flow(envelope, record.tenant),\n",
        "",
        f"{_OTHERS}::test_a_firing_has_the_priority_of_its_class",
    ),
    Mutant(
        "a firing has no tenant",
        "scheduling/templates.py",
        "envelope_flow(envelope, record.tenant)",
        "envelope_flow(envelope)",
        f"{_OTHERS}::test_a_firing_is_in_the_share_of_its_tenant",
    ),
    Mutant(
        "a schedule that is put again keeps its former tenant",
        "scheduling/schedules.py",
        "            tenant=draft.tenant,\n",
        "",
        f"{_OTHERS}::test_a_firing_is_in_the_share_of_its_tenant",
    ),
    Mutant(
        "a firing lifts nothing that waits",
        f"{_LUA}/schedule_fire.lua",
        "call('HSET', active, name, queue_up.noted(lined_up, name, flow, added))",
        "true",
        f"{_OTHERS}::test_a_firing_waits_in_the_line_and_lifts_what_waits_there",
    ),
)
