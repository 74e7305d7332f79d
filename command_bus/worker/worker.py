"""`Worker`: runs the handlers of one process.

It composes the transport's side (reader, steps, leases, recovery) and the executor; each has its own task or thread, owned
here and ended here.

    stop: read no more → hand untouched work back → let handlers finish within the grace time → cancel the rest → say what happened
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from command_bus.clock import checked_seconds, wall_ms
from command_bus.handlers.injection import check_wired
from command_bus.handlers.registry import HandlerRegistry
from command_bus.messages.handling_policy import check_policies
from command_bus.messages.upcasting import check_upcasters
from command_bus.middleware import takes_many
from command_bus.observer import WorkerChange, WorkerFigures
from command_bus.randomness import JITTER, token
from command_bus.serialization.announcements import WorkerInfo, worker_record
from command_bus.serialization.limits import reading_limits
from command_bus.serialization.models import codec_for, reply_codec_for
from command_bus.serialization.odd_values import odd_values
from command_bus.serialization.states import StateCodec
from command_bus.serialization.tallies import Tallies
from command_bus.session import Session, is_answered
from command_bus.settings import BusSettings, resolved, unknown_variables
from command_bus.transport.mailboxes import mailbox_label
from command_bus.transport.ports.worker import WorkerSide, WorkerSideOptions
from command_bus.worker.built_in import lookup_in
from command_bus.worker.decisions import Decisions
from command_bus.worker.durable_runs import DurableRuns
from command_bus.worker.entity_run import EntityRun, WorkerState
from command_bus.worker.executor import Executor
from command_bus.worker.lifecycle import SettledCommand, reported
from command_bus.worker.limits import LimitKeys
from command_bus.worker.offers import Offers, OtherWorkers
from command_bus.worker.run_ends import STOPPING
from command_bus.worker.runnable import CommandContexts
from command_bus.worker.threads import HandlerThreads
from command_bus.worker.worker_bus import Declarations, WorkerBus, on_signals

if TYPE_CHECKING:
    from command_bus.worker.processes import Children

_log = logging.getLogger("command_bus.worker")
_FEW = 0.9
"""The part of the slots that may be lent below which few handlers wait."""
_LAST_WORDS = 5.0
_READ_WITHIN = 6.0
"""Seconds without a read after which a worker does not count as consuming; it reads every two seconds."""
_NAMED = 10


@dataclass(frozen=True, slots=True)
class StopReport:
    """The end of a worker.

    Attributes:
        finished: Handlers that ended by themselves within the grace time.
        cancelled: Handlers that were cancelled after it.
    """

    finished: int
    cancelled: int


class Worker:
    """Runs handlers until it is stopped: `async with bus.worker(): …` or `await bus.worker().run()`.

    Made by `CommandBus.worker`. Opens the bus if it is not open; then it closes it, too.

    Attributes:
        on_settled: Set before the start: called with each command that this worker has settled. It must be quick, and must not raise.
    """

    def __init__(self, bus: WorkerBus, settings: BusSettings, registry: HandlerRegistry) -> None:
        self.settings = settings
        self.registry = registry
        self.name = token(6).hex()
        self._bus = bus
        self._stack = AsyncExitStack()
        self._parts: _Parts | None = None
        self.state = WorkerState()
        self.tallies = Tallies()
        self.on_settled: Callable[[SettledCommand], None] | None = None
        self._concurrency = most_at_once(settings, registry)
        self._starting = asyncio.Lock()
        self._stopped: asyncio.Task[StopReport] | None = None
        self._started_ms = 0
        self._asked = asyncio.Event()
        self.declarations = Declarations(bus, settings, registry, self.stop)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "running" if self._parts else "new"
        return f"<Worker {self.name} {state}>"

    @property
    def running(self) -> int:
        """Entities that it holds now."""
        return len(self._parts.side.leases) if self._parts else 0

    @property
    def figures(self) -> WorkerFigures:
        """The counters since the worker started."""
        return WorkerFigures(0, 0, 0) if self._parts is None else self._parts.figures()

    @property
    def bus(self) -> WorkerBus:
        """The bus that it works for."""
        return self._bus

    @property
    def started(self) -> bool:
        """Whether it has begun to run commands."""
        return self._parts is not None

    @property
    def silent_for(self) -> float:
        """Seconds since it last asked for work with success; infinite if it cannot, 0 while all its slots are taken.

        At least as long as the thread that renews its leases has been silent, which should never be.
        """
        return max(self._parts.side.consumer.silent_for, self._parts.side.leases.overdue) if self._parts else math.inf

    async def why_not_ready(self, patience: float = 1.0) -> str | None:
        """Return why it does not consume; None if it does. Call it in its event loop.

        Args:
            patience: Seconds for the server's answer.
        """
        if self.state.stopping:
            return "stopping"
        if self.silent_for > _READ_WITHIN:
            return "not started yet" if not self.started else "it cannot read work: see its log"
        return None if await is_answered(self.bus.session, patience) else "the server does not answer"

    @property
    def paused(self) -> bool:
        """Whether `pause` holds."""
        return self.state.paused

    @property
    def concurrency(self) -> int:
        """Entities that it runs at a time; may be set at any time.

        Set lower, nothing that runs is ended: fewer are begun. If all its handlers are synchronous, its threads are the most.

        Raises:
            InvalidSettings: It is set to something else than 1 to 100,000.
        """
        return self._concurrency

    @concurrency.setter
    def concurrency(self, entities: int) -> None:
        self._concurrency = most_at_once(resolved(self.settings, None, None, {"concurrency": entities}), self.registry)
        if self._parts is not None:
            self._parts.side.slots.resize(self._concurrency)

    def pause(self) -> None:
        """Take no more work until `resume`; also before the start. What runs goes on to its end, then its entity is left to other workers."""
        self.state.paused = True
        if self._parts is not None:
            self._parts.side.slots.pause()
        _log.info("worker %s is paused", self.name)

    def resume(self) -> None:
        """Take work again."""
        self.state.paused = False
        if self._parts is not None:
            self._parts.side.slots.resume()
        _log.info("worker %s goes on", self.name)

    async def start(self) -> None:
        """Begin to run commands; returns at once.

        Raises:
            RegistrationError: A handler's dependency is not wired, a message or reply type cannot be sent, or an upcaster is missing.
            CommandBusError: As `CommandBus.open`.
        """
        async with self._starting:
            await self._start()

    def _check(self) -> None:
        """Check the handlers, and warn of what will not work as it is meant.

        Raises:
            RegistrationError: One may not be as it is under these settings.
        """
        settings = self._bus.session.settings
        for handler in self.registry:
            check_upcasters(handler.message_type)
            mailbox, delivery = settings.entity(handler.spec.entity).mailbox, settings.handling(handler.spec).delivery
            batch, has_state = handler.batch, handler.state is not None
            of_entity = batch is not None and batch.of_entity
            check_policies(handler.spec, mailbox, delivery, has_state=has_state, repeats=batch is not None, of_entity=of_entity)
            if handler.state is not None:
                check_upcasters(handler.state)
                codec_for(handler.state).prepare()
            codec_for(handler.message_type).prepare()
            reply_codec_for(handler.spec.reply).prepare()
        if not takes_many(self._bus.middleware) and (
            alone := [each.spec.name for each in self.registry if each.batch and each.batch.of_entity]
        ):
            _log.warning("%s: commands run one by one, because a middleware has `handle` and not `handle_many`", ", ".join(alone))
        for name in self.registry.unhandled():
            _log.warning(
                "no handler for %s, which is declared: its commands wait for a worker that has one, then are dead-lettered", name
            )
        for stray in unknown_variables(os.environ):
            _log.warning("%s", stray)

    async def _start(self) -> None:
        if self._parts is not None or self._stopped is not None:
            raise RuntimeError("a worker is started once: make a new one with bus.worker()")
        self._check()
        if not self._bus.session.is_open:
            await self._bus.session.open()
            self._stack.push_async_callback(self._bus.session.close)
        self._started_ms = wall_ms()
        try:
            if self._bus.lifespan is not None:
                await self._stack.enter_async_context(self._bus.lifespan())
            check_wired(self.registry)  # now, because a container is wired by the lifespan at the latest
            await self.declarations.write()
            self._parts = _Parts(self, self._bus.session)
        except BaseException:
            await self._stack.aclose()
            raise
        _log.info(
            "worker %s handles %d types of commands, for up to %d entities at a time",
            self.name,
            len(self.registry),
            self.concurrency,
        )

    async def run(self, *, signals: bool = True) -> StopReport:
        """Run until SIGTERM, SIGINT or SIGHUP (or `stop`), then stop within the grace time. A second signal but SIGHUP ends the process at once.

        Several workers of a process may run so: a signal stops them all.

        Args:
            signals: Whether to handle signals; they are given back afterwards. Only in the main thread.
        """
        if self._parts is None:
            await self.start()
        restore = on_signals(self._asked) if signals else None
        try:
            await self._asked.wait()
            return await self.stop()
        except asyncio.CancelledError:
            await self.stop()
            raise
        finally:
            if restore is not None:
                restore()

    async def stop(self, grace: float | None = None) -> StopReport:
        """Stop reading work, finish within `grace` seconds (by default `settings.grace`), hand the rest back.

        Idempotent; a caller that gives up waiting does not stop it half-way.

        Raises:
            InvalidCommand: `grace` is negative or too long.
        """
        seconds = self.settings.grace if grace is None else checked_seconds("grace", grace, zero=True)
        if self._stopped is None:
            self.state.stopping = True
            work = self._stop(seconds)
            self._stopped = asyncio.get_running_loop().create_task(work, name=f"command_bus.stop {self.name}")
        return await asyncio.shield(self._stopped)

    async def _stop(self, grace: float) -> StopReport:
        report = StopReport(0, 0)
        async with self._starting:  # one that is starting up is stopped once it has
            try:
                _tell(self, "closing")
                await self.declarations.stop()
                if self._parts is not None:
                    report = await self._parts.stop(grace)
            finally:
                self._asked.set()
                await self._stack.aclose()  # the lifespan, and then the bus, also if the lifespan raises
        _tell(self, "closed")
        _log.info("worker %s stopped: %d handlers finished, %d cancelled", self.name, report.finished, report.cancelled)
        return report

    def finishing(self) -> bool:
        """Return whether it lets its handlers finish, in an event loop that goes on."""
        return self._stopped is not None and not self._stopped.done() and not self._stopped.cancelling()

    def info(self, now_ms: int | None = None) -> WorkerInfo:
        """Return the worker's record; `now_ms` is the server's time, by default this machine's."""
        return WorkerInfo(
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_ms=self._started_ms,
            seen_ms=wall_ms() if now_ms is None else now_ms,
            concurrency=self.concurrency,
            running=self.running,
            commands=self.registry.names(),
            lease=self.settings.lease,
            longest=self._parts.side.leases.longest if self._parts else 0.0,
            threads=self.settings.threads,
            awaiting_thread=self.figures.awaiting_thread,
            awaiting_reply=self.figures.awaiting_reply,
            paused=self.paused,
            odd_values=sum(odd_values.counts().values()),
            tallies=self.tallies.pack(),
        )


def _tell(worker: Worker, state: WorkerChange) -> None:
    """Call the observer with what a worker is now. One that raises does not keep it from its work, or from its end."""
    if (observer := worker.bus.session.observer) is not None:
        try:
            observer.worker_changed(worker.name, state)
        except Exception:  # noqa: BLE001 - it is the application's
            _log.exception("the observer failed: worker %s is %s", worker.name, state)


def most_at_once(settings: BusSettings, registry: HandlerRegistry) -> int:
    """Return how many entities a worker runs at a time: if none of its handlers is asynchronous, no more than it has threads."""
    if any(handler.is_async for handler in registry):
        return settings.concurrency
    return min(settings.concurrency, settings.threads)


def _children(worker: Worker, session: Session) -> Children | None:
    """Return the place where handlers run in processes; None if there are none, and in a test's bus, whose handlers run in line."""
    if session.active_hook is not None or not any(handler.process for handler in worker.registry):
        return None
    from command_bus.worker.processes import Children  # few workers need what it imports

    return Children(worker.settings.processes, worker.settings.process_tasks, reading_limits(worker.settings))


def _offers(worker: Worker, session: Session, side: WorkerSide) -> Offers:
    return Offers(JITTER, worker.name, OtherWorkers(session.transport.announcements.workers), side.side_records.raise_fence)


class _Parts:
    """The parts of a running worker: what runs commands, and the transport's side of it."""

    def __init__(self, worker: Worker, session: Session) -> None:
        settings, protection = worker.settings, session.protection
        self.threads = HandlerThreads(settings.threads)
        self.side = session.transport.worker_side(
            WorkerSideOptions(
                name=worker.name,
                settings=settings,
                slots=worker.concurrency,
                is_stuck=self.threads.turns_away,
                heartbeat=lambda now_ms: worker_record(worker.info(now_ms)),
                schedules=worker.bus.schedules.firing,
                forgotten=worker.declarations.write_again,
                state_over=StateCodec(settings, session.protection).expiry(handler.state for handler in worker.registry),
                drained=lambda: _tell(worker, "drained"),
            )
        )
        decisions = _decisions(worker, session)
        self._children = _children(worker, session)
        self._executor = executor = Executor(
            worker.bus,
            decisions,
            self.threads,
            self.side.slots,
            worker.name,
            settings.grace,
            works=lambda: self.side.consumer.reads or worker.finishing(),
            offers=_offers(worker, session, self.side),
            durable=_durable_runs(worker, session, decisions, self.side),
            contexts=CommandContexts(),
            side=self.side,
            tallies=worker.tallies,
            children=self._children,
        )
        execute, steps, lost = reported(
            session.notifications, worker.on_settled, worker.name, executor.begin, self.side.steps, decisions.lost
        )
        keys = LimitKeys(worker.registry.lookup, settings, protection)
        runs = EntityRun(self.side, steps, execute, settings, worker.state, keys)
        if worker.paused:
            self.side.slots.pause()
        self.side.start(runs.run, runs.begin, lost)

    async def stop(self, grace: float) -> StopReport:
        """Stop as the head of this module says."""
        side = self.side
        if side.consumer.running:
            _log.info("stopping: waits up to %g s for what runs: %s", grace, _named(side.consumer.running.values()))
        await side.consumer.stop_reading()
        self._executor.batches.wait_no_more()
        running = side.consumer.running
        finished, left = await asyncio.wait(running, timeout=grace) if running else (set(), set())
        if left:
            _log.warning("%d handlers still run after the grace time of %g s and are cancelled", len(left), grace)
            side.cancel_all(STOPPING)
            await asyncio.wait(left, timeout=_LAST_WORDS)
        await side.stop(_LAST_WORDS)
        self.threads.close()
        if self._children is not None:
            await self._children.close()
        return StopReport(len(finished), len(left))

    def figures(self) -> WorkerFigures:
        """Return the counters since the worker started."""
        side = self.side
        return WorkerFigures(len(side.leases), side.leases.lost, side.recovered, self.threads.waiting, side.slots.lent)


def _named(mailboxes: Iterable[str]) -> str:
    """Return whose handlers a worker waits for, the first of them by name."""
    names = sorted(map(mailbox_label, mailboxes))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _durable_runs(worker: Worker, session: Session, decisions: Decisions, side: WorkerSide) -> DurableRuns:
    def few_wait() -> bool:
        return side.slots.lent < _FEW * worker.settings.max_waiting and not worker.state.leaving

    return DurableRuns(
        side.side_records,
        worker.bus.sender.children,
        decisions,
        settings=worker.settings,
        protection=session.protection,
        few_wait=few_wait,
    )


def _decisions(worker: Worker, session: Session) -> Decisions:
    """Return the rules of a worker; where there is an observer, it sees each decision."""
    observer = session.observer
    arguments = lookup_in(worker.registry), worker.settings
    named: dict[str, Any] = {
        "worker": worker.name,
        "protection": session.protection,
        "recorded": session.transport.agreements.recorded,
        "is_gone": worker.bus.sender.subscriptions.is_gone,
    }
    if observer is None:
        return Decisions(*arguments, **named)
    from command_bus.worker.lifecycle import ObservedDecisions

    observer.works(lambda: worker.figures)
    return ObservedDecisions(observer, *arguments, **named)
