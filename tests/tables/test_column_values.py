"""The table *values × columns of Spark*: a value in a column arrives as the same value of the same class, or its row is refused with a reason.

**A row** is that of `values.py`. **A form** is what its column holds: the value itself where Arrow has such a type, or its form in JSON, as
texts, arrays, maps and structs. **A way** makes commands of rows: whole columns by Arrow, each row by the class, by what workers announce of
it, or by a mapper. No server and no Spark is needed: what a task does with a batch is all that differs from other ways.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from command_bus import BusSettings
from command_bus.errors import CommandBusError
from command_bus.serialization.announcements import read_description
from command_bus.serialization.envelope import unpack_envelope
from command_bus.serialization.json_forms import json_form
from command_bus.serialization.models import codec_for, reply_codec_for
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.outcome import OutcomeRecord
from command_bus.serialization.reply import Completed, pack_reply
from command_bus.worker.worker_bus import describe_message
from tests.tables.carriers import NOTHING, Carrier
from tests.tables.shapes import shape
from tests.tables.test_json_values import AMBIGUOUS, AT_EACH_CONSTRUCTION, _defined, _verdict_of

pa = pytest.importorskip("pyarrow")

from command_bus.export.ends import ends_batch  # noqa: E402
from command_bus.spark.options import WriteOptions  # noqa: E402 - after the skip
from command_bus.spark.writing import command_lookup  # noqa: E402
from command_bus.spark.writing.encoder import BatchEncoder  # noqa: E402
from command_bus.spark.writing.task_results import RowReject  # noqa: E402
from tests.unit.spark.encoders import Offline, why  # noqa: E402

NO_COLUMN = ("time datetime.time(1, 2, 3, tzinfo",)
"""Begins of rows whose value Arrow changes where the column is made."""
Mappings = Callable[[Carrier, list[str]], Any]
WAYS: dict[str, Mappings] = {}


class RefusedRow(CommandBusError):
    """The row was set aside."""


def way(function: Mappings) -> Mappings:
    WAYS[function.__name__] = function
    return function


def _mapping(carrier: Carrier, columns: list[str], name: str) -> Any:
    options = WriteOptions(command=name, command_column=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], carrier.carry.__name__, carrier.carry, raising=False)
        return command_lookup.command_mappings(options, columns, lambda _: _announced(carrier))


def _announced(carrier: Carrier) -> Any:
    record = describe_message(carrier.carry, BusSettings())
    return None if record is None else read_description(carrier.carry.spec().name, record, ())


@way
def by_arrow(carrier: Carrier, columns: list[str]) -> Any:
    return _mapping(carrier, columns, f"{__name__}:{carrier.carry.__name__}")


@way
def by_rows(carrier: Carrier, columns: list[str]) -> Any:
    found = by_arrow(carrier, columns)
    return {name: replace(mapping, vectorised=False) for name, mapping in found.items()}


@way
def announced(carrier: Carrier, columns: list[str]) -> Any:
    return _mapping(carrier, columns, carrier.carry.spec().name)


@way
def by_mapper(carrier: Carrier, columns: list[str]) -> Any:
    return lambda row: carrier.carry(**{name: value for name, value in row.items() if name != "command_id"})


FORMS: dict[str, Callable[[Carrier], Any]] = {
    "as it is": lambda carrier: carrier.given(),
    "as JSON": lambda carrier: json_form(unpack(codec_for(carrier.carry).encode(carrier.carrying())))["value"],
}


def _arrived(carrier: Carrier, mappings: Mappings, form: Callable[[Carrier], Any]) -> Any:
    """Return what arrives, or the error with which class, value or row is refused; `NOTHING` if no column holds the value."""
    try:
        column = pa.array([form(carrier)])
    except (pa.ArrowException, OverflowError, UnicodeError, TypeError):
        return NOTHING
    except (CommandBusError, ValidationError) as error:
        return error  # it has no JSON
    batch = pa.record_batch({"command_id": pa.array(["c"]), "box": pa.array([f"b{carrier.number}"]), "value": column})
    try:
        found = mappings(carrier, batch.schema.names)
        mapper = found if callable(found) else None
        encoder = BatchEncoder({} if mapper else found, Offline(), WriteOptions(), mapper)
        [packed] = encoder.encode(batch)
    except CommandBusError as error:
        return error
    if isinstance(packed, RowReject):
        return RefusedRow(why(packed))
    arrived: Any = codec_for(carrier.carry).decode(unpack_envelope(packed[3]).payload)
    return arrived.value


CELLS = [
    (name, form) for name in WAYS for form in FORMS if (name, form) != ("by_mapper", "as JSON")
]  # a mapper is given what it takes


@pytest.mark.parametrize(("name", "form"), CELLS)
def test_a_column_arrives_as_its_value_or_its_row_is_refused(name: str, form: str) -> None:
    found = [(carrier, _arrived(carrier, WAYS[name], FORMS[form])) for carrier in _defined()]
    verdicts = {carrier.row.name: _verdict_of(carrier, value) for carrier, value in found if value is not NOTHING}
    assert list(verdicts.values()).count("same") > len(verdicts) / 2
    wrong = [
        f"{row}: {verdict}"
        for row, verdict in verdicts.items()
        if verdict not in ("same", "given") and not row.startswith(AMBIGUOUS + AT_EACH_CONSTRUCTION + NO_COLUMN)
    ]
    assert not wrong, f"{len(wrong)} of {len(verdicts)}:\n" + "\n".join(wrong)


def test_a_result_is_read_as_the_json_of_the_reply() -> None:
    wrong: list[str] = []
    for carrier in _defined():
        try:
            packed = reply_codec_for(carrier.row.kind).encode(carrier.row.make())
        except (CommandBusError, ValidationError):
            continue
        outcome = pack_reply("c", Completed(packed))
        record = OutcomeRecord("completed", name="x", entity_type="b", entity_id="1", attempt=1, worker="w", accepted_ms=1,
            first_started_ms=1, fence=1, message="5-1", reply=outcome)  # fmt: skip
        [row] = ends_batch("outcomes", "d", 0, ([b"1-0"], [[b"r", each] for each in [record.pack()]])).to_pylist()
        read, wanted = None if row["result"] is None else json.loads(row["result"]), json_form(unpack(packed))
        if shape(read) != shape(wanted):
            wrong.append(f"{carrier.row}: {str(wanted)[:80]} -> {str(read)[:80]}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)
