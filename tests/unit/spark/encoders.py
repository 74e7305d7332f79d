"""An encoder of rows without a server, for tests of the commands that rows become."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from command_bus import BusSettings, Command
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.spark.options import WriteOptions
from command_bus.spark.target import Target
from command_bus.spark.writing.command_lookup import command_mappings
from command_bus.spark.writing.command_mapping import check_named, check_taken, check_types
from command_bus.spark.writing.encoder import BatchEncoder
from command_bus.spark.writing.partition import PartitionDispatcher
from command_bus.spark.writing.task_results import RowReject
from command_bus.transport.ports.bulk import Opening

__all__ = ["Offline", "check", "encode", "why"]


class Offline(PartitionDispatcher):
    """A dispatcher as an encoder needs it: settings and names, no server."""

    def __init__(self, *, keep: bool = False, **options: Any) -> None:
        super().__init__(Target("redis://nowhere", "t"), dispatch_id="dispatch-1", opening=Opening(keep_ms=1000 if keep else 0))
        bus_settings = BusSettings(namespace="t", **options)
        self._offline: Any = SimpleNamespace(
            settings=bus_settings, builder=EnvelopeBuilder(bus_settings), agree=lambda *_: None, shard_of=lambda _: 3
        )

    @property
    def connection(self) -> Any:
        return self._offline


def encode(
    columns: dict[str, Any], /, *commands: type[Command[Any]] | str, dispatcher: Any = None, mapper: Any = None, **options: Any
) -> list[Any]:
    """Return the command or reject of each row; commands are importable classes, or their names."""
    batch = pa.record_batch({name: value if isinstance(value, pa.Array) else pa.array(value) for name, value in columns.items()})
    names = ",".join(each if isinstance(each, str) else f"{each.__module__}:{each.__qualname__}" for each in commands)
    chosen = WriteOptions(command=names, **options)
    used: Any = dispatcher or Offline()
    mappings = {} if mapper is not None else command_mappings(chosen, batch.schema.names)
    return BatchEncoder(mappings, used, chosen, mapper).encode(batch)


def check(options: WriteOptions, schema: Any) -> None:
    """Check options against the columns of an Arrow schema, all of which are read."""
    check_named(options, schema.names)
    mappings = command_mappings(options, schema.names)
    check_taken(options, mappings, schema.names, set(schema.names))
    check_types(options, mappings, schema)


def why(reject: Any) -> str:
    """Return the reason of a reject."""
    assert isinstance(reject, RowReject)
    return str(json.loads(reject.record)["error"])
