"""The contexts of commands, and what runs coroutines in them."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from command_bus.transport.steps import Step

T = TypeVar("T")
_NOT_BEGUN: Any = object()


class CommandContexts:
    """The source of contexts: copies of the one in which it was made.

    What a variable refers to is shared, as among tasks. Of decimal's own context, which every program changes in place, each command has a copy.
    """

    def __init__(self) -> None:
        self._base = contextvars.copy_context()
        decimal = sys.modules.get("decimal")
        found = [] if decimal is None else [each for each in self._base.items() if isinstance(each[1], decimal.Context)]
        self._copied: list[tuple[contextvars.ContextVar[Any], Callable[[], Any]]] = [
            (each, value.copy().copy) for each, value in found
        ]

    def new(self) -> contextvars.Context:
        """Return the context of a command."""
        context = self._base.copy()
        for variable, copied in self._copied:
            context.run(variable.set, copied())
        return context


class Driven(Generic[T]):
    """A coroutine that something else calls, to be awaited.

    Args:
        call: Calls its methods: `Context.run`, say.
        work: The coroutine.
        awaited: What it waits for, if it was begun.
    """

    __slots__ = ("_awaited", "_blocks", "_call", "_work")

    def __init__(self, call: Callable[..., Any], work: Coroutine[Any, Any, T], awaited: Any = _NOT_BEGUN) -> None:
        self._call, self._work, self._awaited = call, work, awaited
        self._blocks = getattr(awaited, "_asyncio_future_blocking", False)
        if self._blocks:
            awaited._asyncio_future_blocking = False  # noqa: SLF001 - others may await the same future before this does

    def __await__(self) -> Generator[Any, Any, T]:
        call, work, awaited = self._call, self._work, self._awaited
        try:
            if awaited is _NOT_BEGUN:
                awaited = call(work.send, None)
            elif self._blocks:
                awaited._asyncio_future_blocking = True  # noqa: SLF001 - as it was
            while True:
                try:
                    value = yield awaited
                except GeneratorExit:
                    call(work.close)
                    raise
                except BaseException as error:  # noqa: BLE001 - a cancellation mostly
                    thrown = [error]
                else:
                    awaited = call(work.send, value)
                    continue
                awaited = call(work.throw, thrown.pop())  # out here, where nothing is being handled; and no frame keeps the error
        except StopIteration as end:
            result: T = end.value
            return result


Begun = Step | None | Driven[Step | None]
"""The step that settles a command, None if this worker may no longer settle it, or what gives that."""
