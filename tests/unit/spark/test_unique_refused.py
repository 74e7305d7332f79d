"""Loads do not fold, so a class with a unique key is refused rather than loaded without it."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from command_bus import Command, EntityId, InvalidSettings, Unique
from command_bus.spark.options import WriteOptions
from command_bus.spark.writing.command_mapping import _class_mapping


class Take(Command[None], entity="sku", unique=Unique()):
    sku: EntityId


def test_a_class_with_a_unique_key_is_refused() -> None:
    options = WriteOptions.parse({"command": "shop:Take", "dispatchId": "d"})
    with pytest.raises(InvalidSettings, match="loads do not fold"):
        _class_mapping(Take, options, ["sku"])
