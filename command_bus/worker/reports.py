"""`RunReports`: what one run of a handler reports: progress and a log, written at most once a second."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from threading import Lock
from typing import Any

from command_bus.clock import mono
from command_bus.errors import HandlerOver
from command_bus.messages.reports import Reports
from command_bus.serialization.msgpack import pack
from command_bus.serialization.outcome import LOG, PROGRESS, Cipher, pack_entry, pack_progress
from command_bus.transport.ports.durable import Note, SideRecords
from command_bus.transport.steps import Lease, Started

LOGGED = "lh"
"""The field with the digests of what a durable command has logged: its handler runs again, and logs the same."""

_EVERY = 1.0
"""Seconds between two writes."""
_MOST = 100
"""Log entries that wait to be written: the older ones are not kept anyway."""
_DIGEST, _MOST_DIGESTS = 6, 1_000
"""Bytes of a digest, and how many are kept."""


class RunReports(Reports):
    """Implements `Reports`.

    Args:
        records: Stores.
        lease: Under which the handler runs.
        command_id: Id of the command.
        started: Its start.
        seal: Encrypts; None: nothing is.
        logged: Digests of what earlier runs of a durable command have logged; None: it is not durable.
    """

    __slots__ = (
        "_began",
        "_entries",
        "_hurry",
        "_id",
        "_is_over",
        "_keeps",
        "_lease",
        "_lock",
        "_logged",
        "_loop",
        "_next",
        "_number",
        "_progress",
        "_records",
        "_seal",
        "_started",
        "_unrepeated",
        "_writing",
        "is_used",
    )

    def __init__(
        self,
        records: SideRecords,
        lease: Lease,
        command_id: str,
        started: Started,
        *,
        seal: Cipher | None,
        logged: bytes | None,
    ) -> None:
        self._records = records
        self._lease = lease
        self._id = command_id
        self._started = started
        self._loop = asyncio.get_running_loop()
        self._seal = seal
        self._keeps = logged is not None
        self._logged = logged
        self._unrepeated: Counter[bytes] | None = None
        self._began = mono()
        self._lock = Lock()
        self._progress: bytes | None = None
        self._entries: list[Note] = []
        self._number = 0
        self._next = 0.0
        self._writing: asyncio.Task[None] | None = None
        self._hurry: asyncio.Event | None = None
        self._is_over = False
        self.is_used = False

    def progress(self, share: float, note: str) -> None:
        self._check()
        data = pack_progress(share, note, self._now_ms(), self._seal)
        with self._lock:
            self._progress = data
        self._write_soon()

    def log(self, text: str, facts: Mapping[str, Any]) -> None:
        self._check()
        data = pack_entry(text, facts, self._now_ms(), self._seal)
        with self._lock:
            if self._is_logged(text, facts):
                return
            self._number += 1
            self._entries.append(Note(f"{self._started.fence}|{self._number}", data, report=LOG))
            del self._entries[:-_MOST]
        self._write_soon()

    def close(self) -> None:
        """Refuse more, and leave what is not written."""
        self._is_over = True
        if self._writing is not None:
            self._writing.cancel()

    async def end(self) -> None:
        """Refuse more, and write what is left."""
        self._is_over = True
        if self.is_used and self._writing is None and self._unwritten:
            self._begin()
        if self._writing is not None and self._hurry is not None:
            self._hurry.set()
            await asyncio.wait({self._writing})

    def _check(self) -> None:
        if self._is_over or self._lease.lost or self._lease.attempt_id != f"{self._started.fence}|{self._started.message}":
            raise HandlerOver(
                "the handler's run is over, or its lease is lost: nothing that it reports is stored. Let it end: see context.cancelled"
            )

    def _is_logged(self, text: str, facts: Mapping[str, Any]) -> bool:
        """Return whether an earlier run has logged this, as often as this run so far; note it if not."""
        if self._logged is None:
            return False
        digest = blake2b(pack([text, dict(facts)]), digest_size=_DIGEST).digest()
        if self._unrepeated is None:
            self._unrepeated = Counter(_digests(self._logged))
        if self._unrepeated[digest]:
            self._unrepeated[digest] -= 1
            return True
        if len(self._logged) < _DIGEST * _MOST_DIGESTS:
            self._logged += digest
        return False

    @property
    def _unwritten(self) -> bool:
        return self._progress is not None or bool(self._entries)

    def _now_ms(self) -> int:
        """Return the server's time, about."""
        return self._started.now_ms + int((mono() - self._began) * 1000)

    def _write_soon(self) -> None:
        self.is_used = True
        if self._writing is None:
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._writing is None and self._unwritten:
            self._hurry = hurry = asyncio.Event()
            if self._is_over:
                hurry.set()
            self._writing = self._loop.create_task(self._write(hurry), name=f"command_bus.reports {self._lease.mailbox}")

    async def _write(self, hurry: asyncio.Event) -> None:
        """Write until nothing is left. What a later run of the command has taken over is lost."""
        try:
            while self._unwritten:
                if (pause := self._next - mono()) > 0 and not hurry.is_set():
                    await asyncio.wait({wait := self._loop.create_task(hurry.wait())}, timeout=pause)
                    wait.cancel()
                notes = self._taken()
                self._next = mono() + _EVERY
                stored = self._records.store(self._lease, self._id, notes, progressed=False, keeps=self._keeps)
                if await stored is None:
                    self._is_over = True
                    return
        finally:
            self._writing = None

    def _taken(self) -> list[Note]:
        with self._lock:
            notes, self._entries = self._entries, []
            if notes and self._logged is not None:
                notes.append(Note(LOGGED, self._seal(LOGGED, self._logged) if self._seal else self._logged, report=PROGRESS))
            if self._progress is not None:
                notes.append(Note(PROGRESS, self._progress, report=PROGRESS))
                self._progress = None
        return notes


def _digests(logged: bytes) -> list[bytes]:
    return [logged[at : at + _DIGEST] for at in range(0, len(logged), _DIGEST)]
