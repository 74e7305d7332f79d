"""Breakages of unique keys: of who stands for one, who replaces whom, and when a key is released."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["UNIQUE"]

_LUA = "transport/redis/lua"
_ACCEPT, _READ = f"{_LUA}/enqueue_unique/2_accept.lua", f"{_LUA}/enqueue_unique/1_read.lua"
_SHARED, _VERBS = f"{_LUA}/shared/unique.lua", f"{_LUA}/advance/3b_verbs.lua"
_BUS, _STEPS = "tests/conformance/test_unique.py", "tests/conformance/test_unique_steps.py"

UNIQUE = (
    Mutant(
        "the one that is replaced stays in line",
        _ACCEPT,
        "  if replaces and take_out(box, standers[i]) then\n",
        "  if replaces and not box then\n",
        f"{_BUS}::test_the_latest_replaces_the_one_that_waits_and_joins_the_tail",
    ),
    Mutant(
        "what runs is replaced",
        _SHARED,
        "  if running == place then return 'started' end\n",
        "  if running == place then return 'waits' end\n",
        f"{_BUS}::test_what_runs_is_not_touched_and_one_waits_beside_it",
    ),
    Mutant(
        "a head that waits for a retry is replaced",
        _SHARED,
        "  return started and 'started' or 'waits'\n",
        "  return 'waits'\n",
        f"{_STEPS}::test_the_record_names_the_head_that_was_started",
    ),
    Mutant(
        "the record does not name the head that was started",
        _VERBS,
        "  parts = parts .. '|started=' .. messages[step]\n",
        "",
        f"{_BUS}::test_a_head_that_waits_for_a_retry_counts_as_running",
    ),
    Mutant(
        "the name of a head that was started stays",
        _VERBS,
        "  if parts ~= '' then parts = string.gsub(parts, '|started=[^|]*', '') end\n",
        "",
        f"{_STEPS}::test_a_settled_command_leaves_no_part",
    ),
    Mutant(
        "a command that was read ahead runs though it is replaced",
        _ACCEPT,
        "    records[box] = changed_behind(records[box])\n",
        "",
        f"{_STEPS}::test_replacing_behind_a_running_command_says_so",
    ),
    Mutant(
        "a settled command releases the key of another",
        _VERBS,
        "    if place == message and (tonumber(window) or 0) <= now then",
        "    if (tonumber(window) or 0) <= now then",
        "tests/property/test_unique_interleavings.py",
    ),
    Mutant(
        "a settled command keeps its key",
        _VERBS,
        "call('HDEL', left.unique, left.key) end\n",
        "end\n",
        f"{_BUS}::test_the_first_wins_until_it_is_settled",
    ),
    Mutant(
        "a window ends with its command",
        _VERBS,
        "    if place == message and (tonumber(window) or 0) <= now then",
        "    if place == message then",
        f"{_BUS}::test_a_window_holds_the_key_though_the_command_is_settled",
    ),
    Mutant(
        "a parked command gives its key up",
        _VERBS,
        "  write_mark(left, true)\n",
        "  write_mark(left, true, name, messages[step])\n",
        f"{_BUS}::test_a_parked_command_holds_its_key_until_an_operator_decides",
    ),
    Mutant(
        "a replaced caller is not told",
        _ACCEPT,
        "  if waits ~= '' and type(redis.pcall('LPUSH', inbox, reply)) == 'number' then redis.pcall('PEXPIRE', inbox, reply_ttl) end\n",
        "",
        f"{_BUS}::test_a_replaced_caller_is_told_at_once",
    ),
    Mutant(
        "the mark of one that is replaced waits for ever",
        _ACCEPT,
        "    call('SET', mark, 'd' .. sub(value, 2, 9) .. reply, 'PX', keep)\n",
        "",
        f"{_STEPS}::test_marks_and_inboxes_of_the_one_that_is_replaced",
    ),
    Mutant(
        "another one is replaced than the producer knows",
        _READ,
        "value ~= ARGV[at + 11] then",
        "ARGV[at + 11] == '' then",
        f"{_STEPS}::test_it_asks_again_if_another_stands_by_then",
    ),
    Mutant(
        "a batch that is asked again replaces again",
        _READ,
        "  if tonumber(before) == number then return answer end\n",
        "",
        f"{_STEPS}::test_the_same_batch_is_answered_as_the_first_time",
    ),
    Mutant(
        "a command with a key is a lone one",
        _READ,
        "tonumber(space), 2  -- two",
        "tonumber(space), 1  -- two",
        f"{_STEPS}::test_a_command_with_a_key_is_never_lone",
    ),
    Mutant(
        "each trigger waits as long as the first could",
        _ACCEPT,
        "(replaces and tonumber((select(3, parse_stander(standers[i])))) or now + longest)",
        "now + longest",
        f"{_BUS}::test_max_wait_bounds_a_storm",
    ),
    Mutant(
        "one that cannot be put off any more loses its place",
        _READ,
        "tonumber(most) <= now then state = 'started' end",
        "tonumber(most) < 0 then state = 'started' end",
        f"{_BUS}::test_one_that_cannot_be_put_off_any_more_keeps_its_place",
    ),
    Mutant(
        "a delayed command loses its key when it is due",
        f"{_LUA}/promote.lua",
        "    if key then move_stander(unique, key, 'd:' .. id, added) end\n",
        "",
        f"{_BUS}::test_a_delayed_command_stands_for_its_key_before_and_after_it_is_due",
    ),
    Mutant(
        "a cancelled command keeps its key",
        f"{_LUA}/remove.lua",
        "    release_key(KEYS[13], ARGV[arg + 5], ARGV[arg])\n",
        "",
        f"{_BUS}::test_cancelling_and_purging_release_the_key",
    ),
    Mutant(
        "a replay takes the key of another",
        f"{_LUA}/settle_dead_letter.lua",
        "redis.pcall('HSETNX', KEYS[14],",
        "redis.pcall('HSET', KEYS[14],",
        f"{_BUS}::test_89_a_replay_whose_key_is_taken_waits_beside_the_other",
    ),
    Mutant(
        "a stander that is settled is believed",
        _SHARED,
        "  if running ~= '' then return is_behind(place, running) and 'waits' or nil end\n",
        "  if running ~= '' then return 'waits' end\n",
        f"{_STEPS}::test_87_a_stander_that_ended_without_releasing_its_key_is_not_believed",
    ),
    Mutant(
        "two of one key leave in one batch",
        "transport/redis/sending/unique_batches.py",
        "    if not first and (not keys or keys & these):\n",
        "    if not first and not keys:\n",
        f"{_BUS}::test_many_senders_at_once_leave_one",
    ),
    Mutant(
        "two of one key of a batch leave together",
        "transport/redis/sending/producer.py",
        " or (key is not None and key.key in unique)\n",
        "\n",
        f"{_BUS}::test_a_batch_with_repeats_inside",
    ),
    Mutant(
        "the sweep believes the record",
        f"{_LUA}/sweep_unique.lua",
        "  return place == 'd' or redis.call('XRANGE', box, place, place)[1] ~= nil\n",
        "  return true\n",
        f"{_STEPS}::test_the_sweep_releases_what_nobody_holds",
    ),
    Mutant(
        "the sweep ends windows",
        f"{_LUA}/sweep_unique.lua",
        "  if not place or (tonumber(window) or 0) > now then return place ~= nil end\n",
        "  if not place then return false end\n",
        f"{_STEPS}::test_the_sweep_releases_what_nobody_holds",
    ),
    Mutant(
        "a settled command without a window is listed as a holder",
        "transport/redis/admin/held_keys.py",
        "each.stander.window_ms > now_ms",
        "True",
        "tests/conformance/test_unique_listing.py::test_the_keys_that_an_entity_holds_are_listed",
    ),
    Mutant(
        "what stands before the command that runs is listed as waiting",
        "transport/redis/admin/held_keys.py",
        "_number(stander.place) > _number(record.message)",
        "True",
        "tests/conformance/test_unique_listing.py::test_where_a_command_is_that_holds_a_key",
    ),
    Mutant(
        "a command that waits for a retry is listed as waiting",
        "transport/redis/admin/held_keys.py",
        'record.first_ms and record.parts.get("started") == stander.place',
        "False",
        "tests/conformance/test_unique_listing.py::test_a_command_that_waits_for_a_retry_still_holds_its_key_as_started",
    ),
)
