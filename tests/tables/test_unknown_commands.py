"""The table of histories of unknown commands: each waits for its grace, and no longer than no live worker handles its name."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import pytest

from command_bus import HandlerRegistry
from command_bus.serialization.envelope import WireEnvelope, pack_envelope
from command_bus.settings import BusSettings
from command_bus.transport.steps import DeadLetterStep, Started
from command_bus.worker.decisions import Decisions
from command_bus.worker.offers import Offer, Offers
from tests.tables.unknown_commands import HISTORIES, Offered

BEGIN = 1_700_000_000_000


class Others:
    handles = False

    async def handle(self, name: str) -> bool:
        return self.handles


@pytest.mark.parametrize("history", HISTORIES)
async def test_an_unknown_command_waits_for_its_grace_and_no_longer(history: str) -> None:
    settings, others = BusSettings(url="redis://none", unknown_grace=60), Others()
    decisions = Decisions(HandlerRegistry().lookup, settings, worker="w")
    offers = Offers(Random(7), "w", cast("Any", others))
    for each in HISTORIES[history]:
        others.handles = each.handled
        started = _started(each)
        read = decisions.read(started)
        assert isinstance(read, Offer)
        step = await offers.left(started, read)
        assert ("ends" if isinstance(step, DeadLetterStep) else "waits") == each.end, each


def _started(each: Offered) -> Started:
    now, accepted, first = (BEGIN + int(1000 * seconds) for seconds in (each.at, each.accepted, each.first))
    envelope = pack_envelope(WireEnvelope("c-1", each.name, "box", "a", b"\x80", 0))
    return Started("7", f"{accepted}-0", each.attempt, -first if each.replayed else first, now, envelope)
