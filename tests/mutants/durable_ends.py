"""Breakages of the ends of durable commands: what undoes is stored, once, and comes after what it undoes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["DURABLE_ENDS"]

_ARGUMENTS = "tests/conformance/durable/test_durable_step_arguments.py"
_CAUGHT = "tests/conformance/durable/test_durable_caught_errors.py"
_ORDER = "tests/conformance/durable/test_durable_undo_order.py"
_LETTERS = "tests/conformance/durable/test_durable_letters.py"
_AGAIN = f"{_LETTERS}::test_what_was_called_again_is_not_replayed_later"
_TRIES = "tests/conformance/durable/test_durable_step_tries.py"
_UNRUN = "tests/tables/test_unrun_ends.py"
_UNRUN_ENDS = f"{_UNRUN}::test_what_has_begun_is_undone_or_waits_for_a_decision"
_CIRCLES = "tests/conformance/durable/test_durable_circles.py"

DURABLE_ENDS = (
    Mutant(
        "the function of a step may change what its handler has",
        "durable/values.py",
        "        return deepcopy(args)\n",
        "        return args\n",
        f"{_ARGUMENTS}::test_each_call_has_arguments_of_its_own",
    ),
    Mutant(
        "the type of a step is looked at once its function was called",
        "durable/values.py",
        "        codec.check()\n",
        "        pass\n",
        f"{_ARGUMENTS}::test_a_type_that_cannot_be_stored_is_refused_before_the_function_is_called",
    ),
    Mutant(
        "an error of a step that the handler has caught is not stored",
        "durable/step_failures.py",
        "if self._left is None and not",
        "if False and not",
        f"{_CAUGHT}::test_a_charge_that_has_failed_is_not_tried_beside_the_one_that_took_its_place",
    ),
    Mutant(
        "another function begins before that is stored",
        "durable/step.py",
        "        await run.store()  # what failed",
        "        # what failed",
        f"{_CAUGHT}::test_the_error_is_stored_before_another_function_begins",
    ),
    Mutant(
        "an error that leaves the handler is not tried again once it is stored",
        "durable/step_failures.py",
        "for field in self._left or () if",
        "for field in () if",
        f"{_CAUGHT}::test_an_error_that_leaves_the_handler_after_more_steps_is_tried_again",
    ),
    Mutant(
        "an error from which another is raised is no error that leaves the handler",
        "durable/step_failures.py",
        "for cause in _causes(each)}",
        "for cause in (each,)}",
        f"{_CAUGHT}::test_an_error_that_leaves_the_handler_after_more_steps_is_tried_again",
    ),
    Mutant(
        "the outcome of a call on its way to another shard is not counted",
        "transport/redis/lua/shared/tell_caller.lua",
        "  redis.pcall('HINCRBY', keys.stats, 'depth', 1)\n",
        "",
        "tests/conformance/durable/test_durable_begun_calls.py::test_the_caller_learns_that_its_parked_call_was_discarded",
    ),
    Mutant(
        "what was called and not waited for is undone while it stands in line or runs",
        "durable/compensation.py",
        "    await _end_calls(run)\n",
        "",
        f"{_ORDER}::test_what_undoes_a_call_that_took_too_long_comes_after_it",
    ),
    Mutant(
        "a call that took too long counts as ended",
        "durable/waits.py",
        "            self.field, record = self._late, TIMED_OUT\n            await run.store(Note(self._late, TIMED_OUT))\n",
        "            self._late, record = self.field, TIMED_OUT\n            await run.store(Note(self._late, TIMED_OUT))\n",
        f"{_ORDER}::test_what_undoes_a_call_that_took_too_long_comes_after_it",
    ),
    Mutant(
        "a later run sees the outcome of a call that took too long",
        "durable/waits.py",
        "        if self._late in run.fields:\n",
        "        if self._late == '':\n",
        f"{_ORDER}::test_all_runs_see_that_time_was_over_although_the_outcome_is_stored",
    ),
    Mutant(
        "a command is suspended before what undoes is stored",
        "durable/run.py",
        "                await self.storing.end()\n                may_suspend",
        "                may_suspend",
        f"{_ORDER}::test_what_undoes_is_stored_before_the_handler_waits",
        more=(
            ("durable/run.py", " and not self.storing.tasks", ""),
            ("durable/run.py", "                await run.storing.end()\n", "                pass\n"),
            (
                "durable/run.py",
                "            await self.storing.end()\n            if self.failures",
                "            if self.failures",
            ),
        ),
    ),
    Mutant(
        "a call that leads back is tried again",
        "worker/decisions.py",
        "isinstance(error, GiveUp | BadStep | CallCycle)",
        "isinstance(error, GiveUp | BadStep)",
        f"{_CIRCLES}::test_a_chain_that_comes_back_fails_at_once_with_its_path",
    ),
    Mutant(
        "the caller of a chain that leads back learns only that it failed",
        "serialization/reply.py",
        "isinstance(outcome, Failed) and outcome.error_type == _CALL_CYCLE:",
        "isinstance(outcome, Failed) and outcome.error_type == '':",
        f"{_CIRCLES}::test_a_chain_that_comes_back_fails_at_once_with_its_path",
    ),
    Mutant(
        "a call of the own entity waits for itself",
        "sending/call_progress.py",
        "(running.mailbox == mailbox or mailbox in running.chain)",
        "mailbox in running.chain",
        f"{_CIRCLES}::test_a_call_of_the_own_entity_is_refused",
    ),
    Mutant(
        "a chain that leads back waits for itself",
        "sending/call_progress.py",
        "(running.mailbox == mailbox or mailbox in running.chain)",
        "running.mailbox == mailbox",
        f"{_CIRCLES}::test_a_chain_that_comes_back_fails_at_once_with_its_path",
    ),
    Mutant(
        "a call that was ended since it closes a circle was cancelled",
        "sending/children.py",
        "            if error.code != CIRCLE:\n",
        "            if error.code:\n",
        f"{_CIRCLES}::test_a_circle_of_two_roots_ends_with_the_call_that_came_last",
    ),
    Mutant(
        "what closes a circle stays in its line",
        "durable/waits.py",
        "            if isinstance(error, CallCycle):  # it",
        "            if False:  # it",
        f"{_CIRCLES}::test_a_circle_of_two_roots_ends_with_the_call_that_came_last",
    ),
    Mutant(
        "a failure that comes again in each run is tried again",
        "worker/decisions.py",
        "(durable is not None and durable.errors.has(error))",
        "(durable is None and False)",
        "tests/conformance/durable/test_durable_waits.py::test_what_a_retry_cannot_change_is_final",
    ),
    Mutant(
        "the letter of what failed to undo is replayed beside that of its caller",
        "admin/dead_letters.py",
        "    if undoes(caller):",
        "    if False:",
        f"{_LETTERS}::test_n_replays_of_what_failed_to_undo_undo_once",
    ),
    Mutant(
        "what a caller calls again is replayed beside it",
        "admin/dead_letters.py",
        "if undoes(each.caller) or each.caller.command_id in replays}",
        "if undoes(each.caller)}",
        f"{_LETTERS}::test_a_call_that_stays_failed_keeps_its_letter",
    ),
    Mutant(
        "what a caller calls again keeps its letter for the next time",
        "admin/dead_letters.py",
        "        await self._discard_all(again)\n",
        "",
        _AGAIN,
    ),
    Mutant(
        "what a caller that is replayed by hand calls again keeps its letter",
        "admin/dead_letters.py",
        "        if begins_anew(stored, envelope):\n",
        "        if False:\n",
        _AGAIN,
    ),
    Mutant(
        "what a caller calls again may be replayed before it",
        "admin/dead_letters.py",
        "    if callers_letter:\n",
        "    if False:\n",
        _AGAIN,
    ),
    Mutant(
        "what is called by what is called again keeps its letter",
        "admin/dead_letters.py",
        "            waiting.append(each.command_id)\n",
        "",
        _AGAIN,
    ),
    Mutant(
        "what goes on from its steps counts as begun again",
        "admin/dead_letters.py",
        "not stored.parked and not stored.keeps and",
        "not stored.parked and",
        f"{_LETTERS}::test_a_call_that_stays_failed_keeps_its_letter",
    ),
    Mutant(
        "a long pause between two tries stays with its worker",
        "durable/step.py",
        "                if pause <= LONG_LINGER:\n",
        "                if pause:\n",
        f"{_TRIES}::test_a_long_pause_is_a_suspension_and_the_tries_go_on_elsewhere",
    ),
    Mutant(
        "the tries of a step begin again in each run",
        "durable/step.py",
        "if self._pause_field(each) in self.run.fields), default=0)",
        "if False), default=0)",
        f"{_TRIES}::test_tries_that_were_stored_are_not_begun_again",
    ),
    Mutant(
        "a pause between two tries ends with its worker",
        "durable/step.py",
        "            await self._pause(durable, attempt, 0.0)\n",
        "            pass\n",
        f"{_TRIES}::test_a_long_pause_is_as_long_where_its_worker_leaves",
    ),
    Mutant(
        "what undoes a call is stored before what was named earlier",
        "durable/run.py",
        "                await run.storing.end()\n",
        "                pass\n",
        "tests/conformance/durable/test_durable_undo_names.py::test_what_undoes_a_call_is_stored_behind_what_was_named_before",
    ),
    Mutant(
        "what has something to undo is settled by a worker that cannot run it",
        "worker/executor.py",
        "        if self._durable is None or started.is_first or not isinstance(step, DeadLetterStep | Park):\n",
        "        if self._durable is not None:\n",
        _UNRUN_ENDS,
    ),
    Mutant(
        "what ends already is parked again by a worker that cannot run it",
        "worker/durable_runs.py",
        "        if ENDING in fields:\n            try:",
        "        if False:\n            try:",
        _UNRUN_ENDS,
    ),
    Mutant(
        "what has begun is given up by a worker that takes it over and cannot read it",
        "transport/redis/maintenance/recovery.py",
        "begun=record.first_ms < 0 and envelope is not None and await self._has_begun(record.message, envelope),",
        "begun=False,",
        _UNRUN_ENDS,
    ),
    Mutant(
        "what has begun expires",
        "transport/redis/lua/record_steps.lua",
        "  if begun and byte(first) ~= 45 then first = '-' .. first end",
        "  if false then first = '-' .. first end",
        f"{_UNRUN}::test_what_has_begun_has_no_deadline",
    ),
    Mutant(
        "what was not read is discarded without what undoes it",
        "admin/dead_letters.py",
        "(left.side or (record.reason in _UNREAD and envelope.command_id))",
        "left.side",
        _UNRUN_ENDS,
    ),
    Mutant(
        "what is parked unread has ended for who asks",
        "worker/durable_runs.py",
        '            left = replace(left, mark=b"", mark_ms=0)\n',
        "            pass\n",
        _UNRUN_ENDS,
    ),
    Mutant(
        "what undoes has failed if this worker cannot read what it returned",
        "durable/waits.py",
        "        if not isinstance(unpack_reply(outcome, self.run.tools.limits)[1], Completed):\n",
        "        if True:\n",
        "tests/security/test_durable_cipher.py::test_a_worker_without_the_key_sends_what_undoes",
    ),
    Mutant(
        "what was given up is called again",
        "durable/compensation.py",
        " and name not in given_up]",
        "]",
        "tests/conformance/durable/test_durable_ends.py::test_discarding_what_failed_to_undo_goes_on_with_the_others",
    ),
    Mutant(
        "a cancellation does not go down to durable calls",
        "sending/children.py",
        "        if is_durable or await durable.has_begun(mailbox, command_id):\n",
        "        if is_durable and not await durable.has_begun(mailbox, command_id):\n",
        "tests/conformance/durable/test_durable_begun_calls.py::test_a_cancellation_goes_down_to_durable_calls_that_have_begun",
    ),
    Mutant(
        "a run starts although its record came behind its lease",
        "worker/executor.py",
        "            if mono() >= lease.deadline:  # reading what is stored took too long\n                return _NOT_STARTED\n",
        "",
        "tests/conformance/durable/test_durable_records.py::test_a_run_whose_record_comes_behind_its_lease_does_not_start",
    ),
)
