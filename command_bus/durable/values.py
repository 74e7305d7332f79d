"""Values of steps in a side record: digests of their arguments, and their results, encrypted where the command is."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from copy import deepcopy
from functools import lru_cache, partial
from typing import Any, get_args, get_origin

from command_bus.errors import BadResult, BadStep, RegistrationError, StepMismatch
from command_bus.handlers.signatures import return_type
from command_bus.serialization.equality import DIGEST, NotPlain, digest, is_same
from command_bus.serialization.limits import Limits
from command_bus.serialization.models import ReplyCodec, reply_codec_for

__all__ = [
    "DIGEST",
    "UNCHANGING",
    "child_of",
    "compare",
    "decoded_result",
    "digest_of",
    "encoded_result",
    "encoded_signal",
    "kind_of",
    "own_arguments",
    "readable_codec",
]

_CONTAINERS = (list, tuple, set, frozenset, dict, deque)
_NO_ARGUMENTS = bytes(DIGEST)
UNCHANGING = frozenset({str, int, float, bool, bytes, type(None)})
"""Types of values that cannot be changed, and that are read back as they are."""


def digest_of(step: str, args: tuple[Any, ...], *, keyed: bool, secret: bytes | None = b"") -> bytes:
    """Return the digest of a step's arguments.

    Args:
        step: Its name.
        args: Its arguments.
        keyed: Whether the step has a key: then arguments that have no digest are left out.
        secret: Of an encrypted command, so that no reader of the server confirms a guess; None: there is none, and they are left out.

    Raises:
        BadStep: An argument has no digest: it is no data.
    """
    if not args or secret is None:
        return _NO_ARGUMENTS
    try:
        return digest((step,), args, key=secret)
    except NotPlain as error:
        if keyed:
            return _NO_ARGUMENTS
        raise BadStep(
            f"the step {step!r}: its arguments cannot be told from others ({error}). Give the step a key=, which tells it apart, "
            "or hand over plain data"
        ) from None


def own_arguments(args: tuple[Any, ...], digest: bytes) -> tuple[Any, ...]:
    """Return arguments for one call of a step's function. What it changes in them the handler does not see, as in later runs it would not."""
    return args if digest == _NO_ARGUMENTS or UNCHANGING.issuperset(map(type, args)) else deepcopy(args)


def compare(what: str, stored: bytes, digest: bytes) -> None:
    """Compare what an earlier run did under a name with what this one does.

    Raises:
        StepMismatch: It is something else.
    """
    if not is_same(stored[:DIGEST], digest):
        raise StepMismatch(
            f"{what} is stored, but an earlier run of this handler did something else under this name. If its code was changed, let it do "
            "what it did before for commands that have begun; if their order differs from run to run, give each a key="
        )


@lru_cache(maxsize=4096)
def _facts(function: Callable[..., Any]) -> tuple[Any, bool]:
    """Return the type of what a function returns, or its awaitable comes to, Any if it does not say; and whether it is a coroutine function."""
    is_async = inspect.iscoroutinefunction(function)
    if inspect.isclass(function):
        return function, is_async
    try:
        kind = return_type(function)
    except RegistrationError:  # one that is written in C
        return Any, is_async
    origin = get_origin(kind)
    return get_args(kind)[-1] if isinstance(origin, type) and issubclass(origin, Awaitable) else kind, is_async


def kind_of(function: Callable[..., Any], returns: Any) -> tuple[Any, bool]:
    """Return the type of a step's result: what is given, else what the function says; and whether that is a coroutine function."""
    plain = function.func if isinstance(function, partial) else function
    plain = getattr(plain, "__func__", plain)  # of a method: the cache must not keep its object
    try:
        said, is_async = _facts(plain)
    except TypeError:  # it cannot be hashed
        said, is_async = Any, inspect.iscoroutinefunction(plain)
    return said if returns is None else returns, is_async


def encoded_result(step: str, codec: ReplyCodec[Any], value: Any, limits: Limits) -> bytes:
    """Return the result of a step as it is stored.

    Raises:
        BadStep: It cannot be stored.
    """
    try:
        return codec.encode(value, limits)
    except BadResult as error:
        raise BadStep(f"the result of {step} cannot be stored: {_plain(error)}. Say its type with returns=") from error


def encoded_signal(signal: str, value: Any, limits: Limits) -> bytes:
    """Return the value of a signal as it is stored. What it is made of the handler says, so only a class of its own is held to it.

    Raises:
        BadStep: It cannot be stored.
    """
    kind: type[Any] = type(value)
    try:
        return reply_codec_for(kind).encode(value, limits, reads_back=not issubclass(kind, _CONTAINERS))
    except BadResult as error:
        raise BadStep(f"the value of {signal} cannot be stored: {_plain(error)}") from error


def decoded_result(step: str, codec: ReplyCodec[Any], data: bytes, limits: Limits) -> Any:
    """Return the result of a step that is stored.

    Raises:
        BadStep: It is not of this type.
    """
    try:
        return codec.decode(data, limits)
    except BadResult as error:
        raise BadStep(
            f"the result of {step} that is stored does not fit any more: {_plain(error)}. Let the step return what it did before, or give it "
            "another name"
        ) from error


def readable_codec(what: str, kind: Any) -> ReplyCodec[Any]:
    """Return the codec of what a step or a signal gives.

    Raises:
        BadStep: There can be no values of this type that could be read.
    """
    codec = reply_codec_for(kind)
    try:
        codec.check()
    except BadResult as error:
        raise BadStep(f"the type of what the {what} gives: {_plain(error)}. Say another with returns=") from error
    return codec


def _plain(error: BadResult) -> str:
    return error.message.replace("the reply", "it", 1)


def child_of(known: bytes) -> tuple[str, str]:
    """Return the id and the mailbox of a command that was called."""
    child, _, mailbox = known[DIGEST:].decode(errors="replace").partition("|")
    return child, mailbox
