"""What the methods of a bus and of its parts give can be imported from `command_bus`, to name it in annotations."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import command_bus
from command_bus import CommandBus, EntityScope, SyncCommandBus, SyncEntityScope
from command_bus.dead_letters import DeadLetters
from command_bus.entities import Entities
from command_bus.events import Events
from command_bus.fleet import Fleet

UNNAMED = {
    "RedisTransport",
    "SyncDeadLetters",
    "SyncEntities",
    "Entities",
}  # parts, reached through the bus and not made by anybody else


@pytest.mark.parametrize(
    "kind",
    [CommandBus, SyncCommandBus, EntityScope, SyncEntityScope, DeadLetters, Entities, Events, Fleet],
    ids=lambda kind: kind.__name__,
)
def test_what_methods_give_can_be_imported(kind: type[Any]) -> None:
    for name, method in vars(kind).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        words = set(re.findall(r"\b[A-Z]\w{2,}", str(inspect.signature(method).return_annotation)))
        own = {word for word in words if word not in {"Any", "Self", "None", "AsyncIterator", "Generator", "Counter"}}
        assert own <= {*command_bus.__all__, *UNNAMED}, name
