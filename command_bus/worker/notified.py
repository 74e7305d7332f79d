"""The settlements of a worker whose bus has a notifier, told after the server has them: `told_to_others`. Else nothing of this is in the way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from command_bus.notifications.announcer import Announcer
from command_bus.notifications.notices import Notice
from command_bus.notifications.notifications import Notifications, OpenNotifications
from command_bus.serialization.envelope_reading import names_of
from command_bus.transport.mailboxes import mailbox_parts, type_of
from command_bus.transport.steps import Answer, DeadLetterStep, Done, Lease, LeaseLost, Park, Started, Step
from command_bus.transport.worker_interfaces import Steps
from command_bus.worker.settled_commands import Executes, Lost, SettledCommand, told

Settled = Callable[[SettledCommand], None]


class Telling(Protocol):
    """The worker, as far as this module needs it."""

    name: str
    on_settled: Settled | None


def told_to_others(
    notifications: Notifications | None, worker: Telling, executor: Executes, steps: Steps, lost: Lost
) -> tuple[Executes, Steps, Lost]:
    """Return what runs and settles commands, so that others are told, and `on_settled`; as it is without either."""
    on_settled = worker.on_settled
    open_now = None if notifications is None else notifications.open
    if open_now is None:
        return told(on_settled, executor, steps, lost)
    if "settled" in open_now.kinds:
        on_settled = _settled_to_others(open_now.announcer, on_settled)
    runner, steps, lost = told(on_settled, executor, steps, lost)
    if open_now.kinds & {"work", "lease_lost"}:
        runner = steps = NotifyingRuns(open_now, worker.name, runner, steps)
    return runner, steps, lost


def _settled_to_others(announcer: Announcer, on_settled: Settled | None) -> Settled:
    def tell(settled: SettledCommand) -> None:
        names = settled.entity_type, settled.entity_id, settled.command_id, settled.name
        announcer.tell(Notice("settled", *names, settled.status))
        if on_settled is not None:
            on_settled(settled)

    return tell


class NotifyingRuns:
    """Runs commands and moves mailboxes forward, and tells of lost leases and of what was sent with a settlement.

    Args:
        notifications: Tell.
        worker: Its name.
        executor: Runs the commands.
        steps: Settles them.
    """

    def __init__(self, notifications: OpenNotifications, worker: str, executor: Executes, steps: Steps) -> None:
        self._announcer: Announcer = notifications.announcer
        self._tells_work = "work" in notifications.kinds
        self._tells_lost = "lease_lost" in notifications.kinds
        self._worker = worker
        self._executor = executor
        self._steps = steps
        self._running: dict[int, Started] = {}

    async def execute(self, lease: Lease, started: Started, task: asyncio.Task[Any] | None) -> Step | None:
        """See `Executor`."""
        step = await self._executor.execute(lease, started, task)
        if step is None:
            if lease.lost:
                self._tell_lost(lease, started)
        else:
            self._running[id(lease)] = started
        return step

    async def advance(self, lease: Lease, step: Step) -> Answer:
        """See `Steps`."""
        started = self._running.pop(id(lease), None)
        answer = await self._steps.advance(lease, step)
        if type(answer) is LeaseLost:
            if started is not None:
                self._tell_lost(lease, started)
        elif self._tells_work and type(step) in (Done, DeadLetterStep, Park):
            self._tell_work(step)
        return answer

    def _tell_work(self, step: Any) -> None:
        sent = Counter(type_of(each.mailbox) for each in step.left.follow_ups if each.delay_ms <= 0)
        for entity_type, commands in sent.items():
            self._announcer.work(entity_type, commands)

    def _tell_lost(self, lease: Lease, started: Started) -> None:
        if not self._tells_lost:
            return
        command_id, name, _, named_id = names_of((started.envelope or b"")[2:])
        entity_type, entity_id = mailbox_parts(lease.mailbox)
        self._announcer.tell(Notice("lease_lost", entity_type, named_id or entity_id, command_id, name, worker=self._worker))
