"""Breakages of publication: each subscription that is there gets each event once, in a line of its own."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TESTS, _PUBLISHING = "tests/conformance/test_publication.py", "sending/publishing.py"

PUBLICATION = (
    Mutant(
        "a subscription is put without a wait for older tables",
        "admin/subscriptions.py",
        "        await asyncio.sleep(_SETTLES)\n        return changed\n",
        "        return changed\n",
        f"{_TESTS}::test_put_and_remove_under_load_lose_and_leave_nothing",
    ),
    Mutant(
        "the age of a table counts from its answer",
        _PUBLISHING,
        "            self._asked, self._asked_ms = asked, asked_ms\n",
        "            self._asked, self._asked_ms = mono(), asked_ms\n",
        f"{_TESTS}::test_a_table_is_as_old_as_the_request_for_it",
    ),
    Mutant(
        "a record that is missing is taken for a removal",
        _PUBLISHING,
        "        return record is not None and record.gone_ms > 0 and",
        "        return record is None or record.gone_ms > 0 and",
        f"{_TESTS}::test_a_record_that_is_lost_is_put_again_and_nothing_is_dropped",
    ),
    Mutant(
        "a subscription that was removed and put again loses what was published since",
        _PUBLISHING,
        " and accepted_ms + _SKEW_MS < self._asked_ms\n",
        "\n",
        f"{_TESTS}::test_what_is_younger_than_the_table_is_not_dropped",
    ),
    Mutant(
        "the deliveries of an event are not known by its id",
        _PUBLISHING,
        "                command_id=delivered_name(event.command_id, subscription),\n",
        '                command_id=delivered_name(f"{event.command_id}-{mono()}", subscription),\n',
        f"{_TESTS}::test_each_subscription_gets_each_event_once_in_order",
    ),
    Mutant(
        "the deliveries of an event are on several shards",
        "transport/mailboxes.py",
        "    return mailbox[: end.start()].partition(OF_SUBSCRIPTION)[0] + mailbox[end.start() :]\n",
        "    return mailbox\n",
        f"{_TESTS}::test_all_deliveries_of_an_event_are_on_the_shard_of_its_entity",
    ),
    Mutant(
        "a paused subscription goes on",
        "transport/redis/lua/shared/holds.lua",
        "  local delivered = (string.match(kind, '@.*') or kind) .. ':*'\n",
        "  local delivered = kind .. ':*'\n",
        f"{_TESTS}::test_a_subscription_is_paused_as_a_whole",
    ),
    Mutant(
        "an event of a handler is published although the handler fails",
        "sending/follow_ups.py",
        "        going = [item for item in self._items if completed or item.always]\n",
        "        going = [item for item in self._items if completed or item.always or item.is_event]\n",
        f"{_TESTS}::test_what_a_handler_publishes_goes_with_its_settlement",
    ),
)
