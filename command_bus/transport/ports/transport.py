"""The protocols of a transport: one part for each role, so that a producer never meets consumer code.

`Transport` holds the parts. A sender uses those of `sender.py`: `producer`, `replies`, `agreements`, `locations`; also
`announcements`. A worker uses `worker_side` (`worker.py`), `agreements`, `announcements` and `limits`. An operator uses
`operator` (`operator.py`). Bulk loads use `bulk` (`bulk.py`), schedules `schedules` (`schedules.py`), notifications
`channels`, webhooks `notes` (both in `extensions.py`).
The values that pass through are in `submissions.py`, `steps.py`, `records.py`, `interrupts.py` and `marks.py`. Envelopes and replies are
opaque bytes here. A transport may lack `limits`, `outboxes`, `schedules`, `bulk`, `channels`, `notes`, `operator.events` or
`operator.interrupts`: the property then raises `UnsuitableServer`.

A *mailbox* is the name that `mailboxes.mailbox_name` gives an entity (or its lane); a *lease* is the right to run a mailbox's commands.
An *activation* is the id under which a ready mailbox is offered to the workers: one that reads it holds the lease.
A *shard* is a number below `Transport.shards`: all commands of a mailbox are in one shard, and a shard can be read by itself.
"""

from __future__ import annotations

from typing import Protocol

from command_bus.transport.ports.bulk import BulkDispatches
from command_bus.transport.ports.durable import DurableCommands
from command_bus.transport.ports.extensions import Availability, Channels, Notes
from command_bus.transport.ports.limits import BusLimits
from command_bus.transport.ports.operator import Announcements, OperatorSide
from command_bus.transport.ports.schedules import ScheduleStore
from command_bus.transport.ports.sender import Agreements, CommandLocator, Outboxes, Producer, Replies
from command_bus.transport.ports.worker import WorkerSide, WorkerSideOptions


class Transport(Protocol):
    """One open connection to a namespace, with its parts.

    Attributes:
        label: Names the server for people, without a password.
        shards: How many shards the namespace has.
        availability: The servers that are away.
    """

    label: str
    shards: int
    availability: Availability
    producer: Producer  # an observer may stand before the transport's own

    @property
    def replies(self) -> Replies:
        """Receives replies."""
        ...

    @property
    def agreements(self) -> Agreements:
        """What all clients agree on."""
        ...

    @property
    def outboxes(self) -> Outboxes:
        """Accepts what transactions of databases have left."""
        ...

    @property
    def locations(self) -> CommandLocator:
        """Finds single commands."""
        ...

    @property
    def announcements(self) -> Announcements:
        """What workers publish."""
        ...

    @property
    def operator(self) -> OperatorSide:
        """What only operators use."""
        ...

    @property
    def limits(self) -> BusLimits:
        """Writes and reads limits."""
        ...

    @property
    def durable(self) -> DurableCommands:
        """Brings signals and wishes to durable commands, and reads what they have stored."""
        ...

    @property
    def schedules(self) -> ScheduleStore:
        """Keeps schedules, and fires them."""
        ...

    @property
    def bulk(self) -> BulkDispatches:
        """Loads dispatches in bulk."""
        ...

    @property
    def channels(self) -> Channels:
        """Publishes to those who listen."""
        ...

    @property
    def notes(self) -> Notes:
        """Keeps records of extensions."""
        ...

    @property
    def reconnects(self) -> int:
        """How often a request was repeated because it had no answer."""
        ...

    def shard_of(self, mailbox: str) -> int:
        """Return the shard of a mailbox."""
        ...

    def worker_side(self, options: WorkerSideOptions) -> WorkerSide:
        """Make the parts of one worker."""
        ...

    async def ping(self) -> None:
        """Send one request and wait for its answer.

        Raises:
            TransportUnavailable: There is none.
        """
        ...

    async def close(self) -> None:
        """Let accepted work leave, fail calls that wait, and close the connections."""
        ...
