"""The operators' side of the transport in lists and dictionaries."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, NoReturn

from command_bus.errors import UnsuitableServer
from command_bus.messages.policies import Priority
from command_bus.transport.flows import Flow
from command_bus.transport.mailboxes import EVERYTHING, is_wide, mailbox_parts, scope_label
from command_bus.transport.marks import with_known_digest
from command_bus.transport.records import (
    BEFORE_ALL,
    Contents,
    HoldInfo,
    MailboxHead,
    Resolution,
    ShardSnapshot,
    StoredDeadLetter,
    StoredEntity,
    TypeRecord,
    WaitingEntry,
)
from command_bus.transport.steps import (
    Removal,
    Settlement,
)
from command_bus.transport.unique_keys import StoredKey
from tests.conformance.list_server import Box, Delayed, ListServer, wall_ms

__all__ = ["ListAnnouncements", "ListOperatorSide", "stored_entity"]


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
        counters = server.counters.copy()
        counters["depth"] = counters["accepted"] - counters["settled"]
        return ShardSnapshot(
            counters=counters,
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

    async def recount(self, *, correct: bool) -> NoReturn:
        del correct
        raise UnsuitableServer("lists have no counters that could be wrong")


class ListEntities:
    """Implements `EntityReader`."""

    def __init__(self, server: ListServer) -> None:
        self._server = server

    async def pages(self, shard: int, *, deliveries: bool = False) -> AsyncIterator[list[StoredEntity]]:
        server = self._server
        narrow = [scope for scope in server.holds if not is_wide(scope)]
        names = dict.fromkeys([*server.boxes, *narrow, *(each.mailbox for each in server.delayed.values())])
        yield [stored_entity(server, name) for name in names if not deliveries or "@" in name.partition(":")[0]]

    async def look(self, mailbox: str) -> StoredEntity:
        return stored_entity(self._server, mailbox)

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

    async def now_us(self) -> int:
        return wall_ms() * 1000


def stored_entity(server: ListServer, mailbox: str) -> StoredEntity:
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
        int(box.attempt_id.partition("|")[0] or 0) // 1000,
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

    async def waiting(self, mailbox: str) -> AsyncIterator[list[WaitingEntry]]:
        async for page in self.lined_up(mailbox):
            yield page
        delayed = [
            WaitingEntry(each.command_id, each.envelope, delayed=True) for each in self._delayed() if each.mailbox == mailbox
        ]
        if delayed:
            yield delayed

    async def lined_up(self, mailbox: str) -> AsyncIterator[list[WaitingEntry]]:
        box = self._server.boxes.get(mailbox)
        if box is not None:
            yield [WaitingEntry(entry.message, entry.envelope) for entry in box.entries]

    async def delayed(self, shard: int) -> AsyncIterator[list[tuple[str, WaitingEntry]]]:
        yield [(each.mailbox, WaitingEntry(each.command_id, each.envelope, delayed=True)) for each in self._delayed()]

    async def contents(self, shard: int) -> AsyncIterator[list[Contents]]:
        boxes = self._server.boxes
        yield [
            (stored_entity(self._server, name), [WaitingEntry(entry.message, entry.envelope) for entry in box.entries])
            for name, box in boxes.items()
        ]

    async def reschedule(self, mailbox: str, command_id: str, at_ms: int | None, delay_ms: int) -> bool:
        found = self._server.delayed.get(command_id)
        if found is None or found.mailbox != mailbox:
            return False
        self._server.delayed[command_id] = replace(found, due_ms=wall_ms() + delay_ms if at_ms is None else at_ms)
        self._server.work.set()
        return True

    async def find_delayed(self, command_id: str, mailbox: str | None = None) -> tuple[str, bytes] | None:
        found = self._server.delayed.get(command_id)
        return (found.mailbox, found.envelope) if found is not None and mailbox in (None, found.mailbox) else None

    async def release_key(self, mailbox: str, key: str) -> bool:
        return False  # its producer takes none

    async def unique_keys(self, mailbox: str, entity: str, scan: int) -> tuple[list[StoredKey], bool]:
        return [], True

    async def held_keys(self, shard: int, scope: str, after: str, limit: int, scan: int) -> tuple[list[StoredKey], bool]:
        return [], True

    async def remove(self, mailbox: str, commands: Iterable[Removal], *, fresh: bool = False) -> int:
        return sum(self._remove(mailbox, each, fresh=fresh) for each in commands)

    def _remove(self, mailbox: str, removal: Removal, *, fresh: bool) -> bool:
        command, left, begun = removal
        server, box = self._server, self._server.boxes.get(mailbox)
        if command.delayed:
            found = server.delayed.pop(command.id, None) is not None
        else:
            entries = () if box is None else box.entries
            entry = next((each for each in entries if each.message == command.id), None)
            runs = box is not None and box.attempt_id.partition("|")[2] == command.id and box.state == "held"
            has_begun = left.side and "m" in server.sides.get(left.command_id, {})
            runs = runs or bool(has_begun) or (fresh and box is not None and entry is box.entries[0] and box.first != 0)
            found = box is not None and entry is not None and not runs and not (box.letter and entry is box.entries[0])
            if found and box is not None and entry is not None:
                if entry is box.entries[0]:
                    if box.state != "held" and (box.attempt or box.first < 0):
                        left = begun
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

    async def newest(self, shard: int, before_ms: int | None = None) -> str | None:
        found = (letter.partition("-")[2] for letter in reversed(self._server.letters))
        return next((each for each in found if before_ms is None or _order(each)[0] < before_ms), None)

    async def page(self, shard: int, after: str, until: str, count: int) -> list[tuple[str, StoredDeadLetter]]:
        found = [(letter_id.partition("-")[2], letter) for letter_id, letter in self._server.letters.items()]
        behind = _order(after or BEFORE_ALL)
        return [each for each in found if behind < _order(each[0]) <= _order(until)][:count]

    async def settle(
        self,
        letter: StoredDeadLetter,
        verb: Resolution,
        left: Settlement,
        edited: bytes = b"",
        flow: str = "",
        *,
        ending: bytes = b"",
    ) -> bool:
        server = self._server
        if server.letters.pop(letter.id, None) is None:
            return False
        if ending:
            server.sides.setdefault(left.command_id, {}).setdefault("k", ending)
        box = server.boxes.get(letter.mailbox)
        parked = box is not None and box.letter == letter.id
        if left.mark:
            server.marks[left.command_id] = with_known_digest(left.mark, server.marks.get(left.command_id))
        if parked and box is not None:
            if edited:
                box.entries[0].envelope = edited
            box.letter, box.attempt, box.first = "", 0, -wall_ms() if verb == "replay" else 0
            if verb == "discard":
                box.entries.popleft()
                server.counters["settled"] += 1
            server.wake(letter.mailbox)
        elif verb == "replay":
            server.counters["settled"] -= 1
            server.put(letter.mailbox, left.command_id, edited or letter.raw)
        return True


def _order(entry: str) -> tuple[int, int]:
    at_ms, _, number = entry.partition("-")
    return int(at_ms), int(number)


class ListHolds:
    """Implements `Holds`."""

    def __init__(self, server: ListServer) -> None:
        self._server = server

    async def pause(self, scope: str, reason: str, until_ms: int | None = None) -> bool:
        changed = self._hold(scope, "paused", reason, until_ms)
        if until_ms is not None:
            asyncio.get_running_loop().call_later((until_ms - wall_ms()) / 1000, self._over, scope, until_ms)
        return changed

    async def drain(self, scope: str, reason: str) -> bool:
        changed = self._hold(scope, "draining", reason)
        self._wake()
        return changed

    async def resume(self, scope: str) -> bool:
        changed = self._server.holds.pop(scope, None) is not None
        self._wake()
        return changed

    async def wide(self) -> list[HoldInfo]:
        return [hold for scope, hold in sorted(self._server.holds.items()) if is_wide(scope)]

    def _over(self, scope: str, until_ms: int) -> None:
        hold = self._server.holds.get(scope)
        if hold is not None and hold.until_ms == until_ms:
            del self._server.holds[scope]
            self._wake()

    def _hold(self, scope: str, mode: Literal["paused", "draining"], reason: str, until_ms: int | None = None) -> bool:
        before = self._server.holds.get(scope)
        self._server.holds[scope] = HoldInfo(
            scope_label(scope),
            None if scope == EVERYTHING else mailbox_parts(scope)[0],
            mode,
            wall_ms(),
            reason,
            until_ms=until_ms,
        )
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
        return {name: TypeRecord(name.encode(), str(mailbox).encode()) for name, mailbox in self._types.items()}

    async def used(self) -> list[str]:
        return sorted(self._types)

    async def remove(self, record: TypeRecord) -> None:
        self._types.pop(record.name.decode(), None)

    async def restore(self, record: TypeRecord) -> None:
        """Do nothing: no other client can be faster here, and the next sender records the type again."""


class ListShares:
    """Implements `Shares`: a server of lists has no line, so nothing waits behind its first come."""

    def __init__(self, server: ListServer) -> None:
        self._server = server
        self._weights: dict[str, float] = {}

    async def put(self, tenant: str, weight: float | None) -> None:
        if weight is None:
            self._weights.pop(tenant, None)
        else:
            self._weights[tenant] = weight

    async def prioritize(self, mailbox: str, priority: Priority, delayed: Sequence[str] = ()) -> int:
        if delayed:
            return sum(each in self._server.delayed for each in delayed)
        return int(mailbox in self._server.boxes)  # it has no priorities

    async def weights(self) -> dict[str, float]:
        return dict(self._weights)

    async def waiting(self) -> Counter[Flow]:
        return Counter()

    async def running(self) -> Counter[Flow]:
        return Counter()

    async def served(self) -> Counter[Flow]:
        return Counter()


class ListOperatorSide:
    """Implements `OperatorSide`."""

    def __init__(self, server: ListServer) -> None:
        self.statistics = ListStatistics(server)
        self.entities = ListEntities(server)
        self.mailboxes = ListMailboxes(server)
        self.dead_letters = ListDeadLetters(server)
        self.holds = ListHolds(server)
        self.types = ListTypes(server)
        self.shares = ListShares(server)

    @property
    def events(self) -> NoReturn:
        raise UnsuitableServer("this transport has no events")

    @property
    def kept(self) -> NoReturn:
        raise UnsuitableServer("this transport keeps no streams")

    @property
    def history(self) -> NoReturn:
        raise UnsuitableServer("this transport keeps no history")

    @property
    def states(self) -> NoReturn:
        raise UnsuitableServer("this transport has no states to be read")

    @property
    def interrupts(self) -> NoReturn:
        raise UnsuitableServer("this transport cannot end attempts")

    @property
    def views(self) -> NoReturn:
        raise UnsuitableServer("this transport has no views of a part")

    @property
    def obliteration(self) -> NoReturn:
        raise UnsuitableServer("this transport cannot delete a namespace")
