"""Breakages of leases: who takes one over, and when."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["LEASES"]

_LUA = "transport/redis/lua"
_REDIS = "transport/redis"

LEASES = (
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
            (f"{_REDIS}/maintenance/recovery.py", "mono()), int(self._lease * 1000 * _OVER))", "mono()), 0)"),
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
            (f"{_REDIS}/maintenance/recovery.py", "int(self._lease * 1000 * _OVER))", "int(self._lease * 1000 / 3))"),
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
        f"{_LUA}/advance/4b_end.lua",
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
        "who renews while all leases are looked at is taken for lost",
        f"{_REDIS}/maintenance/expired_leases.py",
        "            if item.idle > 0:\n                continue",
        "            if item.idle > 1e9:\n                continue",
        more=(
            (
                f"{_REDIS}/maintenance/expired_leases.py",
                "            if before is None or before.sequence != item.sequence:",
                "            if before is None:",
            ),
        ),
    ),
    Mutant(
        "a server's clock that goes back keeps lost leases alive",
        f"{_REDIS}/maintenance/expired_leases.py",
        "            if item.idle > 0:\n",
        "            if item.idle >= 0:\n",
        "tests/kit/test_clock.py::test_a_lost_lease_ends_in_its_time",  # and in the simulator, in one seed of some hundred
    ),
)
