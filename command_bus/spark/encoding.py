"""Arrow batches into packed commands, in the order of the rows.

Whole columns are checked first (see `plans`); what passes is packed from columns without a Python object per row beyond its payload.
The others are validated one by one, and those that fail become rejects with the reasons.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from typing import Any
from zlib import crc32

import pyarrow as pa

from command_bus.errors import CommandBusError, InvalidCommand
from command_bus.messages import Message, canonical_entity_id
from command_bus.outbound import Envelope
from command_bus.serialization.envelope import KEEP_OUTCOME, EnvelopeStamp, WireEnvelope, packed_text
from command_bus.serialization.limits import Limits
from command_bus.serialization.native import Packer
from command_bus.spark.dispatcher import PartitionDispatcher, Reject, check_of, flags_of
from command_bus.spark.plans import all_of, fits, mask_of, pc, widest_of
from command_bus.spark.routes import Route
from command_bus.transport.dispatches import LoadItem
from command_bus.transport.redis.keys import free_mailbox

__all__ = ["BatchEncoder", "Mapper", "Packed", "uncollected"]

Packed = tuple[int, LoadItem] | Reject
"""A shard and what goes there, or a row that is no command."""
Mapper = Callable[[dict[str, Any]], Message[Any]]

_MOST_ENTITIES = 200_000  # whose places are remembered
_MAX_COMMAND_ID = 512
_LARGE = 64  # times the limit of one payload: then the rows are looked at one by one
_SAFE_INTEGER = 2**53


@contextmanager
def uncollected() -> Generator[None]:
    """Without the cyclic garbage collector: it looks through a batch's many small objects, which no cycle holds, again and again."""
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
        routes: By wire name; one of them if there is no column of commands.
        dispatcher: Of the partition.
        id_column: With the command ids.
        command_column: With each row's wire name, or None.
        sequence_column: With the numbers that only grow within an entity, or None.
        mapper: Makes the command of a row instead.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        dispatcher: PartitionDispatcher,
        *,
        id_column: str,
        command_column: str | None = None,
        sequence_column: str | None = None,
        mapper: Mapper | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._id_column = id_column
        self._command_column = command_column
        self._sequence_column = sequence_column
        self._mapper = mapper
        self._routes = {name: _RouteEncoder(route, dispatcher) for name, route in routes.items()}

    def encode(self, batch: pa.RecordBatch) -> list[Packed]:
        """The rows of a batch, each as a packed command or a reject, in order."""
        ids = batch.column(self._id_column)
        numbers = None if self._sequence_column is None else batch.column(self._sequence_column)
        if self._mapper is not None:
            return list(self._mapped(self._mapper, batch, ids, numbers))
        if self._command_column is None:
            (only,) = self._routes.values()
            return only.encode(batch, ids, numbers)
        return self._by_command(batch, self._command_column, ids, numbers)

    def _by_command(self, batch: pa.RecordBatch, column: str, ids: pa.Array, numbers: pa.Array | None) -> list[Packed]:
        """Each command's rows encoded together, then put back in order."""
        rows: dict[Any, list[int]] = {}
        for index, name in enumerate(batch.column(column).to_pylist()):
            rows.setdefault(name, []).append(index)
        encoded: list[Any] = [None] * batch.num_rows
        for name, indices in rows.items():
            route = self._routes.get(name)
            chosen = pa.array(indices)
            part, part_ids = batch.take(chosen), ids.take(chosen)
            if route is None:
                packed = list(self._unknown(name, part, part_ids))
            else:
                packed = route.encode(part, part_ids, None if numbers is None else numbers.take(chosen))
            for index, item in zip(indices, packed, strict=True):
                encoded[index] = item
        return encoded

    def _unknown(self, name: Any, batch: pa.RecordBatch, ids: pa.Array) -> Iterator[Packed]:
        text = "its command is NULL" if name is None else f"unknown command {name!r}; there are {', '.join(self._routes)}"
        for command_id, row in zip(ids.to_pylist(), rows_of(batch), strict=True):
            yield Reject.of(command_id=command_id, command=name or "", entity=None, reason="unknown_command", error=text, row=row)

    def _mapped(self, mapper: Mapper, batch: pa.RecordBatch, ids: pa.Array, numbers: pa.Array | None) -> Iterator[Packed]:
        given: Any = repeat(0) if numbers is None else numbers.to_pylist()
        for command_id, number, row in zip(ids.to_pylist(), given, rows_of(batch), strict=False):
            try:
                message = mapper(row)
                if not isinstance(message, Message):
                    raise InvalidCommand(f"the mapper gave {type(message).__name__}, not a command")
                yield self._dispatcher.pack(
                    Envelope(message, command_id=_checked_id(command_id)), sequence=_checked_number(number)
                )
            except Exception as error:  # noqa: BLE001 - whatever the user's function raises is this row's fault alone
                text = (
                    error.message if isinstance(error, CommandBusError) else f"the mapper raised {type(error).__name__}: {error}"
                )
                yield Reject.of(command_id=command_id, command="", entity=None, reason="invalid", error=text[:2000], row=row)


class _RouteEncoder:
    """Encodes the rows of one command."""

    def __init__(self, route: Route, dispatcher: PartitionDispatcher) -> None:
        spec = route.spec
        link = dispatcher.link
        if spec.entity is not None:
            link.agree(spec.entity)
        flags = flags_of(dispatcher.opening, at_most_once=spec.delivery == "at_most_once")
        kept = dispatcher.version.dispatch_id if flags & KEEP_OUTCOME else None
        entity_id = None if spec.entity is None else "-"
        template = WireEnvelope("-", spec.name, spec.entity, entity_id, b"", flags, correlation_id=kept)
        self._route = route
        self._link = link
        self._stamp = EnvelopeStamp(template, link.sealer.sign)
        self._limits = Limits(max_bytes=link.settings.max_payload, max_nesting=link.settings.max_nesting)
        self._seed = crc32(spec.name.encode())
        self._places: dict[Any, tuple[int, str, bytes, str]] = {}
        self._no_entity = packed_text("") if spec.entity is not None else Packer().pack(None)

    def encode(self, batch: pa.RecordBatch, ids: pa.Array, numbers: pa.Array | None) -> list[Packed]:
        """The rows in order."""
        mask = all_of([mask for mask in (self._mask(batch), _fit_ids(ids), _fit_numbers(numbers)) if mask is not None])
        payloads = self._payloads(batch)
        spec = self._route.spec
        keys: Any = repeat(None) if spec.key is None else batch.column(self._route.columns[spec.key]).to_pylist()
        given: Any = repeat(0) if numbers is None else numbers.to_pylist()
        rows: Any = zip(ids.to_pylist(), given, keys, payloads, strict=False)
        if mask is not None:
            return self._checked(batch, rows, mask.to_pylist())
        places, find, stamp, name = self._places, self._place, self._stamp.pack, self._seed
        packed: list[Packed] = []
        append = packed.append
        for command_id, number, key, payload in rows:  # the path of nearly all rows: nothing is called that need not be
            shard, mailbox, entity, text = places.get(key) or find(key, command_id)
            check = crc32(payload, name).to_bytes(4, "big")
            append((shard, (mailbox, command_id, check, stamp(packed_text(command_id), entity, payload), text, number)))
        return packed

    def _checked(self, batch: pa.RecordBatch, rows: Any, good: list[bool]) -> list[Packed]:
        """As above, for batches with rows that Arrow does not vouch for: these go through the model."""
        spec = self._route.spec
        packed: list[Packed] = []
        for index, (command_id, number, key, payload) in enumerate(rows):
            try:
                checked = _checked_id(command_id)
                sequence = _checked_number(number)
                content = payload if good[index] and len(payload) <= self._limits.max_bytes else self._validated(batch, index)
                shard, mailbox, entity, text = self._place(key, checked)
            except CommandBusError as error:
                row = {name: batch.column(column)[index].as_py() for name, column in self._route.columns.items()}
                packed.append(
                    Reject.of(
                        command_id=command_id, command=spec.name, entity=None if key is None else str(key), reason="invalid",
                        error=error.message, row=row,
                    )
                )  # fmt: skip
                continue
            envelope = self._stamp.pack(packed_text(checked), entity, content)
            packed.append((shard, (mailbox, checked, check_of(spec.name, content), envelope, text, sequence)))
        return packed

    def _mask(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Which rows Arrow vouches for; None if it does for all."""
        route = self._route
        if not route.vectorised or batch.nbytes > self._limits.max_bytes * _LARGE:
            return _none_of(batch)
        masks: list[Any] = []
        for plan in route.fields:
            column = route.columns.get(plan.name)
            if column is None:
                continue
            values = batch.column(column)
            if not fits(plan, values.type):
                return _none_of(batch)
            masks.append(mask_of(plan, values))
        if self._widest(batch) > self._limits.max_bytes:
            return _none_of(batch)
        return all_of([each for each in masks if each is not None])

    def _widest(self, batch: pa.RecordBatch) -> int:
        """Bytes that a payload may have at most, from the widest value of each column."""
        route = self._route
        return sum(
            len(plan.name) + 16 + widest_of(batch.column(route.columns[plan.name]))
            for plan in route.fields
            if plan.name in route.columns
        )

    def _payloads(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """The payloads, from columns; of a row that Arrow does not vouch for they mean nothing."""
        route = self._route
        if not route.vectorised:
            return repeat(b"", batch.num_rows)
        columns: list[Any] = []
        for plan in route.fields:
            column = route.columns.get(plan.name)
            if column is None:
                columns.append(repeat(plan.default, batch.num_rows))
                continue
            values = batch.column(column)
            if plan.kind == "float" and pa.types.is_integer(values.type):
                values = values.cast(pa.float64())
            columns.append(values.to_pylist())
        names = [plan.name for plan in route.fields]
        pack = Packer(buf_size=1024).pack
        return (pack(dict(zip(names, row, strict=False))) for row in zip(*columns, strict=False))

    def _validated(self, batch: pa.RecordBatch, index: int) -> bytes:
        """The payload of a row that Arrow does not vouch for.

        Raises:
            InvalidCommand: It is none.
        """
        row = {
            name: _plain(batch.column(column)[index].as_py(), batch.column(column).type)
            for name, column in self._route.columns.items()
        }
        return self._route.payload(row, self._limits)

    def _place(self, key: Any, command_id: str) -> tuple[int, str, bytes, str]:
        """Shard, mailbox, packed entity id and its text."""
        spec = self._route.spec
        if spec.entity is None:
            mailbox = free_mailbox(command_id)
            return self._link.shard_of(mailbox), mailbox, self._no_entity, ""
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= _MOST_ENTITIES:
                self._places.clear()
            text = canonical_entity_id(key)
            mailbox = self._link.sealer.mailbox_of(spec.entity, text)
            place = self._places[key] = (self._link.shard_of(mailbox), mailbox, packed_text(text), text)
        return place


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows as plain values by column."""
    names = batch.schema.names
    columns = [[_plain(value, column.type) for value in column.to_pylist()] for column in batch.columns]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Maps as dicts: Arrow gives lists of pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: _plain(item, kind.item_type) for key, item in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {kind.field(i).name: _plain(value[kind.field(i).name], kind.field(i).type) for i in range(kind.num_fields)}
    return value


def _none_of(batch: pa.RecordBatch) -> pa.Array:
    return pa.repeat(pa.scalar(False), batch.num_rows)


def _fit_ids(ids: pa.Array) -> pa.Array | None:
    """Which ids are certainly ids; None if all are."""
    size = pc.binary_length(ids)
    return all_of([pc.and_(pc.greater(size, 0), pc.less_equal(size, _MAX_COMMAND_ID))])


def _fit_numbers(numbers: pa.Array | None) -> pa.Array | None:
    return None if numbers is None else all_of([pc.and_(pc.less(numbers, _SAFE_INTEGER), pc.greater(numbers, -_SAFE_INTEGER))])


def _checked_id(command_id: Any) -> str:
    if not isinstance(command_id, str) or not command_id:
        raise InvalidCommand("its command id is NULL or empty: derive it with command_id(…) from columns that identify the row")
    if len(command_id) > _MAX_COMMAND_ID // 4 and len(command_id.encode()) > _MAX_COMMAND_ID:
        raise InvalidCommand(f"its command id has more than {_MAX_COMMAND_ID} bytes: use a digest, as command_id(…) does")
    return command_id


def _checked_number(number: Any) -> int:
    if not isinstance(number, int) or not -_SAFE_INTEGER < number < _SAFE_INTEGER:
        raise InvalidCommand(f"its sequence number is {number!r}: an integer below 2^53")
    return number
