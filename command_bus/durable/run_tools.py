"""The tools of one run of a durable handler, what it waits for, the operations that it performs, and what it stores in the background."""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field
from types import CoroutineType, MethodType
from typing import Any, Protocol, TypeVar

from command_bus.durable.names import MESSAGE, refused_field, signal_field
from command_bus.errors import BadStep
from command_bus.messages.durable import Durable
from command_bus.messages.snooze import leaves
from command_bus.sending.children import Children
from command_bus.serialization.limits import PayloadLimits
from command_bus.transport.ports.durable import SideRecords
from command_bus.transport.steps import Lease, Started


class RunLost(Exception):
    """Another worker has the lease of a command."""


@dataclass(frozen=True, slots=True)
class RunTools:
    """The tools of a run.

    Attributes:
        records: Stores.
        children: Makes calls.
        limits: Bounds of a value's size.
        seal: Encrypts what is stored under a name.
        unseal: Decrypts it.
        secret: Key for digests of what is encrypted; empty if nothing is, None if there is none.
        threads: The place where functions of steps run that are no coroutines.
        may_linger: Whether the worker may wait itself for longer, so that the handler need not be started again.
    """

    records: SideRecords
    children: Children
    limits: PayloadLimits
    seal: Callable[[str, bytes], bytes]
    unseal: Callable[[str, bytes], bytes]
    secret: bytes | None = field(repr=False)
    threads: Threads
    may_linger: Callable[[], bool]


class Threads(Protocol):
    """The threads of one run."""

    async def call(self, function: Callable[[], Any]) -> tuple[Any, bool]:
        """Call a function in a thread; return its result, and whether this was cancelled meanwhile: then the caller stores the result, and ends."""
        ...

    @property
    def are_busy(self) -> bool:
        """Whether a function runs in one."""
        ...

    async def rest(self) -> None:
        """Wait for the threads whose functions the handler did not wait for. What ends the wait raises: the command may not be settled then."""
        ...


class Storing:
    """The background stores of a run. What its handler awaits next waits for them, and so do its suspension and its end."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def is_here(self) -> bool:
        """Whether this is a task of it."""
        return asyncio.current_task() in self.tasks

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Store something in a task of its own."""
        self.tasks.add(asyncio.get_running_loop().create_task(work, name="command_bus.durable"))

    async def end(self) -> None:
        """Wait until all is stored, and is not lost if this is cancelled.

        Raises:
            CommandBusError: It cannot be stored.
        """
        while tasks := set(self.tasks):
            await asyncio.wait(tasks)
            self.tasks -= tasks
            for each in tasks:
                with suppress(RunLost):
                    each.result()


def own_fields(fields: Mapping[str, bytes], started: Started) -> dict[str, bytes]:
    """Return a side record, empty if it is that of an earlier command with this id."""
    message = started.message.encode()
    return dict(fields) if fields.get(MESSAGE, message) == message else {}


async def read_own(records: SideRecords, lease: Lease, command_id: str, started: Started) -> dict[str, bytes]:
    """Read the side record of a command."""
    return own_fields(await records.read(lease, command_id), started)


_LIMITING = frozenset({"asyncio", "anyio", "async_timeout", "trio"})
"""Modules whose blocks time or group what is awaited in them."""
_EXITS = frozenset({"__aexit__", "__exit__"})
_DEEPEST = 500


async def is_awaited_directly(root: object, durable: Durable[Any]) -> bool:
    """Return whether a handler awaits this directly. It is looked at from outside while it waits."""
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[bool] = loop.create_future()

    def look() -> None:
        if not seen.done():
            seen.set_result(awaits_directly(root, durable.awaited))

    loop.call_soon(look)
    return await seen


def awaits_directly(root: object, awaited: object) -> bool:
    """Return whether a handler's coroutine awaits this, by coroutines only, and outside of blocks that live in the event loop.

    Args:
        root: The handler's coroutine, which waits.
        awaited: The iterator that the innermost of them awaits.
    """
    coroutine: Any = root
    for _ in range(_DEEPEST):
        if not isinstance(coroutine, CoroutineType) or _has_open_block(coroutine):
            return False
        if coroutine.cr_await is awaited:
            return awaited is not None
        coroutine = coroutine.cr_await
    return False


def _has_open_block(frame: object) -> bool:
    """Return whether a coroutine or generator is inside of a block that limits or groups what it awaits."""
    methods = [each for each in gc.get_referents(frame) if isinstance(each, MethodType) and each.__name__ in _EXITS]
    return any(_limits(method.__self__) for method in methods)


def _limits(block: Any) -> bool:
    """Return whether a block times or groups what is awaited in it, or may do so."""
    if _is_limiting(block):
        return True
    if isinstance(block, ExitStack | AsyncExitStack):
        entered: Any = getattr(block, "_exit_callbacks", ())
        return any(isinstance(leave, MethodType) and _limits(leave.__self__) for _, leave in entered)
    if type(block).__module__ == "contextlib":
        generator = getattr(block, "gen", None)  # of a function with @contextmanager: what it has open counts
        return generator is not None and _has_open_block(generator)
    return hasattr(type(block), "__aexit__") or any(map(_is_limiting, getattr(block, "__dict__", {}).values()))


def _is_limiting(block: Any) -> bool:
    kind = type(block)
    return kind.__module__.partition(".")[0] in _LIMITING and (hasattr(kind, "__aexit__") or hasattr(kind, "__exit__"))


LINGER, LONG_LINGER = 0.05, 1.0
"""Most seconds for which a worker waits itself before it suspends a command: the longer time for the outcomes of calls, which come to it by
themselves, and if that is in the way of no other. To be suspended costs a second start, and behind a backlog most calls end within a second.
"""


def patience(lingers: Sequence[float], may_linger: bool) -> float:
    """Return the seconds for which the worker itself waits for things, given those that it may wait for each."""
    if may_linger and all(each > LINGER for each in lingers):
        return LONG_LINGER
    return min(LINGER, max(lingers, default=0.0))


E = TypeVar("E", bound=BaseException)


class Signals:
    """The signals that a run has taken, by name.

    Args:
        fields: The side record.
        read: Reads it, if that was not done when the run began; else None.
    """

    def __init__(self, fields: Mapping[str, bytes], read: Callable[[], Awaitable[Mapping[str, bytes]]] | None) -> None:
        self._fields = fields
        self._read = read
        self._reading: asyncio.Lock | None = None
        self._taken: defaultdict[str, int] = defaultdict(int)
        self.waiting: set[str] = set()

    async def early(self) -> Mapping[str, bytes]:
        """Return the fields that came before the first run, to the first who asks; the run of the others has them by then."""
        if self._read is None:
            return {}
        self._reading = self._reading or asyncio.Lock()
        async with self._reading:
            found = {} if self._read is None else await self._read()
            self._read = None
            return found

    def take(self, name: str) -> str:
        """Return the field of the next signal of a name.

        Raises:
            BadStep: Another operation waits for it.
        """
        if name in self.waiting:
            raise BadStep(f"the handler waits for the signal {name!r} twice at a time: give the signals two names")
        self.waiting.add(name)
        return self.next(name)

    def next(self, name: str) -> str:
        """Return the field of the signal behind the last one that was taken, except those that were refused."""
        self._taken[name] += 1
        while refused_field(field := signal_field(name, self._taken[name])) in self._fields:
            self._taken[name] += 1
        return field

    def give_back(self, name: str) -> None:
        """Note that the last one was not taken: it had not come in time, or is not waited for any more."""
        self.waiting.discard(name)
        self._taken[name] -= 1


class StoredErrors:
    """The errors that a run was given by outcomes that are stored: every later run meets them again."""

    def __init__(self) -> None:
        self._raised: list[BaseException] = []

    def note(self, error: E) -> E:
        """Return an error, and note that it comes out of a stored outcome."""
        self._raised.append(error)
        return error

    def clear(self) -> None:
        """Forget them, once the end of the run is decided: their tracebacks lead back to it."""
        self._raised.clear()

    def has(self, error: BaseException) -> bool:
        """Return whether it, or one in its group, came out of a stored outcome."""
        return any(leaf is each for leaf in leaves(error) for each in self._raised)
