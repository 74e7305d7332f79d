"""Fuzzing of everything that reads bytes from the server: `python -m tests.fuzz.decode --seconds 60` (or `make fuzz`).

With atheris, coverage leads the way; without it hypothesis makes as many examples as fit into the time. Whatever the bytes are, a reader
gives a value or raises its one typed error; anything else (another exception, a crash, a hang, time or memory out of proportion to the
size) is a bug. The tests count comparisons, which no busy machine can change; here the processor's time is measured as well.
"""

from __future__ import annotations

import argparse
import ast
import base64
import importlib.util
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from uuid import UUID

__all__ = ["Comparisons", "readers", "seeds"]

_ARTIFACTS = Path("build") / "fuzz"
_SLOWER = 100
"""Times that a reader may take as long for a byte as `unpack` takes for a byte of different ids: it reads, verifies and validates them."""
_SLACK = 0.05
"""Seconds beside that, for what does not depend on the size."""


class Comparisons:
    """Counts how often UUIDs are compared, while it is entered: in maps and sets, that is how long telling their members apart takes."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        self._compare = compare = UUID.__eq__

        def counting(one: UUID, other: object) -> bool:
            self.count += 1
            return compare(one, other)

        UUID.__eq__ = counting  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        UUID.__eq__ = self._compare  # type: ignore[method-assign]

    def check(self, data: bytes) -> None:
        """Look whether there were more than the size allows: an id takes 18 bytes, a reader may read them four times."""
        assert self.count <= 8 * len(data) + 1000, f"{self.count:,} comparisons for {len(data):,} bytes"


def second_per_byte() -> float:
    """Return the processor's time that this machine takes to read a byte of different ids."""
    from command_bus.serialization.msgpack import pack, unpack

    data = pack({UUID(int=step * 2**90) for step in range(1000)})
    took = []
    for _ in range(5):
        began = time.process_time()
        unpack(data)
        took.append(time.process_time() - began)
    return min(took) / len(data)


def timely(read: Callable[[bytes], Any], unit: float) -> Callable[[bytes], Any]:
    """Return a reader that fails if it takes time out of proportion to the size, three times in a row."""

    def reader(data: bytes) -> None:
        took = 0.0
        for _ in range(3):
            began = time.process_time()
            with Comparisons() as comparisons:
                read(data)
            took = time.process_time() - began
            comparisons.check(data)
            if took <= _SLACK + _SLOWER * unit * len(data):
                return
        raise AssertionError(f"{took:.2f} s for {len(data):,} bytes")

    return reader


def readers() -> dict[str, Callable[[bytes], Any]]:
    """Return the readers of bytes by name; each returns a value, or raises only the errors that it documents, which are caught here."""
    from pydantic import Field

    from command_bus import BusSettings, Command, CommandBusError, EntityId, InvalidCommand
    from command_bus.admin.json_data import to_jsonable
    from command_bus.cli.codegen.clients import generate_clients, schema_document
    from command_bus.cli.output import to_json
    from command_bus.handlers.handler import Handler
    from command_bus.handlers.registry import HandlerRegistry
    from command_bus.messages.message import Message
    from command_bus.serialization.announcements import read_description, read_worker
    from command_bus.serialization.dead_letter import DeadLetterRecord
    from command_bus.serialization.envelope import unpack_envelope
    from command_bus.serialization.limits import Undecodable
    from command_bus.serialization.models import codec_for, reply_codec_for
    from command_bus.serialization.msgpack import unpack
    from command_bus.serialization.outcome import OutcomeRecord
    from command_bus.serialization.protection import Protection
    from command_bus.serialization.reply import raise_or_value, reply_id, unpack_reply
    from command_bus.serialization.schema_check import schema_problems
    from command_bus.serialization.story import story_of
    from command_bus.transport.steps import Started
    from command_bus.worker.decisions import Decisions

    class Fuzzed(Command[dict[str, int]], entity="box"):
        box: EntityId
        values: list[int] = Field(default_factory=list[int])
        nested: dict[str, Any] = Field(default_factory=dict[str, Any])
        ids: set[UUID] = Field(default_factory=set[UUID])
        by_id: dict[UUID, Any] = Field(default_factory=dict[UUID, Any])

    registry = HandlerRegistry()

    @registry.handles(Fuzzed)
    async def fuzzed(command: Fuzzed) -> dict[str, int]:
        return {}

    settings = BusSettings(namespace="fuzz", signing_keys=["k:a secret, long enough"])
    protection = Protection.of(settings)
    found: Handler | None = registry.lookup("Fuzzed")
    assert found is not None
    known: Handler = found
    signed = Decisions(lambda _: known, settings, worker="w", protection=protection)
    plain = Decisions(lambda _: known, BusSettings(), worker="w")

    def only(read: Callable[[bytes], Any], *errors: type[Exception]) -> Callable[[bytes], Any]:
        def reader(data: bytes) -> Any:
            with suppress(*errors):
                return read(data)
            return None

        return reader

    def command(data: bytes) -> Any:
        kind: type[Message[Any]] = Fuzzed
        return codec_for(kind).decode(data)

    def reply(data: bytes) -> Any:
        reply_id(data)
        command_id, outcome = unpack_reply(data)
        return raise_or_value(outcome, reply_codec_for(dict[str, int]), command_id)

    def announcement(data: bytes) -> Any:
        info = read_description("Fuzzed", data, ())
        if info is None:
            return None
        ast.parse(generate_clients([info], "fuzz").source)
        json.loads(to_json(info))
        json.loads(to_json(schema_document([info], "fuzz")))
        return info, schema_problems({"a": [1, "x" * 40, {"a": None}]}, info.schema), schema_problems("x" * 40, info.schema)

    def delivery(data: bytes) -> Any:
        started = Started("1", "1-1", 1, 1, 1, data)
        return plain.read(started, "box:a"), signed.read(started, "box:a"), plain.interrupted(started)

    return {
        "value": only(unpack, Undecodable),
        "envelope": only(unpack_envelope, Undecodable),
        "payload": only(command, InvalidCommand),
        "reply": only(reply, Undecodable, CommandBusError),
        "dead letter": only(DeadLetterRecord.unpack, Undecodable),
        "outcome": only(OutcomeRecord.unpack, Undecodable),
        "story": only(lambda data: to_json(to_jsonable(story_of(data))), Undecodable),
        "delivery": delivery,
        "announcement": announcement,
        "worker": read_worker,
        **_records(only),
    }


def _records(only: Callable[..., Callable[[bytes], Any]]) -> dict[str, Callable[[bytes], Any]]:
    """Return the readers of what the server keeps beside commands, and of what is given as text for it."""
    from command_bus.admin import audit, entities
    from command_bus.admin import audit as trends
    from command_bus.durable.step_failures import StepFailures
    from command_bus.durable.undo import Undo, unpack_ending
    from command_bus.errors import BadStep, InvalidSettings
    from command_bus.notifications.notices import unpack_notice
    from command_bus.scheduling.predecessors import read_line
    from command_bus.scheduling.record import ScheduleRecord
    from command_bus.serialization.json_forms import read_json
    from command_bus.serialization.limits import DEFAULT_LIMITS
    from command_bus.transport.interrupts import Interrupt
    from command_bus.webhooks.record import PumpState, WebhookRecord

    def undo(data: bytes) -> Any:
        read = Undo.read("u:x#1", data)
        return read.place + 1, read.follow_up.mailbox.encode(), read.follow_up.envelope[:1], read.digest[:1]

    def ending(data: bytes) -> Any:
        read = unpack_ending(data)
        return (
            [(each.mailbox.encode(), each.delay_ms + 1, each.mark[:1]) for each in read.sends],
            read.reply[:1],
            set(read.given_up),
        )

    def failure(data: bytes) -> Any:
        return StepFailures({}, DEFAULT_LIMITS).again("x:pay#1~1~1", data)

    return {
        "json": only(read_json, ValueError),
        "schedule": lambda data: ScheduleRecord.unpack("tick", data),
        "exported schedule": only(lambda data: read_line(1, data.decode(errors="surrogateescape")), InvalidSettings),
        "trend": trends._point,
        "audit entry": lambda data: audit.audit_entry("1-1", data),
        "cursor": only(lambda data: entities._read_cursor(data.decode("latin-1"), "age"), InvalidSettings),
        "decoded cursor": only(
            lambda data: entities._read_cursor(base64.urlsafe_b64encode(data).decode(), "age"), InvalidSettings
        ),
        "webhook": only(WebhookRecord.unpack, InvalidSettings),
        "pump": only(PumpState.unpack, InvalidSettings),
        "notice": unpack_notice,
        "interrupt": Interrupt.unpack,
        "undo": only(undo, BadStep),
        "ending": only(ending, BadStep),
        "failure": only(failure, BadStep),
    }


def seeds() -> list[bytes]:
    """Valid bytes of every kind, to be changed."""
    from command_bus import every
    from command_bus.durable.undo import Ending, pack_ending
    from command_bus.messages.schedule_specs import SchedulePolicy
    from command_bus.notifications.notices import Notice, pack_notice
    from command_bus.scheduling.predecessors import line_of
    from command_bus.scheduling.record import ScheduleRecord
    from command_bus.serialization.announcements import WorkerInfo, worker_record
    from command_bus.serialization.dead_letter import DeadLetterRecord
    from command_bus.serialization.envelope import WireEnvelope, pack_envelope
    from command_bus.serialization.limits import compressed
    from command_bus.serialization.msgpack import pack
    from command_bus.serialization.outcome import OutcomeRecord
    from command_bus.serialization.reply import Completed, Failed, Rejected, pack_reply
    from command_bus.serialization.story import packed_story
    from command_bus.transport.interrupts import Interrupt
    from command_bus.transport.steps import FollowUp
    from command_bus.webhooks.record import PumpState, WebhookRecord

    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/A"}}},
        "$defs": {"A": {"type": "string"}},
    }
    payload = pack({"box": "a", "values": [1, 2], "nested": {"a": {"b": {1}}}})
    large = pack({"box": "a", "values": [7] * 200})
    reply = pack_reply("c-1", Completed(pack({"a": 1})))
    side = {
        "s:a#1": bytes(8) + payload,
        "x:b#1~1~1": bytes(8) + pack(["m", "E", ["no"], {}, []]),
        "t:sleep#1": b"1",
        "f:first#1": b"a",
    }
    side |= {"c:Fuzzed#1": bytes(8) + b"c-2|box:b", "o:Fuzzed#1": reply, "g:go#1": pack(1), "o:signal:go#2": b"", "z:a~1": b"7"}
    stories = [packed_story(side, (), sealed_at) for sealed_at in (None, ("box:a", "c-1"))]
    schedule = ScheduleRecord("tick", b"t", every(30), SchedulePolicy(), 1, False, "i", 1, 0, 30_000)
    webhook = WebhookRecord("hook", "https://a.example", ("completed",), ("box",), ("whsec_a",), 5.0, False, False, (1.0,), 1)
    return [
        schedule.pack(),
        line_of(schedule, "fuzz").encode(),
        webhook.pack(),
        PumpState("1-1", "w", 1).pack(),
        pack_notice(Notice("settled", "box", "a", "c-1", "Fuzzed", "completed")),
        Interrupt("abort", "1|1-1", 1, "ada", "it hangs").pack().encode(),
        pack([1, "", bytes(8), "box:a", "c-1", b"e", "", b""]),
        pack_ending(Ending("rejected", reply, b"", (FollowUp("box:a", "c-1", b"e"),), ("u:a#1",))),
        pack(["builtins", "ValueError", ["no"], {"code": 1}, []]),
        pack(["ada", "pause", "box:a", "", "", "", ""]),
        json.dumps(["age", 1.5, "box:a"]).encode(),
        base64.urlsafe_b64encode(json.dumps(["age", 1.5, "box:a"]).encode()),
        pack({"at_ms": 1, "accepted": 2}),
        payload,
        pack_envelope(WireEnvelope("c-1", "Fuzzed", "box", "a", payload, 9, 5_000, "inbox", "d-1", "c-0", {"h": "v"})),
        pack_envelope(WireEnvelope("c-1", "Fuzzed", "box", "a", payload), lambda _: bytes(33)),
        pack_envelope(WireEnvelope("c-1", "Fuzzed", "box", "a", large, compressed=True)),
        pack_reply("c-1", Completed(compressed(large) or b"", compressed=True)),
        json.dumps({"entity": None, "key": None, "delivery": "at_least_once", "schema": schema, "reply": schema}).encode(),
        worker_record(WorkerInfo("w", "h", 1, 1, 1, 1, 1, ("Fuzzed",))),
        reply,
        pack_reply("c-1", Failed("ValueError", "no", 3)),
        pack_reply("c-1", Rejected("no", "no", {"a": 1})),
        pack({"box": "a", "ids": {UUID(int=1), UUID(int=2)}, "by_id": {UUID(int=3): 1}}),
        pack({"box": "a", "ids": [UUID(int=5 + step * (2**61 - 1)) for step in range(40)]}),
        DeadLetterRecord(reason="failed", headers={"a": "b"}).pack(),
        OutcomeRecord("completed", "Fuzzed", "box", "a", 1, "w", 1, 1, 1, "1-1", reply).pack(),
        *(OutcomeRecord("completed", "Fuzzed", "box", "a", 1, "w", 1, 1, 1, "1-1", reply, story=each).pack() for each in stories),
    ]


def with_atheris(seconds: int) -> None:
    """Coverage-guided; ends with an error at the first finding, whose bytes are in build/fuzz."""
    import atheris  # type: ignore[import-not-found,unused-ignore] # pyright: ignore[reportMissingImports] - installed by `make fuzz`

    with atheris.instrument_imports(include=["command_bus"]):
        every = [timely(read, second_per_byte()) for read in readers().values()]

    def one(data: bytes) -> None:
        for read in every:
            read(data)

    _ARTIFACTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds()):
            (Path(corpus) / f"seed-{number}").write_bytes(seed)
        options = [
            f"-max_total_time={seconds}",
            "-max_len=65536",
            "-timeout=10",
            "-rss_limit_mb=1024",
            f"-artifact_prefix={_ARTIFACTS}/",
        ]
        atheris.Setup([sys.argv[0], *options, corpus], one)
        atheris.Fuzz()


def with_hypothesis(seconds: int) -> None:
    """Run examples without guidance, until the time is over."""
    from hypothesis import HealthCheck, Phase, given, settings

    from tests.fuzz.announcements import records
    from tests.fuzz.bytestrings import anything

    every = [timely(read, second_per_byte()) for read in readers().values()]
    count = 0

    @settings(
        max_examples=5_000,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(anything(seeds()) | records())
    def one(data: bytes) -> None:
        nonlocal count
        count += 1
        for read in every:
            read(data)

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        one()
    print(f"{count:,} examples for {len(every)} readers: nothing found")


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzzes the decoders.")
    parser.add_argument("--seconds", type=int, default=60)
    seconds: int = parser.parse_args().seconds
    logging.disable()  # a refused signature is worth a warning, not thousands
    if importlib.util.find_spec("atheris") is None:
        print("fuzz: atheris is not installed for this Python: hypothesis makes the examples, without coverage to lead it")
        with_hypothesis(seconds)
    else:
        with_atheris(seconds)


if __name__ == "__main__":
    main()
