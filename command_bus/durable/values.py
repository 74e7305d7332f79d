"""Values of steps in a side record: digests of their arguments, and their results, encrypted where the command is."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from copy import deepcopy
from functools import lru_cache, partial
from types import FunctionType
from typing import Any, get_args, get_origin
from weakref import WeakKeyDictionary

from command_bus.errors import BadResult, BadStep, RegistrationError, StepMismatch
from command_bus.handlers.signatures import return_type
from command_bus.serialization.equality import DIGEST, NotPlain, digest, is_same
from command_bus.serialization.limits import PayloadLimits
from command_bus.serialization.models import ReplyCodec, reply_codec_for

_CONTAINERS = (list, tuple, set, frozenset, dict, deque)
_NO_ARGUMENTS = bytes(DIGEST)
_UNCHANGING = frozenset({str, int, float, bool, bytes, type(None)})
"""Types of values that cannot be changed, and that are read back as they are."""


def digest_of(step: str, args: tuple[Any, ...], *, keyed: bool, secret: bytes | None = b"") -> bytes:
    """Return the digest of a step's arguments.

    Args:
        step: Its name.
        args: Its arguments.
        keyed: Whether the step has a key: then arguments that have no digest are left out.
        secret: Key of an encrypted command, so that no reader of the server confirms a guess; None: there is none, and they are left out.

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
    if digest == _NO_ARGUMENTS or _UNCHANGING.issuperset(map(type, args)):
        return args
    try:
        return deepcopy(args)
    except TypeError:  # a view of a map has no copy
        return args


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


_UNKNOWN = (None, None)


class StepFacts:
    """Facts of a step that its function says, or the type of its result if that is given.

    Attributes:
        codec: Encodes results and reads them.
        is_async: Whether it is a coroutine function.
        unchanging: The type of its results, if those cannot be changed and are read back as they are; else None.
    """

    __slots__ = ("_is_readable", "codec", "is_async", "unchanging")

    def __init__(self, function: Callable[..., Any], returns: Any) -> None:
        self.is_async = inspect.iscoroutinefunction(function)
        kind = _returned(function) if returns is None else returns
        self.unchanging = kind if isinstance(kind, type) and kind in _UNCHANGING else None
        self.codec = reply_codec_for(kind)
        self._is_readable = False

    def check(self, step: str) -> None:
        """Check that results can be read.

        Raises:
            BadStep: There can be no values of the type that could be read.
        """
        if not self._is_readable:
            _check_readable(f"step {step!r}", self.codec)
            self._is_readable = True


_facts = lru_cache(maxsize=4096)(StepFacts)
_of_closures: WeakKeyDictionary[Callable[..., Any], tuple[Any, StepFacts]] = WeakKeyDictionary()
"""The given type of the result, and the facts, of functions that refer to variables of others: a handler may make them in each run."""


def facts_of(function: Callable[..., Any], returns: Any) -> StepFacts:
    """Return what is known of a step's function, which is a function, a method, a class or any other callable.

    The object of a method is not kept for it, nor what a function refers to that a handler makes in each run.
    """
    plain = function.func if isinstance(function, partial) else function
    plain = getattr(plain, "__func__", plain)
    if getattr(plain, "__closure__", None) is None:
        try:
            return _facts(plain, returns)
        except TypeError:  # one of them cannot be hashed
            return StepFacts(plain, returns)
    given, facts = _of_closures.get(plain, _UNKNOWN)
    if facts is None or given is not returns:
        facts = StepFacts(plain, returns)
        _of_closures[plain] = returns, facts
    return facts


def _returned(function: Callable[..., Any]) -> Any:
    """Return the type of what a function returns, or its awaitable comes to; Any if it does not say."""
    if inspect.isclass(function):
        return function
    if isinstance(function, FunctionType) and not function.__annotations__ and not function.__dict__:
        return Any
    try:
        kind = return_type(function)
    except RegistrationError:  # one that is written in C
        return Any
    origin = get_origin(kind)
    return get_args(kind)[-1] if isinstance(origin, type) and issubclass(origin, Awaitable) else kind


def encoded_result(codec: ReplyCodec[Any], value: Any, limits: PayloadLimits, step: Callable[[], str]) -> bytes:
    """Return the result of a step as it is stored.

    Raises:
        BadStep: It cannot be stored.
    """
    try:
        return codec.encode(value, limits)
    except BadResult as error:
        raise BadStep(f"the result of {step()} cannot be stored: {_plain(error)}. Say its type with returns=") from error


def encoded_signal(signal: str, value: Any, limits: PayloadLimits) -> bytes:
    """Return the value of a signal as it is stored. What it is made of the handler says, so only a class of its own is held to it.

    Raises:
        BadStep: It cannot be stored.
    """
    kind: type[Any] = type(value)
    try:
        return reply_codec_for(kind).encode(value, limits, reads_back=not issubclass(kind, _CONTAINERS))
    except BadResult as error:
        raise BadStep(f"the value of {signal} cannot be stored: {_plain(error)}") from error


def decoded_result(codec: ReplyCodec[Any], data: bytes, limits: PayloadLimits, step: Callable[[], str]) -> Any:
    """Return the result of a step that is stored.

    Raises:
        BadStep: It is not of this type.
    """
    try:
        return codec.decode(data, limits)
    except BadResult as error:
        raise BadStep(
            f"the result of {step()} that is stored does not fit any more: {_plain(error)}. Let the step return what it did before, or give it "
            "another name"
        ) from error


def readable_codec(what: str, kind: Any) -> ReplyCodec[Any]:
    """Return the codec of what a signal gives.

    Raises:
        BadStep: There can be no values of this type that could be read.
    """
    codec = reply_codec_for(kind)
    _check_readable(what, codec)
    return codec


def _check_readable(what: str, codec: ReplyCodec[Any]) -> None:
    try:
        codec.check()
    except BadResult as error:
        raise BadStep(f"the type of what the {what} gives: {_plain(error)}. Say another with returns=") from error


def _plain(error: BadResult) -> str:
    return error.message.replace("the reply", "it", 1)


def child_of(known: bytes) -> tuple[str, str]:
    """Return the id and the mailbox of a command that was called."""
    child, _, mailbox = known[DIGEST:].decode(errors="replace").partition("|")
    return child, mailbox
