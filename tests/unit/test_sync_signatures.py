"""The blocking side has what the asynchronous side has, with the same parameters. Types: `tests/typing`."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from command_bus import CommandBus, SyncCommandBus
from command_bus.admin.dead_letters import DeadLetters
from command_bus.admin.entities import Entities
from command_bus.admin.entity import EntityScope
from command_bus.admin.events import Events
from command_bus.admin.fleet import Fleet
from command_bus.bus import BusArguments
from command_bus.setting_values import SettingOverrides
from command_bus.sync.parts import SyncDeadLetters, SyncEntities, SyncEntityScope, SyncEvents, SyncFleet

PAIRS: list[tuple[type[Any], type[Any]]] = [
    (CommandBus, SyncCommandBus),
    (DeadLetters, SyncDeadLetters),
    (Entities, SyncEntities),
    (EntityScope, SyncEntityScope),
    (Events, SyncEvents),
    (Fleet, SyncFleet),
]

ASYNC_ONLY = {
    "in_memory": "the server in memory lives in one event loop",
    "is_open": "it is opened at its first use",
    "transport": "for workers and extensions, which are asynchronous",
    "worker": "a worker is a program of its own",
    "lifespan": "for workers",
    "middleware": "as given",
    "observer": "as given",
    "notifier": "who listens does so in an event loop; what it tells it tells",
    "session": "of an event loop",
    "sender": "of an event loop",
    "services": "each a bus of this event loop: SyncCommandBus(settings=settings.service(name)) is one of its own",
    "cipher": "as given",
    "registry": "for workers",
}

every_pair = pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=[theirs.__name__ for theirs, _ in PAIRS])


def methods(kind: type[Any]) -> dict[str, Any]:
    """Return its own public methods, and `__call__`."""
    return {name: value for name, value in vars(kind).items() if not name.startswith("_") or name == "__call__"}


@every_pair
def test_nothing_is_missing_and_nothing_is_new(theirs: type[Any], ours: type[Any]) -> None:
    expected = methods(theirs).keys() - (ASYNC_ONLY if theirs is CommandBus else {})
    assert methods(ours).keys() == expected


@every_pair
def test_parameters_are_the_same(theirs: type[Any], ours: type[Any]) -> None:
    for name, method in methods(ours).items():
        other = vars(theirs)[name]
        assert type(method) is type(other), name
        assert not inspect.iscoroutinefunction(method), name
        found, wanted = (inspect.signature(getattr(each, "fget", each)) for each in (method, other))
        assert found.parameters == wanted.parameters, name


@every_pair
def test_a_method_is_made_from_its_namesake(theirs: type[Any], ours: type[Any]) -> None:
    for name, method in methods(ours).items():
        made_from = getattr(method, "__wrapped__", None)
        assert made_from is None or made_from is vars(theirs)[name], name


def test_the_parts_of_a_bus_are_there() -> None:
    attributes = {name for name in vars(CommandBus()) if not name.startswith("_")}
    ours = {name for name in vars(SyncCommandBus()) if not name.startswith("_")}
    assert ours == attributes - ASYNC_ONLY.keys()
    for name in ("dead_letters", "entities", "events", "fleet"):
        assert (type(getattr(CommandBus(), name)), type(getattr(SyncCommandBus(), name))) in PAIRS


def test_both_are_made_with_the_same_arguments() -> None:
    named = {name for name, each in inspect.signature(CommandBus).parameters.items() if each.kind is each.KEYWORD_ONLY}
    assert BusArguments.__annotations__.keys() == named | SettingOverrides.__annotations__.keys()


def test_a_different_signature_is_found() -> None:
    class Drifted:
        def ping(self, often: int = 1) -> float:
            return float(often)

    with pytest.raises(AssertionError, match="ping"):
        test_parameters_are_the_same(CommandBus, Drifted)
    with pytest.raises(AssertionError):
        test_nothing_is_missing_and_nothing_is_new(CommandBus, Drifted)
