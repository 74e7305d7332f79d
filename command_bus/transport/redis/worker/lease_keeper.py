"""`LeaseKeeper`: renews leases from a thread, so that a handler that blocks the event loop keeps its entity.

A lease is the pending entry of an activation; its idle time is its age. XCLAIM with JUSTID resets the idle time, in one native command
for all leases of this worker, and returns those that are still pending. The others are lost, because a worker that takes over an
activation replaces it by a new one. RETRYCOUNT writes a growing number into the entry's delivery count. This renewal sequence shows
`PendingRecovery` that a worker lives even when the server's clock has jumped.

If the interpreter lock is held for longer than the lease (by a C extension that never releases it), this thread stops as well.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from redis import Redis as SyncRedis

from command_bus.clock import mono, wall_ms
from command_bus.serialization.limits import printable
from command_bus.serialization.odd_values import stored_text
from command_bus.transport.interrupts import Interrupt
from command_bus.transport.mailboxes import mailbox_label
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.errors import CONNECTION_ERRORS
from command_bus.transport.redis.connection.factory import SOCKET_TIMEOUT
from command_bus.transport.redis.connection.outage_log import LoggedBackoff
from command_bus.transport.redis.connection.retrying import server_ms
from command_bus.transport.redis.interrupts import fill_request
from command_bus.transport.redis.keys import GROUP, KeySpace
from command_bus.transport.steps import Cancellation, Cause, Lease, fence_of

_log = logging.getLogger("command_bus.worker")


class SignsOfLife:
    """The shards in which a worker has published itself."""

    def __init__(self) -> None:
        self._written: set[int] = set()

    def are_gone(self, shard: int, written: object) -> bool:
        """Return whether a shard had lost what was published there, from its answer to the next time."""
        if isinstance(written, Exception):  # at the server's memory limit, say: others do not see this worker, but it works
            _log.warning("cannot write the sign of life: %s", written)
            return False
        is_new, was_there = bool(written), shard in self._written
        self._written.add(shard)
        return is_new and was_there


_PAGE = 500
_BLOCKED_AFTER = 1.0
_PAUSE = 1.0
_SHORTEST_PATIENCE = 0.5  # seconds; who waits longer for an answer notices later that a lease is over


@dataclass(frozen=True, slots=True)
class Page:
    """Leases of one shard that are renewed in one request, beside the sign of life."""

    shard: int
    leases: list[Lease]


@dataclass(frozen=True, slots=True)
class Blocked:
    """A request of the thread while the event loop is blocked: read operators' requests, or answer that attempts cannot end.

    Attributes:
        shard: Number of the one that is asked.
        answers: Replies by mailbox; without any, the requests are read.
    """

    shard: int
    answers: Mapping[str, Interrupt] = field(default_factory=dict[str, Interrupt])


class LeaseKeeper:
    """Holds the leases of one worker and keeps them alive until they are dropped.

    Args:
        connections: Those of this process. The thread has clients of its own.
        keys: The shards.
        worker: This worker's name, which is that of its consumer.
        lease: Seconds that a lease lives without renewal.
        heartbeat: Returns what this worker publishes of itself, written with each renewal; its argument is roughly the server's time in ms.
        forgotten: Called, in the thread of this, if what this worker had published is gone.
    """

    def __init__(
        self,
        connections: Connections,
        keys: KeySpace,
        *,
        worker: str,
        lease: float,
        heartbeat: Callable[[int], bytes],
        forgotten: Callable[[], None] = lambda: None,
    ) -> None:
        self._factory = connections.factory
        self._keys = keys
        self.worker = worker
        self.lease = lease
        self._heartbeat = heartbeat
        self._forgotten = forgotten
        self._signs = SignsOfLife()
        outages = [connections.at(shard.prefix).outage for shard in keys.shards]
        self._backoff = [LoggedBackoff(outage, "cannot renew leases", _log) for outage in outages]
        self._held: list[dict[str, Lease]] = [{} for _ in keys.shards]
        self._ahead: list[int | None] = [
            None
        ] * keys.count  # ms by which a shard's clock is ahead of ours, once its time is known
        self._wake = threading.Event()
        self._stopping = False
        self._renew_now = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._ping: float | None = None
        self._reported_blocked = False
        self._sequence = 1
        self._numbers = itertools.count(1)
        self._next_renewal = 0.0
        self._alive_at = math.inf
        self.lost = 0
        self.longest = 0.0

    def start(self) -> None:
        """Start the thread; call from the event loop that runs the handlers."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._alive_at = mono()
        self._thread = threading.Thread(target=self._run, name="command_bus.leases", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop the thread; the leases left are not renewed any more."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, 10.0)

    def add(self, shard: int, mailbox: str, activation: str, *, holder: str = "", read_at: float | None = None) -> Lease:
        """Hold an activation that was read.

        Args:
            shard: The mailbox's shard.
            mailbox: Its name.
            activation: Its id.
            holder: The lease's name, where the server has it already; by default a new one.
            read_at: Local monotonic time before the server was asked for it; by default now.
        """
        until = (mono() if read_at is None else read_at) + self.lease
        lease = Lease(shard, mailbox, activation, until, holder or f"{self.worker}#{next(self._numbers)}")
        self._held[shard][activation] = lease
        return lease

    def drop(self, lease: Lease) -> None:
        """Stop renewing."""
        self._held[lease.shard].pop(lease.activation, None)

    def renew_soon(self) -> None:
        """Renew now, whenever the next renewal would be due."""
        self._renew_now = True
        self._wake.set()

    def holds(self, shard: int, activation: str) -> bool:
        """Return whether this activation is known here."""
        return activation in self._held[shard]

    def keeps(self, shard: int, activation: str) -> bool:
        """Return whether this activation is held here, and its lease will be renewed as soon as the server can be reached."""
        lease = self._held[shard].get(activation)
        return lease is not None and not lease.lost and (lease.renew_until is None or mono() < lease.renew_until)

    def of_shard(self, shard: int) -> list[Lease]:
        """Return the leases of a shard that are held."""
        return list(self._held[shard].values())

    def cancel_all(self, why: Cancellation) -> None:
        """Interrupt the handlers that run; those between two commands are left to their next step."""
        for held in self._held:
            for lease in list(held.values()):
                if lease.cancel is not None:
                    lease.cancel(why)

    def __len__(self) -> int:
        return sum(map(len, self._held))

    # Everything below runs in the thread.

    def _run(self) -> None:
        places = [self._factory.at(shard.prefix) for shard in self._keys.shards]
        clients = {place: place.thread(self.patience) for place in places}
        of_shard = [clients[place] for place in places]
        try:
            while not self._stopping:
                if self._loop is not None and self._loop.is_closed():  # nothing here can settle an attempt any more
                    return _log.error("the event loop was closed before its worker: its leases end now. Close a worker first")
                self._wake.wait(self._turn_or_pause(of_shard))
                self._wake.clear()
        finally:
            for client in clients.values():
                client.close()

    def _turn_or_pause(self, clients: list[SyncRedis]) -> float:
        """Take a turn. After any error there is a next one, and leases that are over are lost."""
        try:
            return self._turn_with(clients)
        except Exception:  # noqa: BLE001 - as the docstring says
            _log.exception("renewing leases failed, next try in %g s", _PAUSE)
            with suppress(Exception):
                self._lose_overdue()
            return _PAUSE

    def _turn_with(self, clients: list[SyncRedis]) -> float:
        turn, answers = self.turn(), None
        while True:
            try:
                page = turn.send(answers)
            except StopIteration as end:
                return float(end.value)
            try:
                answers = self.request(clients[page.shard], page).execute(raise_on_error=False)
            except CONNECTION_ERRORS as error:
                answers = error
            except Exception as error:  # noqa: BLE001 - this page is not renewed; the others are, and deadlines are watched
                _log.exception("renewing leases failed")
                answers = error

    @property
    def overdue(self) -> float:
        """Seconds for which the thread has shown no sign of life, beyond what its pauses and the server's answers may take."""
        return max(0.0, mono() - self._alive_at - _BLOCKED_AFTER - self.patience)

    @property
    def patience(self) -> float:
        """Seconds that a renewal waits for its answer."""
        return min(SOCKET_TIMEOUT, max(self.lease / 3, _SHORTEST_PATIENCE))

    def turn(self) -> Generator[Page | Blocked, Any, float]:
        """Take one turn of the thread: yield requests, receive their answers or an error, and return the seconds until the next turn.

        The caller decides how a request is sent and waited for: the thread does so, and a simulation in its own time.
        """
        now = self._alive_at = mono()
        if now >= self._next_renewal or self._renew_now:
            self._renew_now = False
            renewed = yield from self._renew_all()
            interval = self.lease / 3
            self._next_renewal = now + (interval if renewed else min(interval, self.lease / 10, 1.0))
        self._lose_overdue()
        if self._watch_loop():
            yield from self._answer_for_the_loop()
        now = mono()
        # Only future ones: a lease past its deadline is lost already, but a thread that cannot be cancelled may hold it for long.
        deadlines = [lease.deadline - now for held in self._held for lease in list(held.values()) if lease.deadline > now]
        return 0.01 if self._renew_now else max(0.01, min(self._next_renewal - now, _BLOCKED_AFTER, *deadlines))

    def request(self, client: Any, page: Page | Blocked) -> Any:
        """Return the pipeline that renews a page, or answers for a blocked event loop."""
        keys = self._keys.shards[page.shard]
        pipeline = client.pipeline(transaction=False)
        if isinstance(page, Blocked):
            if page.answers:
                fill_request(pipeline, keys, page.answers)
            else:
                pipeline.hgetall(keys.interrupts)
            return pipeline
        pipeline.time()
        pipeline.hset(keys.workers, self.worker, self._heartbeat(wall_ms() + (self._ahead[page.shard] or 0)))
        if page.leases:
            ids: list[Any] = [lease.activation for lease in page.leases]
            pipeline.execute_command(
                "XCLAIM", keys.ready, GROUP, self.worker, 0, *ids, "RETRYCOUNT", self._sequence, "JUSTID", parse_justid=True
            )
        return pipeline

    def _renew_all(self) -> Generator[Page | Blocked, Any, bool]:
        self._sequence += 1
        self.longest = self._longest()
        renewed = True
        for shard, held in enumerate(self._held):
            now = mono()
            leases = [lease for lease in list(held.values()) if lease.renew_until is None or now < lease.renew_until]
            for start in range(0, len(leases) or 1, _PAGE):
                page = Page(shard, leases[start : start + _PAGE])
                asked = mono()
                answers = yield page
                self._alive_at = mono()
                renewed = self._renewed(page, asked, answers) and renewed
            self._lose_overdue()  # a shard that does not answer must not delay the others' deadlines
        return renewed

    def _longest(self) -> float:
        """Return the seconds for which the longest attempt has run: apart from jumps of clocks, a fence is the server's time of the start in us."""
        longest = 0.0
        for held, ahead in zip(self._held, self._ahead, strict=True):
            fences = [fence_of(lease.attempt_id) for lease in list(held.values()) if lease.attempt_id]
            if fences:
                longest = max(longest, (wall_ms() + (ahead or 0)) / 1000 - min(fences) / 1_000_000)
        return longest

    def _renewed(self, page: Page, asked: float, answers: Any) -> bool:
        if isinstance(answers, Exception):
            self._backoff[page.shard].failed(answers)
            return False
        time, written, *claimed = answers
        if not isinstance(time, Exception):
            self._renew_now |= self._ahead[page.shard] is None  # what was just written has our own time
            self._ahead[page.shard] = server_ms(time) - wall_ms()
        if self._signs.are_gone(page.shard, written):
            self._forgotten()
        if not (claimed and isinstance(claimed[0], Exception)):
            self._backoff[page.shard].worked()
        if claimed:
            if isinstance(claimed[0], Exception):
                self._backoff[page.shard].failed(claimed[0])
                return False
            alive = {_text(item) for item in claimed[0]}
            for lease in page.leases:
                if lease.activation in alive:
                    lease.deadline = asked + self.lease
                    lease.lost = (
                        False  # it was late, but not taken over: the next handler under it must be cancelled at the next loss
                    )
                else:
                    self._post_lost(lease, "another worker took it over, or it was settled")
        return True

    def _lose_overdue(self) -> None:
        now = mono()
        for held in self._held:
            for lease in list(held.values()):
                if now > lease.deadline:
                    self._post_lost(lease, "it could not be renewed in time")

    def _post_lost(self, lease: Lease, why: str) -> None:
        if self._loop is not None and not self._loop.is_closed() and not lease.lost:
            self._loop.call_soon_threadsafe(self._lose, lease, why)

    def _watch_loop(self) -> bool:
        """Return whether the event loop is blocked. The stack that blocks it is logged, once per blockage."""
        if self._loop is None or self._loop.is_closed():
            return False
        if self._ping is None:
            self._ping = mono()
            self._loop.call_soon_threadsafe(self._ponged)
            return False
        blocked = mono() - self._ping
        if blocked <= 2 * _BLOCKED_AFTER:
            return False
        if not self._reported_blocked:
            self._reported_blocked = True
            stack = "".join(traceback.format_list(self._stack()[-6:]))
            _log.warning(
                "the event loop has been blocked for %.1f s; leases are kept, nothing else runs. It is at:\n%s", blocked, stack
            )
        return True

    def _stack(self) -> list[traceback.FrameSummary]:
        """Return where the event loop's thread is."""
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the documented way to see another thread's stack
        return list(traceback.extract_stack(frame)) if frame else []

    def _answer_for_the_loop(self) -> Generator[Page | Blocked, Any, None]:
        """Answer operators who want to end an attempt that the event loop is blocked, and where."""
        for shard, held in enumerate(self._held):
            running = {lease.mailbox: lease.attempt_id for lease in list(held.values()) if lease.attempt_id}
            if not running:
                continue
            found = yield Blocked(shard)
            if isinstance(found, Exception) or isinstance(found[0], Exception):
                continue  # it is asked again in the next turn
            asked = {stored_text(name): interrupt for name, value in found[0].items() if (interrupt := Interrupt.unpack(value))}
            at = self._stack()[-1:]
            where = f"{at[0].filename}:{at[0].lineno} in {at[0].name}" if at else ""
            answers = {
                mailbox: replace(interrupt, answer="blocked", where=where)
                for mailbox, interrupt in asked.items()
                if not interrupt.answer and running.get(mailbox) == interrupt.attempt_id
            }
            for mailbox, interrupt in answers.items():
                entity = mailbox_label(mailbox)
                _log.warning(
                    "%s cannot be %s: the event loop is blocked at %s. It is cancelled when the loop goes on; else restart this process",
                    entity, printable(interrupt.request), where, extra={"entity": entity, "worker": self.worker},
                )  # fmt: skip
            if answers:
                yield Blocked(shard, answers)

    # Back in the event loop.

    def _ponged(self) -> None:
        self._ping = None
        self._reported_blocked = False

    def _lose(self, lease: Lease, why: str) -> None:
        """Cancel the handler of a lost lease. Without a running handler a step is under way, and its answer decides."""
        if self.holds(lease.shard, lease.activation) and lease.cancel is not None and not lease.lost:
            lease.lost = True  # once: a thread cannot be cancelled, and may hold the lease for long
            self.lost += 1
            entity = mailbox_label(lease.mailbox)
            _log.warning(
                "the lease of %s is lost (%s): its handler is cancelled, its result will be refused",
                entity,
                why,
                extra={"entity": entity, "worker": self.worker},
            )
            lease.cancel(Cancellation(Cause.LOST, why))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
