"""Breakages of the order and the time of delayed commands."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MOMENTS"]

_LUA = "transport/redis/lua"
_POSTPONE = f"{_LUA}/shared/postpone.lua"
_TABLE = "tests/tables/test_moments.py"
_TIES = f"{_TABLE}::test_what_is_due_in_one_millisecond_runs_in_the_order_of_acceptance[dispatch_batch]"
_BEHIND = f"{_TABLE}::test_what_comes_behind_a_moment_stands_behind_what_is_due_then[dispatch]"
_DUE = "tests/simulation/test_simulation.py::test_what_is_due_at_once_or_while_no_worker_is_up_keeps_its_order"
_MOMENT = f"{_TABLE}::test_a_moment_is_the_same_however_late_it_is_brought[dispatch]"

MOMENTS = (
    Mutant(
        "delayed commands have no numbers",
        _POSTPONE,
        "type(number) == 'number' and number or 0",
        "0",
        _DUE,
    ),
    Mutant(
        "numbers of delayed commands are not padded",
        f"{_LUA}/shared/delayed.lua",
        "'d:%016.0f:'",
        "'d:%.0f:'",
        _TIES,
    ),
    Mutant(
        "what comes behind a moment does not look at what is due",
        _POSTPONE,
        "late > 0)",
        "false)",
        _DUE,
    ),
    Mutant(
        "what stands behind a moment is overtaken if the clock goes back",
        _POSTPONE,
        "(is_ahead or (type(late)",
        "((type(late)",
        f"{_TABLE}::test_the_clock_goes_back_behind_what_was_due[False]",
    ),
    Mutant(
        "what has left is waited for once the clock went back",
        f"{_LUA}/promote.lua",
        "if last and string.match(last, '|(.*)$') == id then",
        "if last == id then",
        f"{_TABLE}::test_the_clock_goes_back_behind_what_was_due[True]",
    ),
    Mutant(
        "a load does not look at what is due",
        f"{_LUA}/bulk_load.lua",
        "any_delayed and waits_until(",
        "false and waits_until(",
        _BEHIND,
    ),
    Mutant(
        "a load with unique keys does not look at what is due for rows without one",
        f"{_LUA}/bulk_load_unique/2_accept.lua",
        "stand(box, each, 0)",
        "put(box, each.envelope, each.flow)",
        _BEHIND,
    ),
    Mutant(
        "a schedule does not look at what is due",
        f"{_LUA}/schedule_fire.lua",
        "waits_until(KEYS[13], KEYS[14], later, name, id, 0)",
        "nil",
        _BEHIND,
    ),
    Mutant(
        "a moment counts as a span",
        _POSTPONE,
        "return delay < 0 and math.max(-delay, now_ms())",
        "return delay < 0 and now_ms() + math.max(-delay - now_ms(), 0) + 1000",
        _MOMENT,
    ),
    Mutant(
        "a delayed command expires by when it was let in",
        f"{_LUA}/promote.lua",
        "string.format('%.0f-*', math.min(at, now))",
        "'*'",
        f"{_TABLE}::test_a_delayed_command_expires_by_its_moment",
    ),
    Mutant(
        "a long delay of a retry is cut by the default of its cap",
        "messages/retry_policy.py",
        "max(self.max_delay, self.delay))",
        "self.max_delay)",
        "tests/tables/test_head_waits.py::test_a_wait_ends_at_its_moment_and_is_not_overtaken[retry-nothing]",
    ),
    Mutant(
        "a count takes away what stands behind a moment",
        f"{_LUA}/recount.lua",
        "if not counts[string.sub(name, 1, -2)] then fields[name] = 0 end",
        "fields[name] = 0",
        "tests/conformance/operating/test_recount.py::test_wrong_ones_are_set_right",
    ),
)
