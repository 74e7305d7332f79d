"""`AllOf` and `FirstOf`: operations of a durable handler that are waited for together."""

from __future__ import annotations

import asyncio
from typing import Any

from command_bus.durable.run import DurableRun, TrackedOperation, Waited
from command_bus.durable.step import Step
from command_bus.errors import BadStep, CommandCancelled, StepMismatch
from command_bus.messages.durable import Durable
from command_bus.transport.ports.durable import Note

_AT_ONCE = 250
"""Operations that are begun at once: a thousand calls of one step would hold up the server."""


class AllOf(TrackedOperation):
    """Waits until several operations have ended."""

    def __init__(self, run: DurableRun, parts: tuple[Durable[Any], ...], *, return_exceptions: bool = False) -> None:
        super().__init__(run)
        self._parts = parts
        self._return_exceptions = return_exceptions
        self._operations: list[Waited | Step] = [_part(each, "all", Waited, Step) for each in parts]
        if parts:
            self.name = f"all({self._operations[0].name})"

    async def performed(self, durable: Durable[Any]) -> Any:
        begun: list[Any] = []
        for page in range(0, len(self._parts), _AT_ONCE):
            begun += await asyncio.gather(*map(_begun, self._parts[page : page + _AT_ONCE]), return_exceptions=True)
        waits = [each for each, done in zip(self._operations, begun, strict=True) if isinstance(each, Waited) and done is None]
        steps = [
            isinstance(each, Step) for each in self._operations
        ]  # only what a step raised is a result: a call that began has none yet
        failed = next(
            (
                each
                for is_step, each in zip(steps, begun, strict=True)
                if isinstance(each, BaseException) and not (is_step and self._returns(each))
            ),
            None,
        )
        if failed is None and not all(map(self.run.is_over, waits)):
            await self.run.wait(durable, waits, wanted=len(waits))
        if failed is not None:
            raise failed
        return tuple([await self._ended(part, each) for part, each in zip(self._operations, begun, strict=True)])

    async def _ended(self, part: Waited | Step, begun: Any) -> Any:
        """Return the result of a part, or its error if that is asked for."""
        if isinstance(part, Step) or begun is not None:
            return begun
        try:
            return await part.result()
        except Exception as error:
            if self._returns(error):
                return error
            raise

    def _returns(self, error: BaseException) -> bool:
        """Return whether an error is a result: not if the command itself is to end."""
        is_own = isinstance(error, CommandCancelled) and self.run.wish is not None
        return self._return_exceptions and isinstance(error, Exception) and not is_own

    def leave(self) -> None:
        for each in self._operations:
            each.leave()


class FirstOf(TrackedOperation):
    """Waits until one of several operations has ended."""

    def __init__(self, run: DurableRun, parts: tuple[Durable[Any], ...], key: str | None) -> None:
        super().__init__(run)
        self._parts = parts
        self._operations: list[Waited] = [_part(each, "first", Waited) for each in parts]
        self.name = run.names.numbered("f:first", key)
        if not parts:
            raise BadStep("context.first takes at least one call, sleep or signal")

    async def performed(self, durable: Durable[Any]) -> Durable[Any]:
        run, waits = self.run, self._operations
        await asyncio.gather(*(each.begin() for each in waits))
        stored = run.fields.get(self.name)
        if stored is None:
            if not any(map(run.is_over, waits)):
                await run.wait(durable, waits, wanted=1)
            ended = next(each for each in waits if run.is_over(each)).name.encode()
            stored = (await run.store(Note(self.name, ended)))[0] or ended
        winner = self._named(stored.decode(errors="replace"))
        for part, wait in zip(self._parts, waits, strict=True):
            if part is not winner:
                wait.leave()
        return winner

    def leave(self) -> None:
        for each in self._operations:
            each.leave()

    def _named(self, name: str) -> Durable[Any]:
        """Return the part that has won, by its name, so that it may have another place in new code. Earlier releases stored its place.

        Raises:
            StepMismatch: It is not among the parts.
        """
        names = [each.name for each in self._operations]
        place = int(name) if name.isdecimal() else names.index(name) if name in names else len(names)
        if place >= len(names):
            raise StepMismatch(
                f"{self.name[2:]!r} is stored, and came to {name}, which is not among what the handler waits for now. Let it wait for that as "
                "well, for commands that have begun"
            )
        return self._parts[place]


def _part(part: object, method: str, *kinds: type[Any]) -> Any:
    """Return the operation of a part of `all` or `first`.

    Raises:
        BadStep: It is none that can be combined.
    """
    if isinstance(part, Durable):
        part.is_used = True
    if not isinstance(part, Durable) or not isinstance(part.operation, kinds):
        steps = ", .step" if Step in kinds else ""
        raise BadStep(f"context.{method} takes what context.call, .sleep{steps} and .signal return, not {type(part).__name__}")
    return part.operation


async def _begun(part: Durable[Any]) -> Any:
    """Begin an operation; return the result of a step."""
    if isinstance(part.operation, Waited):
        await part.operation.begin()
        return None
    return await part
