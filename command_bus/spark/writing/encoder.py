"""Arrow batches into packed commands, in the order of the rows: each row goes to the encoder of its command and priority, or to the mapper."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import pyarrow as pa

from command_bus.errors import CommandBusError, InvalidCommand
from command_bus.messages.message import Message
from command_bus.messages.outgoing import Envelope
from command_bus.messages.policies import PRIORITIES, Priority
from command_bus.spark.writing.columns import Unreadable, batch_rows, column_values
from command_bus.spark.writing.command_encoder import CommandEncoder, Packed, check_entity, checked_number, id_of_row
from command_bus.spark.writing.command_mapping import CommandMapping
from command_bus.spark.writing.partition import PartitionDispatcher
from command_bus.spark.writing.task_results import RowReject
from command_bus.worker.run_ends import text_of

Mapper = Callable[[dict[str, Any]], Message[Any]]

_Kind = tuple[str, Priority | None]
"""A wire name, and the priority that rows name."""

_MOST_ROWS = 20_000  # packed at a time


@contextmanager
def gc_paused() -> Generator[None]:
    """Pause the cyclic garbage collector: it would scan a batch's many small objects, which are in no cycle, again and again."""
    active = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if active:
            gc.enable()


class BatchEncoder:
    """Encodes the batches of one partition.

    Args:
        mappings: By wire name; only one if there is no column of wire names.
        dispatcher: The dispatcher of the partition.
        id_column: The column of command ids.
        command_column: The column of wire names, or None.
        sequence_column: The column of numbers that increase within an entity, or None.
        entity_column: The column of entity ids by which a mapper's rows are arranged, or None.
        mapper: Makes the command of a row instead.
        priority: The priority of all rows; None: that of each class or entity type.
        priority_column: The column of priorities, or None; a row where it is NULL has that of its class.
    """

    def __init__(
        self,
        mappings: Mapping[str, CommandMapping],
        dispatcher: PartitionDispatcher,
        *,
        id_column: str,
        command_column: str | None = None,
        sequence_column: str | None = None,
        entity_column: str | None = None,
        mapper: Mapper | None = None,
        priority: Priority | None = None,
        priority_column: str | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._id_column = id_column
        self._command_column = command_column
        self._sequence_column = sequence_column
        self._entity_column = entity_column
        self._mapper = mapper
        self._priority: Priority | None = priority
        self._priority_column = priority_column
        self._mappings = mappings
        self._encoders: dict[_Kind, CommandEncoder] = {}

    def encode(self, batch: pa.RecordBatch) -> list[Packed]:
        """Return the rows of a batch, each as a packed command or a reject, in order."""
        if batch.num_rows > _MOST_ROWS:
            starts = range(0, batch.num_rows, _MOST_ROWS)
            return [packed for start in starts for packed in self.encode(batch.slice(start, _MOST_ROWS))]
        ids = batch.column(self._id_column)
        numbers = None if self._sequence_column is None else batch.column(self._sequence_column)
        if self._mapper is not None:
            return list(self._mapped(self._mapper, batch, ids, numbers))
        if self._command_column is None and self._priority_column is None:
            (only,) = self._mappings
            return self._encoder(only, self._priority).encode(batch, ids, numbers)
        return self._by_kind(batch, ids, numbers)

    def _encoder(self, name: str, priority: Priority | None) -> CommandEncoder:
        encoder = self._encoders.get((name, priority))
        if encoder is None:
            encoder = CommandEncoder(self._mappings[name], self._dispatcher, self._id_column, priority)
            self._encoders[name, priority] = encoder
        return encoder

    def _by_kind(self, batch: pa.RecordBatch, ids: pa.Array, numbers: pa.Array | None) -> list[Packed]:
        """Return the rows, encoded command by command and priority by priority, and put back in order."""
        rows: dict[tuple[Any, Any], list[int]] = {}
        for index, kind in enumerate(zip(self._names(batch), self._priorities(batch), strict=False)):
            rows.setdefault(kind, []).append(index)
        encoded: list[Any] = [None] * batch.num_rows
        for (name, priority), indices in rows.items():
            chosen = pa.array(indices)
            part, part_ids = batch.take(chosen), ids.take(chosen)
            refusal = self._refusal(name, priority)
            if refusal is not None:
                packed = list(_refused(refusal, name, part, part_ids))
            else:
                packed = self._encoder(name, priority).encode(part, part_ids, None if numbers is None else numbers.take(chosen))
            for index, item in zip(indices, packed, strict=True):
                encoded[index] = item
        return encoded

    def _names(self, batch: pa.RecordBatch) -> Iterable[Any]:
        return repeat(*self._mappings) if self._command_column is None else _readable_values(batch.column(self._command_column))

    def _priorities(self, batch: pa.RecordBatch) -> Iterable[Any]:
        return repeat(self._priority) if self._priority_column is None else _readable_values(batch.column(self._priority_column))

    def _refusal(self, name: Any, priority: Any) -> tuple[str, str] | None:
        """Return why rows of a command and priority are refused: the reason and its text; None if they are not."""
        if isinstance(name, Unreadable):
            return "unknown_command", name.message(self._command_column or "")
        if name not in self._mappings:
            known = ", ".join(self._mappings)
            return "unknown_command", "its command is NULL" if name is None else f"unknown command {name!r}; there are {known}"
        if isinstance(priority, Unreadable):
            return "invalid", priority.message(self._priority_column or "")
        if priority is not None and priority not in PRIORITIES:
            return (
                "invalid",
                f"column {self._priority_column!r} holds {priority!r}: 'high', 'normal', 'low', or NULL for that of the class",
            )
        return None

    def _mapped(self, mapper: Mapper, batch: pa.RecordBatch, ids: pa.Array, numbers: pa.Array | None) -> Iterator[Packed]:
        given: Any = repeat(0) if numbers is None else numbers.to_pylist()
        for command_id, number, (row, wrong) in zip(column_values(ids)[0], given, batch_rows(batch), strict=False):
            try:
                if wrong is not None:
                    raise InvalidCommand(wrong)
                message = mapper(dict(row))
                if not isinstance(message, Message):
                    raise InvalidCommand(f"the mapper gave {type(message).__name__}, not a command")
                priority: Any = self._priority if self._priority_column is None else row[self._priority_column]
                envelope = Envelope(message, command_id=id_of_row(command_id), priority=priority)
                packed = self._dispatcher.pack(envelope, sequence=checked_number(number))
                if self._entity_column is not None and message.spec().entity is not None:
                    check_entity(row[self._entity_column], packed[1][4], self._entity_column)
                yield packed
            except Exception as error:  # noqa: BLE001 - the user's function may raise anything; only this row is rejected
                text = (
                    error.message
                    if isinstance(error, CommandBusError)
                    else f"the mapper raised {type(error).__name__}: {text_of(error)}"
                )
                yield RowReject.of(command_id=command_id, command="", entity=None, reason="invalid", error=text[:2000], row=row)


def _readable_values(column: pa.Array) -> list[Any]:
    """Return the values of a column; what Python cannot hold as `Unreadable`."""
    values, faults = column_values(column)
    return [faults.get(index, value) for index, value in enumerate(values)] if faults else values


def _refused(refusal: tuple[str, str], name: Any, batch: pa.RecordBatch, ids: pa.Array) -> Iterator[Packed]:
    reason, text = refusal
    shown = name.shown if isinstance(name, Unreadable) else name or ""
    for command_id, (row, _) in zip(column_values(ids)[0], batch_rows(batch), strict=True):
        yield RowReject.of(command_id=command_id, command=shown, entity=None, reason=reason, error=text, row=row)
