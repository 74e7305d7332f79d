"""Messages and envelopes for tests of bad input."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from command_bus import (
    Command,
    EntityId,
)
from command_bus.serialization.envelope import WireEnvelope, pack_envelope

__all__ = ["Loose", "Real", "envelope"]


class Loose(Command[None], entity="box"):
    box: EntityId
    thing: Any = None


class Real(Command[float], entity="box"):
    box: EntityId
    number: float
    open_end: Annotated[float, Field(allow_inf_nan=True)] = 0.0


def envelope(payload: bytes, *, name: str = "Put", box: str = "a", **more: Any) -> bytes:
    return pack_envelope(WireEnvelope(more.pop("command_id", "bad-1"), name, "box", box, payload, **more))
