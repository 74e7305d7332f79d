"""Classes that are refused where they are defined: no value of a field would come back, or its name is taken."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, create_model

from command_bus.errors import RegistrationError
from command_bus.messages.message import Command, EntityId
from command_bus.serialization.models import codec_for, reply_codec_for


class Created(BaseModel):
    id: int


class Deleted(BaseModel):
    id: int


class Bounded(BaseModel):
    id: Annotated[int, Field(gt=0)]


class Tagged(BaseModel):
    kind: Literal["tagged"] = "tagged"
    type: int


class Other(BaseModel):
    kind: Literal["other"] = "other"
    type: int


@dataclasses.dataclass
class Removed:
    id: int


class Node(BaseModel):
    children: list[Node] = []


class Knot(BaseModel):
    children: list[Knot] = []


class Lost(BaseModel):
    function: int = Field(exclude=True)


@pytest.mark.parametrize(
    "kind",
    [
        Created | Deleted,
        Created | Deleted | None,
        dict[str, list[Created | str | Deleted]],
        Removed | Created,
        Lost,
        list[Lost] | None,
    ],
    ids=str,
)
def test_183_a_type_that_is_never_read_as_it_was_sent(kind: Any) -> None:
    with pytest.raises(RegistrationError, match=r"^Message: .*(give the union a discriminator|give it one)"):
        create_model("Message", __base__=Command[None], field=(kind, ...))
    with pytest.raises(RegistrationError, match="the reply type"):
        reply_codec_for(kind).prepare()


@pytest.mark.parametrize(
    "kind", [Created | Bounded, Tagged | Other, Created | Created, Created | int, Node | Knot, Node], ids=str
)
def test_a_type_that_may_be_read(kind: Any) -> None:
    create_model("Message", __base__=Command[None], field=(kind, ...))
    reply_codec_for(kind).prepare()


def test_a_class_that_names_later_ones_is_looked_at_before_it_is_sent() -> None:
    class Early(Command[None]):
        field: Late | Later

    class Late(BaseModel):
        id: int

    class Later(BaseModel):
        id: int

    Early.model_rebuild()
    with pytest.raises(RegistrationError, match="a Later would be read as a Late"):
        codec_for(Early).prepare()


def _message(fields: dict[str, Any]) -> Any:
    return create_model("Message", __base__=Command[None], **fields)


@pytest.mark.filterwarnings("ignore:Field name:UserWarning")
@pytest.mark.parametrize("name", ["spec", "entity_id", "model_copy", "model_extra"])
@pytest.mark.parametrize("default", [..., "x"])
def test_a_field_that_hides_what_every_message_has(name: str, default: Any) -> None:
    with pytest.raises(RegistrationError, match=rf"Message\.{name}: every message has an attribute of that name"):
        _message({name: (str, default)})


@pytest.mark.filterwarnings("ignore:Field name:UserWarning")
@pytest.mark.parametrize("name", ["dispatch", "copy", "json", "schema", "validate", "model_number"])
def test_other_names_are_fields(name: str) -> None:
    made = _message({name: (str, ...)})
    assert made.model_fields[name].is_required()
    message = made(**{name: "x"})
    assert codec_for(made).decode(codec_for(made).encode(message)) == message


def test_an_alias_may_be_any_name() -> None:
    class Described(Command[None], entity="box"):
        box: EntityId = Field(alias="entity_id")
        what: str = Field(alias="spec")

    message = Described(entity_id="b", spec="s")
    assert codec_for(Described).decode(codec_for(Described).encode(message)) == message
