"""The seams of the transport: what a producer, a worker, a caller and an operator may ask of it.

Each part sees only its own interface, so that a producer never meets consumer code. Envelopes and replies are opaque bytes here.
A *mailbox* is the name that `keys.mailbox_name` gives an entity (or its lane); a *lease* is the right to run a mailbox's commands.
"""

from __future__ import annotations

from asyncio import Future, Task
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from command_bus.errors import CommandBusError
from command_bus.messages.policies import Mailbox
from command_bus.transport.steps import Answer, Lease, Step
from command_bus.transport.submissions import Admission, Submission, UnavailableShards

__all__ = ["Consumer", "Places", "Policies", "Producer", "Recovery", "Replies", "Reply", "Steps"]


class Producer(Protocol):
    """Puts commands into mailboxes."""

    @property
    def window(self) -> int:
        """How many commands leave together at most."""
        ...

    def enqueue(self, submission: Submission, timeout: float) -> Awaitable[Admission]:
        """Accept one command; concurrent calls of one event-loop turn leave as one batch, in the order of the calls.

        Raises:
            TransportUnavailable: No answer within `timeout` seconds.
            QueueFull: The server is at its memory limit.
        """
        ...

    async def enqueue_many(
        self, submissions: Sequence[Submission], timeout: float, silent: UnavailableShards | None = None
    ) -> list[Admission | CommandBusError]:
        """Accept many commands, in order per mailbox; an outcome per command, or the error because of which there is none.

        `timeout` is per chunk. After a chunk that failed nothing more of its shard is sent; nor by later calls that are given the same
        `silent`, in which shards are noted that did not answer in time.
        """
        ...


class Steps(Protocol):
    """Moves held mailboxes forward; the steps of one event-loop turn leave as one batch."""

    def advance(self, lease: Lease, step: Step) -> Awaitable[Answer]:
        """Carry out a step under its lease. Repeats what is ambiguous until it has an answer."""
        ...


class Reply(Protocol):
    """One call's wait."""

    async def within(self, deadline: float) -> bytes | None:
        """The reply record, or None if it does not come until then (monotonic)."""
        ...


class Replies(Protocol):
    """Receives the replies of one process.

    Attributes:
        process: What a command must carry so that its reply comes here.
    """

    process: str

    def expect(self, command_id: str) -> Reply:
        """Be ready for a reply, before the command is sent."""
        ...

    def forget(self, pending: Any) -> None:
        """Nobody waits for it any more."""
        ...


class Places(Protocol):
    """The places of a worker: as many entities as it may run at a time."""

    @property
    def lent(self) -> int:
        """How many are lent."""
        ...

    @property
    def all_lent(self) -> bool:
        """Whether no more may be lent."""
        ...

    def lend(self, *, beyond: bool = False) -> bool:
        """Lend the place of a handler that waits; return False if no more may be lent. `beyond` lends it all the same."""
        ...

    def take_back(self) -> Future[None]:
        """Take a place again for a handler that goes on, before any reader does; return what is done once it has one."""
        ...

    def withdraw(self, turn: Future[None]) -> bool:
        """Leave the place lent that `take_back` waits for, and end that wait; return False if the place is taken already."""
        ...

    def take_back_now(self) -> None:
        """Take a place again at once, also beyond the limit."""
        ...

    def admits_caller(self) -> bool:
        """Return whether a handler may begin that will lend its place."""
        ...

    def another_waits(self, reader: int) -> bool:
        """Return whether the reader of another shard waits for a place."""
        ...


class Policies(Protocol):
    """Knows what mailboxes the entities of a type have in a namespace."""

    def recorded(self, entity_type: str) -> Mailbox | None:
        """Return the policy that the namespace recorded, if it is known here."""
        ...

    async def learn(self, entity_type: str) -> None:
        """Read it, if it is recorded.

        Raises:
            CommandBusError: It cannot be read now.
        """
        ...


class Consumer(Protocol):
    """Feeds activations to whoever runs them, never more than there are free slots."""

    async def start(self) -> None:
        """Begin to read; returns at once."""
        ...

    async def stop_reading(self) -> None:
        """Read no more; what was delivered meanwhile is handed back untouched."""
        ...

    @property
    def running(self) -> frozenset[Task[None]]:
        """The tasks that hold a mailbox."""
        ...

    @property
    def silent_for(self) -> float:
        """Seconds since it last asked for work with success; infinite if it cannot, 0 while it could not run any."""
        ...

    @property
    def reads(self) -> bool:
        """Whether it goes on reading: false once it was stopped, or its event loop shuts down."""
        ...


class Recovery(Protocol):
    """Takes over what nobody holds any more, and wakes what has become due."""

    def start(self) -> None:
        """Begin to watch; returns at once."""
        ...

    def wake(self, shard: int) -> None:
        """Something may be due earlier than known."""
        ...

    async def settle(self, shard: int, activations: list[tuple[str, str]], *, ours: bool = False) -> None:
        """Settle activations (id, mailbox) that nobody holds; with `ours`, none whose holder was another worker, which may live."""
        ...

    async def stop(self) -> None:
        """Stop watching."""
        ...
