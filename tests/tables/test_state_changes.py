"""Changes of the states of entities, each with what `schema check` says of it, and what a worker does that reads what another one has stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import new_class
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

pytest.importorskip("typer")

from command_bus import BadState, Command, CommandBus, EntityId, EntityState, HandlerRegistry, upcasts
from command_bus.cli.schemas.compare import BREAKS, FITS, Change, changes
from command_bus.cli.schemas.document import Described, described, exported, read_document
from command_bus.serialization.models import codec_for
from command_bus.serialization.msgpack import pack
from command_bus.serialization.states import StateCodec, StoredState
from command_bus.settings import BusSettings

NAME = "state@account"
CODEC = StateCodec(BusSettings(url="redis://none"), None)


def account(fields: Mapping[str, Any], *, up: Any = None, **arguments: Any) -> type[EntityState]:
    """Return a class of states: each field is a type and a default."""

    def fill(body: dict[str, Any]) -> None:
        body["__module__"] = __name__
        body["__annotations__"] = {name: each[0] for name, each in fields.items()}
        body |= {name: each[1] for name, each in fields.items()}

    kind: Any = new_class("Account", (EntityState,), {"entity": "account", **arguments}, fill)
    if up is not None:
        upcasts(kind, since=1)(up)
    made: type[EntityState] = kind
    return made


def application(kind: type[EntityState] | None, *, version: int = 1) -> CommandBus:
    registry = HandlerRegistry()

    class Pay(Command[None], entity="account", version=version):
        account: EntityId

    async def pay(command: Any, state: Any) -> None:
        """Handle a command with a state."""

    async def plain(command: Any) -> None:
        """Handle one without."""

    if version > 1:
        upcasts(Pay, since=1)(dict)
    handler: Any = plain if kind is None else pay
    handler.__annotations__ = {"command": Pay, "return": None, **({} if kind is None else {"state": kind})}
    registry.handles(Pay)(handler)
    return CommandBus("redis://127.0.0.1:1", registry=registry)


def document(bus: CommandBus) -> dict[str, Described]:
    return read_document(json.dumps(exported(bus)))


def said(old: CommandBus, new: CommandBus) -> list[Change]:
    return changes(document(old), described(new))


@dataclass(frozen=True)
class Row:
    """A change of a state.

    Attributes:
        old: The class before.
        new: The class after.
        verdict: `fits`, or `breaks`: what is stored is not read, and its entity is parked.
        place: Where it breaks.
        is_read: Whether old workers read what new ones have stored.
    """

    old: type[EntityState]
    new: type[EntityState]
    verdict: str
    place: str = ""
    is_read: bool = False


CENTS = {"cents": (int, 0)}
ROWS = {
    "nothing": Row(account(CENTS), account(CENTS), FITS, is_read=True),
    "a new field": Row(account(CENTS), account({**CENTS, "owner": (str, "")}), FITS),
    "a field is gone": Row(account({**CENTS, "owner": (str, "")}), account(CENTS), BREAKS, f"{NAME}.owner", is_read=True),
    "a field is renamed": Row(account(CENTS), account({"pence": (int, 0)}), BREAKS, f"{NAME}.cents"),
    "a narrower type": Row(account({"cents": (int | None, None)}), account(CENTS), BREAKS, f"{NAME}.cents", is_read=True),
    "a wider type": Row(account(CENTS), account({"cents": (int | None, None)}), FITS),
    "a bound": Row(account(CENTS), account({"cents": (Annotated[int, Field(ge=0)], 0)}), BREAKS, f"{NAME}.cents", is_read=True),
    "a member more": Row(account({"way": (Literal["in"], "in")}), account({"way": (Literal["in", "out"], "in")}), FITS),
    "another default": Row(account(CENTS), account({"cents": (int, 5)}), FITS, is_read=True),
    "another time": Row(account(CENTS), account(CENTS, keep="1 day"), FITS, is_read=True),
    "an upcaster": Row(account(CENTS), account({"pence": (int, 0)}, version=2, up=lambda each: {"pence": each["cents"]}), FITS),
    "an upcaster that forgets": Row(account(CENTS), account({"pence": (int, 0)}, version=2, up=dict), BREAKS, NAME),
    "a version without one": Row(account(CENTS), account(CENTS, version=2), BREAKS, NAME),
    "a version falls": Row(account(CENTS, version=2, up=dict), account(CENTS), BREAKS, NAME, is_read=True),
}
rows = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())


@rows
def test_the_verdict(row: Row) -> None:
    found = said(application(row.old), application(row.new))
    assert [each.place for each in found if each.verdict != FITS][:1] == ([row.place] if row.place else [])
    assert [each.verdict for each in found if each.verdict != FITS][:1] == ([row.verdict] if row.verdict != FITS else [])
    assert row.is_read == (not [each for each in found if each.compares == "forward"])


@rows
def test_what_is_said_is_what_happens(row: Row) -> None:
    assert are_read(row.old, row.new) == (row.verdict == FITS)
    assert are_read(row.new, row.old) == row.is_read


def are_read(writes: type[EntityState], reads: type[EntityState]) -> bool:
    """Return whether a worker with a class reads what another one has stored."""
    try:
        for fields in stored(writes):
            CODEC.value(reads, StoredState(writes.spec().version, 1, 1, pack(fields)))
    except (BadState, KeyError, LookupError):
        return False
    return True


def stored(kind: type[EntityState]) -> Iterator[dict[str, Any]]:
    found = document(application(kind))[NAME]
    codec_for(kind).decode(pack(dict(found.example)))  # else nothing is proved
    yield dict(found.example)
    yield from ({**found.example, field: value} for field, several in found.values.items() for value in several)


def test_a_command_that_begins_to_take_the_state_raises_its_version() -> None:
    """Workers of before would run it without, and change nothing."""
    kind = account(CENTS)
    (first, other) = said(application(None), application(kind))
    assert (first.place, first.verdict, first.text.partition(":")[0]) == (
        "Pay",
        BREAKS,
        "its handler takes the state now, and old workers run it without",
    )
    assert (other.place, other.verdict, other.text) == (NAME, FITS, "it is new")
    assert [each.verdict for each in said(application(None), application(kind, version=2)) if each.place == "Pay"] == [
        "workers first"
    ]
    assert [(each.place, each.verdict) for each in said(application(kind), application(None))] == [(NAME, FITS)]
