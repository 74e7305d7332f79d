"""Breakages of the short way of lone commands: what a handler sees is what it would see in a task of its own."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CASES = "tests/unit/test_short_way.py"
_PROGRAMS = "tests/property/test_handler_programs.py"

SHORT_WAY = (
    Mutant(
        "a parked task that was cancelled is taken for free",
        "transport/redis/worker/consumer.py",
        "return self._waits and not self.is_over",
        "return self._waits and self._rest is None",
        f"{_CASES}::test_a_handler_that_has_cancelled_itself_and_ended_harms_no_other",
    ),
    Mutant(
        "a parked task that somebody has kept is used again",
        "transport/redis/worker/consumer.py",
        " or _known(self.task) > self._known:",
        ":",
        f"{_CASES}::test_whoever_has_kept_its_task_cancels_no_other_handler",
    ),
    Mutant(
        "a cancellation that meets the parked task is lost",
        "transport/redis/worker/consumer.py",
        "            self.task.cancel(*error.args)",
        "            pass",
        _PROGRAMS,
    ),
    Mutant(
        "nobody else can await what a begun handler waits for",
        "worker/runnable.py",
        "            awaited._asyncio_future_blocking = False",
        "            pass",
        f"{_CASES}::test_what_it_waits_for_may_be_awaited_by_others_first",
    ),
    Mutant(
        "every answer to a step without a task ends its mailbox",
        "worker/entity_run.py",
        "type(answer.result()) in _ENDS)",
        "True)",
        f"{_CASES}::TestTheEndOfAWorker::test_what_its_answer_starts_is_given_back",
    ),
)
