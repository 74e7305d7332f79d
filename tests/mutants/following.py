"""Breakages of what ends and follows commands that run."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["FOLLOWING"]

_PROGRESS = "tests/conformance/test_progress.py"
_CANCEL = "tests/conformance/operating/test_cancel_running.py"
_DECIDED = "tests/conformance/durable/test_durable_decided_ends.py::test_cancel_tells_what_it_will_end_with"
_FIRST = "tests/tables/test_first_starts.py::test_the_first_start_stays_what_it_was"
_LUA = "transport/redis/lua"

FOLLOWING = (
    Mutant(
        "a cancelled command counts as interrupted",
        "worker/decisions.py",
        "        if why.cause is not Cause.CANCELLED:\n",
        "        if why.cause is not Cause.LOST:\n",
        f"{_CANCEL}::test_a_handler_ends_and_its_entity_goes_on",
    ),
    Mutant(
        "a cancelled command sends what its handler left",
        "worker/decisions.py",
        "        run.follow_ups = ()\n        return self.cancelled(",
        "        return self.cancelled(",
        f"{_CANCEL}::test_a_handler_that_swallows_it_is_settled_as_cancelled_all_the_same",
    ),
    Mutant(
        "an attempt that follows is not asked for",
        "admin/ending.py",
        "said.attempt_id != attempt.id or ",
        "",
        f"{_CANCEL}::test_an_attempt_that_another_worker_took_over_is_asked_for_again",
    ),
    Mutant(
        "a report is written again at once",
        "worker/reports.py",
        "self._next = mono() + _EVERY",
        "self._next = mono()",
        f"{_PROGRESS}::test_much_is_written_once_a_second_and_the_last_is_not_lost",
    ),
    Mutant(
        "a report is stored without the lease",
        "transport/redis/lua/record_steps.lua",
        " and find(record, ours, 2, true) == 2 then\n",
        " then\n",
        f"{_PROGRESS}::test_a_handler_whose_lease_was_taken_over_writes_nothing",
    ),
    Mutant(
        "a log of a hundred and one",
        "transport/redis/lua/record_steps.lua",
        "format('l:%.0f', at - LOGGED)",
        "format('l:%.0f', at - LOGGED - 1)",
        f"{_PROGRESS}::test_the_log_keeps_the_last_hundred_of_all_runs",
    ),
    Mutant(
        "what was reported stays behind the settlement",
        "worker/runnable.py",
        'command_id=run.envelope.command_id, side="ends")',
        "command_id=run.envelope.command_id)",
        f"{_PROGRESS}::test_what_a_handler_reports_is_seen_while_it_runs",
    ),
    Mutant(
        "a durable command that has begun is taken out of line",
        "transport/redis/lua/remove.lua",
        " or has_begun(id, side, mark) then return false end",
        " then return false end",
        f"{_CANCEL}::test_a_durable_command_that_waits_for_a_retry_is_compensated",
    ),
    Mutant(
        "each run of a durable command logs what the runs before it have logged",
        "worker/reports.py",
        "        if self._unrepeated[digest]:\n",
        "        if self._unrepeated[digest] > 9:\n",
        "tests/conformance/test_progress.py::test_a_durable_command_keeps_it_over_a_suspension",
    ),
    Mutant(
        "equal entries of a durable command's log are one",
        "worker/reports.py",
        "            self._logged += digest\n",
        "            self._logged += digest\n            self._unrepeated[digest] += 1\n",
        "tests/conformance/test_progress.py::test_a_durable_command_keeps_it_over_a_suspension",
    ),
    Mutant(
        "who cancels what is being undone is told that it will be cancelled",
        f"{_LUA}/tell.lua",
        "  if redis.call('HEXISTS', side, 'k') == 1 then answer = 'ending' end\n",
        "",
        _DECIDED,
    ),
    Mutant(
        "who cancels what is cancelled already is told that it is not",
        "admin/ending.py",
        'unpack_ending(ending).status == "cancelled"',
        "False",
        _DECIDED,
    ),
    Mutant(
        "a durable command was first started when it was suspended",
        f"{_LUA}/advance/3b_verbs.lua",
        "    parts = with_snooze(limits and string.gsub(parts, '|ask=%d+', '') or parts, message, started_ms, false, true)\n",
        "",
        _FIRST,
    ),
    Mutant(
        "a durable command was first started when a cancellation woke it from a retry",
        f"{_LUA}/shared/arrive.lua",
        "  if not waits or string.find(parts, '|z=%d+:[%d-]+:%d+:1') then first",
        "  if true then first",
        _FIRST,
    ),
    Mutant(
        "a parked command was first started when it was replayed",
        f"{_LUA}/settle_dead_letter.lua",
        "    if head and kept then parts = with_first(kept, head[1], first) end\n",
        "",
        _FIRST,
    ),
    Mutant(
        "the first start of what was never put off is not read",
        "transport/redis/mailbox_record.py",
        "    if not _number(first) or",
        "    if not _number(count) or",
        _FIRST,
    ),
    Mutant(
        "what is suspended was never started",
        "transport/redis/admin/entities.py",
        "        fields.attempt or int(fields.first_ms < 0),\n",
        "        fields.attempt,\n",
        _FIRST,
    ),
)
