"""Arguments of a dashboard, and the things that its requests share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from command_bus.bus import CommandBus
from command_bus.dashboard.masking import Masking
from command_bus.dashboard.pulse import Pulse
from command_bus.dashboard.shared_reads import SharedReads
from command_bus.dashboard.signing import Signer
from command_bus.dashboard.users import Users

__all__ = ["Options", "State", "TraceLink"]

TraceLink = Callable[[str], str]
"""Given a trace id, returns the address of the trace's page."""


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of `dashboard`, checked."""

    title: str
    hosts: Collection[str]
    secure: bool | None
    trace_link: TraceLink | None
    board_link: str


@dataclass(frozen=True, slots=True)
class State:
    """The things that requests share."""

    bus: CommandBus
    users: Users
    signer: Signer
    masking: Masking
    options: Options
    reads: SharedReads
    pulse: Pulse
