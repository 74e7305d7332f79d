"""Breakages of events: of what a script writes beside a change."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["EVENTS"]

_LUA = "transport/redis/lua"
_WEAVE = "transport/redis/admin/events.py"
_ORDERS = "tests/tables/test_event_orders.py::test_events_of_a_command_are_told_in_their_order"

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
        "tests/conformance/operating/test_events.py::test_a_failed_step_publishes_no_event",
    ),
    Mutant("what a sender ended is told too early", _WEAVE, " or ends.get(names, -1) < at or", " or True or", _ORDERS),
    Mutant("what a sender ended holds back what follows", _WEAVE, " or ends.get(names, -1) < at or", " or", _ORDERS),
    Mutant("an id that is sent again ends with its new life", _WEAVE, " or again.get(names, -1) > place", "", _ORDERS),
    Mutant("all that senders do is told first", _WEAVE, ' and each.facts[0] == "accepted"]', "]", _ORDERS),
)
