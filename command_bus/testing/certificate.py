"""The crash certificate: runs a scenario again and again, and kills a worker at another place each time.

    verdict = crash_certificate(registry, scenario, effects=psp.charges, state=lambda: dict(books), reset=clear)
    assert verdict.clean, verdict

The places are found by an undisturbed run: before each line of the handlers and of what they call in their modules, behind each request of a
worker, and before a request if something has happened since the last place. Another worker takes over, and what came of it is compared with the
undisturbed run. What is outside does not die: a function that adds to the effects or changes the state itself is a fake, if it is no handler.

Each run has a `TestBus` and an event loop of its own, in virtual time, with the same tokens.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import linecache
import logging
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from random import Random
from types import CodeType, FrameType
from typing import Any, Unpack

import pytest

from command_bus import randomness
from command_bus.bus import BusOptions, CommandBus
from command_bus.clock import mono
from command_bus.errors import CommandOutcomeError
from command_bus.handlers.registry import HandlerRegistry
from command_bus.handlers.signatures import innermost
from command_bus.messages.context import Running, running_command
from command_bus.sending.options import new_command_id
from command_bus.settings import BusSettings
from command_bus.testing.bus import TestBus
from command_bus.testing.clock import rebind
from command_bus.testing.lines import lines_of
from command_bus.testing.simulated.live import PROCESS, KilledError, Process, Witness
from command_bus.testing.simulated.store import Args
from command_bus.testing.verdict import (
    CodeLine,
    Effect,
    Finding,
    HandlerPart,
    Kind,
    Letter,
    Outcome,
    Place,
    Verdict,
    differences,
)
from command_bus.transport.redis import scripts
from command_bus.worker.worker_bus import describe_commands as describe

Scenario = Callable[[TestBus], Awaitable[object]]
_LEASE = 1.0
"""Virtual seconds after which another worker takes over; the time of a run is that of the timers in between."""
_THREAD = 5.0
_TURNS = 20
_DEPTH = 200
"""Frames that a kill needs: nothing is killed so near to a `RecursionError`."""
_SCRIPTS = {each.sha.encode(): each.name for each in vars(scripts).values() if isinstance(each, scripts.Script)}
_READS = (
    " CLIENT CONFIG EXISTS GET HEXISTS HGET HGETALL HKEYS HLEN HMGET HSCAN INFO LLEN LRANGE PING PTTL SCRIPT TIME TYPE XINFO XLEN XPENDING XRANGE "
    "XREVRANGE ZCARD ZCOUNT ZLEXCOUNT ZRANGE ZRANGEBYSCORE ZSCORE "
)
"""Commands that change nothing."""
_MENDS: dict[Kind, str] = {
    "repeated": "Give the outside an id, `context.command_id`; or do it in a SQL inbox, or in a step of a durable command.",
    "lost": "Write mark and effect together, in a SQL inbox or an `EntityState`; or mark only what is done.",
    "reordered": "Let the handler wait for what it starts, or send it as a command of the entity.",
    "state": "Write it in the transaction of a SQL inbox, or in an `EntityState`; or set it instead of adding to it.",
    "letter": "Let it be tried again: `retry=` with more attempts.",
    "raised": "The scenario's caller sees the crash.",
}
_IN_STEP = "Do it in a step, and give the outside an id: `context.step_key`."
_SENT_TWICE = "Send it with `context.send`, or dispatch it with a `command_id=` of your own."


@dataclass(slots=True)
class Case:
    """A scenario, and all that its runs have in common.

    Attributes:
        registry: The handlers.
        scenario: What the program does.
        effects: Returns what the outside has seen, in order; None if nothing is to be compared.
        state: Returns the state, or awaits it, perhaps given the bus; or None.
        reset: Clears all of it, before each run.
        make: Makes the bus of a run.
        workers: Number of workers.
        fakes: Code of functions that turned out to be fakes.
    """

    registry: HandlerRegistry
    scenario: Scenario
    effects: Callable[[], Sequence[Any]] | None
    state: Callable[..., Any] | None
    reset: Callable[[], object]
    make: Callable[[], CommandBus]
    workers: int
    fakes: set[CodeType] = field(default_factory=set[CodeType])
    described: dict[tuple[int, int], dict[str, bytes]] = field(default_factory=dict[tuple[int, int], dict[str, bytes]])
    """The announcements of commands, made once: to make them takes longer than a run."""
    names: tuple[str, ...] = ()
    files: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        handlers = list(self.registry)
        codes = (getattr(innermost(each), "__code__", None) for handler in handlers for each in handler.callables)
        modules = (getattr(sys.modules.get(handler.module), "__file__", None) for handler in handlers)
        self.files = frozenset([code.co_filename for code in codes if code is not None] + [file for file in modules if file])
        self.names = tuple(handler.name for handler in handlers)

    def is_of_handler(self, name: str) -> bool:
        """Return whether a function is a handler, or within one."""
        return any(name == handler or name.startswith(f"{handler}.<locals>.") for handler in self.names)

    def describe(self, registry: HandlerRegistry, settings: BusSettings) -> dict[str, bytes]:
        """Return what a worker announces, made once for all runs."""
        key = id(registry), id(settings)
        if key not in self.described:
            self.described[key] = describe(registry, settings)
        return self.described[key]

    def probe(self) -> Any:
        """Return what can be seen of the outside at once; None if nothing can."""
        count = None if self.effects is None else len(self.effects())
        if self.state is None or inspect.signature(self.state).parameters or inspect.iscoroutinefunction(self.state):
            return count
        return count, copy.deepcopy(self.state())

    def run(self, plan: Place | None = None, *, watches: bool = True) -> tuple[Trial, Outcome]:
        """Run the scenario once, on a loop of its own, with the same tokens as ever."""
        self.reset()
        jitter, threads = randomness.JITTER.getstate(), set(threading.enumerate())
        source = randomness.use_tokens_from(Random(0).randbytes)
        randomness.JITTER.seed(0)
        new_command_id.begin()
        undo = rebind("describe_commands", describe, self.describe)
        trial = Trial(self, plan, watches=watches)
        trial.lines.start()
        loggers = [] if plan is None else [logging.getLogger(f"command_bus.{name}") for name in ("worker", "transport", "rpc")]
        for logger in loggers:  # what a dead process leaves is no news
            logger.addFilter(_drop)
        try:
            outcome = _run_alone(trial.outcome())
        finally:
            for logger in loggers:
                logger.removeFilter(_drop)
            trial.lines.stop()
            undo()
            randomness.use_tokens_from(source)
            randomness.JITTER.setstate(jitter)
            new_command_id.begin()
            _end_threads(threads)
        return trial, outcome


def _run_alone(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run on a loop of its own, and end what is left of it: a dead process waits for much that never comes, and is not waited for."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        for _ in range(_TURNS):
            if not (left := asyncio.all_tasks(loop)):
                break
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
        rest: Any
        for rest in asyncio.all_tasks(loop):
            rest._log_destroy_pending = False  # noqa: SLF001 - it is meant
            with suppress(BaseException):  # what it does then, it does now and not in a later run
                rest.get_coro().close()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def _drop(_record: logging.LogRecord) -> bool:
    return False


def _end_threads(before: set[threading.Thread]) -> None:
    """Wait for handlers that still run in threads of a run: their effects must not be those of the next."""
    for thread in (each for each in threading.enumerate() if each not in before):
        frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - shows whether it is idle
        if thread.name == "command_bus.handler" and frame is not None and frame.f_code.co_name != "_work":
            thread.join(_THREAD)


class Trial(TestBus, Witness):
    """One run of a case.

    Args:
        case: What runs.
        plan: The place of the kill; None: nowhere.
        watches: Whether lines and requests are looked at.
    """

    def __init__(self, case: Case, plan: Place | None, *, watches: bool) -> None:
        super().__init__(case.registry, bus=case.make(), workers=case.workers)
        self.case = case
        self.plan = plan
        self.reached = False
        self.places: list[tuple[Place, list[CodeType]]] = []
        self._visits: Counter[Any] = Counter()
        self._effects: list[Effect] = []
        self._lines: dict[str, CodeLine] = {}
        """The last line of each command."""
        self._ran: tuple[CodeType, str] | None = None
        self._place: tuple[CodeLine | None, str] = None, ""
        self._probed: Any = None
        self._has_changed = self._looking = False
        self._looks = threading.RLock()
        if watches:
            self._processes.witness = self
        wanted = frozenset[str]() if not watches else None if plan is None else case.files
        self.lines = lines_of(wanted, self._before)

    async def outcome(self) -> Outcome:
        """Run the scenario until all is idle; return what came of it."""
        result = Outcome()
        self.claim_all()
        if self.plan is not None:  # as for the loggers
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        try:
            result.failure = await self._run_scenario()
            result.letters = [
                Letter(each.name, f"{each.entity_type}:{each.entity_id}", each.reason, each.error_message)
                async for each in (await self._processes.sender()).dead_letters.list()
            ]
            if self.case.state is not None:
                found = self.case.state(self) if inspect.signature(self.case.state).parameters else self.case.state()
                result.state = copy.deepcopy(await found if inspect.isawaitable(found) else found)
        finally:
            self.release()
        self._look(None)
        result.effects = self._effects
        return result

    async def _run_scenario(self) -> str:
        """Run the scenario; return the error that a kill has led to."""
        try:
            await self.case.scenario(self)
            await self.run_until_idle()
        except (CommandOutcomeError, AssertionError) as error:
            if self.plan is None:
                raise
            with suppress(AssertionError):
                await self.run_until_idle()
            return f"{type(error).__name__}: {error}"
        return ""

    # What a worker does.

    def sends(self, process: Process, requests: Sequence[Args]) -> None:
        if name := _named(requests):
            self._notice()
            self._visit(process, ("before", name), is_new=self._has_changed)

    def has_answer(self, process: Process, requests: Sequence[Args]) -> None:
        if name := _named(requests):
            self._notice()
            self._visit(process, ("behind", name))

    def resumes(self, process: Process) -> None:
        running = self._processes.recorder.running
        self._look(running_command() if len(running) == 1 else None)
        self.lines.go_on()

    def rests(self, process: Process) -> None:
        self._look(running_command())

    async def watched(self, process: Process, work: Awaitable[Any]) -> Any:
        self.lines.enter()
        try:
            return await super().watched(process, work)
        finally:
            self.lines.leave()

    def _before(self, frame: FrameType) -> None:
        """Receive a line that is about to run, and kill its process if that is planned.

        Raises:
            KilledError: Its process is dead.
        """
        process, code = PROCESS.get(), frame.f_code
        if process is None or self._looking:
            return
        running = running_command()
        self._look(running)
        self._notice()
        self._ran = code, f"{frame.f_globals.get('__name__')}.{code.co_qualname}"
        if code.co_filename not in self.case.files or code in self.case.fakes:
            return
        where = _where(code, frame.f_lineno)
        if not process.dead:
            self._place = where, self._name_of(running)
            self._visit(process, ("before", where), frame)
        if process.dead and self.case.fakes.isdisjoint(_stack(frame)):
            raise KilledError
        self._lines["" if running is None else running.command_id] = where

    def _name_of(self, running: Running | None) -> str:
        """Return the name of a command that runs; of a batch, which runs in no command's context, that of one of its own."""
        notes = [running.name] if running is not None else [note.context.name for note in self._processes.recorder.under_way]
        return notes[0] if notes else ""

    def _look(self, running: Running | None) -> None:
        """Note new effects, as those of the command that runs."""
        if self.case.effects is None:
            return
        mailbox, command_id = (None, "") if running is None else (running.mailbox, running.command_id)
        with self._looks:  # handlers in threads look, too
            for item in self.case.effects()[len(self._effects) :]:
                self._effects.append(Effect(repr(item), mailbox, self._name_of(running), self._lines.get(command_id)))

    def _notice(self) -> None:
        """Find out whether the outside has changed; the function that has done it is a fake, if it is no handler."""
        if self.plan is not None or self._looking:
            return
        self._looking = True
        try:
            probed = self.case.probe()
        except Exception:  # noqa: BLE001 - a state that cannot be read in the middle of a change
            probed = self._probed
        finally:
            self._looking = False
        if probed is None or probed != self._probed:
            if (
                probed is not None
                and self._ran is not None
                and self._probed is not None
                and not self.case.is_of_handler(self._ran[1])
            ):
                self.case.fakes.add(self._ran[0])
            self._has_changed, self._probed = True, probed

    def _visit(self, process: Process, goal: tuple[Any, Any], frame: FrameType | None = None, *, is_new: bool = True) -> None:
        """Note a place, or kill the process if it is the planned one."""
        self._visits[goal] += 1
        how, what = goal
        if self.plan is None:
            codes = _stack(frame)
            if is_new and self._place[1] and len(codes) < sys.getrecursionlimit() - _DEPTH:
                request = "" if frame is not None else what
                self.places.append((Place(how, request, *self._place, nth=self._visits[goal]), codes))
            self._has_changed = False
        elif not self.reached and self.plan.nth == self._visits[goal] and goal == self.plan.goal:
            self.reached = not self.case.fakes.intersection(_stack(frame))
            if self.reached:
                self._kill(process)

    def _kill(self, process: Process) -> None:
        if asyncio._get_running_loop() is process.loop or process.loop is None:  # noqa: SLF001 - as `get_running_loop`, or None in a thread
            process.kill()
        else:
            process.dead = True
            process.loop.call_soon_threadsafe(process.kill)


def _stack(frame: FrameType | None) -> list[CodeType]:
    codes: list[CodeType] = []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return codes


@lru_cache(maxsize=10_000)
def _where(code: CodeType, line: int) -> CodeLine:
    return CodeLine(code.co_filename, line, code.co_qualname, linecache.getline(code.co_filename, line).strip())


def _named(requests: Sequence[Args]) -> str:
    """Return the name of the first request that may change something; whether a worker died before another one or behind it is all the same."""
    for request in requests:
        name = bytes(request[0]).decode()
        if f" {name} " not in _READS:
            return _SCRIPTS.get(request[1], name) if name == "EVALSHA" else name
    return ""


def crash_certificate(
    registry: HandlerRegistry | None,
    scenario: Scenario,
    *,
    effects: Sequence[Any] | Callable[[], Sequence[Any]] | None = None,
    state: Callable[..., Any] | None = None,
    reset: Callable[[], object] | None = None,
    name: str = "",
    bus: CommandBus | None = None,
    workers: int = 1,
    most: int = 500,
    seed: int = 0,
    **options: Unpack[BusOptions],
) -> Verdict:
    """Kill a worker at each place of a scenario, one after the other, and compare what came of it.

    Args:
        registry: The handlers; None for those of `bus`, or those registered with `@handles`.
        scenario: Dispatches commands. It is awaited with a `TestBus`, then everything runs until it is idle.
        effects: The list to which the fakes of the outside append what they have seen, or a function that returns it.
        state: Returns what else is to be the same in the end, in a value that can be compared. It may be a coroutine function, and may take
            the bus.
        reset: Clears fakes and tables before each run. Without it the list `effects` is cleared.
        name: Title in the page.
        bus: The application's own bus, not open yet.
        workers: Number of workers.
        most: Upper limit of places; of more a sample is taken.
        seed: Number that chooses the sample.
        **options: For a bus, if none is given. Its leases last a second by default.

    Raises:
        pytest.UsageError: There is nothing to compare, or two undisturbed runs differ.
        RuntimeError: An event loop runs in this thread.
    """
    if effects is None and state is None:
        raise pytest.UsageError("nothing to compare: give `effects=`, the list to which your fakes append, or `state=`, or both")
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - as `get_running_loop`, which raises
        raise RuntimeError(
            "an event loop runs here: make the test a plain function, `def`; the certificate runs loops of its own"
        )
    began = mono()
    handlers, make = _buses(registry, bus, options)
    read = effects if callable(effects) or effects is None else partial(_same, effects)
    clear = reset or (effects.clear if isinstance(effects, list) else lambda: None)
    case = Case(handlers, scenario, read, state, clear, make, workers)
    verdict = Verdict(name or getattr(scenario, "__qualname__", repr(scenario)))
    _certify(case, verdict, most, seed)
    case.reset()
    verdict.seconds = mono() - began
    return verdict


def _same(effects: Sequence[Any]) -> Sequence[Any]:
    return effects


def _buses(
    registry: HandlerRegistry | None, bus: CommandBus | None, options: BusOptions
) -> tuple[HandlerRegistry, Callable[[], CommandBus]]:
    """Return the handlers, and what makes the bus of a run. Settings are read once."""
    if bus is not None:
        if options:
            raise TypeError("a bus of your own brings its options: give a bus, or options")
        return bus.registry if registry is None else registry, lambda: bus
    if options.get("settings") is None:
        options.setdefault("lease", _LEASE)
    made = CommandBus("redis://in-memory", registry=registry, **options)
    return made.registry, lambda: CommandBus(
        settings=made.settings, registry=made.registry, middleware=made.middleware, lifespan=made.lifespan, cipher=made.cipher
    )


def _certify(case: Case, verdict: Verdict, most: int, seed: int) -> None:
    _, expected = case.run(watches=False)  # debuggers and coverage see this one
    trial, again = case.run()
    if found := list(differences(expected, again)):
        said = "; ".join(f"{kind} {what}" for kind, what, _ in found)
        raise pytest.UsageError(
            f"two undisturbed runs of {verdict.name} differ, so a crash proves nothing: {said}. Is all cleared by `reset=`?"
        )
    places = [place for place, codes in trial.places if case.fakes.isdisjoint(codes)]
    if len(places) > most:
        verdict.places["left"] = len(places) - most
        places = [places[index] for index in sorted(Random(seed).sample(range(len(places)), most))]
    ran = {note.context.name for note in trial.handled}
    for handler in case.registry:
        note = "" if handler.process is None else "runs in a child process: its lines are not looked at"
        verdict.handlers.append(
            HandlerPart(handler.spec.name, handler.name, note if handler.spec.name in ran else "is not run by the scenario")
        )
    findings: dict[tuple[object, ...], Finding] = {}
    for place in places:
        killed, outcome = case.run(place)
        if not killed.reached:
            verdict.places["missed"] += 1
            continue
        verdict.places["requests" if place.request else "lines"] += 1
        for part in verdict.handlers:
            part.places += part.command == place.command
        _compare(case, verdict, findings, place, expected, outcome)


def _compare(
    case: Case, verdict: Verdict, findings: dict[tuple[object, ...], Finding], place: Place, expected: Outcome, outcome: Outcome
) -> None:
    """Note what a kill has changed."""
    promised = {each.command for each in outcome.letters if each.reason == "interrupted" and _is_at_most_once(case, each.command)}
    for kind, what, effect in differences(expected, outcome):
        done = effect if kind == "repeated" else None
        command, where = (place.command, place.where) if done is None else (done.command or place.command, done.where)
        is_promised = bool(promised) and kind != "repeated"
        key = (kind, what, command, is_promised)
        if key in findings:
            findings[key].places += 1
            continue
        finding = findings[key] = Finding(kind, what, command, where, str(place), _mend(case, kind, command, place))
        (verdict.contract if is_promised else verdict.findings).append(finding)


def _is_at_most_once(case: Case, command: str) -> bool:
    handler = case.registry.lookup(command)
    return handler is not None and handler.spec.delivery == "at_most_once"


def _mend(case: Case, kind: Kind, command: str, place: Place) -> str:
    if kind != "repeated":
        return _MENDS[kind]
    if command != place.command:
        return _SENT_TWICE
    handler = case.registry.lookup(command)
    return _IN_STEP if handler is not None and handler.spec.durable else _MENDS[kind]
