"""`StepFailures`: the errors of steps that a handler has caught, and gone on from.

An error that leaves the handler is not stored: the command is tried again, and calls the function again. One that the handler catches decides which
way it goes, and later runs have to go the same way: else a charge that has failed would be tried again beside the one that took its place. So it is
stored before the handler stores or waits for anything else, and later runs are given it instead of a call of the function. If it leaves the handler
after all, it is stored that it counts no longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import WrapperDescriptorType
from typing import Any

from command_bus.durable.names import FAILURE, over_field
from command_bus.errors import BadStep, CommandBusError, CommandCancelled
from command_bus.messages.snooze import leading, leaves
from command_bus.serialization.limits import PayloadLimits, capped
from command_bus.serialization.msgpack import pack, unpack
from command_bus.transport.ports.durable import Note

_LONGEST = 8 * 1024
"""Bytes of the text that is kept of what is no plain data."""


class StepFailures:
    """The errors of steps that one run has met.

    Args:
        fields: The side record.
        limits: Bounds of what is stored.
    """

    def __init__(self, fields: Mapping[str, bytes], limits: PayloadLimits) -> None:
        self._fields = fields
        self._limits = limits
        self._met: dict[str, BaseException] = {}
        self.unstored: dict[str, Callable[[], Note]] = {}
        self._left: list[str] | None = None
        self.are_stored = any(name.startswith(FAILURE) for name in fields)

    def field(self, which: str) -> str:
        """Return the field of the error of one await of a step: the first that counts still."""
        number = 1
        while over_field(field := f"{FAILURE}{which}~{number}") in self._fields:
            number += 1
        return field

    def note(self, field: str, error: BaseException, sealed: Callable[[str, bytes], bytes]) -> None:
        """Note that a step has failed. That the command is to end is no end of a step."""
        if self._left is None and not isinstance(leading(error), CommandCancelled):
            self._met[field], self.are_stored = error, True
            self.unstored[field] = lambda: Note(field, sealed(field, _packed(field, error, self._limits)))

    def again(self, field: str, data: bytes) -> BaseException:
        """Return the error that an earlier run has stored.

        Raises:
            BadStep: It cannot be made in this process.
        """
        if field not in self._met:
            try:
                self._met[field] = _made(unpack(data, self._limits))
            except Exception as fault:  # noqa: BLE001 - a class of the user may raise anything
                raise _unfit(field, fault) from None
        return self._met[field]

    def taken(self) -> list[Note]:
        """Return what is to be stored with whatever comes next.

        Raises:
            BadStep: An error cannot be stored.
        """
        unstored, self.unstored = self.unstored, {}
        return [make() for make in unstored.values()]

    def leave(self, error: BaseException) -> None:
        """Note that an error has left the handler, and so have those of steps that it is, or was raised from."""
        left = {id(cause) for each in (error, *leaves(error)) for cause in _causes(each)}
        self._left = [field for field, met in self._met.items() if id(met) in left]
        self.unstored.clear()

    def over(self) -> list[Note]:
        """Return what says that those count no longer, so far as they are stored."""
        left = [field for field in self._left or () if field in self._fields]
        self._met.clear()  # their tracebacks lead back to the run
        self.unstored.clear()
        return [Note(over_field(field), b"1") for field in left]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those from which it was raised; a chain may lead back to itself."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _packed(field: str, error: BaseException, limits: PayloadLimits) -> bytes:
    try:
        data = pack(_form(error, limits), limits)
        _made(unpack(data, limits))
    except Exception as fault:  # noqa: BLE001 - a class of the user may raise anything
        raise _unfit(field, fault) from None
    return data


def _unfit(field: str, fault: Exception) -> BadStep:
    return BadStep(
        f"the step {field[2:].rsplit('~', 2)[0]!r} has failed, the handler has gone on, and its error cannot be stored or made again: "
        f"{type(fault).__name__}. Catch it in the function, and return its result, or raise an error of a class of your own there"
    )


def _form(error: BaseException, limits: PayloadLimits) -> list[Any]:
    """Return what is kept of an error: module and name of its class, its arguments, its attributes so far as they are plain data, and its parts."""
    kind, parts = type(error), error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    args = error.args[:1] if parts else error.args
    attributes = {name: value for name, value in vars(error).items() if _is_plain(value, limits)}
    inner = [_form(each, limits) for each in parts]
    return [kind.__module__, kind.__qualname__, [_plain(each, limits) for each in args], attributes, inner]


def _is_plain(value: Any, limits: PayloadLimits) -> bool:
    try:
        return len(pack(value, limits)) <= _LONGEST
    except CommandBusError:
        return False


def _plain(value: Any, limits: PayloadLimits) -> Any:
    return value if _is_plain(value, limits) else capped(value, _LONGEST)


def _made(form: Any) -> BaseException:
    """Return an error as it was, without a call of an `__init__` of the user, which takes other arguments than the error has."""
    module, name, args, attributes, parts = form
    kind = [each for each in _derived(Exception) if (each.__module__, each.__qualname__) == (module, name)][-1]
    args = [*args, [*map(_made, parts)]] if parts else args
    error: BaseException = kind(*args) if type(kind.__init__) is WrapperDescriptorType else kind.__new__(kind, *args)
    vars(error).update(attributes)
    return error


def _derived(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _derived(each)
