"""One worker process: load, check, open, run, end.

    module:attribute → bus → (supervisor agrees) → open → worker → StopReport → exit code

The end is the odd part. A synchronous handler that exceeds the grace time runs on in its thread, which cannot be stopped, and
Python would wait for it before it ends the process. So threads that still run after a while are abandoned: the log is flushed, and
the process exits with its code. Another worker takes over the handler's command when the lease expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from command_bus.bus import CommandBus
from command_bus.cli.loading import import_object, include_modules, log_start_failure, resolve_bus
from command_bus.cli.process.application import Application, check_options
from command_bus.cli.process.channel import Channel
from command_bus.cli.process.command_log import CommandLog
from command_bus.cli.process.health import give_metrics
from command_bus.cli.process.logs import log_as
from command_bus.cli.process.systemd import notify_systemd
from command_bus.cli.process.worker_options import WorkerOptions
from command_bus.cli.terminal import WorkerExitCode
from command_bus.clock import mono
from command_bus.errors import CommandBusError, EntitiesStopped, UnsuitableServer
from command_bus.worker.worker import StopReport, Worker
from command_bus.worker.worker_bus import stop_signals

_PATIENCE = 10.0  # seconds for the application's exit functions
_HANDLER_PATIENCE = 0.5  # seconds for the threads of handlers, which had their grace time
_PAUSE = 1.0  # seconds between requests to a server that is unavailable
_HANDLER_THREADS = "command_bus.handler"
_log = logging.getLogger("command_bus.cli")


def run_worker(options: WorkerOptions) -> int:
    """Run a worker until it is asked to stop, and return the exit code. Threads of handlers that do not end are abandoned."""
    os.environ.update(options.environment())
    try:
        found = import_object(options.import_string)
    except Exception as error:  # noqa: BLE001 - the application's module may raise anything
        log_start_failure(error, options.import_string)
        return WorkerExitCode.NOT_STARTED
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        code = runner.run(_serve(options, found))
        _exit_within(_PATIENCE, code)
    if _handlers_run_on(_HANDLER_PATIENCE):
        _log.warning("abandoning synchronous handlers that still run: their commands are taken over when their leases end")
        _exit(code)
    return code


async def _serve(options: WorkerOptions, found: Any) -> int:
    channel = None if options.channel is None else Channel(options.channel)
    try:
        bus = await resolve_bus(options.import_string, found)
        log_as(options.log_level, bus.settings)
        include_modules(bus.registry, options.include)
        application = Application.from_bus(bus, options)
        if channel is None:
            check_options(application, options)
            _log.info(application.start_line(1))
        elif not channel.report_loaded(application):
            return WorkerExitCode.NOT_STARTED
    except Exception as error:  # noqa: BLE001 - the application's function may raise anything
        log_start_failure(error, options.import_string)
        return WorkerExitCode.NOT_STARTED
    async with notify_systemd() as up, AsyncExitStack() as stack:
        with _early_signals() as signals:
            try:
                signals.worker = worker = await _started(bus, options, channel, stack)
            except asyncio.CancelledError:
                _log.info("asked to stop before it began")
                return WorkerExitCode.FINISHED
            except Exception as error:  # noqa: BLE001 - the application's lifespan may raise anything
                log_start_failure(error, options.import_string)
                return WorkerExitCode.NOT_STARTED
            if channel is not None:
                channel.report_ready()
            up()
            report = await _run(bus, worker, options)
        return _code(report)


async def _started(bus: CommandBus, options: WorkerOptions, channel: Channel | None, stack: AsyncExitStack) -> Worker:
    worker = bus.worker(concurrency=options.concurrency, grace=options.grace)
    if options.command_log is not None:
        log = CommandLog(Path(options.command_log), worker.name)
        stack.callback(log.close)
        worker.on_settled = log.write
    if options.health_port is not None:  # before the bus is opened: a worker that waits for its server is live, and not ready
        from command_bus.telemetry.health import HealthServer

        if not bus.session.is_open:
            give_metrics(bus.session)
        health = HealthServer(worker, host=options.health_host, port=options.health_port, stuck_after=options.stuck_after)
        await stack.enter_async_context(health)
        if channel is not None:
            channel.report_health_port(health.port)
    await stack.enter_async_context(bus)
    if options.production:
        _refuse_unsafe(bus)
    collect_rarely()
    await worker.start()
    return worker


_ALLOCATIONS = 10_000


def collect_rarely() -> None:
    """Let the garbage collector look only at what is made from now on, and only after many allocations.

    To look through what an application has loaded takes some 35 ms, in which no handler goes on. What a command leaves needs no collector, but by
    default that looks every 700 objects, which is a seventh of what a command costs (`make bench ARGS="drain"`).
    """
    gc.collect()
    gc.freeze()
    often, *older = gc.get_threshold()
    if 0 < often < _ALLOCATIONS:
        gc.set_threshold(_ALLOCATIONS, *older)


def _refuse_unsafe(bus: CommandBus) -> None:
    """Refuse at_most_once handlers on a server without append-only file: after a crash it forgets which commands were started.

    Raises:
        UnsuitableServer: The bus has such handlers, and the server no such file.
    """
    names = [handler.spec.name for handler in bus.registry if bus.settings.handling(handler.spec).delivery == "at_most_once"]
    transport = bus.session.redis
    if names and transport.facts.append_only is False:
        raise UnsuitableServer(
            f"{transport.label} keeps no append-only file, so that after a crash of the server at_most_once commands "
            f"({', '.join(names)}) may start twice or be lost: set `appendonly yes`, or leave out --production"
        )


async def _run(bus: CommandBus, worker: Worker, options: WorkerOptions) -> StopReport:
    idle = asyncio.create_task(_stop_when_idle(bus, worker), name="command_bus.burst") if options.burst else None
    try:
        return await worker.run()
    finally:
        if idle is not None:
            idle.cancel()


async def _stop_when_idle(bus: CommandBus, worker: Worker) -> None:
    while True:
        try:
            await bus.wait_idle()
            break
        except EntitiesStopped as error:
            _log.warning("%s", error)
            break
        except CommandBusError as error:
            _log.warning("cannot see whether work is left: %s", error)
            await asyncio.sleep(_PAUSE)
    await worker.stop()


def _code(report: StopReport) -> WorkerExitCode:
    return WorkerExitCode.CUT_SHORT if report.cancelled else WorkerExitCode.FINISHED


class _Signals:
    """Handling of signals until the worker handles them itself: a signal cancels the start, or stops a worker that has started.

    At no moment would a signal end the process at once, while it holds commands.
    """

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        self._stopping: asyncio.Task[StopReport] | None = None

    def received(self, *_: object) -> None:
        """Handle a signal in the event loop."""
        self._loop.call_soon_threadsafe(self._react)

    def _react(self) -> None:
        if self.worker is not None:
            self._stopping = self._loop.create_task(self.worker.stop(), name="command_bus.signal")
        elif self._task is not None:
            self._task.cancel()


@contextmanager
def _early_signals() -> Generator[_Signals]:
    signals = _Signals()
    before = {number: signal.signal(number, signals.received) for number in stop_signals()}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the faster event loop, if the extra `fast` is installed."""
    try:
        import uvloop  # pyright: ignore[reportMissingImports] - an extra
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _handlers_run_on(patience: float) -> bool:
    until = mono() + patience
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(_HANDLER_THREADS)]
    for thread in threads:
        thread.join(max(until - mono(), 0.0))
    return any(thread.is_alive() for thread in threads)


def _exit_within(seconds: float, code: int) -> None:
    """Exit after that time, even if other threads and exit functions have not ended."""
    timer = threading.Timer(seconds, _exit, (code,))
    timer.daemon = True
    timer.start()


def _exit(code: int) -> None:
    """Exit without waiting for threads."""
    embedded = sys.modules.get("command_bus.embedded")
    with contextlib.suppress(Exception):
        if embedded is not None:
            embedded.stop_shared_server()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    os._exit(code)
