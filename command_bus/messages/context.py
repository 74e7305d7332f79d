"""The context of a handler: what it may know of its delivery, and what the bus must know of the handler that is running.

A `CommandContext` is built only for handlers that ask for it. `current_command` is set around every handler, so that a `call`
from inside it can be refused when it would wait for itself, and so that what it dispatches carries on its correlation. Tasks that the
handler starts see it, too, until the handler ends: who asks for it by `running_command` is not misled by one that goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

from command_bus.clock import mono
from command_bus.errors import HandlerOver
from command_bus.messages.policies import parts_of_delivery
from command_bus.messages.reports import Reports, checked_share, checked_text

if TYPE_CHECKING:
    from command_bus.messages.event import EventOptions
    from command_bus.messages.message import Event, Message
    from command_bus.messages.options import DispatchOptions, FollowedCallOptions, FollowUpOptions, SendOn
    from command_bus.messages.outgoing import OutgoingMessage
    from command_bus.messages.receipts import Receipt
    from command_bus.messages.state import EntityState, HeldState

R = TypeVar("R")


class HandlerBus(Protocol):
    """The bus that a handler sends with: a `CommandBus`, or a `TestBus`."""

    async def dispatch(self, *args: Any, **kwargs: Any) -> Receipt[Any]: ...

    async def call(self, *args: Any, **kwargs: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """One delivery of one command, for a handler that runs in a process of its own; nothing in it talks to the bus.

    Every value has a default, so that a unit test can call the handler as a plain function.

    Attributes:
        command_id: The id of the command.
        fence: Higher than those of all earlier starts of the entity's commands: pass it to what the handler writes to.
        attempt: The number of this start, from 1.
    """

    command_id: str = ""
    fence: int = 0
    attempt: int = 1


@dataclass(slots=True, eq=False)
class CommandContext:
    """One delivery of one command, for the handler that asks for it with a parameter annotated `CommandContext`.

    Every value has a default, so that a unit test can call the handler as a plain function:
    `await deposit(Deposit(…), CommandContext(command_id="c-1"))`.

    Attributes:
        command_id: The id under which the command was accepted; the same at every attempt, so it serves as an idempotency key.
        name: The wire name of the message.
        entity_type: The entity's type, or None for a message that runs freely.
        entity_id: The entity's canonical id, or None.
        attempt: 1 for the first start; interrupted starts count.
        fence: Grows with every start for this entity: `UPDATE … SET fence = :fence WHERE fence <= :fence` refuses the effects of
            a handler that has lost its lease.
        deadline: The `time.monotonic()` value of this machine after which the caller no longer waits, or None.
        headers: What the sender attached. Read-only by convention.
        correlation_id: Shared by everything that one first command led to.
        causation_id: The id of the command whose handler sent this one, or None.
        accepted_ms: When the server accepted the command, in milliseconds since the epoch.
        worker: The name of the worker that runs it.
        bus: The worker's bus. A unit test may give one, such as its `command_bus`.
        loop: The event loop of the bus.
        resumed: Whether this start goes on with what an earlier one of a durable command has stored: after a wait, a retry, or the loss of its
            worker.
    """

    command_id: str = ""
    name: str = ""
    entity_type: str | None = None
    entity_id: str | None = None
    attempt: int = 1
    fence: int = 0
    deadline: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    correlation_id: str = ""
    causation_id: str | None = None
    accepted_ms: int = 0
    worker: str = ""
    bus: HandlerBus | None = field(default=None, repr=False)
    loop: asyncio.AbstractEventLoop | None = field(default=None, repr=False)
    resumed: bool = False
    _cancel_reason: str | None = field(default=None, init=False, repr=False)
    _outbox: Outbox | None = field(default=None, init=False, repr=False)
    _reports: Reports | None = field(default=None, init=False, repr=False)
    _memory: RunMemory | None = field(default=None, init=False, repr=False)
    _make_memory: Callable[[], RunMemory] | None = field(default=None, init=False, repr=False)
    _running: Running | None = field(default=None, init=False, repr=False)
    _is_over: bool = field(default=False, init=False, repr=False)
    _held: HeldState | None = field(default=None, init=False, repr=False)
    _shares_state: bool = field(default=False, init=False, repr=False)
    _sent: list[Message[Any]] = field(default_factory=list["Message[Any]"], init=False, repr=False)

    async def dispatch(self, command: Message[R], **options: Unpack[DispatchOptions]) -> Receipt[R]:
        """Dispatch as `CommandBus.dispatch`, by the worker's bus: the handler's module need not import one.

        Raises:
            HandlerOver: The handler is over.
            RuntimeError: The context was made by hand, without a bus.
        """
        sender = self._sender()
        if self._running is None:
            return await sender.dispatch(command, **options)
        with _as_running(self._running):
            return await sender.dispatch(command, **options)

    async def call(self, command: Message[R], **options: Unpack[FollowedCallOptions]) -> R:
        """Call as `CommandBus.call`, by the worker's bus; not to the handler's own entity.

        Raises:
            HandlerOver: The handler is over.
            RuntimeError: The context was made by hand, without a bus.
        """
        sender = self._sender()
        with nullcontext() if self._running is None else _as_running(self._running):
            value: R = await sender.call(command, **options)
        return value

    def send(self, command: Message[Any], *, on: SendOn = "completed", **options: Unpack[FollowUpOptions]) -> str:
        """Send a command with the settlement of this one: it is accepted in the same step, or not at all.

        Returns at once, in coroutines and in threads. If the handler fails or its worker is lost, nothing was sent, and the next attempt sends
        again. Commands to one entity keep the order in which they were sent. What was sent is not refused for a full or drained entity.
        Where the shard of its entity was seen to hold more than twice what it may, this refuses.

        Args:
            command: What is sent.
            on: `completed`: it is sent if the handler returns. `always`: also if the handler rejects the command, or fails for the last
                time and the entity goes on without it.
            **options: As for `CommandBus.dispatch`: `delay`, `at`, `headers`, `expires`, `priority`, `retry`, `attempt_timeout`, `history`.

        Returns:
            Its command id, which is the same in each attempt.

        Raises:
            InvalidCommand: It or an option is not what it may be, or it is one too many: at most 1,000, and 4 MiB.
            QueueFull: The shard of its entity holds more than twice its part of `max_total_depth`, or did a second ago.
            HandlerOver: The handler is over.
        """
        self._check_not_over("what it sends goes with its settlement, so send before it returns")
        command_id = "" if self._outbox is None else self._outbox.add(command, always=on == "always", **options)
        self._sent.append(command)
        return command_id

    def publish(self, event: Event, *more: Event, on: SendOn = "completed", **options: Unpack[EventOptions]) -> str:
        """Publish an event with the settlement of this command: each subscription gets it, or none does. As `send` in all else.

        Args:
            event: Is published.
            *more: Are published behind it.
            on: As for `send`.
            **options: As for `CommandBus.publish`, but for the id.

        Returns:
            The id of the first, which is the same in each attempt.

        Raises:
            InvalidCommand: As for `send`; an event counts once for each of its subscriptions.
            QueueFull: As for `send`.
            HandlerOver: The handler is over.
        """
        self._check_not_over("what it publishes goes with its settlement, so publish before it returns")
        always, ids = on == "always", [""]
        for each in (event, *more):
            ids.append("" if self._outbox is None else self._outbox.publish(each, always=always, **options))
            self._sent.append(each)
        return ids[1]

    def publish_as(self, event: OutgoingMessage) -> None:
        """Publish an event that is encoded, under the id that it has. For the library's own handlers."""
        if self._outbox is not None:
            self._outbox.publish_as(event)

    @property
    def subscription(self) -> str:
        """The subscription that the handler is of; empty if it handles a command."""
        return parts_of_delivery(self.name)[1]

    @property
    def event_id(self) -> str:
        """The id of the event that its subscription got; empty if it handles a command."""
        return parts_of_delivery(self.command_id)[0] if self.subscription else ""

    @property
    def sent(self) -> tuple[Message[Any], ...]:
        """The messages that the handler has sent or published. With a context made by hand, in a unit test, that is all that these do."""
        return tuple(self._sent)

    @property
    def state(self) -> EntityState | None:
        """The state of the entity, as the handler changes it; None if its handler has no parameter for it."""
        return None if self._held is None else self._held.value

    def delete_state(self) -> None:
        """Delete the state of the entity with the settlement of this command, if it completes.

        Raises:
            HandlerOver: The handler is over.
            RuntimeError: The handler has no parameter for the state, or takes several commands, which share it.
        """
        self._check_not_over("its command is settled")
        if self._shares_state:
            raise RuntimeError(
                "the commands of a call share the state: set its fields to their defaults, or delete it in a handler of one command"
            )
        if self._held is None:
            raise RuntimeError(
                f"the handler of {self.name or 'this context'} has no state: give it a parameter, `account: Account`"
            )
        self._held.is_deleted = True

    @property
    def blocking(self) -> BlockingSender:
        """`dispatch` and `call` for handlers that are no coroutines."""
        return BlockingSender(self)

    def _check_not_over(self, advice: str) -> None:
        """Check that a task that the handler has left behind does not use its context.

        Raises:
            HandlerOver: The handler is over.
        """
        if self._is_over:
            raise HandlerOver(f"the handler of {self.name or 'this context'} is over: {advice}")

    def _sender(self) -> HandlerBus:
        self._check_not_over("a task that goes on by itself sends by the bus")
        if self.bus is None:
            raise RuntimeError(
                "this context has no bus: one that a worker makes has the worker's; in a unit test give one, "
                "CommandContext(bus=command_bus) with the fixture `command_bus`"
            )
        return self.bus

    @property
    def entity(self) -> str | None:
        """The entity as `"account:a-17"`, or None for a message that runs freely."""
        return None if self.entity_type is None else f"{self.entity_type}:{self.entity_id}"

    @property
    def cancelled(self) -> bool:
        """Whether the result is no longer wanted.

        The lease is lost, the attempt timed out, the worker stops, an operator aborts it, or the command was cancelled.

        Safe to read from any thread. A synchronous handler cannot be interrupted, so a long one asks now and then and returns.
        """
        return self._cancel_reason is not None

    @property
    def cancel_reason(self) -> str | None:
        """Why the delivery was cancelled, or None."""
        return self._cancel_reason

    def cancel(self, reason: str) -> None:
        """Ask the handler to stop. For the worker that runs it; the first reason stays."""
        if self._cancel_reason is None:
            self._cancel_reason = reason

    def progress(self, share: float, note: str = "") -> None:
        """Say how far the handler is: `context.progress(0.4, "4 of 10 files")`. It is read by `bus.commands.progress(command_id)`.

        Returns at once, in coroutines and in threads. It is written once a second at most; the last one is written before the handler's end. With a
        context made by hand, in a unit test, it is checked only.

        Args:
            share: How much of the work is done, from 0 to 1.
            note: What it does, at most 1,000 bytes.

        Raises:
            BadReport: They are not what they may be.
            HandlerOver: The handler's run is over, or its lease is lost.
        """
        share, note = checked_share(share), checked_text("a note", note)
        if self._reports is not None:
            self._reports.progress(share, note)

    def log(self, text: str, **facts: Any) -> None:
        """Append an entry to the command's log: `context.log("written", rows=7)`. The last hundred are kept, of all runs of the command together.

        As `progress`, it returns at once. An entry has at most 1,000 bytes. What an earlier run of a durable command has logged, of the first 1,000
        entries, is not logged again, as its handler comes to the same place again.

        Raises:
            BadReport: The text or a value is not what it may be.
            HandlerOver: The handler's run is over, or its lease is lost.
        """
        text = checked_text("an entry of the log", text)
        if self._reports is not None:
            self._reports.log(text, facts)

    @property
    def memory(self) -> RunMemory | None:
        """The part of this run that an inbox keeps; None: the context was made by hand.

        Raises:
            HandlerOver: The handler is over.
        """
        self._check_not_over("an inbox is asked before it returns")
        if self._memory is None and self._make_memory is not None:
            self._memory = self._make_memory()
        return self._memory

    def sends_by(
        self,
        outbox: Outbox | None,
        reports: Reports | None = None,
        held: HeldState | None = None,
        memory: Callable[[], RunMemory] | None = None,
        running: Running | None = None,
        *,
        shares_state: bool = False,
    ) -> None:
        """Send by this outbox from now on, report by this, have this state; None: the handler is over. For the worker that runs it.

        In a batch each context sends as the command that runs under it, whatever runs in the task.
        """
        self._outbox, self._is_over, self._make_memory, self._running = outbox, outbox is None, memory, running
        self._shares_state = shares_state
        if reports is not None:
            self._reports = reports
        if held is not None:
            self._held = held

    def remaining(self) -> float | None:
        """Return the seconds until the caller stops waiting, 0.0 after that; None if it set no deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - mono())


class Outbox(Protocol):
    """The follow-ups of one run of a handler."""

    def add(self, command: Message[Any], *, always: bool, **options: Unpack[DispatchOptions]) -> str:
        """Keep one until the command is settled; return its command id."""
        ...

    def publish(self, event: Event, *, always: bool, **options: Unpack[EventOptions]) -> str:
        """Keep an event until the command is settled; return its id."""
        ...

    def publish_as(self, event: OutgoingMessage, *, always: bool = False) -> str:
        """Keep an event that is encoded, under the id that it has."""
        ...


class RunMemory(Protocol):
    """The run of one command, as an inbox keeps it in a row and finds it again.

    Attributes:
        key: Names the command in the inbox.
        place: Names the line of its entity there; empty without an entity.
        found_in: The databases in which this very run has committed or found a row.
    """

    key: str
    place: str
    found_in: set[Any]

    def packed_reply(self, reply: Any) -> bytes:
        """Return a reply as it is kept.

        Raises:
            BadResult: It is not what the command promises.
        """
        ...

    def reply_of(self, packed: bytes) -> Any:
        """Return a reply that was kept."""
        ...

    def pack(self, reply: bytes | None) -> bytes:
        """Return what a row keeps: a digest of the command, a packed reply, and what was sent by `CommandContext.send` until now."""
        ...

    def restore(self, kept: bytes) -> bytes | None:
        """Send again with the settlement what the run of a row has sent; return its packed reply.

        Raises:
            InboxConflict: It is of a command with other fields.
            BadResult: It cannot be read.
        """
        ...


class LentSlot(Protocol):
    """The slot of a running handler, lent to others while the handler waits inside of it."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None: ...

    def end(self) -> None:
        """End it with the handler."""
        ...


class BlockingSender:
    """Sends from a handler that runs in a thread, and waits.

    Args:
        context: As the handler got it.
    """

    def __init__(self, context: CommandContext) -> None:
        self._context = context

    def dispatch(self, command: Message[R], **options: Unpack[DispatchOptions]) -> Receipt[R]:
        """Dispatch as `CommandContext.dispatch`."""
        return self._wait(self._context.dispatch(command, **options))

    def call(self, command: Message[R], **options: Unpack[FollowedCallOptions]) -> R:
        """Call as `CommandContext.call`, also in the function of a step of a durable handler: a call of the handler would wait there for the step."""
        return self._wait(CommandContext.call(self._context, command, **options))

    def _wait(self, work: Coroutine[Any, Any, R]) -> R:
        """Run it on the loop of the bus, which carries on the ids of the running command: the loop copies this thread's context."""
        loop = self._context.loop
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - as `get_running_loop`, which raises
            work.close()
            raise RuntimeError("this handler is a coroutine: write `await context.dispatch(…)`, without `.blocking`")
        return asyncio.run(work) if loop is None else asyncio.run_coroutine_threadsafe(work, loop).result()


@dataclass(slots=True, eq=False)
class Running:
    """The command whose handler runs in the current task or thread.

    Attributes:
        mailbox: Name of the mailbox that it holds.
        command_id: Its id, the causation id of what it dispatches.
        correlation_id: Passed on to what it dispatches.
        name: Its wire name, for messages.
        attempt: The number of this start; for logs, as the next.
        worker: Who runs it.
        callers: Mailboxes and activations of the handlers that wait for what it calls and have places of limits: itself, and its callers.
        chain: Mailboxes of the handlers that wait for it, the outermost first, and further ones of its own.
        lends_beyond: Whether its slot is lent although no more may be: another handler waits for its reply, say.
        make_lending: Makes what lends its slot while it waits for the bus, or None: it holds no slot.
        lending: That, once it has waited.
        ended: Whether the handler is over; what it started and did not wait for may still run.
        suspended: Whether this run of a durable handler is over, because its command waits.
        gathers: Whether it waits for the other commands of its batch.
        beside: Mailboxes of its batch, which none of it may call.
        hops: How many commands led to it, each sent by the handler of the one before, and none delayed.
        home: The server and namespace whose mailboxes are meant.
    """

    mailbox: str
    command_id: str
    correlation_id: str
    name: str
    attempt: int = 1
    worker: str = ""
    callers: Mapping[str, str] = field(default_factory=dict[str, str])
    chain: Sequence[str] = ()
    lends_beyond: bool = False
    make_lending: Callable[[Running], LentSlot] | None = None
    lending: LentSlot | None = None
    ended: bool = False
    suspended: bool = False
    gathers: bool = False
    beside: Collection[str] = ()
    hops: int = 0
    home: object = None

    def suspend(self) -> None:
        """Let it send nothing more: its command waits."""
        self.suspended = True


current_command: ContextVar[Running | None] = ContextVar("command_bus_current_command", default=None)
"""The command whose handler was started here, or None outside handlers: for logs, which say where a line comes from."""


def running_command() -> Running | None:
    """Return the command whose handler runs here, or None: outside handlers, and in a task that has outlived its own."""
    running = current_command.get()
    return None if running is None or running.ended else running


@contextmanager
def _as_running(running: Running) -> Generator[None]:
    """Let this command be the one whose handler runs here."""
    before = current_command.set(running)
    try:
        yield
    finally:
        current_command.reset(before)


async def while_lent(work: Awaitable[R]) -> R:
    """Wait for something that the bus resolves; while a handler waits, it lends its slot in the worker."""
    running = running_command()
    if running is None or running.make_lending is None:
        return await work
    lending = running.lending
    if lending is None:
        lending = running.lending = running.make_lending(running)
    async with lending:
        return await work
