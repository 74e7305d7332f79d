"""Breakages of schedules and of pauses that end by themselves: each drops one compare."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["SCHEDULES"]

_LUA = "transport/redis/lua"
_SCHEDULES = "tests/conformance/schedules/test_schedules.py"
_CHANGES = "tests/conformance/schedules/test_schedule_changes.py"
_MOVES = "tests/conformance/schedules/test_schedule_moves.py"
_OVERLAPS = "tests/tables/test_overlaps.py::test_the_last_firing_ends_and_is_not_started_again"
_PAUSES = "tests/conformance/operating/test_timed_pauses.py"
_PLANNING = "tests/unit/test_schedule_planning.py"

_TOPOLOGIES = "tests/integration/test_schedule_topologies.py"

_OBLITERATE = "tests/conformance/operating/test_obliterate.py"

_EVENTS = "tests/conformance/schedules/test_schedule_events.py"

SCHEDULES = (
    Mutant(
        "a tick is left out for a firing that can never run",
        "scheduling/overlaps.py",
        "mailbox is not None and not await self._is_late(record, mailbox)",
        "mailbox is not None",
        f"{_CHANGES}::test_overlap_skip_does_not_wait_for_what_can_never_run",
    ),
    Mutant(
        "a firing with a deadline leaves out no tick before it",
        "scheduling/overlaps.py",
        "now_ms <= accepted_ms(message) + ttl_ms",
        "now_ms <= 0",
        f"{_CHANGES}::test_overlap_skip_does_not_wait_for_what_can_never_run",
    ),
    Mutant(
        "a change of a schedule that is repeated is told again",
        f"{_LUA}/schedule_change.lua",
        "if same and now ~= after then tell(",
        "if same then tell(",
        f"{_EVENTS}::test_a_worker_that_dies_behind_the_pin_leaves_the_rest_to_be_told",
    ),
    Mutant(
        "each try of a refused firing is told",
        f"{_LUA}/schedule_fire.lua",
        "and call('HGET', fired, field) ~= stamp then",
        "then",
        f"{_EVENTS}::test_a_refused_firing_is_told_once",
    ),
    Mutant(
        "refusals are told although only commands are watched",
        f"{_LUA}/schedule_fire.lua",
        "if publish and is_watched(scope) and",
        "if publish and",
        f"{_EVENTS}::test_a_refusal_is_told_to_who_watches_schedules",
    ),
    Mutant(
        "scripts of schedules run in a namespace that was deleted",
        f"{_LUA}/shared/incarnation.lua",
        "return redis.call('HGET', stats, 'incarnation') ~= incarnation",
        "return false",
        f"{_OBLITERATE}::test_a_worker_that_was_stopped_at_a_step_of_a_firing_writes_nothing_afterwards",
    ),
    Mutant(
        "what replicas confirm brings a key of a deleted namespace back",
        f"{_LUA}/confirm.lua",
        "if not redis.call('HGET', KEYS[1], 'depth') then return 0 end",
        "",
        f"{_OBLITERATE}::test_a_refused_firing_that_replicas_would_confirm_brings_no_key_back",
    ),
    Mutant(
        "an armed firing is accepted by another namespace of the name",
        f"{_LUA}/schedule_fire.lua",
        "if is_of_another_time(stats, ARGV[2]) then return 'gone' end",
        "",
        f"{_OBLITERATE}::test_an_armed_firing_meets_another_namespace_of_the_name",
    ),
    Mutant(
        "deletion of a namespace does not close it first",
        "transport/redis/admin/type_records.py",
        "client.hset(keys.stats, INCARNATION, CLOSED)",
        "client.hget(keys.stats, INCARNATION)",
        f"{_OBLITERATE}::test_nothing_fires_while_a_namespace_is_deleted_or_behind_it",
    ),
    Mutant(
        "an exported schedule fires where it was",
        "scheduling/record.py",
        "        if self.exported:\n            return None",
        "        if False:\n            return None",
        f"{_MOVES}::test_a_move_loses_no_tick_and_fires_none_twice",
        more=(("scheduling/planning.py", "    if record.exported:\n        return None", "    if False:\n        return None"),),
    ),
    Mutant(
        "a repeated import sets back a schedule that has gone on",
        "scheduling/predecessors.py",
        "if now.exported and now.seq == line.seq else None",
        "if now.exported and now.seq == line.seq else line",
        f"{_MOVES}::test_a_move_loses_no_tick_and_fires_none_twice",
    ),
    Mutant(
        "an import fires again what a replaced schedule has fired",
        "scheduling/predecessors.py",
        "if line.next is None or other.last < line.next:",
        "if line.next is None or other.last < line.next or True:",
        f"{_MOVES}::test_another_one_of_the_name_stays_or_is_replaced",
    ),
    Mutant(
        "an imported command is not verified",
        "scheduling/templates.py",
        "envelope = replace(self._clear(record, before and before.templates), signature=None)",
        "envelope = replace(self.read(record), signature=None)",
        "tests/security/test_schedule_templates.py::test_an_export_is_verified_and_signed_anew",
    ),
    Mutant(
        "a firing is accepted whatever was fired before",
        f"{_LUA}/schedule_fire.lua",
        "return tonumber(last) >= number and '=' or nil",
        "return nil",
        f"{_SCHEDULES}::test_nothing_fires_behind_a_change",
    ),
    Mutant(
        "a firing of a removed schedule is accepted by one of the same name",
        f"{_LUA}/schedule_fire.lua",
        "if kept ~= incarnation then return not armed and 'u' or nil end",
        "if kept ~= incarnation then return nil end",
        f"{_SCHEDULES}::test_nothing_fires_behind_a_change",
    ),
    Mutant(
        "a record is written over another one",
        f"{_LUA}/schedule_change.lua",
        "local same = now == before or now == after",
        "local same = true",
        f"{_CHANGES}::test_a_record_that_has_changed_is_left_alone",
    ),
    Mutant(
        "a drained entity gets firings",
        f"{_LUA}/schedule_fire.lua",
        "if drained then return ADMISSION.DRAINED end",
        "",
        f"{_CHANGES}::test_a_full_or_drained_entity_delays_and_loses_nothing",
    ),
    Mutant(
        "a full entity gets firings",
        f"{_LUA}/schedule_fire.lua",
        "if depth >= room then return ADMISSION.MAILBOX_FULL end",
        "",
        f"{_CHANGES}::test_a_full_or_drained_entity_delays_and_loses_nothing",
    ),
    Mutant(
        "a change does not end what is under way",
        "scheduling/firing.py",
        "            if record is None or not record.pinned:\n                return record, raw",
        "            if True:\n                return record, raw",
        f"{_SCHEDULES}::test_a_change_while_a_tick_is_under_way",
    ),
    Mutant(
        "a refused firing is not barred when its schedule is paused",
        f"{_LUA}/schedule_bar.lua",
        "redis.call('HSET', KEYS[1], ARGV[2], ARGV[3] .. ':' .. ARGV[4])\n",
        "",
        f"{_CHANGES}::test_a_refused_tick_is_the_next_one_again_if_it_is_paused",
    ),
    Mutant(
        "an older revision replaces a newer one",
        "scheduling/puts.py",
        "            if draft.revision <= record.revision:",
        "            if draft.revision == record.revision:",
        f"{_CHANGES}::test_revisions_of_what_code_declares",
    ),
    Mutant(
        "clocks that jumped ahead take the ticks with them",
        "scheduling/planning.py",
        "    if first is None or first >= record.next:\n        return None",
        "    if True:\n        return None",
        f"{_PLANNING}::test_clocks_a_day_ahead_and_back_lose_no_tick_and_repeat_none",
    ),
    Mutant(
        "what was fired ahead of its time is fired again",
        "scheduling/record.py",
        "if found is not None and self.ahead and self.ahead[0] <= found <= self.ahead[1]:",
        "if False:",
        f"{_PLANNING}::test_clocks_a_day_ahead_and_back_lose_no_tick_and_repeat_none",
    ),
    Mutant(
        "ticks are counted from the time of the firing",
        "scheduling/planning.py",
        "    following = record.after(record.next)\n",
        "    following = record.after(now_ms)\n",
        f"{_PLANNING}::test_missed_ticks",
    ),
    Mutant(
        "a pause without an end keeps that of an earlier one",
        f"{_LUA}/hold.lua",
        "  redis.call('ZREM', due, ending)\nend",
        "end",
        f"{_PAUSES}::test_each_pause_and_resume_replaces_the_end",
    ),
    Mutant(
        "any end ends a pause",
        f"{_LUA}/hold.lua",
        "  if tonumber(redis.call('ZSCORE', due, ending) or '') ~= tonumber(till) then return 'gone' end\n",
        "",
        f"{_PAUSES}::test_each_pause_and_resume_replaces_the_end",
    ),
    Mutant(
        "a tick does not wait for the end of the one before",
        "scheduling/overlaps.py",
        "replaces or await self._unsettled(record) is None",
        "True",
        f"{_OVERLAPS}[lost_its_worker-drained_once_it_is_asked]",
    ),
    Mutant(
        "a wish that is repeated wakes what undoes",
        f"{_LUA}/tell.lua",
        "  if redis.call('HSETNX', side, 'cancel', value) == 1 then\n",
        "  if redis.call('HSETNX', side, 'cancel', value) then\n",
        "tests/conformance/durable/test_durable_steps.py::test_a_wish_lets_it_go_on_at_once",
    ),
    Mutant(
        "a schedule moves on from a firing that no replica has",
        "transport/redis/scheduling/store.py",
        '        return list(letters) if confirmed else ["?" if letter in _CONFIRMED else letter for letter in letters]\n',
        "        return list(letters)\n",
        f"{_TOPOLOGIES}::test_a_firing_that_no_replica_has_is_fired_again_after_a_failover",
    ),
    Mutant(
        "a put moves a schedule on from a firing that no replica has",
        "transport/redis/scheduling/store.py",
        "        return True if answer else False if confirmed else None\n",
        "        return bool(answer)\n",
        f"{_TOPOLOGIES}::test_a_put_beside_a_firing_that_no_replica_has_waits_for_replicas_or_changes_nothing",
    ),
    Mutant(
        "a put that changes nothing waits for the firing that is under way",
        "scheduling/puts.py",
        "            if record is not None and self._updated(record, draft, kind, now_ms) is None:\n"
        "                return record, False  # whatever fires meanwhile: each worker that starts puts what it declares\n",
        "",
        f"{_TOPOLOGIES}::test_a_put_beside_a_firing_that_no_replica_has_waits_for_replicas_or_changes_nothing",
    ),
    Mutant(
        "a firing that nobody believes leaves out ticks",
        "scheduling/overlaps.py",
        "entities.look(mailbox)).depth else None",
        "entities.look(mailbox)) else None",
        "tests/tables/test_ends.py::test_nothing_is_held_and_all_are_told[valkey-forged/schedule]",
    ),
)
