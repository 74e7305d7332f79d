"""Breakages of what a durable handler runs beside one another, and of its time limits."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["TASKS"]

_TASKS, _LIMITED = (f"tests/conformance/durable/test_durable_{part}.py" for part in ("tasks", "time_limits"))

TASKS = (
    Mutant(
        "a run that is over does not wait for what is in flight",
        "durable/in_flight.py",
        "        if not self._tasks:\n            return\n        began",
        "        return\n        began",
    ),
    Mutant(
        "a run that is over leaves its tasks alone",
        "durable/in_flight.py",
        "                task.cancel()\n",
        "                del task\n",
        f"{_TASKS}::test_what_a_task_does_beside_a_failure_is_undone_after_it",
    ),
    Mutant(
        "a context may be used once its handler is over",
        "durable/in_flight.py",
        "        if self.is_over:\n",
        "        if False:\n",
        f"{_TASKS}::test_a_context_that_is_over_sends_nothing",
    ),
    Mutant(
        "the function of a step may use the context",
        "durable/in_flight.py",
        "if (key := current_step.get()) is not None and",
        "if (key := current_step.get()) is not None and not key and",
        f"{_TASKS}::test_the_function_of_a_step_does_not_use_the_context",
    ),
    Mutant(
        "two tasks number one name by their speed",
        "durable/names.py",
        "if task is not None and self._makers",
        "if False and self._makers",
        f"{_TASKS}::test_a_name_that_two_tasks_use_has_a_key",
    ),
    Mutant(
        "an error in a group has no meaning",
        "messages/snooze.py",
        "    for kind in _PRECEDENCE:\n",
        "    for kind in ():\n",
        f"{_TASKS}::test_an_error_in_a_group_means_what_it_means_alone",
    ),
    Mutant(
        "a wait that was cancelled keeps its signal",
        "durable/run.py",
        "                self.leave()\n",
        "",
        f"{_TASKS}::test_a_wait_that_was_cancelled_takes_no_signal",
    ),
    Mutant(
        "what a time limit cut off is forgotten",
        "durable/time_limits.py",
        "            if limit.name.encode() == by:\n",
        "            if False:\n",
        f"{_LIMITED}::test_all_that_is_awaited_is_cut_off",
    ),
    Mutant(
        "a run that was interrupted waits where it finds its lease lost",
        "durable/run.py",
        "        task.cancel()  # a lease ends its handler once: that may have been before, and this has gone on\n",
        "",
        f"{_TASKS}::test_a_run_that_was_interrupted_ends_where_it_finds_its_lease_lost",
    ),
    Mutant(
        "a task that enters a time limit is not in flight",
        "durable/handler_operations.py",
        "            task = self._in_flight.begin()\n            try:\n                await run",
        "            task = self._in_flight._tasks[None] = 2\n            task = None\n            try:\n                await run",
        f"{_TASKS}::test_a_task_that_enters_a_time_limit_is_in_flight",
    ),
)
