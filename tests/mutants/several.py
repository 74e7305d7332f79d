"""Breakages of commands of several entities: each runs as the oldest of all its lines, holds them to its end, and leaves all of them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LUA = "transport/redis/lua"
_SEVERAL, _REPAIR = f"{_LUA}/shared/several.lua", f"{_LUA}/reactivate.lua"
_ACTS, _LINES = "tests/conformance/several/test_several_entities.py", "tests/conformance/test_several_lines.py"
_ACROSS = "tests/conformance/several/test_across_shards.py"
_FOLDER = "tests/conformance/several"
_ENDS, _LIMITS = f"{_FOLDER}/test_several_ends.py", f"{_FOLDER}/test_several_limits.py"
_LOST = f"{_LINES}::test_what_somebody_deleted_holds_nothing_up"
_PERFORM = "  local apply = others[step.verb] or"


def _freed_at(verb: str) -> str:
    return (
        f"  if step.verb == VERB.{verb} then\n"
        "    local waiting = call('XRANGE', step.box, step.message, step.message)[1]\n"
        "    if waiting then freed = freed + open_lines().free_all(waiting[2], step.name, step.box) end\n"
        "  end\n" + _PERFORM
    )


SEVERAL = (
    Mutant(
        "several: a home starts although a place is no head",
        _SEVERAL,
        "    if not is_blocked_by(read(name), id) or (holds_of(paused, name)) then return false end\n",
        "",
        f"{_ACTS}::test_a_skipped_one_frees_its_lines_and_a_replay_joins_the_end_of_all",
    ),
    Mutant(
        "several: a home starts although another line is paused",
        _SEVERAL,
        " or (holds_of(paused, name)) then",
        " then",
        f"{_LINES}::test_a_pause_of_a_line_that_it_heads_already_holds_it",
    ),
    Mutant(
        "several: a place that becomes the head wakes no home",
        _SEVERAL,
        "      if record and string.find(record, '^b|') and string.find(record, '|w=', 3, true) then",
        "      if false then",
        "tests/simulation/test_several.py::test_commands_of_several_entities_keep_every_promise",
    ),
    Mutant(
        "several: what upkeep finds blocked stays so",
        _REPAIR,
        "    if not is_overlooked(name, box, message, is_started, at) then return false end\n",
        "    do return false end\n",
        _LOST,
    ),
    Mutant(
        "several: places are freed at a retry",
        f"{_LUA}/advance/7_perform.lua",
        _PERFORM,
        _freed_at("WAIT"),
        f"{_ACTS}::test_a_retry_keeps_all_lines",
    ),
    Mutant(
        "several: places are freed at a park",
        f"{_LUA}/advance/7_perform.lua",
        _PERFORM,
        _freed_at("PARK"),
        f"{_ACTS}::test_a_parked_one_holds_all_lines",
    ),
    Mutant(
        "several: places are not freed at the end",
        _SEVERAL,
        "    return text and leave(text, name, box) or 0\n",
        "    return 0\n",
        f"{_ACTS}::test_a_rejected_one_frees_its_lines",
    ),
    Mutant(
        "several: a line whose place was just freed shows it as its head",
        f"{_LUA}/advance/4_start.lua",
        "  function keys.left(box) repeated[box] = true end",
        "  function keys.left() end",
        "tests/conformance/steps/test_several_steps.py::test_a_line_that_is_looked_at_while_its_place_is_freed_shows_what_is_behind",
    ),
    Mutant(
        "several: a purge takes the place only",
        "sending/waiting.py",
        "        return removed + await self._purge_places(mailbox, homes, entity)\n",
        "        return removed\n",
        f"{_ACTS}::test_a_purge_of_any_line_takes_it_out_of_all",
        (
            (
                "sending/waiting.py",
                "for command in page if not command.home]\n            batch",
                "for command in page]\n            batch",
            ),
        ),
    ),
    Mutant(
        "several: a discard frees the home only",
        f"{_LUA}/settle_dead_letter.lua",
        "-1 - several.free_all(head[2], name, box))",
        "-1)",
        f"{_ACTS}::test_a_parked_one_holds_all_lines",
    ),
    Mutant(
        "several: a resume wakes no blocked line",
        f"{_LUA}/hold.lua",
        "  if (state ~= STATE.STOPPED and state ~= STATE.BLOCKED) or",
        "  if state ~= STATE.STOPPED or",
        f"{_LINES}::test_a_pause_of_a_line_that_it_heads_already_holds_it",
    ),
    Mutant(
        "several: a replay forgets the places",
        f"{_LUA}/settle_dead_letter.lua",
        "  places = several.join_all(replayed, name, box, flow)\n",
        "  places = 0\n",
        f"{_ACTS}::test_a_skipped_one_frees_its_lines_and_a_replay_joins_the_end_of_all",
    ),
    Mutant(
        "several: a delayed one forgets the places",
        f"{_LUA}/promote.lua",
        "  local places = several and several.join_all(fields, name, box, flow)\n",
        "  local places = several and 0\n",
        f"{_LINES}::test_a_delayed_one_that_is_due_waits_for_all_its_lines",
    ),
    Mutant(
        "several: one that stands behind what is due is passed in its other lines",
        f"{_LUA}/shared/postpone.lua",
        "  for each in each_line(name, lines) do\n    if type",
        "  for each in each_line(name) do\n    if type",
        f"{_LINES}::test_behind_what_is_due_in_one_line_it_is_passed_in_no_other",
    ),
    Mutant(
        "several: what is due in another line is passed",
        f"{_LUA}/shared/postpone.lua",
        "    local there = waits_until(",
        "    local there = each == name and waits_until(",
        f"{_LINES}::test_behind_what_is_due_in_one_line_it_is_passed_in_no_other",
    ),
    Mutant(
        "several: a place that somebody deleted under a run is not put back",
        _REPAIR,
        " and put_first(box, message, place))\n",
        " and false)\n",
        _LOST,
    ),
    Mutant(
        "several: a run that somebody deleted loses its lines",
        _REPAIR,
        "  if started and #redis.call('XRANGE', key, started, started) == 0 then return true end\n",
        "",
        _LOST,
    ),
    Mutant(
        "several: across shards a start runs under a fence below that of the hold",
        "worker/decisions.py",
        "int(started.fence) <= across.fence:",
        "False:",
        f"{_ACROSS}::test_one_fence_holds_for_all_whatever_the_clocks_of_the_shards",
    ),
    Mutant(
        "several: a hold ends before its shard's fences are above that of the run",
        "durable/waits.py",
        "run.lease.mailbox, above)",
        "run.lease.mailbox, 0)",
        f"{_ACROSS}::test_one_fence_holds_for_all_whatever_the_clocks_of_the_shards",
    ),
    Mutant(
        "several: across shards only the lines of the last one are held",
        "sending/several.py",
        "    later = sorted({each for each in shards if each > behind})\n",
        "    later = sorted({each for each in shards if each > behind})[-1:]\n",
        f"{_ACROSS}::test_what_waits_in_a_later_shard_holds_the_lines_before_and_can_be_cancelled",
    ),
    Mutant(
        "several: a dead letter is replayed in the lines of its last shard alone",
        "admin/dead_letters.py",
        "return None if stored.parked else ACROSS.of(envelope.options)",
        "return None",
        f"{_ACROSS}::test_a_letter_that_is_replayed_later_stands_in_all_lines_again",
    ),
    Mutant(
        "several: what a handler sends enters one of its lines",
        f"{_LUA}/shared/postpone.lua",
        "string.sub(text, from, from + length - 1), lines_kept('\\n' .. text)",
        "string.sub(text, from, from + length - 1), nil",
        f"{_ACROSS}::test_handlers_call_and_send_commands_of_several_entities",
    ),
    Mutant(
        "several: the latest of one entity takes its place",
        f"{_LUA}/shared/unique_line.lua",
        "    or mode == MODE.LATEST and string.find(flags or '', '^w')\n",
        "",
        f"{_ENDS}::test_the_latest_of_one_entity_does_not_take_its_place",
    ),
    Mutant(
        "several: a purge leaves what is delayed for the line",
        "transport/redis/admin/mailboxes.py",
        " or mailbox in command.lines\n",
        "\n",
        f"{_ENDS}::test_what_is_removed_leaves_all_lines",
    ),
    Mutant(
        "several: the limits of its other entities are asked in the first shard alone",
        f"{_LUA}/advance/3_limits.lua",
        "others ~= '' and not is_home and 'ask' or ",
        "",
        f"{_LIMITS}::test_what_calls_no_handler_takes_no_token_of_any",
    ),
    Mutant(
        "several: the limits of its other entities are forgotten by its worker",
        "worker/limits.py",
        "filter(None, (costs, asked.others))",
        "filter(None, (costs,))",
        f"{_LIMITS}::test_limits_of_its_other_entities_hold_it",
    ),
    Mutant(
        "several: what calls no handler gives back the tokens of its home alone",
        f"{_LUA}/advance/7_perform.lua",
        "limits.scopes_of(step.name, lines and limits.of_others(lines, step.name))",
        "limits.scopes_of(step.name)",
        f"{_LIMITS}::test_what_calls_no_handler_takes_no_token_of_any",
    ),
)
