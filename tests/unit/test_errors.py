"""Errors survive pickling, have codes of their own, and belong to one tree."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

import command_bus
from command_bus import errors
from command_bus.errors import (
    CommandBusError,
    CommandFailed,
    CommandOutcomeError,
    CommandRejected,
    CommandTimeout,
    InvalidCommand,
    InvalidSettings,
    MissingExtra,
    PayloadTooLarge,
    QueueFull,
    RegistrationError,
    Reject,
    TransportUnavailable,
)

CLASSES: list[type[CommandBusError]] = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, CommandBusError) and value.__module__ == errors.__name__
]
EXAMPLES = {int: 7, str: "text", bool: True, float: 2.5}


def example(cls: type[CommandBusError]) -> CommandBusError:
    """Return an error of the class with a different value for every keyword."""
    keywords: dict[str, object] = {}
    for parameter in list(inspect.signature(cls).parameters.values())[1:]:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            default = parameter.default
            keywords[parameter.name] = EXAMPLES.get(type(default)) or (("account:a-1",) if default == () else {"limit": 3})
    return cls("what happened", **keywords)


def test_every_error_is_imported_from_the_package() -> None:
    assert {cls.__name__ for cls in CLASSES} <= {*command_bus.__all__, "CommandOutcomeError"}


@pytest.mark.parametrize("cls", CLASSES)
def test_it_is_of_the_one_tree(cls: type[CommandBusError]) -> None:
    assert issubclass(cls, CommandBusError)
    assert cls.__doc__
    assert isinstance(cls.retryable, bool)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_it_survives_pickling_with_its_values(cls: type[CommandBusError], protocol: int) -> None:
    error = example(cls)
    back = pickle.loads(pickle.dumps(error, protocol))
    assert type(back) is cls
    assert str(back) == str(error) == "what happened"
    assert back.message == "what happened"
    assert vars(back) == vars(error)
    assert back.code == error.code


@pytest.mark.parametrize("cls", CLASSES)
def test_it_survives_copying_and_needs_no_arguments(cls: type[CommandBusError]) -> None:
    assert vars(copy.deepcopy(example(cls))) == vars(example(cls))
    assert str(cls()) == ""


def test_codes_are_unique_and_in_snake_case() -> None:
    # A Reject becomes the caller's CommandRejected: two sides of one thing, with one code. The outcome class is abstract.
    codes = {cls: cls().code for cls in CLASSES if cls not in (Reject, CommandOutcomeError)}
    assert len(set(codes.values())) == len(codes)
    assert all(code.islower() and code.replace("_", "").isalpha() for code in codes.values())


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (InvalidCommand, ValueError),
        (PayloadTooLarge, InvalidCommand),
        (InvalidSettings, ValueError),
        (RegistrationError, TypeError),
        (MissingExtra, ImportError),
        (CommandTimeout, TimeoutError),
        (errors.UnknownDeadLetter, LookupError),
    ],
)
def test_what_python_has_a_name_for_is_that_too(cls: type[CommandBusError], builtin: type[Exception]) -> None:
    assert issubclass(cls, builtin)


def test_retryable_errors_are_marked() -> None:
    assert {cls for cls in CLASSES if cls.retryable} >= {TransportUnavailable, QueueFull, CommandTimeout}
    assert not any(cls.retryable for cls in (InvalidCommand, CommandRejected, CommandFailed, RegistrationError))


def test_a_rejection_carries_code_and_details() -> None:
    refusal = Reject("too little", code="insufficient_funds", details={"missing": 3})
    assert (refusal.code, refusal.details) == ("insufficient_funds", {"missing": 3})
    assert Reject().code == CommandRejected().code == "rejected"
    assert Reject().details is not Reject().details
    seen = CommandRejected("too little", code=refusal.code, details=refusal.details, command_id="c-1")
    assert (seen.code, seen.details, seen.command_id) == ("insufficient_funds", {"missing": 3}, "c-1")


def test_one_handler_catches_all() -> None:
    with pytest.raises(CommandBusError):
        raise QueueFull("full", retry_after=0.5, limit="total")
