"""Arrow batches into packed commands, in the order of the rows: each row goes to the encoder of its command and priority, or to the mapper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any

import pyarrow as pa

from command_bus.errors import CommandBusError, InvalidCommand
from command_bus.messages.message import Message
from command_bus.messages.outgoing import Envelope
from command_bus.messages.policies import PRIORITIES, Priority
from command_bus.spark.options import WriteOptions
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


class BatchEncoder:
    """Encodes the batches of one partition.

    Args:
        mappings: By wire name; only one if there is no column of wire names.
        dispatcher: Sends the commands of the partition.
        options: What the write was given; names columns and priority.
        mapper: Makes the command of a row instead.
    """

    def __init__(
        self,
        mappings: Mapping[str, CommandMapping],
        dispatcher: PartitionDispatcher,
        options: WriteOptions,
        mapper: Mapper | None = None,
    ) -> None:
        self._mappings, self._dispatcher, self._options, self._mapper = mappings, dispatcher, options, mapper
        self._encoders: dict[_Kind, CommandEncoder] = {}

    def encode(self, batch: pa.RecordBatch) -> list[Packed]:
        """Return the rows of a batch, each as a packed command or a reject, in order."""
        if batch.num_rows > _MOST_ROWS:
            starts = range(0, batch.num_rows, _MOST_ROWS)
            return [packed for start in starts for packed in self.encode(batch.slice(start, _MOST_ROWS))]
        options = self._options
        ids = batch.column(options.command_id_column)
        numbers = None if options.sequence_column is None else batch.column(options.sequence_column)
        if self._mapper is not None:
            return list(self._mapped(self._mapper, batch, ids, numbers))
        if options.command_column is None and options.priority_column is None:
            (only,) = self._mappings
            return self._encoder(only, options.priority_of_all).encode(batch, ids, numbers)
        return self._by_kind(batch, ids, numbers)

    def _encoder(self, name: str, priority: Priority | None) -> CommandEncoder:
        encoder = self._encoders.get((name, priority))
        if encoder is None:
            encoder = CommandEncoder(self._mappings[name], self._dispatcher, self._options.command_id_column, priority)
            self._encoders[name, priority] = encoder
        return encoder

    def _by_kind(self, batch: pa.RecordBatch, ids: pa.Array, numbers: pa.Array | None) -> list[Packed]:
        """Return the rows, encoded command by command and priority by priority, and put back in order."""
        options = self._options
        names = _values(batch, options.command_column, next(iter(self._mappings)))
        priorities = _values(batch, options.priority_column, options.priority_of_all)
        rows: dict[tuple[Any, Any], list[int]] = {}
        for index, kind in enumerate(zip(names, priorities, strict=False)):
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

    def _refusal(self, name: Any, priority: Any) -> tuple[str, str] | None:
        """Return why rows of a command and priority are refused: the reason and its text; None if they are not."""
        if isinstance(name, Unreadable):
            return "unknown_command", name.message(self._options.command_column or "")
        if name not in self._mappings:
            known = ", ".join(self._mappings)
            return "unknown_command", "its command is NULL" if name is None else f"unknown command {name!r}; there are {known}"
        if isinstance(priority, Unreadable):
            return "invalid", priority.message(self._options.priority_column or "")
        if priority is not None and priority not in PRIORITIES:
            column = self._options.priority_column
            return "invalid", f"column {column!r} holds {priority!r}: 'high', 'normal', 'low', or NULL for that of the class"
        return None

    def _mapped(self, mapper: Mapper, batch: pa.RecordBatch, ids: pa.Array, numbers: pa.Array | None) -> Iterator[Packed]:
        options = self._options
        given: Any = repeat(0) if numbers is None else numbers.to_pylist()
        for command_id, number, (row, wrong) in zip(column_values(ids)[0], given, batch_rows(batch), strict=False):
            try:
                if wrong is not None:
                    raise InvalidCommand(wrong)
                message = mapper(dict(row))
                if not isinstance(message, Message):
                    raise InvalidCommand(f"the mapper gave {type(message).__name__}, not a command")
                priority: Any = options.priority_of_all if options.priority_column is None else row[options.priority_column]
                envelope = Envelope(message, command_id=id_of_row(command_id), priority=priority)
                _, packed = self._dispatcher.pack(envelope, sequence=checked_number(number))
                if options.entity_column is not None and message.spec().entity is not None:
                    check_entity(row[options.entity_column], packed[4], options.entity_column)
                yield packed
            except Exception as error:  # noqa: BLE001 - the user's function may raise anything; only this row is rejected
                text = (
                    error.message
                    if isinstance(error, CommandBusError)
                    else f"the mapper raised {type(error).__name__}: {text_of(error)}"
                )
                yield RowReject.of(command_id=command_id, command="", entity=None, reason="invalid", error=text[:2000], row=row)


def _values(batch: pa.RecordBatch, name: str | None, otherwise: Any) -> Iterable[Any]:
    """Return the values of a column, what Python cannot hold as `Unreadable`; without a column that one value, again and again."""
    if name is None:
        return repeat(otherwise)
    values, faults = column_values(batch.column(name))
    return [faults.get(index, value) for index, value in enumerate(values)] if faults else values


def _refused(refusal: tuple[str, str], name: Any, batch: pa.RecordBatch, ids: pa.Array) -> Iterator[Packed]:
    reason, text = refusal
    shown = name.shown if isinstance(name, Unreadable) else name or ""
    for command_id, (row, _) in zip(column_values(ids)[0], batch_rows(batch), strict=True):
        yield RowReject.of(command_id=command_id, command=shown, entity=None, reason=reason, error=text, row=row)
