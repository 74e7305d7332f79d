"""Durable commands in lists and dictionaries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from command_bus.transport.ports.durable import CalledCommand, Note, SignalToBring, Stored, Told
from command_bus.transport.records import SuspensionInfo, awaited_info, wish_text
from command_bus.transport.steps import Answer, ChildOutcome, Lease, Released, Started, Suspend
from tests.conformance.list_server import Box, ListLine, ListServer, wall_ms

__all__ = ["ListDurableCommands", "ListSideRecords", "arrive", "deliver", "resume", "suspend"]


def resume(server: ListServer, mailbox: str) -> None:
    """Let a suspended command start again: its deadline no longer counts."""
    box = server.boxes.get(mailbox)
    if box is not None and box.state == "suspended":
        box.attempt, box.first = 0, -wall_ms()
        server.wake(mailbox)


def arrive(server: ListServer, mailbox: str, command_id: str, field: str, value: bytes) -> bool:
    """Write a field that may be awaited."""
    side, box = server.sides.setdefault(command_id, {}), server.boxes.get(mailbox)
    if field in side:
        return False
    side[field] = value
    if box is not None and box.state == "suspended" and box.entries[0].command_id == command_id:
        box.awaited.discard(field)
        if field not in box.awaited and sum(name in side for name in box.asked) >= box.wanted:
            resume(server, mailbox)
    return True


def deliver(server: ListServer, outcome: ChildOutcome) -> None:
    """Let an outcome reach the command that waits for it, if that still knows the child."""
    known = server.sides.get(outcome.command_id, {}).get(f"c:{outcome.call}", b"")
    if known[8:].startswith(f"{outcome.child}|".encode()):
        arrive(server, outcome.mailbox, outcome.command_id, f"o:{outcome.call}", outcome.reply)


def suspend(server: ListServer, lease: Lease, step: Suspend) -> Answer:
    """Let a command wait, or start it again at once."""
    box, side = server.boxes[lease.mailbox], server.sides.setdefault(step.command_id, {})
    there = sum(name in side for name in step.awaited)
    is_over = step.until_ms is not None and step.until_ms <= wall_ms()
    box.attempt, box.first = 0, -wall_ms()
    if (step.awaited and there >= step.wanted) or is_over or ("cancel" in side and not step.knows_wish):
        return server.start(lease)
    box.state, box.activation, box.holder, box.attempt_id = "suspended", "", "", ""
    box.asked, box.awaited, box.wanted = set(step.awaited), {name for name in step.awaited if name not in side}, step.wanted
    box.due = float("inf") if step.until_ms is None else time.monotonic() + (step.until_ms - wall_ms()) / 1000
    return Released("wait")


class ListSideRecords:
    """Implements `SideRecords`."""

    def __init__(self, server: ListServer, line: ListLine) -> None:
        self._server = server
        self._line = line

    async def read(self, lease: Lease, command_id: str) -> Mapping[str, bytes]:
        await self._line.open.wait()
        return dict(self._server.sides.get(command_id, {}))

    async def fields(self, lease: Lease, command_id: str, names: Sequence[str]) -> Mapping[str, bytes]:
        side = await self.read(lease, command_id)
        return {name: side[name] for name in names if name in side}

    def store(
        self, lease: Lease, command_id: str, notes: Sequence[Note], *, progressed: bool, keeps: bool = True
    ) -> asyncio.Future[list[Stored] | None]:
        return asyncio.ensure_future(self._store(lease, command_id, notes, progressed=progressed))

    def raise_fence(self, mailbox: str, fence: int) -> asyncio.Future[int]:
        highest = self._server.counters["fence"] = max(self._server.counters["fence"], fence)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        answer.set_result(highest)
        return answer

    async def _store(self, lease: Lease, command_id: str, notes: Sequence[Note], *, progressed: bool) -> list[Stored] | None:
        await self._line.open.wait()
        await asyncio.sleep(0)
        server, box = self._server, self._server.boxes.get(lease.mailbox)
        if box is None or box.activation != lease.activation or box.attempt_id != lease.attempt_id:
            return None
        started: Started = server.started(lease.mailbox)
        side = server.sides.setdefault(command_id, {})
        if side.get("m", started.message.encode()) != started.message.encode():
            side.clear()
        side["m"] = started.message.encode()
        box.attempt = 1 if progressed else box.attempt
        return [self._stored(side, note) for note in notes]

    def _stored(self, side: dict[str, bytes], note: Note) -> Stored:
        if note.name in side:
            return side[note.name]
        value = note.value if isinstance(note.value, bytes) else str(wall_ms() + note.value).encode()
        side[note.name] = value
        if note.child is not None:
            sent = note.child
            self._server.marks[sent.command_id] = sent.mark
            self._server.take(sent.mailbox, sent.command_id, sent.envelope, sent.delay_ms)
        return value if note.is_time else None


class ListDurableCommands:
    """Implements `DurableCommands`."""

    def __init__(self, server: ListServer) -> None:
        self._server = server

    async def look_up(self, mailbox: str, command_id: str, called: CalledCommand) -> bool:
        return False  # it loses none

    async def signal(self, mailbox: str, command_id: str, signal: SignalToBring) -> Told:
        if not self._waits(command_id):
            return "gone"
        side = self._server.sides.setdefault(command_id, {})
        if side.setdefault(f"gi:{signal.signal_id}", signal.value) is not signal.value:
            return "repeated"
        number = int(side.get(f"gn:{signal.name}", b"0")) + 1
        side[f"gn:{signal.name}"] = str(number).encode()
        arrive(self._server, mailbox, command_id, f"g:{signal.name}#{number}", signal.value)
        return "taken"

    async def has_begun(self, mailbox: str, command_id: str) -> bool:
        return self._waits(command_id) and "m" in self._server.sides.get(command_id, {})

    async def cancel(self, mailbox: str, command_id: str, wish: bytes) -> Told:
        if not self._waits(command_id):
            return "gone"
        self._server.sides.setdefault(command_id, {})["cancel"] = wish
        resume(self._server, mailbox)
        return "taken"

    async def record(self, mailbox: str, command_id: str) -> Mapping[str, bytes]:
        return dict(self._server.sides.get(command_id, {}))

    def _waits(self, command_id: str) -> bool:
        return self._server.marks.get(command_id, b"")[:1] == b"q"

    async def suspended(self, mailboxes: Sequence[str]) -> dict[str, SuspensionInfo]:
        boxes = {
            name: box for name in mailboxes if (box := self._server.boxes.get(name)) is not None and box.state == "suspended"
        }
        return {name: self._suspension(box) for name, box in boxes.items()}

    async def fields(self, mailbox: str, command_id: str, names: Sequence[str]) -> list[bytes | None]:
        side = self._server.sides.get(command_id, {})
        return [side.get(name) for name in names]

    async def orphans(self, most: int) -> list[str]:
        return [command_id for command_id in self._server.sides if command_id not in self._server.marks][:most]

    def _suspension(self, box: Box) -> SuspensionInfo:
        command_id = box.entries[0].command_id
        side = self._server.sides.get(command_id, {})
        until = None if box.due == float("inf") else wall_ms() + int((box.due - time.monotonic()) * 1000)
        awaited = [awaited_info(field, side.get(f"c:{field.removeprefix('o:')}")) for field in box.awaited]
        waits, wish = tuple(sorted(awaited, key=str)), wish_text(side.get("cancel"))
        return SuspensionInfo(command_id, abs(box.first), until, waits, "k" in side, wish)
