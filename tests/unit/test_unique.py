"""`Unique` refuses what cannot be meant, and says what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from command_bus import BusSettings, Command, Envelope, InvalidCommand, RawEnvelope, RegistrationError, Unique
from command_bus.messages.message import EntityId
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.serialization.envelope import unpack_envelope
from command_bus.serialization.reply import Cancelled, pack_reply, raise_or_value, unpack_reply

BUILDER = EnvelopeBuilder(BusSettings())


class Save(Command[None], entity="doc"):
    doc: EntityId


class Tick(Command[None]):
    """Without an entity."""


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"key": ""}, "not empty"),
        ({"key": 7}, "is a text"),
        ({"key": "x" * 513}, "513: use a digest"),
        ({"key": "é" * 257}, "514"),
        ({"key": "\ud800"}, "surrogates"),
        ({"wins": "last"}, "'first' or 'latest'"),
        ({"until": "done"}, "'settled' or 'started'"),
        ({"wins": "latest", "until": "settled"}, "leave `until` out"),
        ({"wins": "latest", "window": 5}, "the first wins"),
        ({"window": 0}, "window"),
        ({"window": float("nan")}, "window"),
        ({"window": "5"}, "window"),
        ({"debounce": 2}, "wins='latest'"),
        ({"wins": "latest", "debounce": -1}, "debounce"),
        ({"wins": "latest", "max_wait": 5}, "give one"),
        ({"wins": "latest", "debounce": 3, "max_wait": 2}, "not below debounce=3"),
    ],
)
def test_85_what_cannot_be_meant_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidCommand, match=text.replace("(", r"\(")):
        Unique(**given)


def test_a_key_of_512_bytes_is_taken() -> None:
    assert Unique("x" * 512).key == "x" * 512


@pytest.mark.parametrize(
    ("message", "options", "text"),
    [
        (Save(doc="a"), {"unique": Unique(wins="latest", debounce=2), "delay": 1}, "give one of them"),
        (Save(doc="a"), {"unique": Unique(wins="latest", debounce=2), "expires": 1}, "would never start"),
        (Save(doc="a"), {"unique": "k"}, "is a Unique"),
        (Tick(), {"unique": Unique("k")}, "names none"),
    ],
)
def test_86_options_that_do_not_go_together_are_refused(message: Any, options: Any, text: str) -> None:
    with pytest.raises(InvalidCommand, match=text):
        BUILDER.outgoing(message, options)
    with pytest.raises(InvalidCommand, match=text):
        BUILDER.of_item(Envelope(message, **options))


def test_a_raw_dispatch_without_entity_has_no_key() -> None:
    with pytest.raises(InvalidCommand, match="names none"):
        BUILDER.raw(RawEnvelope(None, None, "Tick", {}, options={"unique": Unique("k")}))


def test_a_class_needs_an_entity_and_a_unique() -> None:
    with pytest.raises(RegistrationError, match="add entity="):

        class Free(Command[None], unique=Unique()):
            pass

    with pytest.raises(RegistrationError, match="unique is a Unique"):

        class Odd(Command[None], entity="doc", unique="k"):
            doc: EntityId


def test_a_class_hands_its_key_down_and_a_dispatch_overrides_it() -> None:
    class Parent(Save, unique=Unique(wins="latest"), name="parent.save"):
        pass

    class Child(Parent):
        pass

    assert Child.spec().unique == Unique(wins="latest")
    assert unpack_envelope(BUILDER.build(BUILDER.outgoing(Child(doc="a"))).envelope).options == {"u": "Child"}
    given = BUILDER.build(BUILDER.outgoing(Parent(doc="a/b"), {"unique": Unique("k", window=1.5)}))
    assert unpack_envelope(given.envelope).options == {"u": "k"}
    assert given.unique is not None
    assert (given.unique.key, given.unique.mode, given.unique.window_ms) == ("doc:a%2Fb:k", "f", 1500)
    plain = BUILDER.build(BUILDER.outgoing(Save(doc="a")))
    assert (plain.unique, unpack_envelope(plain.envelope).options) == (None, None)


def test_debounce_is_a_delay_that_others_put_off() -> None:
    built = BUILDER.build(BUILDER.outgoing(Save(doc="a"), {"unique": Unique(wins="latest", debounce=2, max_wait=30)}))
    assert built.unique is not None
    assert (built.delay_ms, built.unique.longest_ms, built.unique.mode) == (2000, 30_000, "l")


def test_the_code_travels_in_the_reply() -> None:
    for outcome in (Cancelled("gone"), Cancelled("gone", "superseded")):
        assert unpack_reply(pack_reply("c-1", outcome)) == ("c-1", outcome)
        with pytest.raises(Exception, match="gone") as raised:
            raise_or_value(outcome, None, "c-1")  # type: ignore[arg-type]
        assert raised.value.code == outcome.code  # type: ignore[attr-defined]
