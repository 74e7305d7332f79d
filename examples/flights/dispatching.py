"""The producer's side: the commands of the table in chunks, waiting where the bus says that it is full.

A refused command is sent again before anything that comes after it: the bus refuses all later commands of the same aircraft in
the same batch too, so an aircraft's commands are accepted in order, whatever is refused.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from command_bus import CommandBus, Envelope, QueueFull
from examples.flights.commands import Movement

__all__ = ["Refused", "Tally", "dispatch_all"]

Letter = Envelope[Movement]


class Refused(RuntimeError):
    """The bus refused a command for another reason than that it is full."""


@dataclass(slots=True)
class Tally:
    """Counts of the server's answers.

    Attributes:
        accepted: Commands taken in.
        duplicates: Commands of the chunk that was sent twice on purpose, answered as known.
        resent: Commands sent a second time on purpose.
        full: Refusals because of too many waiting commands; each was sent again.
        waited: Seconds spent waiting for room.
        done: All commands are accepted.
    """

    accepted: int = 0
    duplicates: int = 0
    resent: int = 0
    full: int = 0
    waited: float = 0.0
    done: bool = False


async def dispatch_all(bus: CommandBus, commands: Iterable[tuple[str, Movement]], tally: Tally, *, chunk: int) -> None:
    """Send all commands, the first chunk twice, as a producer would that died and started again.

    Raises:
        Refused: A command was refused for good.
    """
    for number, letters in enumerate(_chunks(commands, chunk)):
        await _send(bus, letters, tally)
        if number == 0:
            tally.resent += len(letters)
            await _send(bus, letters, tally)
    tally.done = True


async def _send(bus: CommandBus, letters: list[Letter], tally: Tally) -> None:
    while letters:
        batch = await bus.dispatch_batch(letters)
        tally.accepted += batch.accepted
        tally.duplicates += batch.duplicates
        refused = [
            (letter, outcome) for letter, outcome in zip(letters, batch.outcomes, strict=True) if outcome.status == "rejected"
        ]
        pause = 0.0
        for _, outcome in refused:
            if not isinstance(outcome.error, QueueFull):
                raise Refused(f"{outcome.command_id}: {outcome.error}") from outcome.error
            pause = max(pause, outcome.error.retry_after)
        letters = [letter for letter, _ in refused]
        if letters:
            tally.full += len(letters)
            tally.waited += pause
            await asyncio.sleep(pause)


def _chunks(commands: Iterable[tuple[str, Movement]], size: int) -> Iterator[list[Letter]]:
    letters = (Envelope(command, command_id=command_id) for command_id, command in commands)
    while chunk := list(itertools.islice(letters, size)):
        yield chunk
