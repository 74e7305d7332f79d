"""Whatever an entity is called, its keys are its own: names of mailboxes are injective, plain, and in the slot of their shard."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from command_bus.errors import InvalidCommand
from command_bus.messages.message import canonical_entity_id
from command_bus.messages.policies import PerEntity, lanes
from command_bus.transport.mailboxes import free_mailbox, mailbox_label, mailbox_name, mailbox_parts, stands_in
from command_bus.transport.redis.keys import KEYS, ShardKeys

AWKWARD = [
    "}",
    "}{",
    "{x}",
    ":",
    "a:b",
    "/",
    "a/b",
    "~",
    "~:",
    "%",
    "%7D",
    "%257D",
    "\n",
    "\0",
    " ",
    "\r\n",
    "🦊",
    "\u202e",
    "é",
    "e\u0301",
    "|",
    "*",
    "?",
    "[a]",
]
AWKWARD += ["k:x", "}:k:x", "m:a", "box:a", "\x7f", "\\", '"', "x" * 512, "x" * 513, "é" * 256, "é" * 257, "x" * 4096]
ids = st.one_of(
    st.sampled_from(AWKWARD),
    st.text(min_size=1, max_size=60),
    st.lists(st.sampled_from(AWKWARD[:24]), min_size=1, max_size=5).map("".join),
)
types = st.sampled_from(["box", "account", "a", "a_b", "a.b", "a-b"])
_PLAIN = re.compile(r"[A-Za-z0-9_.@~%:/-]+")


def valid(entity_id: str) -> bool:
    try:
        return canonical_entity_id(entity_id) == entity_id
    except InvalidCommand:
        return False


@given(types, ids, types, ids)
@example("a", "b:c", "a", "b%3Ac")
@example("a", "~" + "0" * 64, "a", "x" * 600)
@example("a", "}", "a", "%7D")
def test_two_entities_never_share_a_key(type_1: str, id_1: str, type_2: str, id_2: str) -> None:
    if not (valid(id_1) and valid(id_2)):
        return
    one, two = (mailbox_name(kind, name, PerEntity()) for kind, name in ((type_1, id_1), (type_2, id_2)))
    assert (one == two) == ((type_1, id_1) == (type_2, id_2))
    assert stands_in(one, type_2, id_2, "c", PerEntity()) == ((type_1, id_1) == (type_2, id_2))


@given(types, ids)
def test_a_name_is_plain_and_stays_in_its_slot(kind: str, name: str) -> None:
    if not valid(name):
        return
    keys = ShardKeys("shop", 3)
    mailbox = mailbox_name(kind, name, PerEntity())
    key = keys.mailbox(mailbox)
    assert _PLAIN.fullmatch(mailbox)
    assert len(mailbox) < 1700
    assert key_slot(key.encode()) == key_slot(keys.ready.encode())
    assert key not in {getattr(keys, name) for name in KEYS}
    assert mailbox_label(mailbox).isprintable()
    shown_type, shown_id = mailbox_parts(mailbox)
    assert (shown_type, shown_id) == (kind, name) or (shown_id is None and len(name.encode()) > 512)


@given(types, ids, st.integers(1, 64))
def test_a_lane_is_no_entity_of_its_own(kind: str, name: str, count: int) -> None:
    if not valid(name):
        return
    lane = mailbox_name(kind, name, lanes(count))
    assert re.fullmatch(rf"{re.escape(kind)}/\d+", lane)
    assert lane != mailbox_name(kind, name, PerEntity())


@given(ids, types, ids)
def test_a_command_without_an_entity_never_conflicts(command_id: str, kind: str, name: str) -> None:
    if not (valid(name) and valid(command_id)):
        return
    assert free_mailbox(command_id) != mailbox_name(kind, name, PerEntity())


@pytest.mark.parametrize("bad", ["", "x" * 10_000, "é" * 2049, "\ud800", "a\udfff"])
def test_an_invalid_name_is_refused(bad: str) -> None:
    with pytest.raises(InvalidCommand):
        canonical_entity_id(bad)
