"""Carriers: the classes of each row of `values.py`, and the bus on which a way of the table *values × ways* sends them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError, create_model

from command_bus import Command, EntityId, EntityState, Event, RetryPolicy
from command_bus.errors import CommandBusError
from command_bus.testing import TestBus
from tests.tables.shapes import shape
from tests.tables.values import Row

__all__ = ["NOTHING", "SOON", "Bench", "Carrier", "carrier_of"]

SOON = 0.5
"""Seconds for which moments of rows are in the future; each way lets them pass."""
NOTHING: Any = object()


@dataclass
class Carrier:
    """The classes of a row."""

    row: Row
    number: int
    carry: type[Command[Any]]
    """Has the value, and replies with it."""
    ask: type[Command[Any]]
    """Replies with a value that its handler makes."""
    work: type[Command[Any]]
    """Durable: a step has the value."""
    run: type[Command[Any]]
    """Has the value, and replies with it: by a handler of several commands of one entity."""
    member: type[Command[Any]]
    """The same, of several entities."""
    keep: type[Command[Any]]
    """Lets its handler put a value into the state of its entity."""
    once: type[Command[Any]]
    """Replies with a value that its handler makes, and an inbox remembers."""
    state: type[EntityState]
    """Has the value."""
    tell: type[Event]
    """The same, as an event."""
    wanted: Any = None
    """The shape of what was given last, as its type has made it."""

    def message(self, kind: Any, **fields: Any) -> Any:
        return kind(box=f"b{self.number}", **fields)

    def given(self) -> Any:
        """Return a value of the row."""
        value = self.row.make()
        self.wanted = shape(TypeAdapter(self.row.kind).validate_python(value, strict=True))
        return value

    def carrying(self, **fields: Any) -> Any:
        return self.message(self.carry, value=self.given(), **fields)


def carrier_of(number: int, row: Row) -> Carrier:
    def declared(letter: str, reply: Any, fields: dict[str, Any], **arguments: Any) -> Any:
        keywords = {"entity": letter, "retry": RetryPolicy(attempts=2, delay=0.1)} | arguments
        base: Any = Command[reply]
        return create_model(
            f"{letter}{number}", __base__=base, __cls_kwargs__=keywords, __module__=__name__, box=(EntityId, ...), **fields
        )

    return Carrier(
        row,
        number,
        declared("Carry", None, {"value": (row.kind, ...), "fails": (int, 0)}),
        declared("Ask", row.kind, {}),
        declared("Work", None, {"way": (str, ...)}, durable=True),
        declared("Run", row.kind, {"value": (row.kind, ...)}),
        declared("Member", row.kind, {"value": (row.kind, ...)}),
        declared("Keep", None, {}, entity=f"keep{number}"),
        declared("Once", row.kind, {}),
        create_model(
            f"State{number}",
            __base__=EntityState,
            __cls_kwargs__={"entity": f"keep{number}"},
            __module__=__name__,
            value=(row.kind, Field(default_factory=row.make)),
            changes=(int, 0),
        ),
        create_model(
            f"Tell{number}",
            __base__=Event,
            __cls_kwargs__={"entity": "Tell"},
            __module__=__name__,
            box=(EntityId, ...),
            value=(row.kind, ...),
        ),
    )


@dataclass
class Bench:
    """One bus with the classes of all rows."""

    bus: TestBus
    carriers: list[Carrier]
    arrived: dict[str, Any] = field(default_factory=dict[str, Any])
    outcomes: dict[str, Any] = field(default_factory=dict[str, Any])
    left_out: set[str] = field(default_factory=set[str])
    engine: Any = None

    @contextmanager
    def sent(self, carrier: Carrier) -> Iterator[None]:
        """Keep the error with which a value is refused."""
        try:
            yield
        except (CommandBusError, ValidationError) as error:
            self.outcomes[carrier.row.name] = error

    async def come(self, send: Callable[[Carrier], Awaitable[Any]]) -> None:
        """Send each row, and let all of them arrive."""
        for carrier in self.carriers:
            with self.sent(carrier):
                await send(carrier)
        time.sleep(SOON)
        await self.bus.run_until_idle(timeout=60)
