"""Breakages of the inbox: one effect, one reply, and one sending, in the order of fences."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_BUS, _BLOCKS, _RACES = "tests/sql/test_bus.py", "tests/sql/test_blocks.py", "tests/sql/test_races.py"
_CRASH = f"{_BUS}::test_a_crash_at_any_point_makes_one_effect_and_sends_once"
_RACING = f"{_RACES}::test_eight_racing_starters_make_each_effect_once_and_in_the_order_of_fences"

INBOX = (
    Mutant("inbox without follow-ups", "sending/kept_run.py", "is None else self._outbox.kept()", "is None else []", _CRASH),
    Mutant(
        "inbox does not send again",
        "sending/kept_run.py",
        "            self._outbox.restore(follow_ups)\n",
        "            pass\n",
        _CRASH,
    ),
    Mutant(
        "inbox sends again beside what was sent",
        "sending/follow_ups.py",
        "        self._items[: len(stored)] = [",
        "        self._items += [",
        f"{_BUS}::test_what_is_sent_around_the_block_is_sent_once",
    ),
    Mutant(
        "inbox refuses an equal fence",
        "sql/tables.py",
        "WHERE command_fence.fence <= excluded.fence",
        "WHERE command_fence.fence < excluded.fence",
        f"{_BLOCKS}::test_an_older_fence_is_refused_and_the_same_one_is_not",
    ),
    Mutant("inbox takes any fence", "sql/tables.py", "WHERE command_fence.fence <= excluded.fence", "WHERE true", _RACING),
    Mutant(
        "fence behind the effect",
        "sql/inbox.py",
        "            self._begin(dialect, execute)\n            yield self\n",
        "            known = beginning(dialect, {}, [each.memory.key for each in self._members])\n"
        "            for row in [row for each in known for row in execute(each)]:\n"
        "                self._members[0].recognise(bytes(row[1]))\n"
        "            yield self\n"
        "            if self._members[0].is_fresh:\n"
        "                self._begin(dialect, execute)\n",
        _RACING,
    ),
    Mutant(
        "inbox commits what another start has committed",
        "sql/inbox.py",
        "for each in keeping(dialect, rows, wall_ms())) < len(fresh):",
        "for each in keeping(dialect, rows, wall_ms())) < 0:",
        f"{_RACES}::test_two_starts_without_an_entity_that_overlap",
    ),
    Mutant(
        "inbox locks entities in any order",
        "sql/tables.py",
        "    mailboxes = sorted(fences)\n",
        "    mailboxes = list(fences)\n",
        f"{_RACES}::test_two_batches_that_overlap_do_not_wait_for_each_other",
    ),
    Mutant(
        "inbox takes an edited replay for a repeat",
        "sending/kept_run.py",
        "if not is_same(digest, self._digest()):",
        "if False:",
        f"{_BUS}::test_195_an_edited_replay_parks_and_goes_on_once_it_is_cancelled",
    ),
    Mutant(
        "a conflict of the inbox is dead-lettered",
        "worker/decisions.py",
        "parks = isinstance(error, InboxConflict) or (",
        "parks = (",
        f"{_BUS}::test_195_an_edited_replay_parks_and_goes_on_once_it_is_cancelled",
    ),
    Mutant(
        "inbox keeps clear text",
        "sending/kept_run.py",
        "        if self._protection is None:\n            return pack([_CLEAR, parts], _LIMITS)",
        "        if True:\n            return pack([_CLEAR, parts], _LIMITS)",
        f"{_BUS}::test_196_what_is_kept_is_encrypted_where_the_bus_encrypts",
    ),
    Mutant(
        "a second block of a run skips its effect",
        "sql/inbox.py",
        "            self._check_first(home)\n",
        "",
        f"{_BUS}::test_194_a_second_block_of_a_run_is_refused",
    ),
    Mutant(
        "inbox removes what is to be known",
        "sql/tables.py",
        "WHERE done_ms < :before ORDER",
        "WHERE done_ms > :before ORDER",
        f"{_BLOCKS}::test_old_commands_are_removed",
    ),
    Mutant(
        "inbox waits for others that remove",
        "sql/tables.py",
        '" FOR UPDATE SKIP LOCKED"',
        '" FOR UPDATE"',
        "tests/sql/test_reports.py::test_removals_do_not_wait_for_each_other_nor_for_a_long_block",
    ),
)
