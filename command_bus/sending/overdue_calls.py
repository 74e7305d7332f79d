"""`OverdueCalls`: what is said of calls that wait in vain: a warning while they wait, and where the command is when their time is over.

One timer serves all calls in flight, so that one that is answered quickly costs an entry in a dictionary. The timer looks at the oldest
call. Calls that no worker can answer are warned of once a minute for each command.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from command_bus.clock import mono
from command_bus.errors import CommandBusError, TransportUnavailable, UnsuitableServer
from command_bus.sending.whereabouts import Whereabouts, unserved, whereabouts
from command_bus.serialization.announcements import WorkerStatus, worker_statuses
from command_bus.serialization.limits import reading_limits
from command_bus.session import Session
from command_bus.transport.tasks import end_tasks

_log = logging.getLogger("command_bus.rpc")
_WARN_AFTER = 5.0
_WARN_EVERY = 60.0
_LOOK = 1.0
"""Seconds that a look may take."""
_AT_ONCE = 8
"""Looks at a time: when thousands of calls time out together, the server has enough to do."""
_NOTHING = Whereabouts()


class OverdueCalls:
    """The calls of one bus that wait for a reply. Attach it to the session.

    Args:
        session: Of the bus.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._limits = reading_limits(session.settings)
        self.renew()

    def renew(self) -> None:
        """See `SessionPart`."""
        self._waiting: dict[int, tuple[float, str]] = {}  # in the order of their beginning
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._late: set[str] = set()
        self._warner: asyncio.Task[None] | None = None
        self._warned: dict[str, float] = {}
        self._looks = asyncio.Semaphore(_AT_ONCE)
        self._may_read_lines = True

    def begin(self, name: str) -> int:
        """Note that a call of this command waits from now on; return the number for `end`."""
        self._number += 1
        self._waiting[self._number] = (mono(), name)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WARN_AFTER, self._ring)
        return self._number

    def end(self, number: int) -> None:
        """Forget a call: it waits no longer."""
        self._waiting.pop(number, None)

    async def close(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
        if self._warner is not None:
            await end_tasks([self._warner])

    async def whereabouts(self, mailbox: str, command_id: str, name: str, waited: float) -> Whereabouts:
        """Return where a command is, as far as that can be read within a second and within its caller's time. Never raises."""
        try:
            async with asyncio.timeout(min(_LOOK, waited)), self._looks:
                return await self._look(mailbox, command_id, name)
        except TimeoutError:
            return _NOTHING
        except CommandBusError as error:
            _log.debug("cannot see where command %r is: %s", command_id, error)
        except Exception:  # noqa: BLE001 - the caller must learn of the timeout, even if this fails
            _log.warning("cannot see where command %r is", command_id, exc_info=True)
        return _NOTHING

    async def _look(self, mailbox: str, command_id: str, name: str) -> Whereabouts:
        locations = self._session.transport.locations
        location = await locations.look(mailbox, command_id)
        line: Sequence[tuple[str, bytes]] = ()
        if self._may_read_lines and location.entity.depth:
            try:
                line = await locations.line(mailbox)
            except UnsuitableServer:  # a sender that may not read mailboxes: the server's ACL log need not record it again
                self._may_read_lines = False
            except TransportUnavailable as error:
                _log.debug("cannot see the line of command %r: %s", command_id, error)
        return whereabouts(location, line, command_id, name, self._session.where, self._limits)

    def _ring(self) -> None:
        """Note the calls that have waited for long, and look again when the oldest of the others will have."""
        self._timer = None
        now = mono()
        for number, (since, name) in list(self._waiting.items()):
            if since + _WARN_AFTER > now:
                self._timer = asyncio.get_running_loop().call_later(since + _WARN_AFTER - now, self._ring)
                break
            del self._waiting[number]
            if now >= self._warned.get(name, now):  # else it was warned of
                self._late.add(name)
        if self._late and (self._warner is None or self._warner.done()):
            self._warner = asyncio.get_running_loop().create_task(self._warn(), name="command_bus.sending.overdue_calls")

    async def _warn(self) -> None:
        """Warn of the commands whose calls no worker can answer, also of those that become late while this runs."""
        while self._late:
            names, self._late = self._late, set()
            try:
                records = await self._session.transport.announcements.workers()
                live = [worker for worker in worker_statuses(records) if worker.alive]
            except CommandBusError as error:
                _log.debug("cannot see who works: %s", error)
                return
            self._warn_of(names, live)

    def _warn_of(self, names: set[str], live: list[WorkerStatus]) -> None:
        now = mono()
        self._warned = {name: until for name, until in self._warned.items() if until > now}
        for name in sorted(names - self._warned.keys()):
            if (found := unserved(name, live, self._session.where)) is not None:
                self._warned[name] = now + _WARN_EVERY
                _log.warning("%s has waited for its reply for %g s. %s", name, _WARN_AFTER, found[1], extra={"command": name})
