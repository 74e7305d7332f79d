"""The store of the transport in lists and dictionaries: commands, and who holds what."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from command_bus.messages.policies import MailboxPolicy
from command_bus.transport.mailboxes import scopes_of
from command_bus.transport.marks import with_known_digest
from command_bus.transport.records import (
    HoldInfo,
    StoredDeadLetter,
)
from command_bus.transport.steps import (
    Answer,
    ChildOutcome,
    Follow,
    Lease,
    Released,
    Settlement,
    Started,
)

__all__ = ["Box", "Delayed", "ListLine", "ListServer", "wall_ms"]


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
        state: `ready` for any worker, `held` by one, `waiting` for a retry, `suspended`, or `stopped` until an operator moves it.
        activation: Of a mailbox that is ready or held.
        attempt_id: Of the command that was started last.
        renewed: When its lease was renewed, monotonic.
        asked: Of a suspended command: the fields that it waits for;
        awaited: those that are not there yet,
        wanted: and how many must be.
    """

    entries: deque[Entry] = field(default_factory=deque[Entry])
    state: Literal["ready", "held", "waiting", "suspended", "stopped"] = "stopped"
    activation: str = ""
    holder: str = ""
    attempt_id: str = ""
    attempt: int = 0
    first: int = 0
    due: float = 0.0
    renewed: float = 0.0
    letter: str = ""
    asked: set[str] = field(default_factory=set[str])
    awaited: set[str] = field(default_factory=set[str])
    wanted: int = 0


@dataclass
class Delayed:
    """A command that takes its place later."""

    due_ms: int
    mailbox: str
    command_id: str
    envelope: bytes


class ListLine:
    """The line of some transports to the server; implements `Line`."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    def sever(self) -> None:
        self.open.clear()

    def heal(self) -> None:
        self.open.set()


class ListServer:
    """State that all transports of a test share: the commands, and who holds what."""

    def __init__(self) -> None:
        self.boxes: dict[str, Box] = {}
        self.ready: OrderedDict[str, str] = OrderedDict()  # activation -> mailbox
        self.marks: dict[str, bytes] = {}
        self.sides: dict[str, dict[str, bytes]] = {}
        self.deliver: Callable[[ChildOutcome], None] = lambda _: None
        self.delayed: dict[str, Delayed] = {}
        self.letters: OrderedDict[str, StoredDeadLetter] = OrderedDict()
        self.holds: dict[str, HoldInfo] = {}
        self.types: dict[str, MailboxPolicy] = {}
        self.shared: dict[str, bytes] = {}
        self.counters: Counter[str] = Counter()
        self.states: dict[str, bytes] = {}
        self.inboxes: dict[str, Callable[[str, bytes], None]] = {}
        self.workers: dict[str, bytes] = {}
        self.commands: dict[str, bytes] = {}
        self.work = asyncio.Event()
        self._numbers = itertools.count(1)

    def number(self) -> str:
        return f"{wall_ms()}-{next(self._numbers)}"

    def hold_of(self, mailbox: str, mode: str) -> HoldInfo | None:
        held = (self.holds.get(scope) for scope in scopes_of(mailbox))
        return next((hold for hold in held if hold is not None and hold.mode == mode), None)

    def depth(self, mailbox: str) -> int:
        box = self.boxes.get(mailbox)
        return (0 if box is None else len(box.entries)) + sum(each.mailbox == mailbox for each in self.delayed.values())

    def take(self, mailbox: str, command_id: str, envelope: bytes, delay_ms: int) -> None:
        """Accept a command, at once or for later."""
        self.counters["accepted"] += 1
        if delay_ms:
            self.delayed[command_id] = Delayed(wall_ms() + delay_ms if delay_ms > 0 else -delay_ms, mailbox, command_id, envelope)
        else:
            self.put(mailbox, command_id, envelope)

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
        box.holder = box.attempt_id = ""
        if not box.entries:
            del self.boxes[mailbox]
        elif box.letter or self.hold_of(mailbox, "paused"):
            box.state, box.activation = "stopped", ""
        else:
            box.state, box.activation = "ready", self.number()
            self.ready[box.activation] = mailbox
            self.work.set()

    def leave(self, left: Settlement) -> None:
        """Keep what settling leaves behind: the mark, the reply for the caller, and what the handler sends."""
        for each in left.follow_ups:
            self.take(each.mailbox, each.command_id, each.envelope, each.delay_ms)
        if left.side == "ends":
            self.sides.pop(left.command_id, None)
        if left.waiting is not None:
            self.deliver(left.waiting)
        if left.mark:
            self.marks[left.command_id] = with_known_digest(left.mark, self.marks.get(left.command_id))
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
        fence = str(now * 1000 + next(self._numbers) % 1000 if not box.attempt_id else int(box.attempt_id.partition("|")[0]) + 1)
        fence = str(max(int(fence), self.counters["fence"] + 1))
        self.counters["fence"] = int(fence)
        box.attempt_id = lease.attempt_id = f"{fence}|{head.message}"
        return Started(fence, head.message, box.attempt, box.first, now, head.envelope)

    def started(self, mailbox: str) -> Started:
        """Return what runs in a held mailbox."""
        box = self.boxes[mailbox]
        fence, _, message = box.attempt_id.partition("|")
        return Started(fence, message, box.attempt, box.first, wall_ms(), box.entries[0].envelope)

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
