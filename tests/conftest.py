"""What holds for every test: nothing from the developer's environment reaches it, and property tests have no stopwatch."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

__all__: list[str] = []

# Before anything is collected, so that subprocesses inherit it too. COMMAND_BUS_TEST_… is for the tests themselves.
for _name in list(os.environ):
    if _name == "REDIS_URL" or (_name.startswith("COMMAND_BUS_") and not _name.startswith("COMMAND_BUS_TEST_")):
        del os.environ[_name]

# A slow example on a busy machine is no failure; pytest-timeout ends what hangs. Developers explore new examples with every run, CI repeats
# the same ones: a change must not fail to land by what another change brought.
settings.register_profile(
    "command_bus",
    deadline=None,
    derandomize="CI" in os.environ,
    phases=[
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
        Phase.target,
        Phase.shrink,
    ],  # not `explain`: it traces lines, for minutes
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("command_bus")
