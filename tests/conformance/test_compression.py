"""Payloads and replies that travel compressed: every way of a command reads them, and nothing else is different."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    EntityId,
    Envelope,
    IdempotencyConflict,
    Limit,
    PayloadTooLarge,
    Rate,
    RetryPolicy,
    every,
)
from command_bus.serialization.envelope import WireEnvelope, pack_envelope
from command_bus.serialization.limits import PayloadLimits
from command_bus.transport.submissions import NO_DIGEST, Submission
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.schedules.schedule_parts import MINUTE, Clock, fire

TEXT = "what compresses well, " * 500


class Note(Command[str], entity="note", retry=RetryPolicy(attempts=1), limits=(Limit("pens", key="pen"),)):
    note: EntityId
    text: str
    pen: str = "blue"


class Notes:
    """Handles notes, gives each text back, and fails at those that say so."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.seen: list[str] = []

        async def write(command: Note) -> str:
            if command.text.startswith("fail"):
                raise RuntimeError("as it says")
            self.seen.append(command.text)
            return command.text

        sandbox.registry.handles(Note)(write)


async def the_letter(bus: CommandBus) -> Any:
    await until(bus.dead_letters.count)
    [letter] = [each async for each in bus.dead_letters.list()]
    return letter


@pytest.mark.promise("Compression changes only sizes")
async def test_what_waits_is_small_and_runs_as_it_was_sent(sandbox: Sandbox) -> None:
    notes = Notes(sandbox)
    async with sandbox.bus(compress_above=1000) as bus, sandbox.bus() as plain:
        await bus.dispatch(Note(note="a", text=f"1 {TEXT}"))
        await bus.dispatch(Note(note="a", text=f"2 {TEXT}"))
        await bus.dispatch(Note(note="a", text="3"))
        await bus.dispatch_batch(
            [Note(note="a", text=f"4 {TEXT}"), Envelope(Note(note="a", text=f"5 {TEXT}"), command_id="five")]
        )
        await bus.dispatch_raw("note", "a", "Note", {"note": "a", "text": f"6 {TEXT}"})
        await plain.dispatch(Note(note="a", text=f"7 {TEXT}"))
        await bus.dispatch(Note(note="b", text=f"8 {TEXT}"), delay=0.05, priority="high")
        async with plain.worker():  # who reads needs no setting
            await until(lambda: _is(len(notes.seen) == 8))
    assert [text[0] for text in notes.seen if text[0] != "8"] == list("1234567")
    assert all(text in ("3", f"{text[0]} {TEXT}") for text in notes.seen)


async def _is(value: bool) -> bool:
    return value


async def test_the_server_holds_fewer_bytes(sandbox: Sandbox) -> None:
    sizes: list[int] = []
    for above in (None, 1000):
        async with sandbox.bus(compress_above=above) as bus:
            await bus.dispatch_batch([Note(note="a", text=TEXT) for _ in range(20)])
            client = sandbox.client()
            entries = await client.xrange(f"{{{sandbox.namespace}:0}}:m:note:a")
            await client.aclose()
            sizes.append(sum(len(value) for _, fields in entries for value in fields.values()))
        await sandbox.clean()
    assert sizes[1] < sizes[0] / 20


async def test_replies_and_kept_results_come_back_whole(sandbox: Sandbox) -> None:
    Notes(sandbox)
    async with sandbox.bus(compress_above=1000) as bus, sandbox.bus() as plain, bus.worker():
        assert await plain.call(Note(note="a", text=TEXT), timeout=10) == TEXT
        assert await bus.call(Note(note="a", text=TEXT), command_id="c-1", timeout=10) == TEXT
        assert await plain.result("c-1", Note) == TEXT
        assert await plain.result("c-1") == TEXT
        assert await plain.call_raw("note", "a", "Note", {"note": "a", "text": TEXT}, timeout=10) == TEXT
        receipt = await bus.dispatch(Note(note="a", text=TEXT), keep_result=True)
        assert await receipt.result(timeout=10) == TEXT


async def test_replies_of_a_class_travel_compressed(sandbox: Sandbox) -> None:
    class Read(Command[str], entity="note", compress_above=1000):
        note: EntityId

    async def read(command: Read) -> str:
        return TEXT

    sandbox.registry.handles(Read)(read)
    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Read(note="a"), command_id="c-1", timeout=10) == TEXT
        [mark] = [each for each in await bus.transport.locations.marks("c-1") if each]
        assert len(mark) < 1000


@pytest.mark.promise("Compression changes only sizes")
async def test_a_repeat_is_found_however_it_travels(sandbox: Sandbox) -> None:
    notes = Notes(sandbox)
    async with sandbox.bus(compress_above=1000) as bus, sandbox.bus() as plain:
        note = Note(note="a", text=TEXT)
        assert (await bus.dispatch(note, command_id="c-1")).status == "accepted"
        assert (await plain.dispatch(note, command_id="c-1")).status == "duplicate"
        async with plain.worker():
            await bus.wait_idle(10)
            assert (await plain.dispatch(note, command_id="c-1")).status == "duplicate"
            with pytest.raises(IdempotencyConflict):
                await bus.dispatch(Note(note="a", text=TEXT + "."), command_id="c-1")
    assert notes.seen == [TEXT]


async def test_dead_letters_are_shown_replayed_and_edited(sandbox: Sandbox) -> None:
    notes = Notes(sandbox)
    async with sandbox.bus(compress_above=1000) as bus, sandbox.bus() as plain, plain.worker():
        await bus.dispatch(Note(note="a", text=f"fail {TEXT}"), command_id="c-1")
        letter = await the_letter(plain)
        assert letter.payload == {"note": "a", "text": f"fail {TEXT}", "pen": "blue"}
        assert len(letter.raw) < 1000
        await plain.dead_letters.replay(letter.id)
        await until(lambda: _other(bus, letter.id))
        letter = await the_letter(plain)
        await plain.dead_letters.replay(letter.id, payload={"note": "a", "text": f"fail again {TEXT}"})
        await until(lambda: _other(bus, letter.id))
        letter = await the_letter(plain)
        assert (letter.payload["text"], len(letter.raw) < 1000) == (f"fail again {TEXT}", True)
        await plain.dead_letters.replay(letter.id, payload=Note(note="a", text="fail: short"))  # it travels as it is then
        await until(lambda: _other(bus, letter.id))
        letter = await the_letter(plain)
        await plain.dead_letters.replay(letter.id, payload=Note(note="a", text=f"well {TEXT}"))
        await bus.wait_idle(10)
    assert notes.seen == [f"well {TEXT}"]


async def _other(bus: CommandBus, letter_id: str) -> bool:
    return any([each.id != letter_id async for each in bus.dead_letters.list()])


async def test_schedules_and_limits_read_it(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, notes = Clock(monkeypatch), Notes(sandbox)
    async with sandbox.bus(compress_above=1000) as bus, sandbox.bus() as plain:
        clock.rule(bus)
        clock.rule(plain)
        await bus.limits.put("pens", Rate(1, per=1000.0, burst=5))
        await bus.schedules.put("daily", Note(note="a", text=TEXT, pen="red"), every(60))
        clock.ms += MINUTE
        await fire(plain, "daily")
        async with plain.worker():
            await plain.wait_idle(10)
        keys = [each.key for each in await bus.limits.list("pens") if each.key]
    assert (notes.seen, keys) == ([TEXT], ["red"])


@pytest.mark.promise("Compression changes only sizes")
async def test_114_a_payload_that_expands_beyond_the_limit_is_a_dead_letter(sandbox: Sandbox) -> None:
    notes = Notes(sandbox)
    bomb = zlib.compress(b"\0" * 10_000_000)
    async with sandbox.bus() as bus, bus.worker():
        await bus.call(Note(note="a", text="first"), timeout=10)
        for number, payload in enumerate((bomb, b"no zlib", zlib.compress(b"\x80")[:-2])):
            sent = WireEnvelope(f"c-{number}", "Note", "note", "a", payload, options={"z": "zlib"})
            await bus.transport.producer.enqueue(Submission("note:a", f"c-{number}", pack_envelope(sent), NO_DIGEST, 100), 5.0)
            await bus.wait_idle(10)
        letters = [each async for each in bus.dead_letters.list()]
        assert {letter.reason for letter in letters} == {"undecodable"}
        assert [letter.error_message for letter in letters] == [
            f"{len(bomb)} compressed bytes that expand to more than {PayloadLimits().max_bytes + 64 * 1024}, the limit",
            "a compressed part that is damaged",
            "a compressed part that is cut short, or has bytes after its end",
        ]
        assert letters[0].payload is None
        assert await bus.call(Note(note="a", text="next"), timeout=10) == "next"
    assert notes.seen == ["first", "next"]


async def test_max_payload_is_of_what_was_not_compressed(sandbox: Sandbox) -> None:
    async with sandbox.bus(compress_above=100, max_payload=5000) as bus:
        with pytest.raises(PayloadTooLarge):
            await bus.dispatch(Note(note="a", text=TEXT))
