"""Breakages of events: of what a script writes beside a change."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["EVENTS"]

_LUA = "transport/redis/lua"

EVENTS = (
    Mutant(
        "starts are not published",
        f"{_LUA}/advance/3a_states.lua",
        "  if publish then note_event('started'",
        "  if publish and attempt == '1' then note_event('started'",
    ),
    Mutant(
        "a step that fails is published",
        f"{_LUA}/advance/3c_perform.lua",
        "  function publish_events(done)\n    if done then\n",
        "  function publish_events(done)\n    letter_id = letter_id or '0-0'\n    if true then\n",
        "tests/conformance/test_events.py::test_a_failed_step_publishes_no_event",
    ),
)
