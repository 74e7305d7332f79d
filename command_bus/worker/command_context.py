"""The contexts of commands: each runs in a `contextvars.Context` of its own, which begins as that in which the worker was started.

An entity's commands run one after the other in one task, and a task has one context: what a handler sets there, a tenant or a trace, would still be
set for the next command, and with lanes that is another entity's. A task for each command would cost ten times as much (6 µs), so its coroutine is
driven here, inside of the copy: it suspends and is cancelled with the entity's task.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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

    def run(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Return what runs a coroutine in a context of its own, within the task that awaits this."""
        context = self._base.copy()
        for variable, copied in self._copied:
            context.run(variable.set, copied())
        return _driven(context, work)


@coroutine
def _driven(context: contextvars.Context, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Drive a coroutine as `await` does, each time inside of a context."""
    try:
        awaited = context.run(work.send, None)
        while True:
            try:
                value = yield awaited
            except GeneratorExit:
                context.run(work.close)
                raise
            except BaseException as error:  # noqa: BLE001 - a cancellation mostly
                awaited = context.run(work.throw, error)
            else:
                awaited = context.run(work.send, value)
    except StopIteration as end:
        result: T = end.value
        return result
