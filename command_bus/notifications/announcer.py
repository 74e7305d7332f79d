"""`Announcer`: sends notices in the background, together, and in bounded memory. What sends commands only notes them here.

All that is noted in one turn of the event loop, and while a send is under way, leaves together; of `work` one notice for each type. While
notices cannot be sent, those of `work` are kept, added up, and the others are left out and counted: those who wait for work must be told
once that is possible again, and what was settled long ago is in `history`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from command_bus.notifications.notices import Notice
from command_bus.serialization.limits import printable
from command_bus.tasks import end_tasks

_MOST = 10_000
"""Notices that are kept, and types."""
_PATIENCE = 5.0
"""Seconds that one send may take."""
_FAREWELL = 1.0
"""Seconds for what is left when the bus closes."""
_PAUSES = (0.1, 5.0)
"""Seconds after the first failure, doubled up to these."""
_log = logging.getLogger("command_bus.notifications")


class Announcer:
    """Sends what it is told, and never fails for who tells it.

    Args:
        publish: Sends notices.

    Attributes:
        sent: Notices that were sent.
        failed: Sends that failed.
        left_out: Notices that were left out.
    """

    def __init__(self, publish: Callable[[Sequence[Notice]], Awaitable[None]]) -> None:
        self.sent = self.failed = self.left_out = 0
        self._publish = publish
        self._work: Counter[str | None] = Counter()
        self._others: list[Notice] = []
        self._there = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._is_failing = False

    def work(self, entity_type: str | None, commands: int = 1) -> None:
        """Tell that a type has new commands."""
        if entity_type not in self._work and len(self._work) >= _MOST:
            self.left_out += 1
            return
        self._work[entity_type] += commands
        self._wake()

    def tell(self, notice: Notice) -> None:
        """Tell something else."""
        if len(self._others) >= _MOST:
            self.left_out += 1
            return
        self._others.append(notice)
        self._wake()

    async def close(self) -> None:
        """Send what is left, for a second at most."""
        self._is_closed = True
        if self._task is not None:
            await end_tasks([self._task])
            if self._work or self._others:
                try:
                    async with asyncio.timeout(_FAREWELL):
                        await self._send()
                except Exception as error:  # noqa: BLE001 - whatever a notifier raises, the bus closes
                    self._note(error)
            self.left_out += len(self._work)

    def _wake(self) -> None:
        if self._is_closed:
            return
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="command_bus.notifications")
        self._there.set()

    async def _run(self) -> None:
        pause = _PAUSES[0]
        while True:
            await self._there.wait()
            self._there.clear()
            try:
                async with asyncio.timeout(_PATIENCE):
                    await self._send()
            except Exception as error:  # noqa: BLE001 - whatever a notifier raises, commands must not notice
                self._note(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSES[1])
                if self._work or self._others:
                    self._there.set()
            else:
                pause = _PAUSES[0]
                if self._is_failing:
                    self._is_failing = False
                    _log.warning("notices are sent again; %d were left out so far", self.left_out)

    async def _send(self) -> None:
        """Send everything that is noted; if that fails, `work` is noted again."""
        work, others = self._work, self._others
        self._work, self._others = Counter(), []
        notices = [*(Notice("work", entity_type, commands=count) for entity_type, count in work.items()), *others]
        try:
            await self._publish(notices)
        except BaseException:
            self._work.update(work)
            self.left_out += len(others)
            raise
        self.sent += len(notices)

    def _note(self, error: Exception) -> None:
        self.failed += 1
        if not self._is_failing:
            self._is_failing = True
            _log.warning(
                "notices cannot be sent, and are tried again; commands go on without them: %s",
                printable(str(error) or type(error).__name__),
            )
