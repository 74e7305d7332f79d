"""Breakages of durable handlers: of what is stored, of who is woken, and of compensation."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["DURABLE"]

_LUA = "transport/redis/lua"
_BUS, _WAITS, _ENDS, _STEPS = (f"tests/conformance/test_durable{part}.py" for part in ("", "_waits", "_ends", "_steps"))
_LIMITS = "tests/conformance/test_durable_limits.py"
_THREADS = "tests/conformance/test_durable_threads.py"

DURABLE = (
    Mutant(
        "a step is stored without the lease",
        f"{_LUA}/record_steps.lua",
        "    local is_new = is_held and write(kind, side, field, value)\n",
        "    local is_new = write(kind, side, field, value)\n",
        f"{_STEPS}::test_who_has_lost_the_lease_stores_nothing",
    ),
    Mutant(
        "a called command is sent whenever its call is stored",
        f"{_LUA}/record_steps.lua",
        "      if is_new then send(",
        "      if is_held then send(",
        f"{_STEPS}::test_a_field_is_stored_once_and_its_command_sent_once",
    ),
    Mutant(
        "progress does not count attempts anew",
        f"{_LUA}/record_steps.lua",
        "    if again == '1' then count_again(name, record) end\n",
        "",
        f"{_STEPS}::test_progress_counts_attempts_anew",
    ),
    Mutant(
        "a side record of a former command is used",
        f"{_LUA}/record_steps.lua",
        "      if is_of then redis.call('DEL', side) else redis.call('PERSIST', side) end\n",
        "      redis.call('PERSIST', side)\n",
        f"{_STEPS}::test_a_record_of_another_command_with_its_id_is_not_used",
    ),
    Mutant(
        "a signal that comes early is dropped",
        f"{_LUA}/tell.lua",
        "if redis.call('HEXISTS', side, 'm') == 0 then redis.call('PEXPIRE', side, ARGV[7]) end\n",
        "if redis.call('HEXISTS', side, 'm') == 0 then redis.call('DEL', side) end\n",
        f"{_STEPS}::test_a_wait_of_which_nothing_was_stored_is_woken",
    ),
    Mutant(
        "a signal is taken whenever it is sent",
        f"{_LUA}/tell.lua",
        "elseif redis.call('HEXISTS', side, 'gi:' .. once) == 1 then\n",
        "elseif redis.call('HEXISTS', side, 'gi:' .. once) == 2 then\n",
        f"{_BUS}::test_signals_come_in_their_order_and_each_id_once",
    ),
    Mutant(
        "an outcome reaches whoever is named",
        f"{_LUA}/shared/deliver.lua",
        "  if type(known) == 'string' and string.find(known, child .. '|', 9, true) == 9 then arrive(",
        "  if type(known) ~= 'table' then arrive(",
        f"{_STEPS}::test_an_outcome_reaches_nobody_else",
    ),
    Mutant(
        "an outcome wakes a later command of the same id",
        f"{_LUA}/shared/arrive.lua",
        "  if not waits and ((state ~= 'u' and not is_alone) or suspended ~= message) then return false end\n",
        "  if not waits and state ~= 'u' and not is_alone then return false end\n",
        f"{_STEPS}::test_what_a_former_command_of_its_id_waited_for_does_not_wake_it",
    ),
    Mutant(
        "an outcome wakes the run before the one that awaits it",
        f"{_LUA}/shared/arrive.lua",
        "  if tonumber(left) > 1 then\n",
        "  if tonumber(left) > 9 then\n",
        f"{_STEPS}::test_one_of_two_awaited_outcomes_does_not_wake_it",
    ),
    Mutant(
        "what came before a suspension does not wake",
        f"{_LUA}/advance/3b_verbs.lua",
        "    if (#awaited > 0 and wanted <= 0) or",
        "    if (#awaited > 0 and wanted <= -9) or",
        f"{_STEPS}::test_an_outcome_wakes_it",
    ),
    Mutant(
        "a wish that came before a suspension does not wake",
        f"{_LUA}/advance/3b_verbs.lua",
        " or (left[2] ~= '1' and is_wished) then\n",
        " then\n",
        f"{_STEPS}::test_a_wish_lets_it_go_on_at_once",
    ),
    Mutant(
        "a suspension does not say of which command it is",
        f"{_LUA}/advance/3b_verbs.lua",
        "      call('HSET', side, 'm', message)\n      if is_of then",
        "      if is_of then",
        f"{_STEPS}::test_a_wait_of_which_nothing_was_stored_is_woken",
    ),
    Mutant(
        "the deadline counts after a wake",
        f"{_LUA}/shared/arrive.lua",
        "  local first = '-' .. string.format(",
        "  local first = string.format(",
        f"{_STEPS}::test_an_outcome_wakes_it",
    ),
    Mutant(
        "the deadline counts after a sleep",
        f"{_LUA}/promote.lua",
        "    first, parts = '-' .. string.format('%.0f', now),",
        "    first, parts = string.format('%.0f', now),",
        "tests/conformance/test_durable_operating.py::test_a_deadline_is_over_once_it_has_started",
    ),
    Mutant(
        "the deadline counts where a suspension goes on",
        f"{_LUA}/advance/3b_verbs.lua",
        "    local first = '-' .. now_text\n",
        "    local first = now_text\n",
        f"{_STEPS}::test_a_suspension_goes_on_when_its_time_is_over",
    ),
    Mutant(
        "what comes behind a suspended command goes past it",
        f"{_LUA}/shared/lone.lua",
        "  return record and string.find(record, '^[oOUq]|')",
        "  return record and string.find(record, '^[oOq]|')",
        f"{_STEPS}::test_the_only_command_of_an_entity_is_suspended_without_a_stream",
    ),
    Mutant(
        "what was paused meanwhile is woken where it is alone",
        f"{_LUA}/shared/arrive.lua",
        "  if is_alone and (is_held or lined) then",
        "  if is_alone and lined then",
        f"{_STEPS}::test_what_is_alone_and_paused_is_not_woken",
    ),
    Mutant(
        "what was suspended takes a token again",
        f"{_LUA}/shared/arrive.lua",
        "  if not waits then parts = parts .. '|paid=' .. suspended end\n",
        "",
        f"{_LIMITS}::test_it_goes_past_those_that_wait_for_a_token",
    ),
    Mutant(
        "what slept takes a token again",
        f"{_LUA}/promote.lua",
        ", parts .. '|paid=' .. message\n",
        ", parts\n",
        f"{_LIMITS}::test_what_slept_has_its_token",
    ),
    Mutant(
        "what once was suspended takes no token for a retry",
        f"{_LUA}/advance/3a_states.lua",
        "  if parts ~= '' then parts = string.gsub(parts, '|paid=[^|]*', '') end\n",
        "",
        f"{_LIMITS}::test_a_retry_takes_a_token",
    ),
    Mutant(
        "what was suspended stands behind those that wait for a token",
        f"{_LUA}/shared/limit_queues.lua",
        "(is_lent and 10 or is_paid and 4 or 1))",
        "(is_lent and 10 or 1))",
        f"{_LIMITS}::test_it_waits_for_a_place_before_those_that_have_not_begun",
    ),
    Mutant(
        "who waits for a token under its caller holds up what was suspended",
        f"{_LUA}/limits.lua",
        "        if precedence ~= 10 then break end\n",
        "        break\n",
        f"{_LIMITS}::test_who_waits_for_a_token_under_its_caller_does_not_hold_it_up",
    ),
    Mutant(
        "a worker does not learn that a command has its token",
        f"{_LUA}/advance/3a_states.lua",
        "body_of('', head[2]), is_paid(parts, head) and '1' or nil}",
        "body_of('', head[2])}",
        f"{_LIMITS}::test_a_worker_that_has_to_ask_asks_for_no_token",
    ),
    Mutant(
        "mailboxes that emptied are deleted behind what was sent to them",
        f"{_LUA}/advance/4b_end.lua",
        "if limits and is_home then end_limits() end\n",
        "if #closed > 1 then call('HDEL', unpack(closed)) end\nif limits and is_home then end_limits() end\n",
        "tests/conformance/test_follow_up_steps.py::test_two_settlements_of_one_batch_that_send_to_each_other",
    ),
    Mutant(
        "the caller of a command that is taken out learns nothing",
        f"{_LUA}/remove.lua",
        "for _, each in ipairs(told) do tell_caller(keys, unpack(each)) end\n",
        "",
        f"{_ENDS}::test_the_caller_learns_that_an_operator_took_its_call_out",
    ),
    Mutant(
        "the caller of a parked command that is discarded learns nothing",
        f"{_LUA}/settle_dead_letter.lua",
        "  if verb == 'discard' and ARGV[13] ~= '' then",
        "  if verb == 'none' and ARGV[13] ~= '' then",
        f"{_ENDS}::test_the_caller_learns_that_its_parked_call_was_discarded",
    ),
    Mutant(
        "the outcome of a discarded call is not remembered",
        "admin/dead_letters.py",
        "max(1, self._retention.dedup, left.mark_ms)",
        "max(1, self._retention.dedup)",
        f"{_ENDS}::test_the_caller_learns_that_its_parked_call_was_discarded",
    ),
    Mutant(
        "compensations run in their order",
        "durable/compensation.py",
        "key=lambda each: each.place, reverse=True)",
        "key=lambda each: each.place)",
        f"{_ENDS}::test_it_is_undone_in_reverse_before_the_caller_learns",
    ),
    Mutant(
        "a call that did nothing is undone",
        "durable/compensation.py",
        "    if undo.call and await _did_nothing(run, undo.call):\n        return\n",
        "",
        f"{_ENDS}::test_a_call_that_did_nothing_is_not_undone",
    ),
    Mutant(
        "a compensation that is tried again is the same command",
        "durable/waits.py",
        "        if self._attempt > 1:",
        "        if self._attempt > 99:",
        f"{_ENDS}::test_a_compensation_that_fails_parks_and_is_tried_again",
    ),
    Mutant(
        "a signal that lost is gone",
        "durable/waits.py",
        "            self.run.signals.give_back(self._name)\n            self._begun = False\n",
        "            self._begun = False\n",
        f"{_WAITS}::test_who_lost_against_a_time_may_wait_for_the_signal_again",
    ),
    Mutant(
        "the first of several is another one in a later run",
        "durable/combined.py",
        "        stored = run.fields.get(self._name)\n        if stored is None:\n",
        "        stored = None\n        if stored is None:\n",
        f"{_WAITS}::test_the_first_stays_the_first",
        more=(
            (
                "durable/combined.py",
                "            stored = (await run.store(Note(self._name, ended)))[0] or ended\n",
                "            stored = ended\n",
            ),
        ),
    ),
    Mutant(
        "inside of a block of asyncio it is suspended",
        "durable/blocks.py",
        '_LIMITING = frozenset({"asyncio", ',
        "_LIMITING = frozenset({",
        f"{_WAITS}::test_a_signal_reaches_what_stays",
    ),
    Mutant(
        "an outcome that is stored is tried again",
        "worker/decisions.py",
        "        if attempt < policy.attempts and not lasts and",
        "        if attempt < policy.attempts and",
        f"{_WAITS}::test_what_a_retry_cannot_change_is_final",
    ),
    Mutant(
        "a step's arguments are not compared",
        "durable/values.py",
        "    if stored[:DIGEST] != digest:\n",
        "    if stored[:0] != b'':\n",
        f"{_BUS}::test_another_step_under_a_known_name_gets_no_foreign_result",
    ),
    Mutant(
        "what undoes a call is stored before what was named earlier",
        "durable/run.py",
        "        if call and self._background:\n            await asyncio.wait(self._background)\n",
        "",
        "tests/conformance/test_durable_undo_names.py::test_what_undoes_a_call_is_stored_behind_what_was_named_before",
    ),
    Mutant(
        "a step without a free thread fails",
        "worker/step_threads.py",
        "        except NoThreadError:\n            self._hand_back()\n",
        '        except NoThreadError:\n            raise RuntimeError("no thread") from None\n',
        f"{_THREADS}::test_a_step_for_which_no_thread_comes_free_goes_to_another_worker",
    ),
    Mutant(
        "a command is handed to another worker while a thread runs one of its steps",
        "worker/step_threads.py",
        "        return THREAD_PATIENCE if is_alone else _PATIENCE_BESIDE\n",
        "        return THREAD_PATIENCE\n",
        f"{_THREADS}::test_steps_beside_one_another_wait_for_the_threads_that_their_run_takes",
    ),
    Mutant(
        "a step that will never have a thread is waited for",
        "worker/threads.py",
        "        job.done.set_result((None, NeverStartedError()))\n"
        "        if job.handed_over is not None:\n"
        "            job.handed_over.set_result(None)\n"
        "        return True\n",
        "        return True\n",
        f"{_THREADS}::test_a_handler_that_ends_leaves_no_step_behind_that_waits_for_a_thread",
    ),
)
