"""Records of a `TestBus`: sent messages and attempts, as middleware sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from command_bus.clock import wall_ms
from command_bus.errors import Reject
from command_bus.messages.context import Running, running_command
from command_bus.messages.message import Message
from command_bus.messages.policies import parts_of_delivery
from command_bus.messages.snooze import leading
from command_bus.middleware import Middleware, Sending
from command_bus.testing.simulated.live import PROCESS, Process
from command_bus.transport.submissions import Admission

if TYPE_CHECKING:
    from command_bus.messages.context import CommandContext
    from command_bus.messages.outgoing import OutgoingMessage


@dataclass(slots=True, frozen=True)
class Sent:
    """A message that was sent.

    Attributes:
        name: Wire name.
        command: The message; None if it was dispatched by name (`dispatch_raw`).
        command_id: Its id.
        entity: As `account:a-17`, or None.
        headers: What was sent with it as headers.
        delay: Seconds.
        accepted: Whether the server accepted it; False for a duplicate.
    """

    name: str
    command: Message[Any] | None
    command_id: str
    entity: str | None
    headers: Mapping[str, str]
    delay: float
    accepted: bool


@dataclass(slots=True)
class Handled:
    """One attempt of a handler.

    Attributes:
        command: What was handled.
        context: What the handler got of the delivery.
        value: Return value.
        error: Raised error, or None.
        lost: Whether the worker crashed before the server stored the result.
    """

    command: Any
    context: CommandContext
    value: Any = None
    error: BaseException | None = None
    lost: bool = False
    is_raised: bool = False

    @property
    def replied(self) -> bool:
        """Whether this attempt settled its command with a reply: a value or a refusal."""
        return not self.lost and (self.error is None or isinstance(self.error, Reject))


UnderWay = tuple[asyncio.AbstractEventLoop, Handled, Running | None, Process | None]


@dataclass(eq=False, slots=True)
class Recorder(Middleware):
    """The records of one test bus.

    Attributes:
        sent: Messages in the order of the server's answers.
        handled: Attempts in the order of their ends.
        published: Events by their ids.
        serving: Awaits what waits for a reply, with running workers and virtual time.
    """

    sent: list[Sent] = field(default_factory=list[Sent])
    handled: list[Handled] = field(default_factory=list[Handled])
    published: dict[str, Sent] = field(default_factory=dict[str, Sent])
    serving: Callable[[Awaitable[Any]], Awaitable[Any]] | None = None
    _under_way: dict[int, UnderWay] = field(default_factory=dict[int, UnderWay])

    @property
    def running(self) -> list[Handled]:
        """Attempts that run on this loop in live processes, but for those that wait for the others of their batch."""
        here, live = asyncio.get_running_loop(), self._live()
        return [note for loop, note, running, _ in live if loop is here and (running is None or not running.gathers)]

    @property
    def under_way(self) -> list[Handled]:
        """All attempts that run in live processes, on any loop."""
        return [note for _, note, _, _ in self._live()]

    def _live(self) -> list[UnderWay]:
        return [each for each in list(self._under_way.values()) if each[3] is None or not each[3].dead]

    async def call(self, outgoing: OutgoingMessage, proceed: Sending) -> Any:
        return await self.served(proceed(outgoing))

    async def served(self, work: Awaitable[Any]) -> Any:
        """Await something that a worker has to settle."""
        return await (work if self.serving is None else self.serving(work))

    async def handle(self, command: Any, context: CommandContext, proceed: Callable[[], Awaitable[Any]]) -> Any:
        """Record attempts of workers that the application runs itself."""
        note = await self.attempt(command, context, proceed)
        if note.error is not None:
            raise note.error
        return note.value

    async def handle_many(
        self, commands: Sequence[Any], contexts: Sequence[CommandContext], proceed: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Record attempts of a call, as `handle` does."""
        return outcomes_of(await self.attempts(commands, contexts, proceed))

    async def dispatch(self, outgoing: OutgoingMessage, proceed: Sending) -> Any:
        """Record a message. Those of a batch are built here and sent later, so they have no answer yet."""
        answer = await proceed(outgoing)
        if not parts_of_delivery(outgoing.name)[1]:  # else the event is in `published`
            self.sent.append(self.note_of(outgoing, accepted=answer is Admission.ACCEPTED or not isinstance(answer, Admission)))
        return answer

    def note_of(self, outgoing: OutgoingMessage, *, accepted: bool) -> Sent:
        """Return the record of a message on its way out."""
        entity = None if outgoing.entity_type is None else f"{outgoing.entity_type}:{outgoing.entity_id}"
        delay_ms = outgoing.delay_ms if outgoing.delay_ms >= 0 else max(-outgoing.delay_ms - wall_ms(), 0)
        headers = dict(outgoing.headers)
        return Sent(outgoing.name, outgoing.command, outgoing.command_id, entity, headers, delay_ms / 1000, accepted)

    async def attempt(self, command: Any, context: CommandContext, proceed: Callable[[], Awaitable[Any]]) -> Handled:
        """Run a handler and return the record of its attempt, with what it returned or raised."""

        async def one() -> list[Any]:
            return [await proceed()]

        (note,) = await self.attempts([command], [context], one)
        return note

    async def attempts(
        self, commands: Sequence[Any], contexts: Sequence[CommandContext], proceed: Callable[[], Awaitable[Any]]
    ) -> list[Handled]:
        """Call a handler with commands and return the record of each, with its outcome, or with what the call raised."""
        notes = [Handled(command, context) for command, context in zip(commands, contexts, strict=True)]
        loop, running, process = asyncio.get_running_loop(), running_command(), PROCESS.get()
        self._under_way |= {id(note): (loop, note, running, process) for note in notes}
        try:
            work = proceed()
            if process is not None and process.witness is not None:
                work = process.witness.watched(process, work)
            for note, value in zip(notes, await work, strict=True):
                note.value, note.error = (None, leading(value)) if isinstance(value, BaseException) else (value, None)
        except BaseException as error:  # noqa: BLE001 - the caller raises it again
            for note in notes:
                note.error, note.is_raised = leading(error), True
        finally:
            for note in notes:
                self._under_way.pop(id(note), None)
            self.handled += notes
        return notes

    @contextmanager
    def waiting(self, command_id: str) -> Generator[None]:
        """Do not count an attempt as running while its handler waits for the bus."""
        held = {key: entry for key, entry in self._under_way.items() if entry[1].context.command_id == command_id}
        for key in held:
            del self._under_way[key]
        try:
            yield
        finally:
            self._under_way.update(held)


def outcomes_of(notes: Sequence[Handled]) -> list[Any]:
    """Return the outcomes of a call, or raise what it raised."""
    if notes[0].is_raised and notes[0].error is not None:
        raise notes[0].error
    return [note.value if note.error is None else note.error for note in notes]
