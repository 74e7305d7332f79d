"""Crashes at a chosen step of a command, to test that its handler may run again.

    claimed       the worker has started the command, its handler has not run
    handled       the handler has returned, the server does not know it yet: the command runs again
    settled       the server has settled the command, the worker does not know it yet
    ran:charge    in a durable handler: the function of the step `charge` has run, its result is not stored: it runs again
    step:charge   its result is stored
    call:Reserve  a call of `Reserve` is sent

In the window between `handled` and the settlement, any at-least-once system can run a command twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

from command_bus.messages.context import current_command
from command_bus.messages.durable import DurableContext
from command_bus.messages.message import Message
from command_bus.middleware import Middleware, Sending
from command_bus.testing.records import Handled, Recorder, outcomes_of
from command_bus.testing.simulated.live import Process
from command_bus.testing.simulated.streams import Stream, id_of
from command_bus.transport.redis.keys import KeySpace
from command_bus.transport.redis.mailbox_record import parse_record

if TYPE_CHECKING:
    from command_bus.messages.context import CommandContext
    from command_bus.messages.outgoing import OutgoingMessage

CrashPoint = Literal["claimed", "handled", "settled"]
CRASH_POINTS: tuple[CrashPoint, ...] = get_args(CrashPoint)


@dataclass(slots=True)
class Crash:
    """A planned crash.

    Attributes:
        point: Step after which the worker crashes.
        command: Type of the command; None for any.
        nth: Number of the attempt, from 1.
        times: Number of crashes in a row.
    """

    point: CrashPoint | str
    command: type[Message[Any]] | None = None
    nth: int = 1
    times: int = 1

    def meets(self, command: Any) -> bool:
        """Count an attempt; return whether the worker crashes at it."""
        if self.command is not None and not isinstance(command, self.command):
            return False
        self.nth -= 1
        if self.nth > 0 or self.times <= 0:
            return False
        self.times -= 1
        return True


@dataclass(eq=False, slots=True)
class Crashing(Middleware):
    """The outermost middleware of one worker: records attempts, and crashes the worker as planned.

    Attributes:
        recorder: Records the attempts.
        crashes: Planned crashes, shared by all workers.
        process: The worker's process.
        keys: Returns the names of the keys of its namespace, which is open.
    """

    recorder: Recorder
    crashes: list[Crash]
    process: Process
    keys: Callable[[], KeySpace]

    async def handle(self, command: Any, context: CommandContext, proceed: Callable[[], Awaitable[Any]]) -> Any:
        if isinstance(context, DurableContext):
            context.observe(partial(self._passed, command))
        (note,) = await self._attempts([command], lambda: self.recorder.attempt(command, context, proceed))
        return _result(note)

    async def handle_many(
        self, commands: Sequence[Any], contexts: Sequence[CommandContext], proceed: Callable[[], Awaitable[Any]]
    ) -> Any:
        return outcomes_of(await self._attempts(commands, lambda: self.recorder.attempts(commands, contexts, proceed)))

    async def _attempts(self, commands: Sequence[Any], handle: Callable[[], Awaitable[Any]]) -> list[Handled]:
        """Handle commands; crash before or behind that as it is planned for one of them."""
        points = {crash.point for each in commands for crash in self.crashes if crash.point in CRASH_POINTS and crash.meets(each)}
        if "claimed" in points:
            await self._end()
        found = await handle()
        notes: list[Handled] = found if isinstance(found, list) else [found]
        if self.process.dead or "handled" in points:
            for note in notes:
                note.lost = True
        if not self.process.dead and "handled" in points:
            await self._end()
        elif not self.process.dead and "settled" in points:
            self._end_once_settled()
        return notes

    async def _passed(self, command: Any, point: str) -> None:
        """Crash at a point inside of a durable handler."""
        if any(crash.point == point and crash.meets(command) for crash in self.crashes):
            await self._end()

    async def dispatch(self, outgoing: OutgoingMessage, proceed: Sending) -> Any:
        """Record messages that a handler sends like those of the program."""
        return await self.recorder.dispatch(outgoing, proceed)

    async def call(self, outgoing: OutgoingMessage, proceed: Sending) -> Any:
        return await self.recorder.call(outgoing, proceed)

    def _end_once_settled(self) -> None:
        """Crash when the running command is settled: its mailbox is gone or runs another one, or rests without it."""
        running = current_command.get()
        assert running is not None  # noqa: S101 - set around every handler
        store = self.process.server.store
        shard = self.keys().of(running.mailbox)
        key, active, name = shard.mailbox(running.mailbox).encode(), shard.active.encode(), running.mailbox.encode()
        message = parse_record((store.get(active, dict) or {}).get(name)).message

        def is_settled() -> bool:
            mailbox = store.get(key, Stream)
            record = parse_record((store.get(active, dict) or {}).get(name))
            if record.is_held:
                return record.message != message
            return mailbox is None or id_of(message.encode()) not in mailbox.entries

        def look() -> None:
            if is_settled() and not self.process.dead:
                self.process.kill()

        self.process.after.append(look)

    async def _end(self) -> NoReturn:
        self.process.kill()
        await asyncio.Event().wait()  # a dead process does nothing more; its tasks are cancelled
        raise AssertionError


def _result(note: Handled) -> Any:
    if note.error is not None:
        raise note.error
    return note.value
