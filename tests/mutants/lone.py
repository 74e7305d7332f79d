"""Breakages of lone commands: of how they wait, line up, and are fetched and started in one request."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["LONE"]

_LUA = "transport/redis/lua"
_CONSUMER = "transport/redis/worker/consumer.py"
_TEST, _FETCH = "tests/conformance/steps/test_lone_commands.py", "tests/conformance/steps/test_fetch.py"

LONE = (
    Mutant(
        "a second command passes a lone one",
        f"{_LUA}/shared/lone.lua",
        "  if not is_lone(record) then return record end\n",
        "  if true then return record end\n",
    ),
    Mutant(
        "a command that is lined up has a new id",
        f"{_LUA}/shared/lone.lua",
        "redis.pcall('XADD', box, message ~= '' and message or activation, FIELD.IN_LONE, '1')",
        "redis.pcall('XADD', box, '*', 'l', '1')",
    ),
    Mutant(
        "the second command of a batch makes a lone one of itself",
        f"{_LUA}/shared/admission.lua",
        "    if many[box] == 1 and not records[box]",
        "    if not records[box]",
    ),
    Mutant(
        "a lone command passes what stands in its mailbox",
        f"{_LUA}/shared/admission.lua",
        " or redis.call('EXISTS', unpack(idle)) > 0) then alone = {} end\n",
        ") then alone = {} end\n",
        f"{_TEST}::test_it_does_not_pass_what_stands_in_its_mailbox",
    ),
    Mutant(
        "the envelope of a lone command is left",
        f"{_LUA}/advance/4_write.lua",
        "  try('HDEL', unpack(closed))\n",
        "",
    ),
    Mutant(
        "a repaired lone command keeps its state",
        f"{_LUA}/reactivate.lua",
        "    if not line_up(active, box, name, record) then return false end  -- the mailbox",
        "    if not box then return false end  -- the mailbox",
        f"{_TEST}::test_a_lost_activation_is_repaired",
    ),
    Mutant(
        "a taken lone command is not removed where it was lined up",
        f"{_LUA}/remove.lua",
        "record, fault = line_up(active, box, name, record)\n",
        "",
        f"{_TEST}::test_it_can_be_taken_out",
    ),
    Mutant(
        "what an entity's trim meets is not settled yet",
        f"{_LUA}/advance/4_write.lua",
        "try('XTRIM', ready, 'MINID', '=', pending[1])",
        "try('XTRIM', ready, 'MINID', '=', released[#released])",
        f"{_FETCH}::test_activations_settled_together_leave_those_that_run_and_those_that_wait",
    ),
    Mutant(
        "a lone command's id may be ahead of the clock",
        f"{_LUA}/shared/lone.lua",
        "  if string.sub(activation, -2) == '-0' then return true end\n",
        "  if activation then return true end\n",
        f"{_TEST}::test_its_id_is_its_time_also_if_the_clock_went_back",
    ),
    Mutant(
        "what is given back is taken for lost",
        _CONSUMER,
        " or (shard, activation) in self._returning\n",
        "\n",
        f"{_FETCH}::test_what_is_being_given_back_is_not_interrupted",
    ),
    Mutant(
        "a refused call waits for its reply",
        "sending/results.py",
        "        reply.end()\n",
        "        pass\n",
        "tests/conformance/test_delivery.py::test_a_call_that_gets_no_reply_of_its_own_ends_at_once",
    ),
    Mutant(
        "fetching starts what is not alone",
        f"{_LUA}/fetch.lua",
        "  if record == 'o|' .. answers[places[i]] .. '|||0|0|' then\n",
        "  if record and string.find(record, '^[or]|') then\n",
    ),
    Mutant(
        "fetching starts what is paused",
        f"{_LUA}/fetch.lua",
        "  if call('EXISTS', KEYS[5], KEYS[6]) > 0 then return answers end\n",
        "",
        f"{_FETCH}::test_while_anything_is_paused_or_watched_nothing_starts",
    ),
    Mutant(
        "fetching keeps no fence",
        f"{_LUA}/fetch.lua",
        "keep_fence()\n",
        "",
        f"{_FETCH}::test_the_fence_is_kept",
    ),
    Mutant(
        "what a lost fetch started counts as interrupted",
        _CONSUMER,
        "        if self._unheard:\n",
        "        if False:\n",
        f"{_FETCH}::test_a_lost_answer_loses_no_attempt",
    ),
    Mutant(
        "a lease counts from when the answer came",
        _CONSUMER,
        "        return parse_fetched(answer, self._loop.worker, first), asked\n",
        "        return parse_fetched(answer, self._loop.worker, first), mono()\n",
        f"{_FETCH}::test_an_answer_that_took_longer_than_the_lease_starts_nothing",
    ),
)
