"""Breakages of slots and threads, and of how a handler's end differs from a worker's."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["SLOTS"]

_RUN, _EXECUTOR, _THREADS = "worker/entity_run.py", "worker/executor.py", "worker/threads.py"
_UNIT = "tests/unit/test_slots.py"
_TEST_SLOTS, _TEST_THREADS = "tests/conformance/test_worker_slots.py", "tests/conformance/test_threads.py"

SLOTS = (
    Mutant(
        "a hot entity asks only who waits in its own shard",
        _RUN,
        '        return "leave" if self._slots.another_waits(shard) else "yield"\n',
        '        return "yield"\n',
    ),
    Mutant(
        "a handler that goes on takes the slots of a read that is about to be answered",
        "transport/slots.py",
        "            self._kept += count\n",
        "            self._kept += 0\n",
        f"{_UNIT}::test_a_returning_handler_leaves_a_read_that_does_not_wait_its_slots",
        (("transport/slots.py", "            self._kept -= ask.reserved\n", "            pass\n"),),
    ),
    Mutant(
        "a handler that goes on waits for the server of another shard",
        "transport/slots.py",
        "        self._give_turns(also_kept=True)\n",
        "        pass\n",
        f"{_UNIT}::test_a_returning_handler_leaves_them_only_for_a_moment",
    ),
    Mutant(
        "a thread starts what its worker may have lost",
        _THREADS,
        "        if not may_start():\n            return None, NeverStartedError()\n",
        "",
    ),
    Mutant(
        "what waits for a thread that hangs waits for ever",
        "worker/threads.py",
        "THREAD_PATIENCE = 1.0\n",
        "THREAD_PATIENCE = 1e9\n",
    ),
    Mutant(
        "a worker of synchronous handlers takes more than it has threads",
        "worker/worker.py",
        "    return min(settings.concurrency, settings.threads)\n",
        "    return settings.concurrency\n",
        f"{_TEST_THREADS}::test_a_worker_of_sync_handlers_takes_as_many_commands_as_threads",
    ),
    Mutant(
        "a handler that waits for a reply keeps its slot",
        "messages/context.py",
        "    if running is None or running.make_lending is None:\n",
        "    if running is None or running is not None:\n",
    ),
    Mutant(
        "a thread that waits for a reply keeps its thread",
        "worker/lending.py",
        "        elif self._threads is not None:\n            self._threads.lend()\n",
        "",
        f"{_TEST_SLOTS}::test_threads_that_wait_for_replies_are_replaced",
    ),
    Mutant(
        "past the bound handlers that call take all slots",
        _EXECUTOR,
        "            if self._callers and read.envelope.name in self._callers and not read.serves_handler:\n",
        "            if False:\n",
        f"{_TEST_SLOTS}::test_above_the_limit_callers_wait_and_their_calls_run",
    ),
    Mutant(
        "a handler that somebody cancels is taken for a lost worker",
        _EXECUTOR,
        "                if not self._works():\n                    raise\n",
        "                raise\n",
    ),
    Mutant(
        "an exception without a text is taken for a lost worker",
        "worker/run_ends.py",
        "    except BaseException:  # noqa: BLE001 - a broken __str__",
        "    except ZeroDivisionError:  # a broken __str__",
        "tests/conformance/test_bad_handlers.py::test_24_an_exception_is_stored_without_locals",
        more=(
            (
                _EXECUTOR,
                "        except Exception:  # noqa: BLE001 - the entity must not wait for the end of its lease",
                "        except ZeroDivisionError:",
            ),
        ),
    ),
)
