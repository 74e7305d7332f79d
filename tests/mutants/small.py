"""Breakages of small capabilities: limits, retention, recounts, edited replays, what is old or compressed."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["SMALL"]

_LUA = "transport/redis/lua"
_CONTEXTS = "tests/tables/test_command_contexts.py"
_AWAY = "tests/conformance/servers/test_server_away.py"
_PAUSE = "tests/conformance/operating/test_worker_pause.py"
_LETTERS = "tests/conformance/operating/test_letter_retention.py"
_EDITED = "tests/conformance/operating/test_edited_replays.py"
_EDGES = "tests/unit/test_edges.py"
_RECOUNT = "tests/conformance/operating/test_recount.py"
_ENTITIES = "tests/conformance/operating/test_max_entities.py"

SMALL = (
    Mutant(
        "one entity more has work than there may",
        f"{_LUA}/enqueue.lua",
        "or (newcomers and newcomers < 1 and not records[box])",
        "or (newcomers and newcomers < 0 and not records[box])",
        _ENTITIES,
    ),
    Mutant(
        "a single command begins an entity too many",
        f"{_LUA}/enqueue_one.lua",
        "  if not record and call('HLEN', active) >= tonumber(mailboxes) then return '?' end\n",
        "",
        _ENTITIES,
    ),
    Mutant(
        "what is sent while the server is away waits",
        "transport/redis/sending/enqueue_line.py",
        "        if self._watch.refuses:\n            raise self._watch.refusal()\n",
        "",
        f"{_AWAY}::test_sends_fail_at_once_until_a_probe_succeeds",
    ),
    Mutant(
        "a server that is there again refuses senders",
        "transport/redis/connection/server_watch.py",
        "            self._is_away = self.refuses = False\n",
        "            self._is_away = False\n",
        f"{_AWAY}::test_sends_fail_at_once_until_a_probe_succeeds",
    ),
    Mutant(
        "a cut connection counts as an outage",
        "transport/redis/connection/server_watch.py",
        "        self._probing = loop",
        "        self._away(error)\n        self._probing = loop",
        f"{_AWAY}::test_a_cut_connection_is_no_outage",
    ),
    Mutant(
        "a paused worker keeps what a read brings",
        "transport/slots.py",
        " if ask.reserved and not self.paused else self.free\n",
        " if ask.reserved else self.free\n",
        f"{_PAUSE}::test_what_a_read_under_way_brings_is_given_back",
        more=(("worker/worker.py", "leaving=worker.state.is_leaving", "leaving=worker.state.is_stopping"),),
    ),
    Mutant(
        "a paused worker keeps its entities",
        "worker/worker.py",
        "leaving=worker.state.is_leaving",
        "leaving=worker.state.is_stopping",
        f"{_PAUSE}::test_the_entity_of_a_paused_worker_goes_on_elsewhere",
    ),
    Mutant(
        "the letter of a parked entity is pruned",
        f"{_LUA}/prune_letters.lua",
        "  local is_parked = redis.call('HGET', parked, fields['m'] or '') == id\n",
        "  local is_parked = false\n",
        _LETTERS,
    ),
    Mutant(
        "a letter is pruned before its time",
        f"{_LUA}/prune_letters.lua",
        "tonumber(string.match(id, '^%d+')) < oldest",
        "tonumber(string.match(id, '^%d+')) > oldest",
        _LETTERS,
    ),
    Mutant(
        "an edited parked command loses its place",
        f"{_LUA}/shared/rewrite.lua",
        "for _, entry in ipairs(entries) do redis.call('XADD', box, entry[1]",
        "for _, entry in ipairs(entries) do redis.call('XADD', box, '*'",
        f"{_EDITED}::test_ids_stay",
    ),
    Mutant(
        "a number of JSON beyond what a double holds is infinity",
        "serialization/json_forms.py",
        "    if not math.isfinite(value):\n",
        "    if False:\n",
        f"{_EDGES}::test_what_is_no_json_is_a_value_error",
    ),
    Mutant(
        "two texts may be one key",
        "serialization/json_fields.py",
        " or key_form(key) != text:",
        ":",
        f"{_EDGES}::test_a_key_or_text_that_is_none_is_refused",
    ),
    Mutant(
        "an option of the URL comes before the bus's own",
        "server_urls.py",
        '.removeprefix("sentinel_") in _TAKEN]',
        '.removeprefix("sentinel_")]',
        f"{_EDGES}::test_no_option_comes_before_what_the_bus_needs",
    ),
    Mutant(
        "an edited command is not checked against its entity",
        "admin/letter_pages.py",
        "    if entity_id != envelope.entity_id:\n",
        "    if entity_id is envelope:\n",
        _EDITED,
    ),
    Mutant(
        "settled commands that stand in a mailbox are counted again",
        f"{_LUA}/recount.lua",
        "return length - #redis.pcall('XRANGE', box, '-', '(' .. message, 'COUNT', 100)",
        "return length - 0 * #redis.pcall('XRANGE', box, '-', '(' .. message, 'COUNT', 100)",
        _RECOUNT,
    ),
    Mutant(
        "the depth of an idle shard stays wrong for an hour",
        "transport/redis/maintenance/upkeep.py",
        "and await self._is_too_deep()",
        "and False",
        f"{_RECOUNT}::test_an_idle_shard_is_counted_at_once",
    ),
    Mutant(
        "a mailbox that was not seen is not counted",
        f"{_LUA}/recount.lua",
        "  if not box then return nil, 'changed' end\n",
        "  if not box then return 0 end\n",
        _RECOUNT,
    ),
    Mutant(
        "a batch does not count the entities that it begins",
        f"{_LUA}/enqueue.lua",
        "      if newcomers and idle and records[box] then newcomers = newcomers - 1 end\n",
        "",
        _ENTITIES,
    ),
    Mutant(
        "an answer that comes after its batch was given up is handed out",
        "transport/redis/connection/script_line.py",
        "        if batch is not self._posted:\n            return  # it was given up\n",
        "",
        "tests/unit/test_producer.py::test_an_answer_that_comes_late_is_nobody_s",
    ),
    Mutant(
        "the commands of an entity share a context",
        "worker/entity_run.py",
        "        context = self._base.copy()\n",
        "        context = self._base\n",
        _CONTEXTS,
    ),
    Mutant(
        "the commands of a worker share decimal's context",
        "worker/entity_run.py",
        "context.run(variable.set, copied())",
        "pass",
        _CONTEXTS,
    ),
    Mutant(
        "a handler names the task of its entity for good",
        "worker/entity_run.py",
        "                        task.set_name(name)",
        "                        pass",
        _CONTEXTS,
    ),
    Mutant(
        "the first worker of a process that ends takes the signals with it",
        "worker/worker_bus.py",
        "        if self._asked:\n            return\n",
        "",
        "tests/unit/test_worker_signals.py",
    ),
    Mutant(
        "a hang-up behind a signal ends a worker at once",
        "worker/worker_bus.py",
        " and not is_hang_up(number)",
        "",
        "tests/unit/test_worker_signals.py",
    ),
    Mutant(
        "a process that ignores hang-ups ends by one",
        "worker/worker_bus.py",
        "signal.getsignal(_HANG_UP) is not signal.SIG_IGN",
        "True",
        "tests/unit/test_worker_signals.py",
    ),
    Mutant(
        "an unknown command that came later is given up with the first",
        "worker/offers.py",
        "max(since, offer.waits_since)",
        "since",
        "tests/tables/test_unknown_commands.py::test_an_unknown_command_waits_for_its_grace_and_no_longer",
    ),
    Mutant(
        "a name is taken for unknown although nobody has seen it for long",
        "worker/offers.py",
        "if now_ms - seen > _OUT_OF_SIGHT_MS:",
        "if False:",
        "tests/tables/test_unknown_commands.py::test_an_unknown_command_waits_for_its_grace_and_no_longer",
    ),
    Mutant(
        "what was retried is taken for unknown since its first start",
        "worker/offers.py",
        "if started.attempt <= 1:",
        "if True:",
        "tests/tables/test_unknown_commands.py::test_an_unknown_command_waits_for_its_grace_and_no_longer",
    ),
    Mutant(
        "a worker that was there meanwhile is forgotten",
        "worker/offers.py",
        "self._unhandled.pop(offer.name, None)",
        "pass",
        "tests/tables/test_unknown_commands.py::test_an_unknown_command_waits_for_its_grace_and_no_longer",
    ),
)
