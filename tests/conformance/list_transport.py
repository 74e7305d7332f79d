"""A transport in lists and dictionaries, written from `command_bus.transport.ports.transport` alone: one process, one event loop, one shard.

It shows that the core runs on anything that keeps the interfaces. What it cannot do: it forgets everything with its process, marks never
expire, and it has neither bulk dispatches nor events nor interrupts."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from command_bus.errors import BusClosed, CommandBusError, InvalidCommand, UnsuitableServer
from command_bus.messages.policies import MailboxPolicy
from command_bus.serialization.equality import is_same
from command_bus.session import TransportOpener
from command_bus.settings import BusSettings
from command_bus.transport.marks import digest_in, waiting_mark
from command_bus.transport.ports.extensions import Availability
from command_bus.transport.ports.worker import WorkerSideOptions
from command_bus.transport.records import (
    CommandLocation,
)
from command_bus.transport.submissions import Admission, Submission
from tests.conformance.list_durable import ListDurableCommands, deliver
from tests.conformance.list_operators import ListAnnouncements, ListOperatorSide, stored_entity
from tests.conformance.list_server import ListLine, ListServer, wall_ms
from tests.conformance.list_worker import ListWorkerSide

__all__ = ["ListTransport", "lists"]


class ListTransport:
    """Implements `Transport`."""

    def __init__(self, server: ListServer, settings: BusSettings, line: ListLine) -> None:
        self.server = server
        self.settings = settings
        self.line = line
        self.label = "lists"
        self.availability = Availability()
        self.shards = 1
        self.reconnects = 0
        self.producer: Any = ListProducer(server, settings)
        self.replies = ListReplies(server)
        self.durable = ListDurableCommands(server)
        server.deliver = partial(deliver, server)
        self.agreements = ListAgreements(server, settings)
        self.locations = ListLocator(server)
        self.announcements = ListAnnouncements(server)
        self.operator = ListOperatorSide(server)

    @property
    def schedules(self) -> NoReturn:
        raise UnsuitableServer("this transport has no schedules")

    @property
    def outboxes(self) -> Any:
        raise UnsuitableServer("this transport has no outboxes")

    @property
    def limits(self) -> NoReturn:
        raise UnsuitableServer("this transport has no limits")

    @property
    def channels(self) -> NoReturn:
        raise UnsuitableServer("this transport has no channels")

    @property
    def notes(self) -> NoReturn:
        raise UnsuitableServer("this transport has no notes")

    @property
    def bulk(self) -> NoReturn:
        raise UnsuitableServer("this transport has no bulk dispatches")

    def shard_of(self, mailbox: str) -> int:
        return 0

    def worker_side(self, options: WorkerSideOptions) -> ListWorkerSide:
        return ListWorkerSide(self.server, options, self.line)

    async def ping(self) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        self.replies.close()


class ListProducer:
    """Implements `Producer`."""

    window = 1000

    def __init__(self, server: ListServer, settings: BusSettings) -> None:
        self._server = server
        self._most = settings.max_total_depth
        self._most_entities = settings.max_entities

    async def enqueue(self, submission: Submission, timeout: float) -> Admission:
        return self._accept(submission, set())

    async def enqueue_many(
        self, submissions: Sequence[Submission], timeout: float, unavailable: Any = None
    ) -> list[Admission | CommandBusError]:
        refused: set[str] = set()
        return [self._accept(each, refused) for each in submissions]

    def _accept(self, each: Submission, refused: set[str]) -> Admission:
        """Answer one command of a batch by the rules of `Producer`; `refused` has the mailboxes whose later commands are held back."""
        if each.unique is not None:
            raise InvalidCommand("this transport has no unique keys")
        mark = self._server.marks.get(each.command_id) if each.marked else None
        if mark is not None:
            return Admission.DUPLICATE if is_same(digest_in(mark), each.digest) else Admission.CONFLICT
        refusal = self._refusal(each, refused)
        if refusal is not None:
            refused.add(each.mailbox)
            return refusal
        self._put(each)
        return Admission.ACCEPTED

    def _refusal(self, each: Submission, refused: set[str]) -> Admission | None:
        server = self._server
        if server.hold_of(each.mailbox, "draining"):
            return Admission.DRAINING
        if each.mailbox in refused:
            return Admission.PREDECESSOR_REFUSED
        if server.depth(each.mailbox) >= each.max_depth:
            return Admission.ENTITY_FULL
        if server.counters["accepted"] - server.counters["settled"] >= self._most:
            return Admission.TOTAL_FULL
        if self._most_entities is not None and each.mailbox not in server.boxes and len(server.boxes) >= self._most_entities:
            return Admission.TOO_MANY_ENTITIES
        return None

    def _put(self, each: Submission) -> None:
        server = self._server
        if each.marked:
            server.marks[each.command_id] = waiting_mark(each.digest, each.mailbox)
        server.take(each.mailbox, each.command_id, each.envelope, each.delay_ms)


class ListReply:
    """Implements `Reply`."""

    def __init__(self, command_id: str, waiting: list[ListReply]) -> None:
        self.command_id = command_id
        self._waiting = waiting
        self.future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    async def within(self, deadline: float) -> bytes | None:
        done, _ = await asyncio.wait([self.future], timeout=max(0.0, deadline - time.monotonic()))
        return self.future.result() if done else None

    def then(self, arrived: Callable[[bytes], None]) -> None:
        def tell(future: asyncio.Future[bytes | None]) -> None:
            record = None if future.cancelled() else future.result()
            if record is not None:
                arrived(record)

        self.future.add_done_callback(tell)

    def end(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def forget(self) -> None:
        self._waiting.remove(self)


class ListReplies:
    """Implements `Replies`."""

    def __init__(self, server: ListServer) -> None:
        self.process = secrets.token_hex(8)
        self._server = server
        self._waiting: list[ListReply] = []
        server.inboxes[self.process] = self._deliver

    def expect(self, command_id: str) -> ListReply:
        reply = ListReply(command_id, self._waiting)
        self._waiting.append(reply)
        return reply

    def close(self) -> None:
        self._server.inboxes.pop(self.process, None)
        for reply in self._waiting:
            if not reply.future.done():
                reply.future.set_exception(BusClosed("the bus was closed while a call waited for its reply"))

    def _deliver(self, command_id: str, record: bytes) -> None:
        for reply in self._waiting:
            if reply.command_id == command_id and not reply.future.done():
                reply.future.set_result(record)


class ListAgreements:
    """Implements `Agreements`."""

    def __init__(self, server: ListServer, settings: BusSettings) -> None:
        self._server = server
        self._types = server.types
        self._settings = settings

    async def open(self) -> None:
        """It has one shard, and nobody disagrees."""

    def agreed(self, entity_type: str) -> MailboxPolicy | None:
        return self._types.get(entity_type)

    recorded = agreed

    async def agree(self, entity_type: str, deadline: float = 0.0) -> MailboxPolicy:
        return self._types.setdefault(entity_type, self._settings.entity(entity_type).mailbox)

    async def learn(self, entity_type: str) -> None:
        """Everything is known already."""

    def forget(self, entity_type: str) -> None:
        self._types.pop(entity_type, None)

    async def shared(self, name: str, value: bytes) -> bytes:
        return self._server.shared.setdefault(name, value)


class ListLocator:
    """Implements `CommandLocator`."""

    def __init__(self, server: ListServer) -> None:
        self._server = server

    async def marks(self, command_id: str) -> list[bytes]:
        mark = self._server.marks.get(command_id)
        return [] if mark is None else [mark]

    async def shard_depth(self, shard: int) -> int:
        return sum(map(self._server.depth, self._server.mailboxes))

    async def look(self, mailbox: str, command_id: str) -> CommandLocation:
        delayed, mark = self._server.delayed.get(command_id), self._server.marks.get(command_id)
        entity = stored_entity(self._server, mailbox)
        records = tuple(self._server.workers.values())
        return CommandLocation(entity, mark, None, None if delayed is None else delayed.due_ms, records, wall_ms())

    async def line(self, mailbox: str, most: int | None = None) -> Sequence[tuple[str, bytes]]:
        box = self._server.boxes.get(mailbox)
        return [] if box is None else [(entry.message, entry.envelope) for entry in box.entries][:most]


def _satisfies(transport: ListTransport) -> Awaitable[Any] | None:
    """See that type checkers hold it against the interface."""
    from command_bus.transport.ports.transport import Transport

    checked: Transport = transport
    return checked.ping() if checked.shards > 1 else None


def lists(server: ListServer, line: ListLine | None = None) -> TransportOpener:
    """Return what `CommandBus(open_transport=…)` takes; severing the line cuts off the workers of what it opens."""

    async def open_transport(settings: BusSettings) -> ListTransport:
        return ListTransport(server, settings, line or ListLine())

    return open_transport
