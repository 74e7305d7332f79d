"""Breakages of states and batches: what is settled and what is stored agree, and no innocent command fails for another."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_STEPS, _STATES = "tests/conformance/states/test_state_steps.py", "tests/conformance/states/test_states.py"
_BATCHES = "tests/conformance/test_batches.py"

STATES = (
    Mutant(
        "a step that did not start the command keeps the state",
        "transport/redis/worker/step_batcher.py",
        "        parts.pop()\n        lease.state = None\n",
        "        parts.pop()\n",
        f"{_STEPS}::test_a_failover_that_loses_a_settlement_has_the_state_read_again",
    ),
    Mutant(
        "the next command gets the state before",
        "worker/decisions.py",
        "run.changed_state, lease.state = self._states.pack(lease.mailbox, after), after",
        "run.changed_state = self._states.pack(lease.mailbox, after)",
    ),
    Mutant(
        "a usual step writes no state",
        "transport/redis/lua/advance/2a_usual.lua",
        "  if #stated > 1 then call('HSET', unpack(stated)) end\n",
        "",
    ),
    Mutant(
        "another step writes no state",
        "transport/redis/lua/advance/5_settle.lua",
        "    call('HSET', step.states, step.name, step.state)\n",
        "",
    ),
    Mutant(
        "a command that fails leaves its state",
        "worker/executor.py",
        "        if kind is Raised:\n",
        "        if kind is Raised and run.state is None:\n",
        f"{_STATES}::test_what_is_not_completed_changes_nothing",
    ),
    Mutant(
        "operators change what a handler has read",
        "transport/redis/lua/change_state.lua",
        "if first and is_busy[first] then return 'busy' end\n",
        "",
        f"{_STEPS}::test_operators_change_it_while_nothing_runs",
    ),
    Mutant(
        "a state is put over another one than expected",
        "transport/redis/lua/change_state.lua",
        "if checks == '1' and present ~= expected then return 'other' end\n",
        "",
        f"{_STEPS}::test_operators_change_it_while_nothing_runs",
    ),
    Mutant(
        "a state that was signed for another entity holds",
        "serialization/states.py",
        "            if fault is None and signature and place != mailbox:\n",
        "            if fault is None and signature and False:\n",
        f"{_STATES}::test_signed_and_encrypted_states_hold_for_their_entity_alone",
    ),
    Mutant(
        "what cannot be read runs on defaults",
        "worker/decisions.py",
        "            reason = error.message if isinstance(error, BadState)",
        "            run.state = self._states.held(run.handler.state or EntityState, lease.mailbox, b'', 0)\n            return None\n"
        "            reason = error.message if isinstance(error, BadState)",
        f"{_STATES}::test_what_nobody_can_read_parks_the_entity_and_nothing_runs_on_defaults",
    ),
    Mutant(
        "the right half is not called",
        "worker/batches.py",
        "            if middle not in self._found:\n",
        "            if False:\n",
        f"{_BATCHES}::test_the_poisoned_ones_are_found_and_the_others_end_well",
    ),
    Mutant(
        "a worker that is full calls with each command at once",
        "worker/batches.py",
        "or (not self._calls and self._is_full()):\n",
        "or self._is_full():\n",
        f"{_BATCHES}::test_a_worker_that_is_full_calls_with_many",
    ),
    Mutant(
        "a common cause is not seen",
        "worker/batches.py",
        "        elif low == 0 and len(self._found) == 1 < len(self._members):\n",
        "        elif False:\n",
        f"{_BATCHES}::test_a_common_cause_costs_few_calls_and_each_one_attempt",
    ),
    Mutant(
        "an innocent command fails for good with others",
        "worker/batches.py",
        "if at not in self._found and self._is_final(self._members[at], error):",
        "if False:",
        f"{_BATCHES}::test_on_the_last_attempt_no_innocent_fails_with_others",
    ),
    Mutant(
        "a final error of two ends all",
        "worker/batches.py",
        "isinstance(error, Reject | GiveUp) or ",
        "",
        f"{_BATCHES}::test_a_final_error_of_a_call_is_no_end_of_innocent_ones",
    ),
    Mutant(
        "what a failed call has sent is sent",
        "worker/batches.py",
        "                        each.run.outbox.rewind(count)\n",
        "                        pass\n",
        f"{_BATCHES}::test_what_a_failed_call_has_sent_is_not_sent",
    ),
    Mutant(
        "what was not called is settled",
        "worker/batches.py",
        "outcomes.get(each, _NEVER_STARTED)",
        "outcomes.get(each)",
        f"{_BATCHES}::test_what_may_not_start_any_more_is_not_settled",
    ),
    Mutant(
        "one error collects the tracebacks of all",
        "worker/batches.py",
        "raise outcome.again()",
        "raise outcome.error",
        f"{_BATCHES}::test_one_error_of_a_call_is_settled_in_linear_time",
    ),
    Mutant(
        "what a failed call has changed counts",
        "worker/executor.py",
        "            run.state.is_void = True\n",
        "            pass\n",
        "tests/conformance/states/test_state_reports.py::test_what_a_failed_call_within_middleware_has_changed_does_not_count",
    ),
    Mutant(
        "equal bytes of another version are no change",
        "serialization/states.py",
        "stored.payload if is_as_stored else self.packed(value, self._limits)",
        "stored.payload",
        "tests/conformance/states/test_state_reports.py::test_a_state_of_a_new_version_is_written_though_its_bytes_are_those_of_the_old_one",
    ),
    Mutant(
        "wrong outcomes are called again",
        "worker/batches.py",
        "        if error is None or isinstance(error, WrongOutcomes):\n            return\n        if high",
        "        if error is None:\n            return\n        if high",
        f"{_BATCHES}::test_wrong_outcomes_fail_all_and_nothing_is_called_again",
    ),
    Mutant(
        "who waits for a batch keeps its slot",
        "worker/executor.py",
        "await while_lent(self.batches.add(run, context))",
        "await self.batches.add(run, context)",
        f"{_BATCHES}::test_commands_of_several_entities_are_one_call_and_end_each",
    ),
    Mutant(
        "a command that is cancelled is called",
        "worker/batches.py",
        " if not each.is_gone and each.run.may_start]",
        "]",
        f"{_BATCHES}::test_one_that_is_cancelled_while_it_waits_is_not_called",
    ),
)
