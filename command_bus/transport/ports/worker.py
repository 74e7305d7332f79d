"""The protocols of a transport for workers. See `transport.py`."""

from __future__ import annotations

from asyncio import Future, Task
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from command_bus.settings import BusSettings
from command_bus.transport.ports.durable import SideRecords
from command_bus.transport.ports.schedules import DueSchedules
from command_bus.transport.slots import Slots
from command_bus.transport.steps import Answer, Cancellation, Lease, LimitQuestion, Started, Step

Run = Callable[..., Coroutine[Any, Any, None]]
"""Runs the commands of a mailbox under a lease, until the lease is released; `asked` is the answer to a take, if that was sent."""

Over = Callable[[Lease, "Future[Answer]", Run | None], None]
"""Is told of a mailbox without a task that its step is answered: its lease is released, or this runs it further in a task."""

Begin = Callable[[Lease, "Task[Any]", Over], "Run | Future[Answer]"]
"""Runs a command that was started with its delivery, in the current task, as far as it gets without waiting. Returns what does the rest in it, or
the answer to the step that settles the command: then nothing is left to do in this task, and `Over` is told."""

Decide = Callable[[Started, str], Step | None]
"""Decides what to do with a command that was interrupted, and for what reason; None leaves it to another worker."""


class Steps(Protocol):
    """Moves held mailboxes forward; the steps of one event-loop turn may leave as one batch."""

    def advance(self, lease: Lease, step: Step) -> Awaitable[Answer]:
        """Carry out a step under its lease; repeat what is ambiguous until there is an answer.

        `Take` starts the head of the mailbox. `GiveBack` with an empty `lease.attempt_id` makes an untouched mailbox ready for any worker.
        Every other step concerns the command that `lease.attempt_id` names: it is carried out only
        while the lease is held and that command is the one that was started last under it; else the answer is `LeaseLost` and
        nothing changes. After `Done` and `DeadLetterStep` the next command is started if the mailbox has one and `follow` is `stay`, or
        `yield` while no other mailbox of the shard waits; else the mailbox is made ready for any worker. A mailbox that is paused or parked
        starts nothing: the answer is `Released("stop")`. With the answer `Started`, `lease.attempt_id` is that of the new start.
        `Extend` is answered by `Extended`, or by `Started` of the command that runs already: then it runs alone.
        """
        ...

    def behind(self, lease: Lease, message: str, count: int) -> Awaitable[list[tuple[str, bytes]]]:
        """Return ids and envelopes of the commands that stand behind one in the mailbox that a lease holds, at most so many.

        One that has further fields ends that. While the server is away this waits.
        """
        ...


class Leases(Protocol):
    """The leases that a worker holds, renewed in the background."""

    @property
    def lost(self) -> int:
        """How many were lost so far."""
        ...

    @property
    def longest(self) -> float:
        """Seconds for which the longest attempt has run."""
        ...

    @property
    def overdue(self) -> float:
        """Seconds for which the renewal has been silent beyond its time."""
        ...

    def __len__(self) -> int:
        """Return how many leases are held."""
        ...


class Consumer(Protocol):
    """Reads activations and runs them, never more than there are free slots."""

    async def stop_reading(self) -> None:
        """Read no more; hand back untouched what is still delivered."""
        ...

    @property
    def running(self) -> Mapping[Future[Any], str]:
        """The tasks that hold a mailbox, and the answers for which one without a task waits, each with that mailbox; at this moment."""
        ...

    @property
    def silent_for(self) -> float:
        """Seconds since it last asked for work with success; infinite if it cannot, 0 while it could not run any."""
        ...

    @property
    def reads(self) -> bool:
        """Whether it goes on reading: false once it was stopped, or its event loop shuts down."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerSideOptions:
    """The settings that a worker gives to its transport.

    Attributes:
        name: The worker's name, different for each start.
        settings: Its settings.
        slots: Entities that it runs at a time.
        is_stuck: Whether some of the work cannot be run here for now.
        heartbeat: Called with the server's time in ms, with each renewal; returns the record that `announcements.workers` reads.
        schedules: Fires schedules; None: this worker leaves them to others.
        forgotten: Called, in any thread, if the server has lost what this worker had written.
        state_over: Returns whether the state of a mailbox is kept no longer at a time; None: all are kept for ever.
        drained: Called when all work that was taken is over, and a read of each shard has brought none since.
    """

    name: str
    settings: BusSettings
    slots: int
    is_stuck: Callable[[], bool]
    heartbeat: Callable[[int], bytes]
    schedules: DueSchedules | None = None
    forgotten: Callable[[], None] = lambda: None
    state_over: Callable[[bytes, bytes, int], bool] | None = None
    drained: Callable[[], None] = lambda: None


class WorkerSide(Protocol):
    """The transport's side of one worker.

    After `start` the consumer reads activations while there are free slots, makes a task for each, and
    awaits `run(lease)` in it. When `run` returns, the lease is dropped and the slot given back. In the background
    leases are renewed, delayed commands and retries are made ready when they are due, and leases of lost workers are taken over: what was
    started under one is settled by `decide`. `slots` has one reader per shard.
    """

    @property
    def slots(self) -> Slots:
        """Where entities run."""
        ...

    @property
    def steps(self) -> Steps:
        """Carries out steps."""
        ...

    @property
    def side_records(self) -> SideRecords:
        """Stores what durable commands have done."""
        ...

    @property
    def leases(self) -> Leases:
        """What this worker holds."""
        ...

    @property
    def consumer(self) -> Consumer:
        """Reads; there after `start`."""
        ...

    @property
    def recovered(self) -> int:
        """Leases taken over from lost workers so far."""
        ...

    def read_state(self, lease: Lease) -> Awaitable[bytes]:
        """Return what is stored of the state of the entity that a lease holds; empty if nothing is. While the server is away this waits."""
        ...

    def start(self, run: Run, begin: Begin, decide: Decide) -> None:
        """Begin to renew leases, to recover and to read: run a mailbox by `run`, settle what a lost worker has started by `decide`."""
        ...

    async def admit(self, lease: Lease, asked: LimitQuestion, keyed: str, *, must_yield: bool) -> Answer:
        """Ask limits for what the question names, then start it, or let its entity wait.

        A transport that never answers a `LimitQuestion` has no use for it.

        Args:
            lease: Holds its mailbox.
            asked: What would start.
            keyed: Costs and scopes of its class's own limits, and its callers: see `LimitKeys`.
            must_yield: Whether it must give up a place that another entity waits for.
        """
        ...

    def over(self, lease: Lease, *, stuck: bool = False) -> None:
        """Tell limits that a lease has ended under which they were asked, or that its entity is stuck, which must hold up no other."""
        ...

    def cancel_all(self, why: Cancellation) -> None:
        """Interrupt every handler that runs."""
        ...

    async def stop(self, patience: float) -> None:
        """Recover no more, let steps leave within `patience` seconds, end all leases and sign off."""
        ...
