"""Breakages of recovery: what a lost worker, connection or server leaves is found, run again or ended by its contract."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LUA = "transport/redis/lua"
_REDIS = "transport/redis"

RECOVERY = (
    Mutant(
        "a fetch lets in no more than a handful",
        f"{_LUA}/fetch.lua",
        "queue_up.finish(tonumber(ARGV[3]))",
        "queue_up.finish()",
        "tests/conformance/steps/test_fetch.py::test_a_fetch_brings_what_it_asks_for_and_leaves_a_handful",
    ),
    Mutant(
        "an interrupted attempt is not counted",
        "worker/decisions.py",
        "            return GiveBack(counts=True)\n        text = ",
        "            return GiveBack(counts=False)\n        text = ",
    ),
    Mutant(
        "what was interrupted runs again, whatever its contract",
        "worker/decisions.py",
        "        if not at_most_once and (policy is None or",
        "        if at_most_once or (policy is None or",
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
        "        if mono() >= lease.deadline:\n            return GIVE_BACK_UNCOUNTED\n",
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
        more=((f"{_REDIS}/connection/connections.py", "        if not all(there):\n", "        if not there:\n"),),
    ),
    Mutant(
        "what a broken connection was assigned is not looked for",
        f"{_REDIS}/worker/consumer.py",
        "        deliveries = await self._unknown_pending()\n        if deliveries:\n            _log",
        "        deliveries = []\n        if deliveries:\n            _log",
        "tests/conformance/steps/test_recovery.py::test_an_activation_sent_to_a_dead_connection_is_found_early",
    ),
    Mutant(
        "a live lease is stolen",
        f"{_REDIS}/maintenance/expired_leases.py",
        "        return max(1, int(self._lease * 1000 * SUSPECT))",
        "        return 1",
        more=(
            (
                f"{_REDIS}/maintenance/expired_leases.py",
                "            if known is None or known.sequence != item.sequence or since > known.since + _LATE * self._lease:",
                "            if known is None:",
            ),
            (f"{_REDIS}/maintenance/recovery.py", "mono()), int(self.leases.lease * 1000 * _OVER))", "mono()), 0)"),
            (f"{_LUA}/claim.lua", "pending and pending[4] == tonumber(ARGV[arg + 1])", "pending"),
        ),
    ),
    Mutant(
        "a lease is taken over after half its time",
        f"{_REDIS}/maintenance/expired_leases.py",
        "        return max(1, int(self._lease * 1000 * SUSPECT))",
        "        return max(1, int(self._lease * 1000 / 3))",
        more=(
            (
                f"{_REDIS}/maintenance/expired_leases.py",
                "    return max(lease * SHORTEST_WATCH, lease - idle) if idle < lease else lease / 2\n",
                "    return 0.0\n",
            ),
            (f"{_REDIS}/maintenance/recovery.py", "int(self.leases.lease * 1000 * _OVER))", "int(self.lease * 1000 / 3))"),
        ),
    ),
    Mutant(
        "lost leases are never taken over",
        f"{_LUA}/claim.lua",
        "  if pending and pending[4] == tonumber(ARGV[arg + 1]) and not",
        "  if not pending and not",
    ),
    Mutant(
        "a start is no sign of life",
        f"{_LUA}/advance/9_end.lua",
        "{'RETRYCOUNT', '0', 'JUSTID'}",
        "{'JUSTID'}",
        "tests/conformance/steps/test_recovery.py::test_every_sign_of_life_changes_the_renewal_sequence",
    ),
    Mutant(
        "who is back before its lease is settled loses it",
        f"{_REDIS}/maintenance/recovery.py",
        "        if idle and not await",
        "        if False and not await",
        "tests/conformance/steps/test_recovery.py::test_who_is_back_before_it_is_settled_keeps_its_lease",
    ),
    Mutant(
        "a server's clock that goes back keeps lost leases alive",
        f"{_REDIS}/maintenance/expired_leases.py",
        "            if item.idle > 0:\n",
        "            if item.idle >= 0:\n",
        "tests/kit/test_clock.py::test_a_lost_lease_ends_in_its_time",
    ),
    Mutant(
        "a lease counts from when the answer came",
        f"{_REDIS}/worker/consumer.py",
        "        return parse_fetched(answer, self._loop.worker, first), asked\n",
        "        return parse_fetched(answer, self._loop.worker, first), mono()\n",
        "tests/conformance/steps/test_fetch.py::test_an_answer_that_took_longer_than_the_lease_starts_nothing",
    ),
    Mutant(
        "a lost place is not given back",
        f"{_LUA}/reactivate.lua",
        "    if queue_up and queue_up.has(name, place) then return false end\n",
        "    if queue_up then return false end\n",
        "tests/conformance/steps/test_line_steps.py::test_a_place_that_was_lost_is_given_back",
    ),
    Mutant(
        "a server's clock that goes back holds what is due",
        f"{_LUA}/promote.lua",
        "  if score and (tonumber(score) <= now or tonumber(score) == tonumber(ARGV[arg + 2])) then",
        "  if score and tonumber(score) <= now then",
        "tests/kit/test_clock.py::test_a_retry_waits_no_longer_than_its_delay",
    ),
    Mutant(
        "a hot entity asks only who waits in its own shard",
        "worker/entity_run.py",
        '        return "leave" if self.side.slots.another_waits(shard) else "yield"\n',
        '        return "yield"\n',
    ),
    Mutant(
        "a thread starts what its worker may have lost",
        "worker/threads.py",
        "        if not may_start():\n            return None, NeverStartedError()\n",
        "",
    ),
    Mutant(
        "a handler that waits for a reply keeps its slot",
        "messages/context.py",
        "    if running is None or running.make_lending is None:\n",
        "    if running is None or running is not None:\n",
    ),
    Mutant(
        "a handler that somebody cancels is taken for a lost worker",
        "worker/executor.py",
        "                if not self.works():\n                    raise\n",
        "                raise\n",
    ),
    Mutant(
        "a certificate kills nothing",
        "testing/certificate.py",
        "            if self.reached:\n                self._kill(process)\n",
        "",
        "tests/kit/test_certificate.py::test_a_planted_fault_is_found_with_its_line",
    ),
    Mutant(
        "a certificate kills within the fakes",
        "testing/certificate.py",
        "                self.case.fakes.add(self._ran[0])\n",
        "                pass\n",
        "tests/kit/test_certificate.py::test_one_that_survives_any_crash_is_clean",
    ),
    Mutant(
        "a worker that takes over inherits what ran in the dead one",
        "testing/processes.py",
        "        context = self._context.copy()  # not that of the handler that was killed\n",
        "        context = contextvars.copy_context()\n",
        "tests/kit/test_certificate.py::test_one_that_survives_any_crash_is_clean",
    ),
)
