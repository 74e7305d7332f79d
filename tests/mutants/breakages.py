"""Deliberate breakages of the bus, one at a time: the verdict of the simulator must turn red on every one.

Each is an exact replacement of text; one whose text is no longer there fails loudly, so that the list follows the code. `seen_by` names
a test of the conformance suite where the simulator cannot see the breakage, and why.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.parts import PARTS

__all__ = ["MUTANTS"]

_LUA = "transport/redis/lua"
_REDIS = "transport/redis"

MUTANTS = (
    Mutant(
        "settle under a stale fence",
        f"{_LUA}/advance/3c_perform.lua",
        "find(record, ours, 2, true) == 2 then\n",
        "sub(record, 2, #activation + 3) == '|' .. activation .. '|' then\n",
    ),
    Mutant(
        "settle for every holder of a lease",
        f"{_LUA}/advance/3c_perform.lua",
        "find(record, ours, 2, true) == 2 then\n",
        "true then\n",
    ),
    Mutant(
        "a started command is given to every lease that asks",
        f"{_LUA}/advance/3c_perform.lua",
        "  if not find(state, '^[hHO]$') or held_for ~= holders[step] then return 'gone' end\n",
        "  if not find(state, '^[hHO]$') then return 'gone' end\n",
        "tests/conformance/steps/test_steps.py::test_another_lease_of_the_same_worker_takes_no_started_command",
    ),
    Mutant(
        "a take of what is gone starts it again",
        f"{_LUA}/advance/3c_perform.lua",
        "  if held_by ~= activation then return 'gone' end\n",
        "  if verb == 't' and state == 'h' then\n"
        "    return start(step, name, activation, holders[step], next_of(step), attempt, first, follow, parts)\n"
        "  end\n"
        "  if held_by ~= activation then return 'gone' end\n",
    ),
    Mutant(
        "the end of a command is published for every holder of a lease",
        f"{_LUA}/advance/3c_perform.lua",
        "  local follow = sub(operation, 2, 2)\n",
        "  local follow = sub(operation, 2, 2)\n"
        "  local entry = publish and verb == 'd' and messages[step] and call('XRANGE', KEYS[10 + step], messages[step], messages[step])[1]\n"
        "  if entry then note_event('completed', name, envelope_in(entry[2]), '1', '1', '', '') end\n",
    ),
    Mutant(
        "a refused command is published as accepted",
        f"{_LUA}/enqueue.lua",
        "    if not admission then\n      admission = drained",
        "    if publish then publish('accepted', names[box], ARGV[head + i], '', '', '', '') end\n"
        "    if not admission then\n      admission = drained",
        "tests/conformance/operating/test_events.py::test_a_refused_command_publishes_no_event",
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
        "first in, last out",
        f"{_LUA}/advance/2_prepare.lua",
        "heads[box] = entries[1]\n",
        "heads[box] = entries[#entries]\n",
    ),
    Mutant(
        "acknowledge before handling",
        f"{_LUA}/advance/3a_states.lua",
        "  bodies[step] = body_of(box, head[2])\n  if publish then",
        "  bodies[step] = body_of(box, head[2])\n  settled = settled + call('XDEL', box, head[1])\n  if publish then",
    ),
    Mutant(
        "reply before settling",
        f"{_LUA}/advance/3c_perform.lua",
        "  local record = records[name]\n  if not record then return 'gone' end\n",
        "  local record = records[name]\n"
        "  if lefts[step] and (verb == 'd' or verb == 'n') then push_reply(lefts[step]) end\n"
        "  if not record then return 'gone' end\n",
    ),
    Mutant(
        "no reply with the settling",
        f"{_LUA}/advance/3b_verbs.lua",
        "    write_mark(left, left.keeps, name, message)\n    push_reply(left)\n    if left.outcomes then",
        "    write_mark(left, left.keeps, name, message)\n    if left.outcomes then",
    ),
    Mutant(
        "the next activation is forgotten",
        f"{_LUA}/advance/3a_states.lua",
        "set_record(name, queue(ready, name, attempt, first, parts, head))",
        "set_record(name, pack_record('r', activations[step], attempt, first, parts))",
    ),
    Mutant(
        "a retry waits for ever",
        f"{_LUA}/advance/3b_verbs.lua",
        "  call('ZADD', due, at, 'r:' .. name)\n",
        "",
    ),
    Mutant(
        "a retry lets others overtake",
        f"{_LUA}/advance/3c_perform.lua",
        "  if verb == VERB.WAIT then return wait(",
        "  if verb == VERB.WAIT then\n"
        "    local box = KEYS[before + step]\n"
        "    local running = call('XRANGE', box, messages[step], messages[step])[1]\n"
        "    call('XDEL', box, messages[step])\n"
        "    call('XADD', box, '*', FIELD.ENVELOPE, running[2][2])\n"
        "    return requeue(step, attempt, first, parts)\n"
        "  end\n"
        "  if verb == VERB.WAIT then return wait(",
    ),
    Mutant(
        "a dead letter is dropped",
        f"{_LUA}/advance/3b_verbs.lua",
        "  if verb == VERB.BURY then write_letter(name, left, '0', message) end\n",
        "",
    ),
    Mutant(
        "the depth is not counted down",
        f"{_LUA}/advance/4b_end.lua",
        "  try('HINCRBY', stats, 'depth', -settled)\n",
        "",
    ),
    Mutant(
        "a paused entity is started",
        f"{_LUA}/advance/3a_states.lua",
        "  if any_paused and holds_of(paused, name) then\n    release",
        "  if false then\n    release",
    ),
    Mutant(
        "a paused type starts what is ready",
        f"{_LUA}/shared/holds.lua",
        "call('HMGET', paused, name, string.match(name, '^[^:/]*') .. ':*', '*')",
        "call('HMGET', paused, name, '*')",
        "tests/conformance/steps/test_hold_steps.py::test_a_pause_stops_ready_retried_and_running_entities",
    ),
    Mutant(
        "a paused bus activates what is new",
        f"{_LUA}/shared/holds.lua",
        "call('HMGET', paused, name, string.match(name, '^[^:/]*') .. ':*', '*')",
        "call('HMGET', paused, name, string.match(name, '^[^:/]*') .. ':*')",
        "tests/conformance/steps/test_hold_steps.py::test_a_pause_holds_new_commands_and_resume_starts_them_once",
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
        f"{_LUA}/enqueue.lua",
        "elseif refused[box] or drained[box] or room[box]",
        "elseif refused[box] or room[box]",
        "tests/conformance/steps/test_hold_steps.py::test_a_drain_refuses_new_commands_and_starts_waiting_ones",
    ),
    Mutant(
        "draining accepts what is loaded",
        f"{_LUA}/bulk_load.lua",
        "elseif drained[box] then",
        "elseif false then",
        "tests/conformance/operating/test_operating.py::test_bulk_loads_are_held_and_refused_like_all_else",
    ),
    Mutant(
        "what is loaded is of the normal class",
        f"{_LUA}/bulk_load.lua",
        "queue_up and flow_of_command(i)",
        "queue_up and '1'",
        "tests/conformance/test_dispatch_flows.py::test_what_is_loaded_waits_by_its_priority",
    ),
    Mutant(
        "a load with a class starts no line",
        f"{_LUA}/shared/admission.lua",
        "  if redis.call('EXISTS', flows) == 0 then redis.call('HSET', flows, 'c0', '0') end\n",
        "",
        "tests/conformance/test_dispatch_flows.py::test_a_load_without_classes_and_tenants_starts_no_line",
    ),
    Mutant(
        "the flow of a loaded command is that of the one before it",
        f"{_LUA}/shared/admission.lua",
        "colon + 2 * i - 1, colon + 2 * i)",
        "colon + 2 * i - 3, colon + 2 * i - 2)",
        "tests/conformance/test_dispatch_flows.py::test_what_is_loaded_waits_by_its_priority",
    ),
    Mutant(
        "a resume wakes what is held more narrowly",
        f"{_LUA}/hold.lua",
        " or holds_of(paused, name) then return 0 end",
        " then return 0 end",
        "tests/conformance/steps/test_hold_steps.py::test_each_scope_is_held_for_itself",
    ),
    Mutant(
        "a resume wakes nothing",
        "transport/redis/admin/holds.py",
        '            if names:\n                await self._step(shard, "wake"',
        '            if False:\n                await self._step(shard, "wake"',
        "tests/conformance/operating/test_operating.py::test_a_paused_type_starts_nothing_on_any_shard_and_goes_on_in_order",
    ),
    Mutant(
        "a broken-off resume is not repaired",
        f"{_LUA}/reactivate.lua",
        "  elseif state ~= STATE.STOPPED or ",
        "  elseif true or ",
        "tests/conformance/steps/test_hold_steps.py::test_repair_wakes_entities_of_an_interrupted_resume",
    ),
    Mutant(
        "an untouched give-back counts as an attempt",
        f"{_LUA}/advance/3b_verbs.lua",
        "    attempt = format('%d', math.max(attempt - 1, 0))\n",
        "    attempt = format('%d', attempt + 1)\n",
    ),
    Mutant(
        "an interrupted attempt is not counted",
        "worker/decisions.py",
        "            return GiveBack(counts=True)\n        text = ",
        "            return GiveBack(counts=False)\n        text = ",
    ),
    Mutant(
        "no deduplication",
        f"{_LUA}/enqueue.lua",
        "call('SET', mark, MARK.ACCEPTED .. digest .. names[box], 'NX')",
        "call('SET', mark, MARK.ACCEPTED .. digest .. names[box])",
    ),
    Mutant(
        "a settled id is forgotten",
        f"{_LUA}/advance/3b_verbs.lua",
        "    call('SET', left.mark, value, 'PX', left.ttl)\n",
        "    call('DEL', left.mark)\n",
    ),
    Mutant(
        "an idle entity is not activated",
        f"{_LUA}/shared/admission.lua",
        "      activate(box, activation, queue_up and queue_up.parts_of(flow))\n",
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
        "  if not record then wake(name, '0', '0', queue_up and type(added) == 'string' and queue_up.parts_of(flow) or nil) end\n",
        "",
    ),
    Mutant(
        "a server's clock that goes back holds what is due",
        f"{_LUA}/promote.lua",
        "  if score and (tonumber(score) <= now or tonumber(score) == tonumber(ARGV[arg + 2])) then",
        "  if score and tonumber(score) <= now then",
        "tests/kit/test_clock.py::test_a_retry_waits_no_longer_than_its_delay",
    ),
    Mutant(
        "what was interrupted runs again, whatever its contract",
        "worker/decisions.py",
        "        if not at_most_once and (policy is None or",
        "        if at_most_once or (policy is None or",
    ),
    Mutant(
        "a failure is settled as done",
        "worker/decisions.py",
        "        error_type, text = named(error), text_of(error)\n"
        '        record = self._letter(run.started, run.envelope, "failed",',
        "        if run.envelope.flags & AT_MOST_ONCE:\n            return self.completed(run, None)\n"
        "        error_type, text = named(error), text_of(error)\n"
        '        record = self._letter(run.started, run.envelope, "failed",',
    ),
    Mutant(
        "whom a renewal does not find goes on",
        f"{_REDIS}/worker/lease_keeper.py",
        "                if lease.activation in alive:",
        "                if alive is not None:",
    ),
    Mutant(
        "the deadline is not watched",
        f"{_REDIS}/worker/lease_keeper.py",
        "                if now > lease.deadline:",
        "                if now > lease.deadline + 1e6:",
    ),
    Mutant(
        "a late start is not refused",
        "worker/executor.py",
        "        if mono() >= lease.deadline:\n            return _NOT_STARTED\n",
        "",
    ),
    Mutant(
        "leases are not renewed",
        f"{_REDIS}/worker/lease_keeper.py",
        "        if page.leases:\n",
        "        if not page:\n",
    ),
    Mutant(
        "scripts are not loaded again",
        f"{_REDIS}/connection/connections.py",
        "            except NoScriptError:\n",
        "            except NoScriptError if script.name == 'hold' else ZeroDivisionError:\n",
        more=((f"{_REDIS}/connection/script_cache.py", "        if not all(there):\n", "        if not there:\n"),),
    ),
    Mutant(
        "a lost reply is not asked for again",
        f"{_REDIS}/sending/rpc.py",
        "                    await self._reread(keys)\n",
        "",
    ),
    Mutant(
        "what a broken connection was assigned is not looked for",
        f"{_REDIS}/worker/consumer.py",
        "        deliveries = await self._unknown_pending()\n        if deliveries:\n            _log",
        "        deliveries = []\n        if deliveries:\n            _log",
        "tests/conformance/steps/test_recovery.py::test_an_activation_sent_to_a_dead_connection_is_found_early",
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
        "a batch in doubt is asked again without those who gave up",
        f"{_REDIS}/sending/enqueue_line.py",
        "        if doubt is None and len(left) != len(batch.items):\n",
        "        if len(left) != len(batch.items):\n",
        "tests/unit/test_producer.py::test_a_batch_in_doubt_stays_as_it_is_when_some_give_up",
    ),
    Mutant(
        "a cancelled command stays",
        f"{_LUA}/remove.lua",
        "redis.call('XDEL', box, id) == 0 then return false end",
        "redis.call('XLEN', box) == 0 then return false end",
    ),
    Mutant(
        "what is settled stays when a lease ends",
        f"{_LUA}/advance/3b_verbs.lua",
        "    trim(step, messages[step])\n    if counts_as_attempt == '0' then\n",
        "    if counts_as_attempt == '0' then\n",
    ),
    Mutant(
        "what is settled stays while an entity waits",
        f"{_LUA}/advance/3b_verbs.lua",
        "    trim(step, messages[step])\n    if limits and holders",
        "    if limits and holders",
    ),
    Mutant(
        "what is settled stays when an entity yields",
        f"{_LUA}/advance/3b_verbs.lua",
        "  if head and (head[2] or ends_lease(step, name, activation, follow)) then trim",
        "  if head and head[2] then trim",
    ),
    Mutant(
        "what was read for one step is taken for read behind another",
        f"{_LUA}/advance/3a_states.lua",
        "not repeated[box] and further[box]",
        "further[box]",
        "tests/conformance/steps/test_read_ahead.py::test_two_steps_of_a_mailbox_in_one_request",
    ),
    Mutant(
        "a command that was read ahead runs although it was cancelled",
        f"{_LUA}/shared/record.lua",
        "  return STATE.HELD_AND_CHANGED .. string.sub(record, 2)\n",
        "  return record\n",
    ),
    Mutant(
        "a settled command is cancelled",
        f"{_LUA}/remove.lua",
        "  if holds and not is_behind(id, running) then return false end",
        "  if holds and id == running then return false end",
        "tests/conformance/steps/test_read_ahead.py::test_what_is_settled_or_runs_cannot_be_cancelled",
    ),
    Mutant(
        "a durable command that waits for its retry is cancelled, and nothing is undone",
        f"{_LUA}/remove.lua",
        "  return side ~= mark and redis.call('HGET', side, 'm') == id\n",
        "  return false\n",
        "tests/conformance/durable/test_durable_removal.py::test_what_was_done_before_a_retry_is_undone",
    ),
    Mutant(
        "a single command that is asked again is accepted again",
        f"{_LUA}/enqueue_one.lua",
        "if before and before >= number then",
        "if before and before > number then",
    ),
    Mutant(
        "a single command that was stuck on the way is accepted late",
        f"{_LUA}/enqueue_one.lua",
        "if before and before >= number then",
        "if before == number then",
        "tests/conformance/steps/test_enqueue_one.py::test_asked_again_it_answers_as_the_first_time",
    ),
    *PARTS,
)
