"""A command as Spark loads it: one of the dispatch `load`, which keeps its outcome."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from command_bus import CommandBus
from command_bus.messages.outgoing import Envelope
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.serialization.envelope import IN_DISPATCH, KEEP_OUTCOME, WireEnvelope, pack_envelope
from command_bus.transport.ports.bulk import LoadItem, Opening, Version
from command_bus.transport.unique_keys import LoadKey

__all__ = ["load"]

VERSION = Version("load")


async def load(bus: CommandBus, command_id: str, command: Any) -> None:
    """Load one command, and commit."""
    builder, bulk = EnvelopeBuilder(bus.settings), bus.session.transport.bulk
    out = builder.of_item(Envelope(command, command_id=command_id))
    mailbox = builder.build(out).mailbox
    flags, check = IN_DISPATCH | KEEP_OUTCOME, crc32(out.payload).to_bytes(4, "big")
    sent = WireEnvelope(
        command_id,
        out.name,
        out.entity_type,
        out.entity_id,
        out.payload,
        flags,
        correlation_id="load",
        options=out.options or None,
    )
    key = None if out.unique is None else LoadKey.of(out.unique, out.name, mailbox, "t")
    item: LoadItem = (mailbox, command_id, check, pack_envelope(sent), "t", 0, "", key)
    await bulk.open(VERSION, Opening(keep_ms=60_000, remember_ms=120_000))
    await bulk.load(VERSION, 0, [item])
    await bulk.commit(VERSION, "{}", 60_000)
