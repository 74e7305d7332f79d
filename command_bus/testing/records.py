"""What a `TestBus` notes: what was sent, and what handlers made of it. It is middleware, so it sees what middleware sees."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from command_bus.errors import Reject
from command_bus.messages import Message
from command_bus.middleware import Middleware, Sending
from command_bus.transport.interfaces import Admission

if TYPE_CHECKING:
    from command_bus.context import CommandContext
    from command_bus.outbound import Outbound

__all__ = ["Handled", "Recorder", "Sent"]


@dataclass(slots=True, frozen=True)
class Sent:
    """A message that was sent.

    Attributes:
        name: Its wire name.
        command: The message; None if it was sent by name alone.
        command_id: Its id.
        entity: As `account:a-17`, or None.
        headers: What travels with it.
        delay: Seconds.
        accepted: Whether the server took it; a duplicate was not taken again.
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
        command: What it was given.
        context: Of the delivery.
        value: What it returned.
        error: What it raised, or None.
        lost: Whether a crash came before the server learned of it.
    """

    command: Any
    context: CommandContext
    value: Any = None
    error: BaseException | None = None
    lost: bool = False

    @property
    def replied(self) -> bool:
        """Whether this attempt settled its command with a reply: a value or a refusal."""
        return not self.lost and (self.error is None or isinstance(self.error, Reject))


@dataclass(slots=True)
class Recorder(Middleware):
    """The notes of one test bus.

    Attributes:
        sent: In the order of the answers.
        handled: In the order of the ends.
        running: The attempts that are under way.
    """

    sent: list[Sent] = field(default_factory=list[Sent])
    handled: list[Handled] = field(default_factory=list[Handled])
    running: dict[int, Handled] = field(default_factory=dict[int, Handled])

    async def dispatch(self, outbound: Outbound, proceed: Sending) -> Any:
        """See `Middleware`. A batch is sealed here and sent later: then there is no answer yet."""
        answer = await proceed(outbound)
        entity = None if outbound.entity_type is None else f"{outbound.entity_type}:{outbound.entity_id}"
        self.sent.append(
            Sent(
                outbound.name,
                outbound.command,
                outbound.command_id,
                entity,
                dict(outbound.headers),
                outbound.delay_ms / 1000,
                answer is Admission.ACCEPTED or not isinstance(answer, Admission),
            )
        )
        return answer

    async def attempt(self, command: Any, context: CommandContext, proceed: Callable[[], Awaitable[Any]]) -> Handled:
        """Run a handler and note what came of it; what it raised is in the note."""
        note = Handled(command, context)
        self.running[id(note)] = note
        try:
            note.value = await proceed()
        except BaseException as error:  # noqa: BLE001 - whoever asked raises it again
            note.error = error
        finally:
            self.running.pop(id(note), None)
            self.handled.append(note)
        return note

    @contextmanager
    def waiting(self, command_id: str) -> Generator[None]:
        """Do not count an attempt as running: its handler waits for the bus."""
        held = {key: note for key, note in self.running.items() if note.context.command_id == command_id}
        for key in held:
            del self.running[key]
        try:
            yield
        finally:
            self.running.update(held)
