"""The dead letters that a worker writes: each is also a line of its log."""

from __future__ import annotations

import logging

from command_bus.clock import wall_ms
from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.text import printable
from command_bus.serialization.wire_envelope import WireEnvelope
from command_bus.transport.marks import accepted_ms
from command_bus.transport.steps import Started

_log = logging.getLogger("command_bus.worker")


def packed_letter(
    worker: str, started: Started, envelope: WireEnvelope, reason: str, error_type: str, text: str, trace: str = ""
) -> bytes:
    """Return the dead letter of a command that has failed for good, and log it."""
    _log.warning(
        "command %r %r is dead-lettered (%s, attempt %d): %s: %s",
        envelope.name,
        envelope.command_id,
        reason,
        started.attempt,
        error_type,
        printable(text),
        extra={
            "command": envelope.name,
            "command_id": envelope.command_id,
            "entity": None if envelope.entity_type is None else f"{envelope.entity_type}:{envelope.entity_id}",
            "attempt": started.attempt,
            "worker": worker,
            "reason": reason,
        },
    )
    return DeadLetterRecord(
        reason=reason,
        command_id=envelope.command_id,
        name=envelope.name,
        entity_type=envelope.entity_type,
        entity_id=envelope.entity_id,
        error_type=error_type,
        error_message=text,
        traceback=trace,
        attempts=started.attempt,
        accepted_ms=accepted_ms(started.message),
        first_started_ms=started.first_ms,
        failed_ms=wall_ms(),
        worker=worker,
        headers=envelope.headers or {},
    ).pack()
