"""`CommandEncoder`: Arrow batches of one command into packed commands, in the order of the rows.

Whole columns are checked first (see `field_checks`). Rows that pass are packed as columns (see `packed_columns`). The others are
validated one by one, and those that fail become rejects with the reasons. Either way a row becomes the command that plain Python
would make of the same values: the same payload, in the same mailbox.

Spark brings an entity's rows into one task by the column of entity ids. So a command whose validators change the id in that column is
refused: its entity's other rows may be in another task, and their order would be lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from struct import Struct
from typing import Any
from zlib import crc32

import pyarrow as pa

from command_bus.errors import CommandBusError, InvalidCommand
from command_bus.messages.message import MAX_COMMAND_ID_BYTES, canonical_entity_id
from command_bus.messages.policies import Priority
from command_bus.sending.envelope_builder import message_of
from command_bus.sending.options import give
from command_bus.serialization.envelope import EnvelopeTemplate, packed_text
from command_bus.serialization.envelope_options import PRIORITY
from command_bus.serialization.limits import PayloadLimits
from command_bus.serialization.native import Packer
from command_bus.spark.writing.columns import column_values
from command_bus.spark.writing.command_mapping import CommandMapping
from command_bus.spark.writing.field_checks import all_of, fits, mask_of, pc, size_of, typed_for, widest_of
from command_bus.spark.writing.packed_columns import RowFlows, is_readable, joined, packed_binaries, packed_column, packed_texts
from command_bus.spark.writing.partition import PartitionDispatcher, payload_check
from command_bus.spark.writing.task_results import RowReject
from command_bus.transport.mailboxes import free_mailbox
from command_bus.transport.ports.bulk import LoadItem
from command_bus.transport.unique_keys import LoadKey

Packed = LoadItem | RowReject
"""A command, or a row that is no command."""

_Place = tuple[str, bytes, str, LoadKey | None]
"""Mailbox, packed entity id and its text, unique key."""

_MOST_BYTES = 2**29  # packed at a time: Arrow's offsets end at 2^31
_MOST_ENTITIES = 200_000  # whose mailboxes are cached
_LARGE = 64  # times the limit of one payload: above that, rows are checked one by one
_SAFE_INTEGER = 2**53
_CHECK = Struct(">I")


class CommandEncoder:
    """Encodes the rows of one command and priority.

    Args:
        mapping: Tells the columns that feed the command's fields.
        dispatcher: Sends the commands of the partition.
        id_column: The column of command ids.
        priority: What the rows name; None: that of the class or the entity type.
    """

    def __init__(
        self, mapping: CommandMapping, dispatcher: PartitionDispatcher, id_column: str, priority: Priority | None = None
    ) -> None:
        spec = mapping.spec
        connection = dispatcher.connection
        if spec.entity is not None:
            dispatcher.agree(spec.entity)
        at_most_once = connection.settings.handling(spec).delivery == "at_most_once"
        out = message_of(spec, None if spec.entity is None else "-", b"", at_most_once=at_most_once)
        envelope = dispatcher.envelope(give(out, {"priority": priority}, None))
        self._mapping = mapping
        self._id_column = id_column
        self._connection = connection
        self._above = connection.settings.compress_above_of(spec)
        self._template = EnvelopeTemplate(envelope, connection.builder.sign, self._above)
        self._limits = PayloadLimits(max_bytes=connection.settings.max_payload, max_nesting=connection.settings.max_nesting)
        self._seed = crc32(spec.name.encode())
        self._mailboxes: dict[Any, _Place] = {}
        self._flows = RowFlows(PRIORITY.of(envelope.options), mapping.tenant)
        self._no_entity = packed_text("") if spec.entity is not None else Packer().pack(None)

    def encode(self, batch: pa.RecordBatch, ids: pa.Array, numbers: pa.Array | None) -> list[Packed]:
        """Return the rows in order."""
        mapping = self._mapping
        fed = [plan for plan in mapping.fields if plan.name in mapping.columns]
        columns = {plan.name: typed_for(plan, batch.column(mapping.columns[plan.name])) for plan in fed}
        mask = self._mask(columns, batch, ids, numbers)
        if mask is None:
            return self._packed(columns, ids, numbers)
        encoded: list[Any] = [None] * batch.num_rows
        for encode, chosen in ((self._packed, mask), (self._checked, pc.invert(mask))):
            indices = pc.indices_nonzero(chosen)
            part = {name: column.take(indices) for name, column in columns.items()}
            if len(indices):
                packed = encode(part, ids.take(indices), None if numbers is None else numbers.take(indices))
                for index, item in zip(indices.to_pylist(), packed, strict=True):
                    encoded[index] = item
        return encoded

    def _packed(self, columns: dict[str, pa.Array], ids: pa.Array, numbers: pa.Array | None) -> list[Packed]:
        """Return rows that Arrow accepts. Nearly all rows go here: no line of Python runs once for each."""
        mailboxes, entities, texts, keys = self._places(columns, ids)
        payloads = self._payloads(columns, len(ids))
        head, name, tail = self._template.constants
        joint = joined([head, packed_texts(ids), name, entities, packed_binaries(payloads), tail])
        names, contents, envelopes = ids.to_pylist(), payloads.to_pylist(), self._template.signed(joint.to_pylist())
        above = self._above
        if above is not None and pc.max(pc.binary_length(payloads)).as_py() > above:  # what is large is packed again, compressed
            parts: Any = repeat(entities) if isinstance(entities, bytes) else entities.to_pylist()
            envelopes = [
                self._template.pack(packed_text(each), entity, payload) if len(payload) > above else envelope
                for each, entity, payload, envelope in zip(names, parts, contents, envelopes, strict=False)
            ]
        checks = map(_CHECK.pack, map(crc32, contents, repeat(self._seed)))
        given: Any = repeat(0) if numbers is None else numbers.to_pylist()
        flows = self._flows.of_columns(columns)
        return list(zip(mailboxes, names, checks, envelopes, texts, given, flows, keys, strict=False))

    def _places(
        self, columns: dict[str, pa.Array], ids: pa.Array
    ) -> tuple[Iterable[str], bytes | pa.Array, Iterable[str], Iterable[LoadKey | None]]:
        """Return where each row goes: mailboxes, packed entity ids, their texts, unique keys."""
        key = self._mapping.spec.key
        if key is None:
            return map(free_mailbox, ids.to_pylist()), self._no_entity, repeat(""), repeat(None)
        keys = columns[key].dictionary_encode()
        found = [self._place_of(value, "") for value in keys.dictionary.to_pylist()]
        mailboxes, packed, texts, uniques = zip(*found, strict=True)
        places = keys.indices.to_pylist()
        entities = pa.array(packed, pa.binary()).take(keys.indices)
        return map(mailboxes.__getitem__, places), entities, map(texts.__getitem__, places), map(uniques.__getitem__, places)

    def _checked(self, columns: dict[str, pa.Array], ids: pa.Array, numbers: pa.Array | None) -> list[Packed]:
        """Return rows that Arrow does not accept: the model validates each."""
        spec = self._mapping.spec
        read, faults = self._read(columns)
        given_ids, wrong = column_values(ids)
        faults |= {index: fault.message(self._id_column) for index, fault in wrong.items()}
        keys: Any = repeat(None) if spec.key is None else read[spec.key]
        given: Any = repeat(0) if numbers is None else numbers.to_pylist()
        packed: list[Packed] = []
        for index, (command_id, number, key) in enumerate(zip(given_ids, given, keys, strict=False)):
            try:
                if index in faults:
                    raise InvalidCommand(faults[index])
                checked = id_of_row(command_id)
                sequence = checked_number(number)
                content, entity_key, tenant = self._validated(_row(read, index), key)
                mailbox, entity, text, unique = self._place_of(entity_key, checked)
            except CommandBusError as error:
                packed.append(
                    RowReject.of(
                        command_id=command_id, command=spec.name, entity=None if key is None else str(key), reason="invalid",
                        error=error.message, row=_row(read, index),
                    )
                )  # fmt: skip
                continue
            envelope = self._template.pack(packed_text(checked), entity, content)
            check, flow = payload_check(spec.name, content), self._flows.of(tenant)
            packed.append((mailbox, checked, check, envelope, text, sequence, flow, unique))
        return packed

    def _read(self, columns: dict[str, pa.Array]) -> tuple[dict[str, list[Any]], dict[int, str]]:
        """Return the values by field, and by row the errors of values that Python cannot hold."""
        read: dict[str, list[Any]] = {}
        faults: dict[int, str] = {}
        for name, column in columns.items():
            read[name], wrong = column_values(column)
            for index, fault in wrong.items():
                faults.setdefault(index, fault.message(self._mapping.columns[name]))
        return read, faults

    def _mask(
        self, columns: dict[str, pa.Array], batch: pa.RecordBatch, ids: pa.Array, numbers: pa.Array | None
    ) -> pa.Array | None:
        """Return which rows Arrow accepts; None if it accepts all."""
        mapping = self._mapping
        if not mapping.vectorised or batch.nbytes > min(self._limits.max_bytes * _LARGE, _MOST_BYTES):
            return _none_of(batch)
        masks = [
            _fit_ids(ids),
            _fit_numbers(numbers),
            self._flows.mask(columns, len(ids)),
            *map(_readable, (ids, *columns.values())),
        ]
        widest = 0
        for plan in mapping.fields:
            column = columns.get(plan.name)
            if column is None:
                widest += size_of(plan.default)
            elif not fits(plan, column.type):
                return _none_of(batch)
            else:
                masks.append(mask_of(plan, column))
                widest += widest_of(column)
            widest += len(plan.name.encode()) + 16
        if widest > self._limits.max_bytes:
            return _none_of(batch)
        return all_of([each for each in masks if each is not None])

    def _payloads(self, columns: dict[str, pa.Array], rows: int) -> pa.Array:
        """Return the payloads: maps of the columns' values by field."""
        fields = self._mapping.fields
        packer = Packer()
        parts: list[bytes | pa.Array] = [packer.pack_map_header(len(fields))]
        for plan in fields:
            column = columns.get(plan.name)
            parts += (packer.pack(plan.name), packer.pack(plan.default) if column is None else packed_column(column))
        if not columns:
            return pa.repeat(pa.scalar(b"".join(parts), pa.binary()), rows)
        return joined(parts)

    def _validated(self, row: dict[str, Any], key: Any) -> tuple[bytes, str | None, str]:
        """Return the payload of a row that the model validates, its command's entity and its tenant.

        Raises:
            InvalidCommand: The row is no command, or its command's entity differs from the column.
        """
        payload, entity, tenant = self._mapping.payload(row, self._limits)
        if entity is not None:
            check_entity(key, entity, self._mapping.columns[self._mapping.spec.key or ""])
        return payload, entity, tenant

    def _place_of(self, key: Any, command_id: str) -> _Place:
        """Return where a row goes."""
        spec = self._mapping.spec
        if spec.entity is None:
            return free_mailbox(command_id), self._no_entity, "", None
        found = self._mailboxes.get(key)
        if found is None:
            if len(self._mailboxes) >= _MOST_ENTITIES:
                self._mailboxes.clear()
            text = canonical_entity_id(key)
            mailbox = self._connection.builder.mailbox_of(spec.entity, text)
            unique = None if spec.unique is None else LoadKey.of(spec.unique, spec.name, mailbox, text)
            found = (mailbox, packed_text(text), text, unique)
            self._mailboxes[key] = found
        return found


def _row(read: dict[str, list[Any]], index: int) -> dict[str, Any]:
    return {name: values[index] for name, values in read.items()}


def check_entity(key: Any, entity: str, column: str) -> None:
    """Check that a row's command has the entity id of its column, by which the rows are arranged.

    Raises:
        InvalidCommand: It has another.
    """
    if key is None or str(key) != entity:
        raise InvalidCommand(
            f"its command has another entity id than column {column!r}: rows are put in order by the column, so it must hold what the "
            "command's validators or the mapper make of it. Change the column before (trim it, lower it …)"
        )


def _none_of(batch: pa.RecordBatch) -> pa.Array:
    return pa.repeat(pa.scalar(False), batch.num_rows)


def _readable(column: pa.Array) -> pa.Array | None:
    """Return which texts are UTF-8; None if all are."""
    if is_readable(column):
        return None
    faults = column_values(column)[1]
    return pa.array([index not in faults for index in range(len(column))])


def _fit_ids(ids: pa.Array) -> pa.Array | None:
    """Return which ids are certainly valid; None if all are."""
    size = pc.binary_length(ids)
    return all_of([pc.and_(pc.greater(size, 0), pc.less_equal(size, MAX_COMMAND_ID_BYTES))])


def _fit_numbers(numbers: pa.Array | None) -> pa.Array | None:
    return None if numbers is None else all_of([pc.and_(pc.less(numbers, _SAFE_INTEGER), pc.greater(numbers, -_SAFE_INTEGER))])


def id_of_row(command_id: Any) -> str:
    """Return the command id of a row.

    Raises:
        InvalidCommand: It is none.
    """
    if not isinstance(command_id, str) or not command_id:
        raise InvalidCommand("its command id is NULL or empty: derive it with command_id(…) from columns that identify the row")
    if len(command_id) > MAX_COMMAND_ID_BYTES // 4 and len(command_id.encode()) > MAX_COMMAND_ID_BYTES:
        raise InvalidCommand(f"its command id has more than {MAX_COMMAND_ID_BYTES} bytes: use a digest, as command_id(…) does")
    return command_id


def checked_number(number: Any) -> int:
    """Return the sequence number of a row.

    Raises:
        InvalidCommand: It is none.
    """
    if not isinstance(number, int) or not -_SAFE_INTEGER < number < _SAFE_INTEGER:
        raise InvalidCommand(f"its sequence number is {number!r}: an integer below 2^53")
    return number
