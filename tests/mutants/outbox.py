"""Breakages of the outbox: what commits is sent once, in the order of the commits."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_WORLDS, _OUTBOX = "tests/sql/test_outbox_worlds.py", "tests/sql/test_outbox.py"
_WRITERS = f"{_OUTBOX}::test_commits_of_many_writers_are_sent_in_their_order"
_TABLE, _RELAY = "sql/outbox_table.py", "sql/relay.py"

OUTBOX = (
    Mutant(
        "a request of a relay whose knowledge is old is carried out",
        "transport/redis/lua/outbox.lua",
        "if ARGV[1] ~= present then\n",
        "if ARGV[1] == '?' then\n",
        _WORLDS,
    ),
    Mutant(
        "what is taken is not noted",
        "transport/redis/lua/outbox.lua",
        "    noted[#noted + 1], noted[#noted + 2] = ids[i], ''\n",
        "    noted[3], noted[4] = '0', ''\n",
        _WORLDS,
    ),
    Mutant(
        "a row is deleted although the server has not answered since",
        _RELAY,
        "        while shard.taken and shard.taken[0][0] <= shard.asked_at - self._keep and len(places) < _PAGE:\n",
        "        while shard.taken and shard.taken[0][0] <= before and len(places) < _PAGE:\n",
        _WORLDS,
        more=(
            (
                _RELAY,
                "        if (is_due and shard.taken[0][0] > shard.asked_at - self._keep) or (shard.deleted and not is_due) or shard.unconfirmed:\n",
                "        if shard.deleted and not is_due:\n",
            ),
        ),
    ),
    Mutant(
        "a row is deleted at once",
        _RELAY,
        "        before = mono() - self._keep\n",
        "        before, self._keep = mono(), 0.0\n",
        _WORLDS,
    ),
    Mutant(
        "what is noted is dropped before the row is deleted",
        _RELAY,
        "            await self._ask(deleting(self._dialect, places))\n            self._taken.difference_update(places)\n"
        "            shard.deleted += [_key(*place) for place in places]\n",
        "            shard.deleted += [_key(*place) for place in places]\n            await self._place(number, [])\n"
        "            await self._ask(deleting(self._dialect, places))\n",
        _WORLDS,
    ),
    Mutant(
        "a relay looks only behind what it saw last",
        _RELAY,
        "            if last[0] >= number and newest <= last.ended:\n",
        "            if last[0] >= number:\n",
        _WRITERS,
    ),
    Mutant(
        "a transaction that is newer than the last that ended counts as ended",
        _TABLE,
        "(SELECT txid_current()) AS now",
        "(SELECT txid_snapshot_xmax(txid_current_snapshot())) AS now",
        "tests/sql/test_outbox_looks.py::test_a_transaction_that_is_newer_than_all_that_have_ended_is_waited_for",
    ),
    Mutant(
        "rows are numbered without a lock",
        _TABLE,
        "        PERFORM pg_advisory_xact_lock({_LOCKS}, place);\n",
        "        PERFORM {_LOCKS}, place;\n",
        f"{_OUTBOX}::test_no_row_becomes_visible_behind_a_higher_number_of_its_entity",
    ),
    Mutant(
        "rows go by their ids",
        _TABLE,
        '_NUMBER = {"postgresql": "n", "sqlite": "id"}\n',
        '_NUMBER = {"postgresql": "id", "sqlite": "id"}\n',
        _WRITERS,
    ),
    Mutant(
        "a full entity lets its later rows pass",
        _RELAY,
        "            if waits is not None and (waits.rows or waits.until > mono()):\n",
        "            if False:\n",
        f"{_OUTBOX}::test_a_full_entity_waits_alone_and_keeps_its_order",
    ),
)
