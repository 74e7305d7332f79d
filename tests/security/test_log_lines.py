"""A log has only our lines: no id, name or error text makes another line, with any formatter."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import msgpack
import pytest

pytest.importorskip("typer")

from command_bus import Command, EntityId, RetryPolicy
from command_bus.cli.process.logs import JsonFormatter, TextFormatter
from command_bus.messages.context import Running, current_command
from command_bus.serialization.envelope import GIVEN_ID, WireEnvelope, pack_envelope
from command_bus.transport.mailboxes import mailbox_label, scope_label
from command_bus.transport.redis.memory import MemoryClients
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import PutService, put_service, until

NASTY = "x\n2026-11-22T00:00:00.000Z WARNING forged\r\x1b[2J\x9b1m\u2028\u202e\x00"


class Break(Command[None], entity="box", retry=RetryPolicy(attempts=2, delay=0.01)):
    box: EntityId
    text: str


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox("memory", MemoryClients())


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """Messages as any formatter gets them."""
    found: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    logger, kept = logging.getLogger("command_bus"), Kept()
    before = logger.level
    logger.addHandler(kept)
    logger.setLevel(logging.DEBUG)
    yield found
    logger.removeHandler(kept)
    logger.setLevel(before)


async def test_no_message_holds_what_a_sender_put_into_it(sandbox: Sandbox, lines: list[str]) -> None:
    @sandbox.registry.handles(Break)
    async def fails(command: Break) -> None:
        raise ValueError(command.text)

    async with put_service(sandbox, unknown_grace=0.1) as service:
        await service.bus.dispatch(Break(box="c", text=NASTY), command_id=f"{NASTY}4")
        good = msgpack.packb({"box": NASTY, "value": 1})
        for command_id, name, box, payload in (
            (NASTY, "Put", NASTY, b"\x80"),
            (NASTY + "2", NASTY, NASTY, good),
            (NASTY + "3", "Put", "a", good),
        ):
            whole = WireEnvelope(command_id, name, "box", box, payload, GIVEN_ID)
            await service.inject("box:a", {"e": pack_envelope(whole)})
        await service.inject(f"{NASTY}/1", {"e": NASTY.encode()})
        await service.inject("box:b", {"e": NASTY.encode()})
        await until(lambda: all_given_up(service))
    assert any("dead-lettered" in line for line in lines)
    assert [line for line in lines if not line.isprintable()] == []


async def all_given_up(service: PutService) -> bool:
    return len(await service.letters()) == 6


def test_labels_can_be_printed() -> None:
    for label in (mailbox_label(NASTY), mailbox_label(f"{NASTY}:a"), mailbox_label(f"~:{NASTY}"), scope_label(f"{NASTY}:*")):
        assert label.isprintable()


def logged(formatter: logging.Formatter, text: str, running: bool) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    record = logging.LogRecord("shop", logging.INFO, "", 1, "got %s", (text,), None)
    token = current_command.set(Running("line:a", NASTY, NASTY, NASTY) if running else None)
    try:
        handler.emit(record)
    finally:
        current_command.reset(token)
    return stream.getvalue()


@pytest.mark.parametrize("running", [False, True])
def test_no_line_of_text_begins_as_ours_do_unless_it_is(running: bool) -> None:
    text = logged(TextFormatter(), NASTY, running)
    first, *rest = text.removesuffix("\n").split("\n")
    assert first[:4].isdecimal()
    assert all(line.startswith("    ") for line in rest)
    assert all(line.isprintable() for line in (first, *rest))


def test_lines_of_the_application_stay_lines_and_tabs_stay() -> None:
    text = logged(TextFormatter(), "one\n\ttwo\nthree", running=False)
    assert text.endswith("got one\n    \ttwo\n    three\n")


@pytest.mark.parametrize("running", [False, True])
def test_json_is_one_printable_line(running: bool) -> None:
    text = logged(JsonFormatter(), NASTY, running)
    assert text.removesuffix("\n").isprintable()
    assert json.loads(text)["message"] == f"got {NASTY}"
