"""Breakages of the history of commands: what is kept, what is deleted, and what is found."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["HISTORY"]

_OUTCOMES = "transport/redis/lua/shared/outcomes.lua"
_TESTS = "tests/conformance/operating/test_history.py"

HISTORY = (
    Mutant(
        "the end before a replay stays in the history",
        _OUTCOMES,
        "    if type(before) == 'string' then redis.pcall('XDEL', stream, before) end\n",
        "",
        f"{_TESTS}::test_a_letter_leaves_one_end",
    ),
    Mutant(
        "the history has too many ends",
        _OUTCOMES,
        "if is_within and ends >",
        "if ends >",
        f"{_TESTS}::test_too_old_and_too_many_go_with_their_ids",
    ),
    Mutant(
        "the history has too old ends",
        _OUTCOMES,
        "if is_within and ends > tonumber(string.match(added, '^%d+')) then",
        "if is_within then",
        f"{_TESTS}::test_an_append_deletes_two_that_are_over",
    ),
    Mutant(
        "one end is deleted by each append",
        _OUTCOMES,
        "for _ = 1, 2 do",
        "for _ = 1, 1 do",
        f"{_TESTS}::test_an_append_deletes_two_that_are_over",
    ),
    Mutant(
        "the ids of deleted ends stay",
        _OUTCOMES,
        "      redis.pcall('HDEL', record, fields[2])\n",
        "",
        f"{_TESTS}::test_too_old_and_too_many_go_with_their_ids",
    ),
    Mutant(
        "a short history ends a long one",
        _OUTCOMES,
        "if redis.call('PTTL', key) < tonumber(age) then",
        "if true then",
        f"{_TESTS}::test_too_old_and_too_many_go_with_their_ids",
    ),
    Mutant(
        "the end of a command is not found by its id",
        _OUTCOMES,
        "    redis.pcall('HSET', record, id, added)\n",
        "",
        f"{_TESTS}::test_the_step_that_settles_keeps_the_end",
    ),
    Mutant(
        "a command that leaves no mark has no end",
        "worker/decisions.py",
        " or (options and HISTORY in options)",
        "",
        f"{_TESTS}::test_the_step_that_settles_keeps_the_end",
    ),
    Mutant(
        "a discarded letter forgets its attempts",
        "admin/dead_letters.py",
        ', "discarded", letter=record)',
        ', "discarded")',
        f"{_TESTS}::test_a_letter_leaves_one_end",
    ),
    Mutant(
        "a command that was replaced has no end",
        "transport/redis/lua/shared/unique.lua",
        "'^g?t?%d*[oh]'",
        "'^g?t?%d*o'",
        f"{_TESTS}::test_one_that_is_replaced_has_ended",
    ),
    Mutant(
        "an end is shown beyond its age",
        "transport/redis/admin/history.py",
        "int(settled_ms) + age_ms <= now_ms",
        "False",
        f"{_TESTS}::test_too_old_and_too_many_go_with_their_ids",
    ),
    Mutant(
        "what a class says comes before a dispatch",
        "sending/envelope_builder.py",
        "keep(out, route.history if history is None else history_of(history))",
        "keep(out, route.history or history_of(history))",
        f"{_TESTS}::test_dispatch_class_entity_type_and_bus_in_this_order",
    ),
    Mutant(
        "no end is kept of what a worker settles",
        "transport/redis/step_arguments.py",
        "    if left.outcome:\n",
        "    if left.dispatch:\n",
    ),
)
