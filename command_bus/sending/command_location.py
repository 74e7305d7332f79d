"""Find out where a command is whose caller waited too long: a pure function from what was read to a state, figures and a sentence or two."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from command_bus.clock import mono
from command_bus.errors import CommandBusError, CommandTimeout, TransportUnavailable, UnsuitableServer
from command_bus.messages.event import handles
from command_bus.serialization.announcements import WorkerStatus, worker_statuses
from command_bus.serialization.envelope import unpack_envelope
from command_bus.serialization.limits import PayloadLimits, Undecodable
from command_bus.session import OnSession, Session, SessionPart
from command_bus.spelling import nearest
from command_bus.tasks import end_tasks
from command_bus.transport.mailboxes import mailbox_label
from command_bus.transport.marks import is_settled
from command_bus.transport.records import CommandLocation

_NAMED = 10
"""Commands that a sentence names at most."""
_WAITS = {
    "suspended": "It is suspended: it waits without a worker, for a call, a signal or a time",
    "limited": "It waits for a limit: `command-bus limits list` shows what they allow, and who waits",
    "blocked": "It waits until it is the first of all its entities: `command-bus entities --state blocked` shows which are not",
}
"""Waits of the first in a line that a worker does not end."""
_STANDING = ("delayed", "paused", "parked", "behind", "")
"""States that are worth telling of even where no worker would run the command."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The details of a timeout; the attributes are those of `CommandTimeout`.

    Attributes:
        hint: For people; empty if nothing is known.
    """

    hint: str = ""
    state: str = ""
    position: int | None = None
    running_for: float | None = None
    attempt: int = 0
    worker: str | None = None
    retry_in: float | None = None
    workers: int | None = None
    handlers: int | None = None

    def timeout(self, message: str, command_id: str) -> CommandTimeout:
        """Return the error with this message, followed by the hint."""
        facts = asdict(self)
        hint = facts.pop("hint")
        return CommandTimeout(f"{message}. {hint}" if hint else message, command_id=command_id, **facts)


class _Place(NamedTuple):
    """A command's place in its line, as far as the line could be read."""

    position: int | None
    name: str
    head: str


def whereabouts(
    location: CommandLocation, line: Sequence[tuple[str, bytes]], command_id: str, name: str, where: str, limits: PayloadLimits
) -> Whereabouts:
    """Return where a command is.

    Args:
        location: What was read of it.
        line: The first entries of its mailbox; empty if they could not be read.
        command_id: Its id.
        name: Its wire name; empty if the caller does not know it.
        where: Names the namespace and its server, for people.
        limits: Bounds of an envelope's size.
    """
    entity, mark = location.entity, location.mark
    if is_settled(mark):
        return Whereabouts("It is settled by now", "settled")
    place = _place(location, line, command_id, name, limits)
    statuses = None if location.workers is None else worker_statuses((location.now_ms, record) for record in location.workers)
    live = None if statuses is None else [worker for worker in statuses if worker.alive]
    if mark is None and place.position is None and location.delayed_ms is None:
        state, sentences = "unknown", ["The server does not know the command (any more)"]
    else:
        state, sentences = _standing(location, place, statuses)
        if state != "running" and live is not None and (fleet := unserved(place.name, live, where)) is not None:
            state, sentences = fleet[0], [fleet[1], *(sentences if state in _STANDING else ())]
        elif state == "waiting" and live and _is_busy(place.name, live):
            state, sentences = "busy", ["All slots of the workers that handle it are taken"]
    if entity.hold is not None and entity.hold.mode == "draining":
        sentences.append(f"{entity.hold.what} is being drained: what was accepted before still runs")
    return Whereabouts(
        ". ".join(sentences),
        state,
        position=place.position,
        running_for=_running_for(location),
        attempt=entity.attempt,
        worker=entity.holder.partition("#")[0] or None,
        retry_in=_seconds_until(location.retry_ms, location.now_ms),
        workers=None if live is None else len(live),
        handlers=None if live is None or not place.name else sum(handles(worker.commands, place.name) for worker in live),
    )


def unserved(name: str, live: Sequence[WorkerStatus], where: str) -> tuple[str, str] | None:
    """Return why no worker runs a command of this name, as a state and a sentence; None if a live worker handles it, or it has no name."""
    if not live:
        return "no_worker", f"There is no live worker in {where}: start one with `command-bus worker`"
    known = sorted({each for worker in live for each in worker.commands})
    if not name or handles(known, name):
        return None
    shown = ", ".join(known[:_NAMED]) + (f" and {len(known) - _NAMED} more" if len(known) > _NAMED else "")
    who = "The only live worker" if len(live) == 1 else f"None of the {len(live)} live workers"
    verb = "does not handle" if len(live) == 1 else "handles"
    alike = nearest(name, known)
    meant = f" (did you mean {alike!r}?)" if alike is not None else ""
    return "no_handler", f"{who} in {where} {verb} {name!r}{meant}. Handled are: {shown or 'no commands'}"


def _place(
    location: CommandLocation, line: Sequence[tuple[str, bytes]], command_id: str, name: str, limits: PayloadLimits
) -> _Place:
    found = [_named(envelope, limits) for _, envelope in line]
    position = next((index for index, (each, _) in enumerate(found, 1) if each == command_id), None)
    if position is None and location.entity.depth == 1 and location.mark is not None and location.delayed_ms is None:
        position = 1  # the only one there is; its line may not be read
    if not name and position is not None and found:
        name = found[position - 1][1]
    return _Place(position, name, " ".join(reversed(found[0])).strip() if found else "")


def _named(envelope: bytes, limits: PayloadLimits) -> tuple[str, str]:
    """Return id and name of a command, empty if they cannot be read."""
    try:
        read = unpack_envelope(envelope, limits)
    except Undecodable:
        return "", ""
    return read.command_id, read.name


def _standing(location: CommandLocation, place: _Place, workers: Sequence[WorkerStatus] | None) -> tuple[str, list[str]]:
    """Return the state of a command by what its entity does."""
    entity, label = location.entity, mailbox_label(location.entity.mailbox)
    first = place.position == 1
    if location.delayed_ms is not None:
        return "delayed", [f"It is delayed and takes its place in line {_due(location.delayed_ms, location.now_ms)}"]
    if entity.state == "running" and first:
        return "running", [f"It {_runs(location, workers)}"]
    if entity.state == "paused" and entity.hold is not None:
        reason = f" ({entity.hold.reason})" if entity.hold.reason else ""
        return "paused", [f"{entity.hold.what} is paused{reason}: its commands wait until it is resumed"]
    if entity.state == "parked":
        return "parked", [f"{label} is parked by a dead letter: its commands wait until that is replayed or discarded"]
    if entity.state == "retrying" and first and entity.attempt:
        return "retrying", [f"Attempt {entity.attempt} has failed, the next is due {_due(location.retry_ms, location.now_ms)}"]
    if entity.state == "snoozed" and first:
        return "snoozed", [f"Its handler has put it off, it starts again {_due(location.retry_ms, location.now_ms)}"]
    if first:
        return (entity.state, [_WAITS[entity.state]]) if entity.state in _WAITS else ("waiting", ["It waits for a worker"])
    head = {
        "running": f", which {_runs(location, workers)}",
        "retrying": f", which waits for its next attempt, due {_due(location.retry_ms, location.now_ms)}",
        "suspended": ", which is suspended",
        "limited": ", which waits for a limit",
        "blocked": ", which waits until it is the first of all its entities",
        "snoozed": f", which its handler has put off, due {_due(location.retry_ms, location.now_ms)}",
    }.get(entity.state, ", which waits for a worker")
    if place.position is not None:
        return "behind", [f"It is number {place.position} in the line of {label}, behind {place.head or 'a command'}{head}"]
    return "", [f"The line of {label} holds {entity.depth} commands. At its head is {place.head or 'a command'}{head}"]


def _runs(location: CommandLocation, workers: Sequence[WorkerStatus] | None) -> str:
    entity = location.entity
    name = entity.holder.partition("#")[0]
    worker = next((each for each in workers or () if each.name == name), None)
    on = f"worker {name}" if worker is None else f"worker {name} ({worker.host}, process {worker.pid})"
    lost = f", which has shown no sign of life for {worker.silent_for:.0f} s" if worker is not None and not worker.alive else ""
    return f"has run for {_shown(_running_for(location) or 0.0)} (attempt {entity.attempt}) on {on}{lost}"


def _is_busy(name: str, live: Sequence[WorkerStatus]) -> bool:
    able = [worker for worker in live if not name or handles(worker.commands, name)]
    return bool(able) and all(worker.running >= worker.concurrency for worker in able)


def _running_for(location: CommandLocation) -> float | None:
    started_ms = location.entity.started_ms
    return max(location.now_ms - started_ms, 0) / 1000 if started_ms else None


def _seconds_until(at_ms: int | None, now_ms: int) -> float | None:
    return None if at_ms is None else max(at_ms - now_ms, 0) / 1000


def _due(at_ms: int | None, now_ms: int) -> str:
    seconds = _seconds_until(at_ms, now_ms)
    return "now" if not seconds else f"in {_shown(seconds)}"


def _shown(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


_log = logging.getLogger("command_bus.rpc")
_WARN_AFTER = 5.0
_WARN_EVERY = 60.0
_LOOK = 1.0
"""Seconds that a look may take."""
_AT_ONCE = 8
"""Looks at a time: when thousands of calls time out together, the server has enough to do."""
_NOTHING = Whereabouts()


class OverdueCalls(OnSession, SessionPart):
    """The calls of one bus that wait for a reply. Attach it to the session.

    Args:
        session: Connections and settings of the bus.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.renew()

    def renew(self) -> None:
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
        locations = self._transport.locations
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
            self._warner = asyncio.get_running_loop().create_task(self._warn(), name="command_bus.sending.command_location")

    async def _warn(self) -> None:
        """Warn of the commands whose calls no worker can answer, also of those that become late while this runs."""
        while self._late:
            names, self._late = self._late, set()
            try:
                records = await self._transport.announcements.workers()
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
