"""The state of an aircraft and what a command does to it: pure, one command at a time.

The chain depends on the order of the commands: swap any two and it ends elsewhere, where a sum would not notice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from examples.flights.commands import Arrive, Depart, Movement

__all__ = ["MODULUS", "Aircraft", "apply", "from_text", "to_text"]

MODULUS: Final = 1_000_003


@dataclass(frozen=True, slots=True)
class Aircraft:
    """The state of one aircraft after its commands so far. Minutes and miles.

    Attributes:
        seq: The last command applied; the next one has `seq + 1`.
        chain: The order-sensitive checksum of all commands applied.
        flights: Departures.
        minutes: Time in the air.
        airport: Where it was last seen.
        landed_at: Minutes since the epoch; None while it is in the air.
        gaps: Times on the ground between a landing and the next departure.
        gap_minutes: Their sum.
        elsewhere: Gaps that end at another airport than they began.
        violations: Commands that came out of order, twice or under an older fence. The bus promises none.
        repeats: Commands delivered again after a crash and skipped: allowed, hence no part of a comparison.
    """

    seq: int = 0
    chain: int = 0
    flights: int = 0
    landings: int = 0
    minutes: int = 0
    distance: int = 0
    airport: str = ""
    landed_at: int | None = None
    gaps: int = 0
    gap_minutes: int = 0
    elsewhere: int = 0
    violations: int = 0
    repeats: int = field(default=0, compare=False)


def apply(state: Aircraft, command: Movement, *, again: bool = False) -> Aircraft:
    """Return the state after the command.

    A command that was applied before leaves the state as it is: a worker may die after its write and before the bus records it,
    and then the command is delivered once more. Only the *last* command can be the one in question, and only if this is not its
    first attempt (`again`); everything else that does not follow its predecessor is counted as a violation.
    """
    if command.seq <= state.seq:
        if again and command.seq == state.seq:
            return replace(state, repeats=state.repeats + 1)
        return replace(state, violations=state.violations + 1)
    changes = _departure(state, command) if isinstance(command, Depart) else _landing(state, command)
    return replace(
        state,
        seq=command.seq,
        chain=(state.chain * 31 + command.delay + command.seq) % MODULUS,
        violations=state.violations + (command.seq != state.seq + 1),
        airport=command.airport,
        **changes,
    )


def _departure(state: Aircraft, command: Depart) -> dict[str, Any]:
    flown = {"flights": state.flights + 1, "landed_at": None}
    if state.landed_at is None:
        return flown
    return {
        **flown,
        "gaps": state.gaps + 1,
        "gap_minutes": state.gap_minutes + command.ts - state.landed_at,
        "elsewhere": state.elsewhere + (command.airport != state.airport),
    }


def _landing(state: Aircraft, command: Arrive) -> dict[str, Any]:
    return {
        "landings": state.landings + 1,
        "minutes": state.minutes + command.minutes,
        "distance": state.distance + command.distance,
        "landed_at": command.ts,
    }


_NAMES = tuple(item.name for item in fields(Aircraft))


def to_text(state: Aircraft, fence: int) -> str:
    """Return the state as it is stored, with the fence under which it was written."""
    return json.dumps({"fence": fence, **{name: getattr(state, name) for name in _NAMES}})


def from_text(text: str | bytes) -> tuple[Aircraft, int]:
    """Return the stored state and its fence."""
    values = json.loads(text)
    fence = values.pop("fence")
    return Aircraft(**values), fence
