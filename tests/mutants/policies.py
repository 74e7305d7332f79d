"""Breakages of snoozes, of giving up, of policies by level, and of the deletion of a namespace."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["POLICIES"]

_LUA = "transport/redis/lua"
_STEPS = "tests/conformance/steps/test_snooze_steps.py"
_SNOOZE = "tests/conformance/test_snooze.py"
_LEVELS = "tests/conformance/test_policies.py"
_OBLITERATE = "tests/conformance/operating/test_obliterate.py"
_VALUES = "tests/unit/test_retry_policy.py"

POLICIES = (
    Mutant(
        "retried once at most",
        "worker/decisions.py",
        "        if attempt < policy.attempts and not lasts and policy.retries(error):",
        "        if attempt < min(2, policy.attempts) and not lasts and policy.retries(error):",
    ),
    Mutant(
        "retried without end",
        "worker/decisions.py",
        "        if attempt < policy.attempts and not lasts and policy.retries(error):",
        "        if attempt < policy.attempts + 2 and not lasts and policy.retries(error):",
    ),
    Mutant(
        "a snooze is an attempt",
        f"{_LUA}/advance/3b_verbs.lua",
        "local tried = why == '1' and attempt or",
        "local tried = why ~= '0' and attempt or",
        f"{_STEPS}::test_snoozes_use_no_attempt_and_keep_the_order",
    ),
    Mutant(
        "snoozes are not counted",
        f"{_LUA}/advance/3b_verbs.lua",
        "count + (more and 1 or 0), message",
        "more and 1 or 0, message",
        f"{_STEPS}::test_snoozes_use_no_attempt_and_keep_the_order",
    ),
    Mutant(
        "the next command inherits the snoozes",
        f"{_LUA}/advance/3b_verbs.lua",
        "string.gsub(string.gsub(parts, '|z=[^|]*', ''), '|ask=%d+', '')",
        "string.gsub(parts, '|ask=%d+', '')",
    ),
    Mutant(
        "the snoozes of another command are counted on",
        f"{_LUA}/advance/3b_verbs.lua",
        "    if of ~= message then\n      if not more",
        "    if not of then\n      if not more",
        f"{_STEPS}::test_a_count_that_another_release_left_is_not_believed",
    ),
    Mutant(
        "the first start is that of the last wake",
        f"{_LUA}/advance/3b_verbs.lua",
        "    if of ~= message then\n      if not more and not wakes then return parts end\n      count, truly = 0,",
        "    if of ~= message or more then\n      if not more and not wakes then return parts end\n"
        "      count, truly = of == message and count or 0,",
        f"{_STEPS}::test_snoozes_use_no_attempt_and_keep_the_order",
    ),
    Mutant(
        "what wakes has its old deadline",
        f"{_LUA}/promote.lua",
        "wake(name, attempt, woken(first, parts), parts, box)",
        "wake(name, attempt, first, parts, box)",
        f"{_STEPS}::test_the_wake_ends_the_deadline_and_begins_the_grace",
    ),
    Mutant(
        "what another release wakes has its old deadline",
        f"{_LUA}/advance/3b_verbs.lua",
        "  if why == PAUSE.SNOOZE then first = '-' .. format('%.0f', at) end",
        "  if false then first = '0' end",
        f"{_STEPS}::test_the_wake_ends_the_deadline_and_begins_the_grace",
    ),
    Mutant(
        "a retry begins the grace again",
        f"{_LUA}/shared/snooze.lua",
        "string.find(parts, '|z=%d+:[%d-]+:%d+:1')",
        "string.find(parts, '|z=%d+:[%d-]+:%d+:')",
        f"{_STEPS}::test_a_retry_behind_a_snooze_waits_as_a_retry",
    ),
    Mutant(
        "a resumed entity wakes as of long ago",
        f"{_LUA}/hold.lua",
        "queue(ready, name, attempt, woken(first, parts), parts,",
        "queue(ready, name, attempt, first, parts,",
        f"{_STEPS}::test_an_entity_that_was_paused_over_its_wake_wakes_when_it_is_resumed",
    ),
    Mutant(
        "who is behind a cancelled snooze inherits it",
        f"{_LUA}/remove.lua",
        "    parts = without_snooze(parts)\n",
        "",
        f"{_STEPS}::test_a_snoozing_head_that_is_removed_leaves_no_count",
    ),
    Mutant(
        "a replayed command keeps its snoozes",
        f"{_LUA}/shared/snooze.lua",
        "string.gsub(parts, '|z=[^|]*', '') .. '|z=0:'",
        "parts .. '|z=0:'",
        f"{_STEPS}::test_a_parked_command_is_replayed_with_a_new_count",
    ),
    Mutant(
        "a handler may put off for ever",
        "worker/decisions.py",
        "        if run.started.snoozes.times < snooze.most:\n",
        "        if snooze.most:\n",
        f"{_SNOOZE}::test_once_too_often_is_a_failure_which_is_retried_and_then_dead_lettered",
    ),
    Mutant(
        "the grace of what woke counts from its first start",
        "worker/decisions.py",
        "started.now_ms - started.woken_ms",
        "started.now_ms - started.first_ms",
        f"{_SNOOZE}::test_a_worker_that_does_not_know_it_leaves_it_to_another_although_it_is_old",
    ),
    Mutant(
        "a snooze looks like a retry",
        "transport/redis/admin/entities.py",
        'shown = "snoozed" if fields.state == RETRYING and snoozes.waits else',
        'shown = "snoozed" if False else',
        f"{_SNOOZE}::test_everybody_sees_why_and_until_when_it_waits",
    ),
    Mutant(
        "who gives up is tried again",
        "worker/decisions.py",
        "and not lasts and policy.retries(error)",
        "and policy.retries(error)",
    ),
    Mutant(
        "what a dispatch says is not heard",
        "worker/runnable.py",
        "if options else self.policy",
        "if False else self.policy",
        f"{_LEVELS}::test_retries_are_those_of_the_dispatch_then_the_class_then_the_type_then_the_bus",
    ),
    Mutant(
        "a dispatch decides which errors are retried",
        "messages/handling_policy.py",
        "policy = replace(policy, retry=kept)",
        "policy = replace(policy, retry=retry)",
        f"{_LEVELS}::test_which_errors_are_retried_stays_with_the_class",
    ),
    Mutant(
        "retries for all are meant for at-most-once commands, too",
        "messages/handling_policy.py",
        '            if delivery == "at_most_once":\n                retry = retry or _ONE_START\n',
        "",
        f"{_VALUES}::test_the_most_specific_level_that_says_something_decides",
    ),
    Mutant(
        "the widest level decides",
        "messages/handling_policy.py",
        "        retry = retry or level.retry\n",
        "        retry = level.retry or retry\n",
        f"{_VALUES}::test_the_most_specific_level_that_says_something_decides",
    ),
    Mutant(
        "a function of backoff that fails fails the command",
        "worker/decisions.py",
        "        except (Exception, SystemExit):  # noqa: BLE001 - it is the application's, and",
        "        except OverflowError:  # and",
        f"{_LEVELS}::test_59_a_function_of_backoff_that_fails_delays_as_usual",
    ),
    Mutant(
        "exception types are dropped on the way",
        "serialization/envelope_options.py",
        "    if (retry.retry_on, retry.give_up_on) != (_USUAL.retry_on, _USUAL.give_up_on):\n",
        "    if False:\n",
        f"{_LEVELS}::test_60_what_cannot_travel_is_refused_before_anything_is_sent",
    ),
    Mutant(
        "a call waits as long as the bus says, whatever its type",
        "settings.py",
        "return self.entity(entity_type).call_timeout or self.call_timeout",
        "return self.call_timeout",
        f"{_LEVELS}::test_a_call_waits_as_long_as_its_entity_type_says",
    ),
    Mutant(
        "a namespace is deleted under the hands of workers",
        "admin/entity_types.py",
        "    if live:\n",
        "    if False:\n",
        f"{_OBLITERATE}::test_64_it_is_refused_while_workers_live",
    ),
    Mutant(
        "any name will do",
        "admin/entity_types.py",
        "    if confirm != namespace:\n",
        "    if not confirm:\n",
        f"{_OBLITERATE}::test_64_another_name_deletes_nothing",
    ),
    Mutant(
        "a namespace takes commands while it is deleted",
        "admin/entity_types.py",
        '    await transport.operator.holds.drain(EVERYTHING, "it is being obliterated")\n',
        "",
        f"{_OBLITERATE}::test_one_that_broke_off_leaves_a_drained_namespace_and_is_repeated",
    ),
    Mutant(
        "what runs in a namespace that is deleted keeps its lease",
        "transport/redis/admin/type_records.py",
        "            keys.active,\n            keys.ready,\n",
        "            keys.ready,\n",
        f"{_OBLITERATE}::test_one_that_broke_off_leaves_a_drained_namespace_and_is_repeated",
    ),
)
