"""Breakages of ordering: commands of one entity start in the order of acceptance, one at a time, and none is left behind."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LUA = "transport/redis/lua"

ORDERING = (
    Mutant(
        "first in, last out",
        f"{_LUA}/advance/2_mailboxes.lua",
        "heads[box] = entries[1]\n",
        "heads[box] = entries[#entries]\n",
    ),
    Mutant(
        "a retry lets others overtake",
        f"{_LUA}/advance/7_perform.lua",
        "  local apply = others[step.verb] or",
        "  if step.verb == VERB.WAIT then\n"
        "    local running = call('XRANGE', step.box, step.message, step.message)[1]\n"
        "    call('XDEL', step.box, step.message)\n"
        "    call('XADD', step.box, '*', FIELD.ENVELOPE, running[2][2])\n"
        "    return requeue(step, attempt, first, parts)\n"
        "  end\n"
        "  local apply = others[step.verb] or",
    ),
    Mutant(
        "the next activation is forgotten",
        f"{_LUA}/advance/4_start.lua",
        "set_record(step.name, queue(ready, step.name, attempt, first, parts, head))",
        "set_record(step.name, pack_record('r', step.activation, attempt, first, parts))",
    ),
    Mutant(
        "an idle entity is not activated",
        f"{_LUA}/shared/admission.lua",
        "      activate(box, activation, parts, several and several.of_place(held[box], added, value, parts))\n",
        "",
    ),
    Mutant(
        "an entity is activated with every command",
        f"{_LUA}/shared/admission.lua",
        "    if records[box] then return end\n",
        "",
    ),
    Mutant(
        "mailboxes are trimmed",
        f"{_LUA}/shared/admission.lua",
        "    if type(added) == 'table' then return added end\n    if queue_up",
        "    if type(added) == 'table' then return added end\n    redis.call('XTRIM', KEYS[first_box + box], 'MAXLEN', '3')\n"
        "    if queue_up",
    ),
    Mutant(
        "a second command passes a lone one",
        f"{_LUA}/shared/lone.lua",
        "  if not is_lone(record) then return record end\n",
        "  if true then return record end\n",
    ),
    Mutant(
        "a lone command passes what stands in its mailbox",
        f"{_LUA}/shared/admission.lua",
        "      and (type(redis.pcall('HLEN', lone)) ~= 'number' or redis.call('EXISTS', unpack(idle)) > 0) then\n",
        "      and type(redis.pcall('HLEN', lone)) ~= 'number' then\n",
        "tests/conformance/steps/test_lone_commands.py::test_it_does_not_pass_what_stands_in_its_mailbox",
    ),
    Mutant(
        "fetching starts what is not alone",
        f"{_LUA}/fetch.lua",
        "  if record == STATE.LONE .. '|' .. answers[places[i]] .. '|||0|0|' then\n",
        "  if record and string.find(record, '^[or]|') then\n",
    ),
    Mutant(
        "a command that was read ahead runs although it was cancelled",
        f"{_LUA}/shared/record.lua",
        "  return STATE.HELD_AND_CHANGED .. string.sub(record, 2)\n",
        "  return record\n",
    ),
    Mutant(
        "delayed commands come out of order",
        f"{_LUA}/promote.lua",
        "for arg = 3, #ARGV, 3 do\n  local member, name = ARGV[arg], ARGV[arg + 1]\n  key = key + 1\n",
        "key = #KEYS + 1\nfor arg = #ARGV - 2, 3, -3 do\n  local member, name = ARGV[arg], ARGV[arg + 1]\n  key = key - 1\n",
    ),
    Mutant(
        "delayed commands come too soon",
        f"{_LUA}/shared/postpone.lua",
        "or now_ms() + delay\n",
        "or now_ms() + delay / 2\n",
    ),
    Mutant(
        "a promoted entity is not woken",
        f"{_LUA}/promote.lua",
        "    wake(name, '0', '0', queue_up and type(added) == 'string' and queue_up.parts_of(flow) or nil)\n",
        "",
    ),
    Mutant(
        "delayed commands have no numbers",
        f"{_LUA}/shared/postpone.lua",
        "type(number) == 'number' and number or 0",
        "0",
        "tests/simulation/test_simulation.py::test_what_is_due_at_once_or_while_no_worker_is_up_keeps_its_order",
    ),
    Mutant(
        "what comes behind a moment does not look at what is due",
        f"{_LUA}/shared/postpone.lua",
        "late > 0)",
        "false)",
        "tests/simulation/test_simulation.py::test_what_is_due_at_once_or_while_no_worker_is_up_keeps_its_order",
    ),
)
