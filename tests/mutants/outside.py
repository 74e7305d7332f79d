"""Breakages of what faces people and other programs: the gateway, the dashboard, webhooks."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["OUTSIDE"]

_TOKENS, _SENDING, _BAD, _FOLLOWING, _INSPECTING, _OPENAPI = (
    f"tests/gateway/test_{part}.py" for part in ("tokens", "sending", "bad_requests", "following", "inspecting", "openapi")
)
_USERS, _ACTS, _PARTS = (f"tests/dashboard/test_{part}.py" for part in ("users", "acts", "parts"))
_PURPOSES = "tests/tables/test_purposes.py"
_FORGERIES = "tests/tables/test_webhook_forgeries.py"
_WEBHOOKS, _UNIT_WEBHOOKS = "tests/conformance/test_webhooks.py", "tests/unit/test_webhooks.py"

OUTSIDE = (
    # The gateway: who may do what.
    Mutant(
        "who may send may also call",
        "gateway/sending.py",
        "    if not rights.may(act, name):\n",
        "    if False:\n",
        f"{_TOKENS}::test_141_each_token_may_do_what_its_rights_say",
    ),
    Mutant(
        "a right for one command is one for all",
        "gateway/tokens.py",
        "(act, command) in self._commands)\n",
        "any(each == act for each, _ in self._commands))\n",
        f"{_TOKENS}::test_141_nothing_of_a_forbidden_batch_is_sent",
    ),
    Mutant(
        "a token learns of commands that it may not send",
        "gateway/sending.py",
        '        allowed = [each for each in await catalogue.all() if rights.may("send", each) or rights.may("call", each)]\n'
        "        raise Problem(\n",
        "        allowed = [*await catalogue.all()]\n        raise Problem(\n",
        f"{_TOKENS}::test_141_a_token_for_one_command_learns_of_no_other",
    ),
    Mutant(
        "operators' reads are open to every token",
        "gateway/incoming.py",
        "        if not self.holder.rights.may(act):\n",
        "        if not self.holder.rights.may(act) and act != 'inspect':\n",
        f"{_INSPECTING}::test_141_operators_reads_want_their_right",
    ),
    Mutant(
        "streams are open to every token",
        "gateway/following.py",
        '    incoming.need("events")\n',
        "",
        f"{_FOLLOWING}::test_141_streams_want_their_right",
    ),
    Mutant(
        "a hash of a token is a token",
        "gateway/tokens.py",
        '        return self._now().get(digest_of(authorization[7:].strip(b" ")))\n',
        '        given = authorization[7:].strip(b" ")\n'
        '        if given.startswith(b"sha256$"):\n'
        '            return self._now().get(_digest_in(given.decode("latin-1")))\n'
        "        return self._now().get(digest_of(given))\n",
        f"{_TOKENS}::test_140_without_a_token_nothing_is_open",
    ),
    Mutant(
        "of two headers the first is believed",
        "gateway/incoming.py",
        "    if len(found) > 1:\n",
        "    if len(found) > 9:\n",
        f"{_TOKENS}::test_140_two_tokens_are_none",
    ),
    Mutant(
        "a token without a rate left is served",
        "gateway/app.py",
        "        if wait > 0:\n",
        "        if wait > 9:\n",
        f"{_TOKENS}::test_148_a_rate_is_429_with_retry_after",
    ),
    Mutant(
        "a batch counts as one request",
        "gateway/sending.py",
        "        incoming.holder.rate.take(max(0, len(batch.commands) - 1))\n",
        "        pass\n",
        f"{_TOKENS}::test_148_each_command_of_a_batch_counts",
    ),
    # The gateway: what is sent.
    Mutant(
        "the key of a request is not the command's id",
        "gateway/sending.py",
        '    options["command_id"], options["headers"] = asked.command_id, asked.headers\n',
        '    options["headers"] = asked.headers\n',
        f"{_SENDING}::test_the_key_is_the_command_id",
    ),
    Mutant(
        "a wrong command of a batch is left out",
        "gateway/sending.py",
        "    items = await incoming.apart(len(body), lambda: [_item(incoming, number, *each) for number, each in numbered])\n",
        "    items = []\n"
        "    for number, each in numbered:\n"
        "        try:\n"
        "            items.append(_item(incoming, number, *each))\n"
        "        except Problem:\n"
        "            continue\n",
        f"{_BAD}::test_144_a_wrong_item_of_a_batch_sends_nothing",
    ),
    Mutant(
        "a large body is read in the event loop",
        "gateway/incoming.py",
        "        if size <= _AT_ONCE:\n",
        "        if True:\n",
        f"{_BAD}::test_145_a_large_body_is_read_beside_the_event_loop",
    ),
    Mutant(
        "one user takes all open pages",
        "dashboard/live.py",
        "    if visit.state.pages_of[visit.user.name] >= _MOST_EACH:\n",
        "    if False:\n",
        "tests/dashboard/test_live.py::test_184_one_user_does_not_take_all_open_pages",
    ),
    Mutant(
        "a list reads payloads of any size",
        "dashboard/pages/standing.py",
        "        is_large = len(letter.raw) > _MOST_READ\n",
        "        is_large = False\n",
        "tests/dashboard/test_payload_costs.py::test_190_a_list_does_not_read_large_payloads",
    ),
    Mutant(
        "a receiver holds slots of a worker",
        "webhooks/deliveries.py",
        "await while_lent(poster.post(record, headers, body))",
        "await poster.post(record, headers, body)",
        "tests/conformance/test_webhooks.py::test_193_a_slow_receiver_holds_up_no_other_and_no_command",
    ),
    Mutant(
        "a forged command is told by the ids that it claims",
        "transport/redis/lua/advance/3b_verbs.lua",
        "left and left.waiting and '' or envelope",
        "envelope",
        "tests/tables/test_webhook_forgeries.py::test_192_a_forged_command_is_told_without_the_ids_that_it_claims",
    ),
    Mutant(
        "a batch is sent from its end",
        "gateway/sending.py",
        "    result = await incoming.bus.dispatch_batch(items)\n",
        "    result = await incoming.bus.dispatch_batch(items[::-1])\n",
        f"{_SENDING}::test_a_batch_keeps_the_order_of_an_entity",
    ),
    Mutant(
        "a misspelt option is ignored",
        "gateway/incoming.py",
        '            raise Problem(400, "invalid_query", f"{name[:60]!r} is not known here{did_you_mean(name, known)}", known=known)\n',
        "            continue\n",
        f"{_BAD}::test_152_an_address_that_is_none",
    ),
    Mutant(
        "a body without a length is read to its end",
        "gateway/incoming.py",
        "            if size > limit:\n",
        "            if False:\n",
        f"{_BAD}::test_145_a_body_that_is_too_large",
    ),
    Mutant(
        "a slow body is waited for",
        "gateway/incoming.py",
        "            async with asyncio.timeout(self.state.options.body_timeout):\n",
        "            async with asyncio.timeout(None):\n",
        f"{_BAD}::test_147_a_slow_body_is_408",
    ),
    Mutant(
        "what a handler raised is told to everybody",
        "gateway/problems.py",
        "    if status < 500 or isinstance(error, _TOLD):\n",
        "    if True:\n",
        f"{_BAD}::test_155_a_handler_that_fails_shows_nothing_of_itself",
    ),
    Mutant(
        "a wait has no bound",
        "gateway/sending.py",
        "    seconds = min(wait, incoming.state.options.max_wait)\n",
        "    seconds = wait\n",
        f"{_BAD}::test_151_one_waits_no_longer_than_may_be",
    ),
    Mutant(
        "an OpenAPI document names what its token may not send",
        "gateway/openapi.py",
        '        may_send, may_call = rights.may("send", name) and not command.is_query, rights.may("call", name)\n',
        "        may_send, may_call = not command.is_query, True\n",
        f"{_OPENAPI}::test_it_has_what_the_token_may_do",
    ),
    # The gateway: what is followed.
    Mutant(
        "a client that joins hears what it has had",
        "gateway/following.py",
        "        if _number(heard.id) > _number(ids[heard.feed]):\n",
        "        if True:\n",
        f"{_FOLLOWING}::test_nothing_is_lost_or_doubled_while_one_joins",
    ),
    Mutant(
        "a client that joins hears only what is read from then on",
        "gateway/following.py",
        '            ids = after.split(",") if after else ["0-0"] * len(ids)\n'
        "            async for event in _chained(first, kept):\n"
        '                ids = event.cursor.split(",")\n'
        "                yield _event(event, event.cursor)\n",
        "",
        f"{_FOLLOWING}::test_one_goes_on_behind_the_last_event",
    ),
    Mutant(
        "a slow client is not told what it missed",
        "gateway/event_hub.py",
        "            self.missed += 1\n",
        "",
        f"{_FOLLOWING}::test_a_slow_client_is_told_what_it_missed",
    ),
    Mutant(
        "streams are counted for ever",
        "gateway/following.py",
        "            state.streams -= 1\n",
        "            pass\n",
        f"{_FOLLOWING}::test_events_come_as_they_happen",
    ),
    Mutant(
        "one token may have all streams",
        "gateway/following.py",
        "        if state.streams_of[holder] >= state.options.max_streams_each:\n",
        "        if False:\n",
        f"{_FOLLOWING}::test_154_one_token_does_not_take_all_streams",
    ),
    Mutant(
        "each who follows a command reads by itself",
        "gateway/progress_hub.py",
        "        if course is None or course.ended:\n",
        "        if True:\n",
        f"{_FOLLOWING}::test_those_who_follow_a_command_share_one_reader",
    ),
    Mutant(
        "silent connections are kept",
        "integrations/serving.py",
        "        self.waits_since = mono()\n        self._wait()\n",
        "        self.waits_since = mono()\n",
        "tests/gateway/test_served.py::test_147_silent_connections_shut_out_no_one_for_long",
    ),
    # The dashboard.
    Mutant(
        "a form of another site is taken",
        "dashboard/guard.py",
        '    if site is not None and site != "same-origin":\n        return False\n',
        "    if site is not None:\n        return True\n",
        f"{_ACTS}::test_163_a_form_of_another_site_or_user_or_none_is_refused",
    ),
    Mutant(
        "a form of another user is taken",
        "dashboard/visit.py",
        '        return facts is not None and facts.get("name") == self.user.name\n',
        "        return facts is not None\n",
        f"{_ACTS}::test_163_a_form_of_another_site_or_user_or_none_is_refused",
    ),
    Mutant(
        "a session does not end",
        "dashboard/signing.py",
        '        return facts if facts is not None and facts.get("until", 0) > wall_ms() else None\n',
        "        return facts\n",
        f"{_USERS}::test_162_sessions_end_and_are_not_forged",
    ),
    Mutant(
        "a signature of one kind counts as another",
        "dashboard/signing.py",
        '        return _text(hmac.digest(self._key, f"{kind}\\0{body}".encode(), "sha256"))\n',
        '        return _text(hmac.digest(self._key, body.encode(), "sha256"))\n',
        f"{_USERS}::test_162_sessions_end_and_are_not_forged",
    ),
    Mutant(
        "a changed password leaves sessions open",
        "dashboard/passwords.py",
        ' or facts.get("pin") != _pin(entry):\n',
        ":\n",
        f"{_USERS}::test_162_sessions_end_and_are_not_forged",
    ),
    Mutant(
        "a try is counted once its password was checked",
        "dashboard/sign_in.py",
        "    users.attempts.begin(source)\n"
        '    name = fields["name"].strip()\n'
        '    if not await users.is_user(name, fields["password"]):\n',
        '    name = fields["name"].strip()\n'
        '    is_right = await users.is_user(name, fields["password"])\n'
        "    users.attempts.begin(source)\n"
        "    if not is_right:\n",
        f"{_USERS}::test_161_many_tries_at_a_time_are_no_way_around",
    ),
    Mutant(
        "masked values stand in errors",
        "dashboard/masking.py",
        " else without(text, values, MASK)\n",
        " else text\n",
        f"{_PARTS}::test_masked_values_are_hidden_in_errors",
    ),
    Mutant(
        "a mask becomes the value",
        "dashboard/masking.py",
        "                if text in keys and self._is_masked(name, text) and value == MASK\n",
        "                if False\n",
        f"{_PARTS}::test_an_edited_payload_keeps_what_was_not_changed",
    ),
    Mutant(
        "a mask that was moved is sent",
        "dashboard/masking.py",
        "        if held := _mask_in(after, place):\n            raise _not_restored(held)\n        return after\n",
        "        return after\n",
        f"{_PARTS}::test_a_mask_that_stands_for_no_value_is_refused",
    ),
    Mutant(
        "letters that were not counted are changed",
        "dashboard/acts/chosen_letters.py",
        "if one.place >= first]\n",
        "if one.place]\n",
        "tests/dashboard/test_bulk.py::test_only_what_was_counted_is_changed",
    ),
    Mutant(
        "a failure ends the pulse",
        "dashboard/pulse.py",
        "        except Exception as error:  # noqa: BLE001 - whatever it is, the next beat may be well\n",
        "        except ZeroDivisionError as error:\n",
        "tests/dashboard/test_live.py::test_a_failure_does_not_end_the_pulse",
    ),
    # Webhooks.
    Mutant(
        "a webhook reaches private addresses by a name",
        "webhooks/addresses.py",
        "        if allow_private or is_public(address):\n",
        "        if True:\n",
        f"{_WEBHOOKS}::test_176_addresses_of_this_machine_and_of_private_networks_are_refused",
    ),
    Mutant(
        "an address within an address is public",
        "webhooks/addresses.py",
        "    return all(_is_given_out(each) for each in _unwrapped(parsed))\n",
        "    return _is_given_out(parsed)\n",
        f"{_UNIT_WEBHOOKS}::test_176_addresses_that_are_not_public",
    ),
    Mutant(
        "a redirect is followed",
        "webhooks/posting.py",
        "            follow_redirects=False,\n",
        "            follow_redirects=True,\n",
        f"{_WEBHOOKS}::test_a_redirect_is_not_followed_and_gone_pauses",
    ),
    Mutant(
        "a body that is cut undoes the status",
        "webhooks/posting.py",
        "with suppress(TimeoutError, OSError, httpx.HTTPError, httpx.StreamError):",
        "with suppress(ZeroDivisionError):",
        "tests/tables/test_cut_answers.py::test_the_status_decides",
    ),
    Mutant(
        "an endless answer is read",
        "webhooks/posting.py",
        "if read > _MOST_READ:",
        "if False:",
        "tests/tables/test_cut_answers.py::test_a_body_without_an_end_is_let_go",
    ),
    # Whom a receiver believes.
    Mutant(
        "a delivery without a seal is signed",
        "webhooks/deliveries.py",
        "if not record.key or not hmac.compare_digest(",
        "if not record.key and not hmac.compare_digest(",
        f"{_FORGERIES}::test_186_no_text_of_a_sender_is_signed",
    ),
    Mutant(
        "what senders say is told as what workers did",
        "transport/redis/admin/events.py",
        "    is_told = feed == shard or facts[0] in SENT_KINDS\n",
        "    is_told = True\n",
        f"{_FORGERIES}::test_186_no_text_of_a_sender_is_signed",
    ),
    Mutant(
        "an application's class takes a name of ours",
        "messages/message.py",
        "    own = name is not None and is_internal(name) and cls.__module__.startswith(_INTERNAL)\n",
        "    own = name is not None and is_internal(name)\n",
        f"{_FORGERIES}::test_185_no_door_shows_or_takes_the_name",
    ),
    Mutant(
        "tokens share their ids",
        "gateway/tokens.py",
        """        return f"{quote(self.name, safe='')}:{key}"\n""",
        "        return key\n",
        f"{_TOKENS}::test_no_token_meets_the_command_of_another_by_a_key",
    ),
    # What is signed and encrypted, and for what.
    Mutant(
        "a captured command is a template",
        "serialization/protection.py",
        '_TEMPLATE: b"command_bus schedule\\0"}',
        '_TEMPLATE: b"command_bus envelope\\0"}',
        f"{_PURPOSES}::test_188_a_captured_command_is_no_template",
    ),
    Mutant(
        "a reply is that of any command of its id",
        "serialization/protection.py",
        "        if tuple(of) != outcome.encrypted[: len(of)]:\n",
        "        if False:\n",
        f"{_PURPOSES}::test_a_reply_is_of_the_command_that_was_asked_for",
    ),
    Mutant(
        "a command that was signed once undoes something",
        "sending/children.py",
        "        if (envelope.options or {}).get(RETURN) != [self._mailbox, self._caller, first]:\n",
        "        if False:\n",
        "tests/security/test_durable_signatures.py::test_what_nobody_signed_is_not_signed",
    ),
    Mutant(
        "files of users and tokens are read once",
        "integrations/reread_files.py",
        "            if (state := self._state()) != self._seen:\n",
        "            if (state := self._seen) != self._seen:\n",
        "tests/tables/test_reread_files.py::test_what_the_file_says_holds",
    ),
    Mutant(
        "a stream outlives its token",
        "gateway/following.py",
        "            if holder is None or not holder.rights.may(act):\n",
        "            if False:\n",
        f"{_FOLLOWING}::test_a_stream_ends_with_the_right_to_it",
    ),
    Mutant(
        "what an allowed module has imported may be named",
        "spark/writing/named_imports.py",
        '    if are_restricted() and not may_import(str(getattr(found, "__module__", ""))):\n',
        "    if False:\n",
        "tests/tables/test_named_imports.py::test_187_only_what_was_allowed_is_a_mapper",
    ),
    Mutant(
        "a mapper may return anything",
        "spark/writing/named_imports.py",
        "        if not all(isinstance(each, type) and issubclass(each, Message) for each in kinds):\n",
        "        if False:\n",
        "tests/tables/test_named_imports.py::test_187_only_what_was_allowed_is_a_mapper",
    ),
    Mutant(
        "whole numbers never crowd",
        "serialization/hash_collisions.py",
        "    if kinds <= _SPREAD and not (may_be_long and int in kinds):\n",
        "    if kinds <= _SPREAD:\n",
        "tests/tables/test_floods.py::test_members_of_one_hash_are_refused",
    ),
    Mutant(
        "one token holds all requests by waiting",
        "gateway/app.py",
        "        if requests[holder.name] >= most:\n",
        "        if False:\n",
        f"{_TOKENS}::test_184_one_token_does_not_hold_all_requests_by_waiting",
    ),
    Mutant(
        "connections are kept for ever",
        "integrations/serving.py",
        "        if len(self.connections) > MOST_AT_ONCE + _SPARE:\n",
        "        if False:\n",
        "tests/gateway/test_served.py::test_who_keeps_all_connections_by_probes_shuts_out_no_one",
    ),
    Mutant(
        "answers may stay unread for ever",
        "integrations/serving.py",
        "        if self.transport.get_write_buffer_size() > most_left:\n",
        "        if False:\n",
        "tests/gateway/test_served.py::test_147_answers_that_are_not_read_shut_out_no_one",
    ),
    Mutant(
        "probes wait as all others do",
        "integrations/serving.py",
        """ or scope["path"] == f"{scope.get('root_path', '')}{PROBE}":\n""",
        ":\n",
        "tests/gateway/test_served.py::test_a_probe_is_answered_beside_all_that_wait",
    ),
    Mutant(
        "any number of masked values is looked for",
        "dashboard/masking.py",
        "        return CROWDED if is_long or len(values) > MOST_VALUES else",
        "        return CROWDED if is_long else",
        "tests/tables/test_masked.py::test_a_payload_with_very_many_values_shows_no_text_and_costs_little",
    ),
)
