"""A transport in lists and dictionaries, written from `command_bus.transport.interfaces` alone: one process, one event loop, one shard.

It shows that the core runs on anything that keeps the interfaces. What it cannot do: it forgets everything with its process, marks never
expire, nobody can cut a worker off from it, and it has neither bulk dispatches nor events nor interrupts.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from command_bus.errors import BusClosed, CommandBusError, UnsuitableServer
from command_bus.messages.policies import Mailbox
from command_bus.settings import BusSettings
from command_bus.transport.interfaces import Decide, Run, WorkerSideOptions
from command_bus.transport.mailboxes import EVERYTHING, is_wide, scope_of
from command_bus.transport.marks import digest_in, waiting_mark
from command_bus.transport.records import (
    CommandLocation,
    Contents,
    Hold,
    MailboxHead,
    ShardSnapshot,
    StoredDeadLetter,
    StoredEntity,
    TypeRecord,
    Waiting,
)
from command_bus.transport.slots import Slots
from command_bus.transport.steps import (
    Answer,
    DeadLetterStep,
    Done,
    Follow,
    GiveBack,
    Lease,
    LeaseLost,
    Park,
    Released,
    Retry,
    Settlement,
    Started,
    Step,
    Take,
)
from command_bus.transport.submissions import Admission, Submission

__all__ = ["ListServer"]

_TICK = 0.02  # seconds between looks at what is due and whose lease is over
_COUNTED = {"done": None, "deny": "rejected", "lapse": "expired"}


def wall_ms() -> int:
    return int(time.time() * 1000)


@dataclass
class Entry:
    """A command in a mailbox."""

    message: str
    command_id: str
    envelope: bytes


@dataclass
class Box:
    """A mailbox with work.

    Attributes:
        state: `ready` for any worker, `held` by one, `waiting` for a retry, or `stopped` until an operator moves it.
        activation: Of a mailbox that is ready or held.
        running: Fence and message of the command that was started last.
    """

    entries: deque[Entry] = field(default_factory=deque[Entry])
    state: Literal["ready", "held", "waiting", "stopped"] = "stopped"
    activation: str = ""
    holder: str = ""
    running: str = ""
    attempt: int = 0
    first: int = 0
    due: float = 0.0
    letter: str = ""


@dataclass
class Delayed:
    """A command that takes its place later."""

    due_ms: int
    mailbox: str
    command_id: str
    envelope: bytes


class ListServer:
    """What all transports of a test share: the commands, and who holds what."""

    def __init__(self) -> None:
        self.boxes: dict[str, Box] = {}
        self.ready: OrderedDict[str, str] = OrderedDict()  # activation -> mailbox
        self.marks: dict[str, bytes] = {}
        self.delayed: dict[str, Delayed] = {}
        self.letters: OrderedDict[str, StoredDeadLetter] = OrderedDict()
        self.holds: dict[str, Hold] = {}
        self.types: dict[str, Mailbox] = {}
        self.counters: Counter[str] = Counter()
        self.inboxes: dict[str, Callable[[str, bytes], None]] = {}
        self.workers: dict[str, bytes] = {}
        self.commands: dict[str, bytes] = {}
        self.work = asyncio.Event()
        self._numbers = itertools.count(1)

    async def open(self, settings: BusSettings) -> ListTransport:
        """Open a transport: give this to `CommandBus(open_transport=…)`."""
        return ListTransport(self, settings)

    def number(self) -> str:
        return f"{wall_ms()}-{next(self._numbers)}"

    def hold_of(self, mailbox: str, mode: str) -> Hold | None:
        held = (self.holds.get(scope) for scope in (mailbox, scope_of(mailbox), EVERYTHING))
        return next((hold for hold in held if hold is not None and hold.mode == mode), None)

    def depth(self, mailbox: str) -> int:
        box = self.boxes.get(mailbox)
        return (0 if box is None else len(box.entries)) + sum(each.mailbox == mailbox for each in self.delayed.values())

    def put(self, mailbox: str, command_id: str, envelope: bytes) -> None:
        """Put a command at the end of its mailbox."""
        box = self.boxes.get(mailbox)
        if box is None:
            box = self.boxes[mailbox] = Box()
            box.entries.append(Entry(self.number(), command_id, envelope))
            self.wake(mailbox)
        else:
            box.entries.append(Entry(self.number(), command_id, envelope))

    def wake(self, mailbox: str) -> None:
        """Make a mailbox ready for any worker, unless something stops it; forget one that is empty."""
        box = self.boxes[mailbox]
        box.holder = box.running = ""
        if not box.entries:
            del self.boxes[mailbox]
        elif box.letter or self.hold_of(mailbox, "paused"):
            box.state, box.activation = "stopped", ""
        else:
            box.state, box.activation = "ready", self.number()
            self.ready[box.activation] = mailbox
            self.work.set()

    def leave(self, left: Settlement) -> None:
        """Keep what settling leaves behind: the mark, and the reply for the caller."""
        if left.mark:
            self.marks[left.command_id] = left.mark
        if left.reply and left.inbox in self.inboxes:
            self.inboxes[left.inbox](left.command_id, left.reply)

    def start(self, lease: Lease) -> Answer:
        """Start the head of a held mailbox."""
        box = self.boxes[lease.mailbox]
        if not box.entries or box.letter or self.hold_of(lease.mailbox, "paused"):
            empty = not box.entries
            self.wake(lease.mailbox)
            return Released("idle" if empty else "stop")
        head, now = box.entries[0], wall_ms()
        box.state, box.holder, box.attempt = "held", lease.holder, box.attempt + 1
        box.first = box.first or now
        fence = str(now * 1000 + next(self._numbers) % 1000 if not box.running else int(box.running.partition("|")[0]) + 1)
        fence = str(max(int(fence), self.counters["fence"] + 1))
        self.counters["fence"] = int(fence)
        box.running = lease.running = f"{fence}|{head.message}"
        return Started(fence, head.message, box.attempt, box.first, now, head.envelope)

    def settled(self, lease: Lease, left: Settlement, follow: Follow) -> Answer:
        """Take the head away, and go on."""
        box = self.boxes[lease.mailbox]
        box.entries.popleft()
        box.attempt = box.first = 0
        self.leave(left)
        self.counters["settled"] += 1
        if box.entries and (follow == "leave" or (follow == "yield" and self.ready)):
            self.wake(lease.mailbox)
            return Released("yield")
        return self.start(lease)

    def bury(self, mailbox: str, record: bytes, raw: bytes, *, parked: bool) -> str:
        letter = f"0-{self.number()}"
        self.letters[letter] = StoredDeadLetter(letter, mailbox, record, raw, parked)
        self.counters["dead"] += 1
        return letter


class ListTransport:
    """Implements `Transport`."""

    def __init__(self, server: ListServer, settings: BusSettings) -> None:
        self.server = server
        self.settings = settings
        self.label = "lists"
        self.shards = 1
        self.reconnects = 0
        self.producer: Any = ListProducer(server, settings)
        self.replies = ListReplies(server)
        self.marks = ListMarks(server)
        self.agreements = ListAgreements(server, settings)
        self.locations = ListLocator(server)
        self.announcements = ListAnnouncements(server)
        self.statistics = ListStatistics(server)
        self.entities = ListEntities(server)
        self.mailboxes = ListMailboxes(server)
        self.dead_letters = ListDeadLetters(server)
        self.holds = ListHolds(server)
        self.types = ListTypes(server)

    @property
    def events(self) -> NoReturn:
        raise UnsuitableServer("this transport has no events")

    @property
    def interrupts(self) -> NoReturn:
        raise UnsuitableServer("this transport cannot end attempts")

    @property
    def bulk(self) -> NoReturn:
        raise UnsuitableServer("this transport has no bulk dispatches")

    def shard_of(self, mailbox: str) -> int:
        return 0

    def worker_side(self, options: WorkerSideOptions) -> ListWorkerSide:
        return ListWorkerSide(self.server, options)

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

    async def enqueue(self, submission: Submission, timeout: float) -> Admission:
        return self._accept(submission)

    async def enqueue_many(
        self, submissions: Sequence[Submission], timeout: float, silent: Any = None
    ) -> list[Admission | CommandBusError]:
        refused: set[str] = set()
        found: list[Admission | CommandBusError] = []
        for each in submissions:
            admission = Admission.PREDECESSOR_REFUSED if each.mailbox in refused else self._accept(each)
            if admission not in (Admission.ACCEPTED, Admission.DUPLICATE):
                refused.add(each.mailbox)
            found.append(admission)
        return found

    def _accept(self, each: Submission) -> Admission:
        server = self._server
        mark = server.marks.get(each.command_id)
        if mark is not None:
            return Admission.DUPLICATE if digest_in(mark) == each.digest else Admission.CONFLICT
        if server.hold_of(each.mailbox, "draining"):
            return Admission.DRAINING
        if server.depth(each.mailbox) >= each.max_depth:
            return Admission.ENTITY_FULL
        if server.counters["accepted"] - server.counters["settled"] >= self._most:
            return Admission.TOTAL_FULL
        if each.marked:
            server.marks[each.command_id] = waiting_mark(each.digest, each.mailbox)
        server.counters["accepted"] += 1
        envelope = each.envelope if each.renewed is None else each.renewed()
        if each.delay_ms:
            server.delayed[each.command_id] = Delayed(wall_ms() + each.delay_ms, each.mailbox, each.command_id, envelope)
        else:
            server.put(each.mailbox, each.command_id, envelope)
        return Admission.ACCEPTED


class ListReply:
    """Implements `Reply`."""

    def __init__(self, command_id: str) -> None:
        self.command_id = command_id
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def within(self, deadline: float) -> bytes | None:
        done, _ = await asyncio.wait([self.future], timeout=max(0.0, deadline - time.monotonic()))
        return self.future.result() if done else None


class ListReplies:
    """Implements `Replies`."""

    def __init__(self, server: ListServer) -> None:
        self.process = secrets.token_hex(8)
        self._server = server
        self._waiting: list[ListReply] = []
        server.inboxes[self.process] = self._deliver

    def expect(self, command_id: str) -> ListReply:
        reply = ListReply(command_id)
        self._waiting.append(reply)
        return reply

    def forget(self, pending: ListReply) -> None:
        self._waiting.remove(pending)

    def close(self) -> None:
        self._server.inboxes.pop(self.process, None)
        for reply in self._waiting:
            if not reply.future.done():
                reply.future.set_exception(BusClosed("the bus was closed while a call waited for its reply"))

    def _deliver(self, command_id: str, record: bytes) -> None:
        for reply in self._waiting:
            if reply.command_id == command_id and not reply.future.done():
                reply.future.set_result(record)


class ListMarks:
    """Implements `Marks`."""

    def __init__(self, server: ListServer) -> None:
        self._server = server

    async def read(self, command_id: str) -> list[bytes]:
        mark = self._server.marks.get(command_id)
        return [] if mark is None else [mark]


class ListAgreements:
    """Implements `Agreements`."""

    def __init__(self, server: ListServer, settings: BusSettings) -> None:
        self._types = server.types
        self._settings = settings

    def agreed(self, entity_type: str) -> Mailbox | None:
        return self._types.get(entity_type)

    recorded = agreed

    async def agree(self, entity_type: str, deadline: float = 0.0) -> Mailbox:
        return self._types.setdefault(entity_type, self._settings.entity(entity_type).mailbox)

    async def learn(self, entity_type: str) -> None:
        """Everything is known already."""

    def forget(self, entity_type: str) -> None:
        self._types.pop(entity_type, None)


class ListLocator:
    """Implements `CommandLocator`."""

    def __init__(self, server: ListServer) -> None:
        self._server = server

    async def look(self, mailbox: str, command_id: str) -> CommandLocation:
        delayed, mark = self._server.delayed.get(command_id), self._server.marks.get(command_id)
        entity = _entity(self._server, mailbox)
        records = tuple(self._server.workers.values())
        return CommandLocation(entity, mark, None, None if delayed is None else delayed.due_ms, records, wall_ms())

    async def line(self, mailbox: str) -> Sequence[tuple[str, bytes]]:
        box = self._server.boxes.get(mailbox)
        return [] if box is None else [(entry.message, entry.envelope) for entry in box.entries]


class ListAnnouncements:
    """Implements `Announcements`."""

    def __init__(self, server: ListServer) -> None:
        self._server = server

    async def describe(self, records: dict[str, bytes]) -> None:
        self._server.commands.update(records)

    async def described(self, name: str) -> bytes | None:
        return self._server.commands.get(name)

    async def commands(self) -> dict[str, bytes]:
        return dict(self._server.commands)

    async def workers(self) -> list[tuple[int, bytes]]:
        return [(wall_ms(), record) for record in self._server.workers.values()]


class ListStatistics:
    """Implements `Statistics`."""

    def __init__(self, server: ListServer) -> None:
        self._server = server

    async def snapshot(self, shard: int) -> ShardSnapshot:
        server = self._server
        held = sum(box.state == "held" for box in server.boxes.values())
        waiting = sum(box.state == "waiting" for box in server.boxes.values())
        oldest = next(iter(server.ready), None)
        counters = {name: count for name, count in server.counters.items() if name != "fence"}
        return ShardSnapshot(
            counters={**counters, "depth": counters.get("accepted", 0) - counters.get("settled", 0)},
            ready=len(server.ready) + held,
            in_flight=held,
            oldest_ready_ms=None if oldest is None else int(oldest.partition("-")[0]),
            due=len(server.delayed) + waiting,
            active=len(server.boxes),
            paused=frozenset(server.holds),
            parked=sum(bool(box.letter) for box in server.boxes.values()),
            dead=len(server.letters),
            workers=tuple(server.workers.values()),
            now_ms=wall_ms(),
        )

    async def stopped(self, shard: int, limit: int) -> list[str] | None:
        boxes = self._server.boxes
        return list(boxes)[:limit] if all(box.state == "stopped" for box in boxes.values()) else None


class ListEntities:
    """Implements `EntityReader`."""

    def __init__(self, server: ListServer) -> None:
        self._server = server

    async def pages(self, shard: int) -> AsyncIterator[list[StoredEntity]]:
        server = self._server
        narrow = [scope for scope in server.holds if not is_wide(scope)]
        names = dict.fromkeys([*server.boxes, *narrow, *(each.mailbox for each in server.delayed.values())])
        yield [_entity(server, name) for name in names]

    async def look(self, mailbox: str) -> StoredEntity:
        return _entity(self._server, mailbox)

    async def head(self, mailbox: str, count: int) -> MailboxHead:
        box = self._server.boxes.get(mailbox, Box())
        entries = tuple((entry.message, entry.envelope) for entry in itertools.islice(box.entries, count))
        return MailboxHead(0 if box.state == "held" else None, entries, 0)

    async def retry_times(self, mailboxes: Sequence[str]) -> dict[str, int]:
        boxes = self._server.boxes
        due = {name: boxes[name].due for name in mailboxes if name in boxes and boxes[name].state == "waiting"}
        return {name: wall_ms() + int((at - time.monotonic()) * 1000) for name, at in due.items()}

    async def delayed_times(self, mailbox: str, command_ids: Sequence[str]) -> dict[str, int]:
        delayed = self._server.delayed
        return {each: delayed[each].due_ms for each in command_ids if each in delayed}

    async def first_delayed(self, mailboxes: Iterable[str]) -> dict[str, int]:
        wanted = set(mailboxes)
        found: dict[str, int] = {}
        for each in self._server.delayed.values():
            if each.mailbox in wanted:
                found[each.mailbox] = min(each.due_ms, found.get(each.mailbox, each.due_ms))
        return found

    async def now_ms(self) -> int:
        return wall_ms()


def _entity(server: ListServer, mailbox: str) -> StoredEntity:
    box = server.boxes.get(mailbox, Box())
    states: dict[str, Any] = {"ready": "waiting", "held": "running", "waiting": "retrying", "stopped": "waiting"}
    state, paused = states[box.state], server.hold_of(mailbox, "paused")
    if state != "running" and (box.letter or paused is not None):
        state = "parked" if box.letter else "paused"
    return StoredEntity(
        mailbox,
        state,
        server.depth(mailbox),
        int(box.entries[0].message.partition("-")[0]) if box.entries else 0,
        box.attempt,
        box.holder,
        abs(box.first),
        int(box.running.partition("|")[0] or 0) // 1000,
        box.letter.partition("-")[2],
        paused,
    )


class ListMailboxes:
    """Implements `Mailboxes`."""

    def __init__(self, server: ListServer) -> None:
        self._server = server

    async def depth(self, mailbox: str) -> int:
        return self._server.depth(mailbox)

    async def names(self) -> AsyncIterator[str]:
        for name in list(self._server.boxes):
            yield name

    async def waiting(self, mailbox: str) -> AsyncIterator[list[Waiting]]:
        async for page in self.lined_up(mailbox):
            yield page
        delayed = [Waiting(each.command_id, each.envelope, delayed=True) for each in self._delayed() if each.mailbox == mailbox]
        if delayed:
            yield delayed

    async def lined_up(self, mailbox: str) -> AsyncIterator[list[Waiting]]:
        box = self._server.boxes.get(mailbox)
        if box is not None:
            yield [Waiting(entry.message, entry.envelope) for entry in box.entries]

    async def delayed(self, shard: int) -> AsyncIterator[list[tuple[str, Waiting]]]:
        yield [(each.mailbox, Waiting(each.command_id, each.envelope, delayed=True)) for each in self._delayed()]

    async def contents(self, shard: int) -> AsyncIterator[list[Contents]]:
        boxes = self._server.boxes
        yield [(_entity(self._server, name), [entry.envelope for entry in box.entries]) for name, box in boxes.items()]

    async def find_delayed(self, command_id: str, mailbox: str | None = None) -> tuple[str, bytes] | None:
        found = self._server.delayed.get(command_id)
        return (found.mailbox, found.envelope) if found is not None and mailbox in (None, found.mailbox) else None

    async def remove(self, mailbox: str, commands: Iterable[tuple[Waiting, Settlement]]) -> int:
        return sum(self._remove(mailbox, command, left) for command, left in commands)

    def _remove(self, mailbox: str, command: Waiting, left: Settlement) -> bool:
        server, box = self._server, self._server.boxes.get(mailbox)
        if command.delayed:
            found = server.delayed.pop(command.id, None) is not None
        else:
            entries = () if box is None else box.entries
            entry = next((each for each in entries if each.message == command.id), None)
            runs = box is not None and box.running.partition("|")[2] == command.id and box.state == "held"
            found = box is not None and entry is not None and not runs and not (box.letter and entry is box.entries[0])
            if found and box is not None and entry is not None:
                if entry is box.entries[0]:
                    box.attempt = box.first = 0
                box.entries.remove(entry)
                if not box.entries and box.state != "held":
                    server.ready.pop(box.activation, None)
                    del server.boxes[mailbox]
        if found:
            server.leave(left)
            server.counters["settled"] += 1
        return found

    def _delayed(self) -> list[Delayed]:
        return list(self._server.delayed.values())


class ListDeadLetters:
    """Implements `DeadLetterStore`."""

    def __init__(self, server: ListServer) -> None:
        self._server = server

    async def all(self) -> AsyncIterator[StoredDeadLetter]:
        for letter in list(self._server.letters.values()):
            yield letter

    async def get(self, letter_id: str) -> StoredDeadLetter | None:
        return self._server.letters.get(letter_id)

    async def oldest_ms(self) -> int | None:
        return next((int(letter.split("-")[1]) for letter in self._server.letters), None)

    async def newest(self, shard: int, high: str = "+") -> str | None:
        return next((letter.partition("-")[2] for letter in reversed(self._server.letters)), None)

    async def page(self, shard: int, after: str, until: str, count: int) -> list[tuple[str, StoredDeadLetter]]:
        found = [(letter_id.partition("-")[2], letter) for letter_id, letter in self._server.letters.items()]
        return [each for each in found if each[0] > after][:count]

    async def settle(self, letter: StoredDeadLetter, verb: str, left: Settlement) -> bool:
        server = self._server
        if server.letters.pop(letter.id, None) is None:
            return False
        box = server.boxes.get(letter.mailbox)
        parked = box is not None and box.letter == letter.id
        if left.mark:
            server.marks[left.command_id] = left.mark
        if parked and box is not None:
            box.letter, box.attempt, box.first = "", 0, -wall_ms() if verb == "replay" else 0
            if verb == "discard":
                box.entries.popleft()
                server.counters["settled"] += 1
            server.wake(letter.mailbox)
        elif verb == "replay":
            server.counters["settled"] -= 1
            server.put(letter.mailbox, left.command_id, letter.raw)
        return True


class ListHolds:
    """Implements `Holds`."""

    def __init__(self, server: ListServer) -> None:
        self._server = server

    async def pause(self, scope: str, reason: str) -> bool:
        return self._hold(scope, "paused", reason)

    async def drain(self, scope: str, reason: str) -> bool:
        changed = self._hold(scope, "draining", reason)
        self._wake()
        return changed

    async def resume(self, scope: str) -> bool:
        changed = self._server.holds.pop(scope, None) is not None
        self._wake()
        return changed

    async def wide(self) -> list[Hold]:
        return [hold for scope, hold in sorted(self._server.holds.items()) if is_wide(scope)]

    async def used(self) -> list[str]:
        return sorted(self._server.types)

    def _hold(self, scope: str, mode: Literal["paused", "draining"], reason: str) -> bool:
        before = self._server.holds.get(scope)
        self._server.holds[scope] = Hold(scope, mode, wall_ms(), reason)
        return before is None or before.mode != mode

    def _wake(self) -> None:
        for name, box in list(self._server.boxes.items()):
            if box.state == "stopped":
                self._server.wake(name)


class ListTypes:
    """Implements `TypeRecords`."""

    def __init__(self, server: ListServer) -> None:
        self._types = server.types

    async def all(self) -> dict[str, TypeRecord]:
        return {name: TypeRecord({name.encode(): str(mailbox).encode()}, str(mailbox)) for name, mailbox in self._types.items()}

    async def remove(self, record: TypeRecord) -> None:
        for name in record.fields:
            self._types.pop(name.decode(), None)

    async def restore(self, record: TypeRecord) -> None:
        """Nobody else is faster here, and the next sender records the type again."""


class ListSteps:
    """Implements `Steps`."""

    def __init__(self, server: ListServer) -> None:
        self._server = server

    async def advance(self, lease: Lease, step: Step) -> Answer:
        server, box = self._server, self._server.boxes.get(lease.mailbox)
        if box is None or box.activation != lease.activation:
            return LeaseLost()
        if isinstance(step, Take):
            return server.start(lease)
        if isinstance(step, GiveBack) and not lease.running:
            server.wake(lease.mailbox)
            return Released("yield")
        if box.holder != lease.holder or box.running != lease.running:
            return LeaseLost()
        return self._carry_out(lease, box, step)

    def _carry_out(self, lease: Lease, box: Box, step: Step) -> Answer:
        server = self._server
        match step:
            case Done(left, follow, verb):
                if (counted := _COUNTED[verb]) is not None:
                    server.counters[counted] += 1
                return server.settled(lease, left, follow)
            case DeadLetterStep(left, record, raw, follow):
                server.bury(lease.mailbox, record, raw, parked=False)
                server.counters["buried"] += 1
                return server.settled(lease, left, follow)
            case Park(left, record, raw):
                box.letter = server.bury(lease.mailbox, record, raw, parked=True)
                server.leave(left)
                server.wake(lease.mailbox)
                return Released("stop")
            case Retry(delay_ms, counts):
                server.counters["retried"] += counts
                box.attempt -= not counts
                box.state, box.activation, box.due = "waiting", "", time.monotonic() + delay_ms / 1000
                return Released("wait")
            case GiveBack(counts):
                box.attempt -= not counts
                server.wake(lease.mailbox)
                return Released("yield")
        raise AssertionError(step)


class ListLeases:
    """Implements `Leases`. All live in one process, so nothing has to be renewed: a lease ends with its worker."""

    lost, longest, overdue = 0, 0.0, 0.0

    def __init__(self) -> None:
        self.held: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self.held)


class ListConsumer:
    """Implements `Consumer`."""

    silent_for = 0.0

    def __init__(self, side: ListWorkerSide, run: Run) -> None:
        self._side = side
        self._run = run
        self._tasks: set[asyncio.Task[None]] = set()
        self._reader: asyncio.Task[None] | None = None
        self.reads = True

    @property
    def running(self) -> frozenset[asyncio.Task[None]]:
        return frozenset(self._tasks)

    async def start(self) -> None:
        self._reader = asyncio.create_task(self._read(), name="lists.read")

    async def stop_reading(self) -> None:
        self.reads = False
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        places, server = self._side.places, self._side.server
        while True:
            ask = await places.ask(0, 1)
            try:
                while not server.ready:
                    server.work.clear()
                    await server.work.wait()
            except asyncio.CancelledError:
                places.answered(0, ask, 0, 0)
                raise
            activation, mailbox = server.ready.popitem(last=False)
            places.answered(0, ask, 1, 1)
            lease = self._side.lease(mailbox, activation)
            task = asyncio.create_task(self._hold(lease), name=f"lists.run {mailbox}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _hold(self, lease: Lease) -> None:
        try:
            await self._run(lease)
        finally:
            self._side.leases.held.pop(lease.activation, None)
            self._side.places.give()


class ListWorkerSide:
    """Implements `WorkerSide`."""

    consumer: ListConsumer
    recovered = 0

    def __init__(self, server: ListServer, options: WorkerSideOptions) -> None:
        self.server = server
        self.options = options
        self.places = Slots(options.places, 1, options.max_lent, is_stuck=options.is_stuck)
        self.steps = ListSteps(server)
        self.leases = ListLeases()
        self._numbers = itertools.count(1)
        self._clock: asyncio.Task[None] | None = None

    def lease(self, mailbox: str, activation: str) -> Lease:
        """Hold a mailbox whose activation was taken."""
        box = self.server.boxes[mailbox]
        box.state, box.holder = "held", f"{self.options.name}#{next(self._numbers)}"
        lease = Lease(0, mailbox, activation, time.monotonic() + 3600.0, box.holder)
        self.leases.held[activation] = lease
        return lease

    def begin(self, run: Run, decide: Decide) -> None:
        self.consumer = ListConsumer(self, run)

    async def start(self) -> None:
        self._clock = asyncio.create_task(self._tick(), name="lists.clock")
        await self.consumer.start()

    def cancel_all(self, reason: str) -> None:
        for lease in self.leases.held.values():
            if lease.cancel is not None:
                lease.cancel(reason)

    async def stop(self, patience: float) -> None:
        if self._clock is not None:
            self._clock.cancel()
        for task in self.consumer.running:
            task.cancel()
        self.server.workers.pop(self.options.name, None)

    async def _tick(self) -> None:
        """Wake what has become due, and show that this worker lives."""
        server = self.server
        while True:
            server.workers[self.options.name] = self.options.heartbeat(wall_ms())
            for each in [each for each in server.delayed.values() if each.due_ms <= wall_ms()]:
                del server.delayed[each.command_id]
                server.put(each.mailbox, each.command_id, each.envelope)
            for name, box in list(server.boxes.items()):
                if box.state == "waiting" and box.due <= time.monotonic():
                    server.wake(name)
            await asyncio.sleep(_TICK)


def _satisfies(transport: ListTransport) -> Awaitable[Any] | None:
    """See that type checkers hold it against the interface."""
    from command_bus.transport.interfaces import Transport

    checked: Transport = transport
    return checked.ping() if checked.shards > 1 else None
