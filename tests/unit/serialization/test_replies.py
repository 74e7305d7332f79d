"""Outcomes to bytes, back, and to what `call` gives or raises."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_bus.errors import (
    BadResult,
    CommandCancelled,
    CommandExpired,
    CommandFailed,
    CommandInterrupted,
    CommandOutcomeError,
    CommandRejected,
    InvalidCommand,
    NoHandler,
)
from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.limits import Undecodable, UnsupportedVersion
from command_bus.serialization.models import reply_codec_for
from command_bus.serialization.msgpack import pack
from command_bus.serialization.native import Packer
from command_bus.serialization.reply import (
    MAX_TEXT,
    BadReply,
    Cancelled,
    Completed,
    Expired,
    Failed,
    Forged,
    Interrupted,
    Invalid,
    Outcome,
    Rejected,
    Unhandled,
    pack_reply,
    raise_or_value,
    reply_id,
    unpack_reply,
)


def raw(value: Any) -> bytes:
    return bytes(Packer().pack(value))


WITH_MESSAGE: list[Any] = [Interrupted, Expired, Unhandled, Invalid, BadReply, Cancelled]
MAY_HAVE_BEGUN: list[Any] = [Unhandled, Invalid, Forged]
texts = st.text(max_size=100)
outcomes = st.one_of(
    st.builds(Completed, st.binary(max_size=200)),
    st.builds(Rejected, texts, texts, st.dictionaries(texts, st.integers(0, 9) | texts | st.dates(), max_size=3)),
    st.builds(Failed, texts, texts, st.integers(0, 1000)),
    *(st.builds(kind, texts) for kind in WITH_MESSAGE),
    *(st.builds(kind, texts, st.booleans()) for kind in MAY_HAVE_BEGUN),
    st.builds(Cancelled, texts, st.sampled_from(["cancelled", "begun"])),
)


@given(st.text(max_size=600), outcomes)
def test_outcomes_come_back_equal(command_id: str, outcome: Outcome) -> None:
    data = pack_reply(command_id, outcome)
    assert unpack_reply(data) == (command_id, outcome)
    assert reply_id(data) == command_id


@pytest.mark.parametrize("length", [1, 31, 32, 255, 256, 512, 65_535])
def test_ids_of_every_length_are_read(length: int) -> None:
    assert reply_id(pack_reply("x" * length, Completed(b"\xc0"))) == "x" * length


@pytest.mark.parametrize("data", [b"", b"\x94", b"\x94\x01", b"\x94\x01\xc0\x00", b"\x80\x01\x80\x80"])
def test_bytes_without_an_id_have_none(data: bytes) -> None:
    assert reply_id(data) == ""


@pytest.mark.parametrize(
    ("parts", "command_id"),
    [
        ([1, "c-1", 99, "new kind"], "c-1"),
        ([1, "c-1", -1, "?"], "c-1"),
        ([1, "c-1", 0, "value that is not packed"], "c-1"),
        ([1, "c-1", 0, None], "c-1"),
        ([1, "c-1", 1, "message", "code"], "c-1"),
        ([1, "c-1", 1, "message", "code", pack([1])], "c-1"),
        ([1, "c-1", 1, "message", "code", b"\xc1"], None),
        ([1, "c-1", 2, "type", "text", "three"], "c-1"),
        ([1, "c-1", 3, 5], "c-1"),
        ([1, "c-1", "0", b"\x05"], "c-1"),
        ([1, "c-1", 0], "c-1"),
        ([0, "c-1", 0, b"\x05"], "c-1"),
        ([1, 5, 0, b"\x05"], None),
        ([], None),
        (5, None),
        ({}, None),
    ],
)
def test_what_is_no_reply_is_refused(parts: Any, command_id: str | None) -> None:
    with pytest.raises(Undecodable) as caught:
        unpack_reply(raw(parts))
    assert caught.value.command_id == command_id
    assert not isinstance(caught.value, UnsupportedVersion)


def test_a_later_version_is_told_apart() -> None:
    with pytest.raises(UnsupportedVersion, match="version 2") as caught:
        unpack_reply(raw([2, "c-1", "anything", None]))
    assert caught.value.command_id == "c-1"


def test_elements_that_a_later_version_appends_are_ignored() -> None:
    assert unpack_reply(raw([1, "c-1", 0, b"\x05", "new"])) == ("c-1", Completed(b"\x05"))
    assert unpack_reply(raw([1, "c-1", 3, "lost", "new"])) == ("c-1", Interrupted("lost"))


def test_long_and_broken_texts_are_made_fit() -> None:
    for outcome in (
        Failed("T\ud800", "ä" * MAX_TEXT, 1),
        Rejected("x" * 2 * MAX_TEXT, "y" * 2 * MAX_TEXT),
        *(kind("\udfff" * MAX_TEXT) for kind in WITH_MESSAGE),
    ):
        data = pack_reply("c-1", outcome)
        assert len(data) < 2 * MAX_TEXT + 100
        assert type(unpack_reply(data)[1]) is type(outcome)
    assert unpack_reply(pack_reply("c", Failed("T", "ä" * MAX_TEXT, 1)))[1] == Failed("T", "ä" * (MAX_TEXT // 2) + "…", 1)
    assert unpack_reply(pack_reply("c", Expired("a\ud800")))[1] == Expired("a\\ud800")


def test_a_rejection_arrives_even_if_its_details_cannot() -> None:
    _, outcome = unpack_reply(pack_reply("c-1", Rejected("no", "code", {"a": {"b": object()}})))
    assert isinstance(outcome, Rejected)
    assert (outcome.code, outcome.details) == ("code", {})
    assert outcome.message.startswith("no (its details cannot be sent: a.b: a value of type object")


def test_a_code_of_another_type_is_sent_as_text() -> None:
    assert unpack_reply(pack_reply("c", Rejected("no", 7)))[1] == Rejected("no", "7")  # type: ignore[arg-type]


def test_a_completed_command_gives_its_typed_value() -> None:
    codec = reply_codec_for(set[int])
    assert raise_or_value(Completed(codec.encode({1, 2})), codec, "c-1") == {1, 2}


@pytest.mark.parametrize(
    ("outcome", "error", "message"),
    [
        (Interrupted("lost"), CommandInterrupted, "lost"),
        (Expired("late"), CommandExpired, "late"),
        (Unhandled("unknown"), NoHandler, "unknown"),
        (Cancelled("purged"), CommandCancelled, "purged"),
        (BadReply("no int"), BadResult, "no int"),
        (Invalid("amount"), InvalidCommand, "amount"),
        (Rejected("no", "insufficient", {"a": 1}), CommandRejected, "no"),
        (Failed("ValueError", "boom", 3), CommandFailed, "ValueError: boom (tried 3 times; the command is in the dead letters)"),
        (Failed("ValueError", "boom", 1), CommandFailed, "ValueError: boom (tried once; the command is in the dead letters)"),
        (Completed(pack("five")), BadResult, "the reply is not int as this process knows it: Input should be a valid integer"),
    ],
)
def test_every_other_outcome_is_its_error(outcome: Outcome, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        raise_or_value(outcome, reply_codec_for(int), "c-1")
    assert type(caught.value) is error
    assert str(caught.value) == message
    assert str(pickle.loads(pickle.dumps(caught.value))) == message
    if isinstance(caught.value, CommandOutcomeError):
        assert caught.value.command_id == "c-1"


def test_errors_carry_their_values() -> None:
    with pytest.raises(CommandRejected) as rejected:
        raise_or_value(Rejected("no", "insufficient", {"a": 1}), reply_codec_for(int), "c-1")
    assert (rejected.value.code, rejected.value.details) == ("insufficient", {"a": 1})
    with pytest.raises(CommandFailed) as failed:
        raise_or_value(Failed("ValueError", "boom", 3), reply_codec_for(int), "c-1")
    assert (failed.value.error_type, failed.value.error_message, failed.value.attempts) == ("ValueError", "boom", 3)


# Dead letters.

numbers = st.integers(0, 2**53)
records = st.builds(
    DeadLetterRecord,
    reason=texts,
    command_id=texts,
    name=texts,
    entity_type=st.none() | texts,
    entity_id=st.none() | texts,
    error_type=texts,
    error_message=texts,
    traceback=texts,
    attempts=numbers,
    accepted_ms=numbers,
    first_started_ms=numbers,
    failed_ms=numbers,
    worker=texts,
    headers=st.dictionaries(texts, texts, max_size=3),
)


@given(records)
def test_records_come_back_equal(record: DeadLetterRecord) -> None:
    assert DeadLetterRecord.unpack(record.pack()) == record


def test_unknown_keys_are_ignored_and_missing_ones_have_defaults() -> None:
    assert DeadLetterRecord.unpack(pack({"reason": "failed", "new": {"a": 1}})) == DeadLetterRecord(reason="failed")
    assert DeadLetterRecord.unpack(pack({})) == DeadLetterRecord(reason="unknown")


def test_mistyped_values_have_defaults() -> None:
    found = DeadLetterRecord.unpack(
        pack({"reason": "failed", "attempts": "3", "name": 5, "headers": {"a": 1}, "entity_id": None, 5: 6})
    )
    assert found == DeadLetterRecord(reason="failed")


def test_a_record_that_is_no_map_is_undecodable() -> None:
    with pytest.raises(Undecodable, match="no map"):
        DeadLetterRecord.unpack(pack([1]))


def test_long_texts_are_cut_and_of_a_traceback_the_end_is_kept() -> None:
    trace = "first line\n" + "x" * 100_000 + "\nlast line"
    record = DeadLetterRecord(reason="failed", traceback=trace, error_message="m" * 100_000, headers={"h\ud800": "v\udfff"})
    found = DeadLetterRecord.unpack(record.pack())
    assert len(record.pack()) < 32 * 1024
    assert found.traceback.startswith("…xxx")
    assert found.traceback.endswith("last line")
    assert len(found.traceback) == 16 * 1024 + 1
    assert found.error_message.startswith("mmm")
    assert found.headers == {"h\\ud800": "v\\udfff"}
