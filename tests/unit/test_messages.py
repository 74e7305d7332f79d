"""Messages name their entity and their reply; a wrong declaration is an error where the class is defined."""

from __future__ import annotations

import pickle
import textwrap
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from command_bus.errors import InvalidCommand, RegistrationError
from command_bus.messages.message import (
    MAX_ENTITY_ID_BYTES,
    Command,
    EntityId,
    Message,
    Query,
    canonical_entity_id,
    check_entity_type,
    check_wire_name,
)


class Deposit(Command[int], entity="account"):
    account_id: EntityId
    amount: int


class Receipt(BaseModel):
    number: int


class Pay(
    Command[Receipt | None], entity="account", name="account.pay", delivery="at_most_once", on_poison="park", attempt_timeout=2
):
    account_id: EntityId
    amount: Decimal
    at: datetime | None = None


class Sweep(Command[None]):
    dry: bool = False


class Balance(Query[dict[str, int]], entity="account"):
    account_id: EntityId


class TestSpec:
    def test_missing_options_have_defaults(self) -> None:
        spec = Deposit.spec()
        assert (spec.name, spec.entity, spec.key, spec.reply) == ("Deposit", "account", "account_id", int)
        assert (spec.delivery, spec.retry, spec.on_poison, spec.attempt_timeout) == (None, None, None, None)

    def test_given_options_are_used(self) -> None:
        spec = Pay.spec()
        assert (spec.name, spec.delivery, spec.on_poison, spec.attempt_timeout) == ("account.pay", "at_most_once", "park", 2)
        assert spec.reply == Receipt | None

    def test_a_message_without_entity_runs_freely(self) -> None:
        spec = Sweep.spec()
        assert (spec.entity, spec.key) == (None, None)
        assert Sweep().entity_id() is None

    def test_no_reply_is_a_reply_of_none(self) -> None:
        assert Sweep.spec().reply is type(None)

    def test_a_query_is_declared_alike(self) -> None:
        assert Balance.spec().reply == dict[str, int]
        assert Balance(account_id=7).entity_id() == "7"

    def test_a_subclass_inherits_all_but_the_name(self) -> None:
        class PayAll(Pay, attempt_timeout=5):
            note: str = ""

        spec = PayAll.spec()
        assert (spec.name, spec.entity, spec.key, spec.reply) == ("PayAll", "account", "account_id", Receipt | None)
        assert (spec.delivery, spec.on_poison, spec.attempt_timeout) == ("at_most_once", "park", 5)

    def test_the_marker_is_seen_through_annotated(self) -> None:
        class Close(Command[None], entity="account"):
            account_id: Annotated[EntityId, Field(description="which")]

        assert Close.spec().key == "account_id"

    @pytest.mark.parametrize("cls", [Command, Query, Message, Command[int]])
    def test_the_bases_are_no_messages(self, cls: type[Message[Any]]) -> None:
        with pytest.raises(RegistrationError, match="is no message"):
            cls.spec()


DECLARATIONS = {
    "names no reply type": "class X(Command): ...",
    "marks no field": 'class X(Command[int], entity="account"):\n    account_id: str',
    "at most 8 go": 'class X(Command[int], entity="account"):\n    ' + "\n    ".join(f"e{n}: EntityId" for n in range(9)),
    "names no entity type": "class X(Command[int]):\n    account_id: EntityId",
    "inside a union": 'class X(Command[int], entity="account"):\n    account_id: EntityId | None',
    "or container": 'class X(Command[int], entity="account"):\n    account_id: list[EntityId]',
    "must be required": 'class X(Command[int], entity="account"):\n    account_id: EntityId = "a-1"',
    "entity type 'a b'": 'class X(Command[int], entity="a b"):\n    account_id: EntityId',
    "entity type ''": 'class X(Command[int], entity=""):\n    account_id: EntityId',
    "wire name 'a b'": 'class X(Command[int], name="a b"): ...',
    "wire name ''": 'class X(Command[int], name=""): ...',
    "unknown class argument 'entitty'": 'class X(Command[int], entitty="account"): ...',
    "delivery is": 'class X(Command[int], delivery="exactly_once"): ...',
    "on_poison is": 'class X(Command[int], on_poison="explode"): ...',
    "retry is a RetryPolicy": "class X(Command[int], retry=3): ...",
    "attempt_timeout is a positive": "class X(Command[int], attempt_timeout=0): ...",
    "seconds, not inf": 'class X(Command[int], attempt_timeout=float("inf")): ...',
    "seconds, not 'soon'": 'class X(Command[int], attempt_timeout="soon"): ...',
}


@pytest.mark.parametrize("advice", DECLARATIONS)
def test_a_wrong_declaration_is_refused_at_once(advice: str) -> None:
    with pytest.raises(RegistrationError) as caught:
        exec(textwrap.dedent(DECLARATIONS[advice]), {"Command": Command, "EntityId": EntityId, "__name__": __name__})
    assert advice in str(caught.value)
    assert "X" in str(caught.value)


class TestValues:
    def test_a_message_compares_and_travels_as_a_value(self) -> None:
        message = Pay(account_id="a-1", amount=Decimal("1.50"))
        assert pickle.loads(pickle.dumps(message)) == message
        assert Pay.model_validate(message.model_dump()) == message

    @pytest.mark.parametrize(
        "values",
        [
            {"account_id": "a", "amount": "12"},
            {"account_id": "a", "amount": 1.0},
            {"account_id": "a", "amount": True},
            {"account_id": "a", "amount": 1, "amout": 2},
            {"account_id": "a"},
            {"amount": 1},
        ],
    )
    def test_models_are_strict_and_closed(self, values: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            Deposit(**values)

    def test_nan_is_refused(self) -> None:
        class Weigh(Command[None]):
            grams: float

        with pytest.raises(ValidationError, match="finite"):
            Weigh(grams=float("nan"))

    def test_models_are_frozen(self) -> None:
        with pytest.raises(ValidationError, match="frozen"):
            Deposit(account_id="a", amount=1).amount = 2

    def test_errors_do_not_show_the_input(self) -> None:
        with pytest.raises(ValidationError) as caught:
            Deposit(account_id="a", amount="4111-1111")  # type: ignore[arg-type]  # as if from outside
        assert "4111" not in str(caught.value)

    def test_replies_may_be_anything(self) -> None:
        class Classify(Query[Literal["a", "b"]]): ...

        assert Classify.spec().reply == Literal["a", "b"]


class TestEntityId:
    def test_an_int_and_its_text_are_one_entity(self) -> None:
        assert Deposit(account_id=7, amount=1).entity_id() == Deposit(account_id="7", amount=1).entity_id() == "7"

    @pytest.mark.parametrize("value", ["}", "}{", "{x}", "a\nb", "a\0b", " ", "\u202eabc", "\U0001f600", "a:b", -1, 10**30])
    def test_any_text_or_int_will_do(self, value: str | int) -> None:
        assert Deposit(account_id=value, amount=1).entity_id() == str(value)

    @pytest.mark.parametrize("value", [None, True, 1.5, b"a", ["a"]])
    def test_nothing_else_will(self, value: Any) -> None:
        with pytest.raises(InvalidCommand, match="a string or an int"):
            canonical_entity_id(value)
        with pytest.raises(ValidationError):
            Deposit(account_id=value, amount=1)

    @pytest.mark.parametrize(
        ("value", "advice"),
        [
            ("", "must not be empty"),
            ("\ud800", "lone surrogates"),
            ("a" * (MAX_ENTITY_ID_BYTES + 1), "use a digest"),
            ("é" * (MAX_ENTITY_ID_BYTES // 2 + 1), "use a digest"),
            ("x" * 2_000_000, "use a digest"),
        ],
        ids=["empty", "surrogate", "long", "long in UTF-8", "2 MB"],
    )
    def test_what_is_wrong_with_a_text_is_said(self, value: str, advice: str) -> None:
        with pytest.raises(InvalidCommand, match=advice):
            canonical_entity_id(value)
        with pytest.raises(ValueError, match=advice):
            Deposit(account_id=value, amount=1)

    @given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=2_000) | st.integers())
    def test_the_canonical_form_is_stable_and_fits(self, value: str | int) -> None:
        text = str(value)
        if len(text.encode()) > MAX_ENTITY_ID_BYTES:
            with pytest.raises(InvalidCommand):
                canonical_entity_id(value)
        else:
            assert canonical_entity_id(value) == canonical_entity_id(canonical_entity_id(value)) == text


@pytest.mark.parametrize("good", ["account", "a", "A.b_c-9", "x" * 64])
def test_entity_types_can_be_part_of_a_key(good: str) -> None:
    assert check_entity_type(good) == good


@pytest.mark.parametrize("bad", ["", "a b", "a{b}", "a:b", "é", "x" * 65, "a\n", None, 7])
def test_other_entity_types_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidCommand, match="entity type"):
        check_entity_type(bad)


@pytest.mark.parametrize("good", ["Deposit", "account.deposit", "a:b/c-d", "x" * 200])
def test_wire_names(good: str) -> None:
    assert check_wire_name(good) == good


@pytest.mark.parametrize("bad", ["", "a b", "é", "x" * 201, "a\n", None, 7])
def test_other_wire_names_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidCommand, match="wire name"):
        check_wire_name(bad)
