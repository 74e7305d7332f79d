"""One stored value is odd: every other entity goes on, all periodic work goes on, every view and every command of the command line answers."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import re
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from redis import Redis

pytest.importorskip("typer")
pytest.importorskip("jinja2")

import httpx

from command_bus import CommandBus
from command_bus.clock import mono
from command_bus.dashboard import User, dashboard, host_check
from command_bus.embedded import EmbeddedServer, find_server_binary
from command_bus.errors import CommandBusError, NewerState, UnknownLimit, UnsuitableServer
from command_bus.transport.redis.connection.outage_log import LoggedBackoff
from command_bus.transport.redis.maintenance import upkeep
from command_bus.webhooks import Webhooks
from tests.tables.live_namespace import NAMESPACE, Live, Put, Sync, leave_work, live_bus
from tests.tables.stored_values import ATTACKS, REFUSES, SOON, TOKEN, Mutation, Snapshot, mutate, name_of, suffers, together

pytestmark = [pytest.mark.server, pytest.mark.timeout(240)]

EACH, QUICK, PARTS, TOGETHER = 50, 4, 400, 5
"""Mutations of a part; parts of `make test`; all parts; mutations of a run: what it finds wrong is found again by one of them alone."""
PATIENCE = 15.0
EVERYTHING = "all attacks at once"


async def all_of(found: Any) -> list[Any]:
    return [each async for each in found]


VIEWS: dict[str, Callable[[CommandBus], Awaitable[Any]]] = {
    "stats": lambda bus: bus.stats(),
    "standing_still": lambda bus: bus.views.standing_still(patience=0.0),
    "find": lambda bus: bus.views.find("t0"),
    "entities": lambda bus: bus.entities.list(limit=1000),
    "types": lambda bus: bus.entities.types(),
    "holds": lambda bus: bus.entities.holds(),
    "unique": lambda bus: bus.entities.unique_keys(),
    "recount": lambda bus: bus.entities.recount(correct=False),
    "limits": lambda bus: bus.limits.list(),
    "limit": lambda bus: bus.limits.list("partner"),
    "limited": lambda bus: bus.limits.waiting(),
    "fairness": lambda bus: bus.fairness.list(),
    "schedules": lambda bus: all_of(bus.schedules.list()),
    "export": lambda bus: all_of(bus.schedules.export()),
    "compare": lambda bus: bus.schedules.compare(bus.registry),
    "letters": lambda bus: all_of(bus.dead_letters.list()),
    "letter_page": lambda bus: bus.dead_letters.page(),
    "letter_count": lambda bus: bus.dead_letters.count(),
    "oldest": lambda bus: bus.dead_letters.oldest(),
    "history": lambda bus: bus.history.search(),
    "events": lambda bus: bus.events.recent("box", "t00x"),
    "watched": lambda bus: bus.events.watched(),
    "audit": lambda bus: bus.audit.page(),
    "trends": lambda bus: bus.trends.list(),
    "workers": lambda bus: bus.fleet.workers(),
    "commands": lambda bus: bus.fleet.commands(),
    "delayed": lambda bus: all_of(bus.commands.delayed()),
    "webhooks": lambda bus: Webhooks(bus).list(),
}


def _entity(kind: str, name: str, bus: CommandBus) -> Awaitable[Any]:
    return bus.entity(kind, name).show()


def _schedule(name: str, bus: CommandBus) -> Awaitable[Any]:
    return bus.schedules.get(name)


def _status(name: str, bus: CommandBus) -> Awaitable[Any]:
    return bus.commands.status(name)


def _record(name: str, bus: CommandBus) -> Awaitable[Any]:
    return bus.commands.record(name)


ONES: dict[str, Callable[[CommandBus], Awaitable[Any]]] = {
    **{
        f"entity {kind}:{name}": partial(_entity, kind, name)
        for kind, name in (
            ("box", "t00x"),
            ("box", "t66x"),
            ("basket", "t15x"),
            ("parked", "t24x"),
            ("store", "t50x"),
            ("box", "t43x"),
        )
    },
    **{f"schedule {name}": partial(_schedule, name) for name in ("t70x", "t72x")},
    **{f"status {name}": partial(_status, name) for name in ("long-t15x", "marked", "kept", "later-t43x")},
    **{f"record {name}": partial(_record, name) for name in ("long-t15x", "kept", "marked")},
    "history kept": lambda bus: bus.history.get("marked"),
    "unique_keys": lambda bus: bus.entity("box", "t62x").unique_keys(),
}
PROGRAM = [
    "stats", "top --once", "entities", "entities --sort age", "entity box:t00x", "entity box:t66x", "entity basket:t15x", "entity parked:t24x",
    "entity store:t50x", "workers", "introspect", "introspect Put", "dlq list", "dlq list --count", "dlq replay --all --dry-run",
    "dlq purge --all --dry-run", "events list", "doctor", "types list", "purge box --dry-run", "purge --all --dry-run", "generate",
    "schedules list", "schedules show t70x", "schedules next t70x", "schedules show t72x", "limits list", "limits list partner", "shares list",
    "webhooks list", "webhooks deliveries hook", "history show marked", "history search", "audit", "delayed list", "command long-t15x",
    "command kept", "command later-t43x", "recount --dry-run", "cancel long-t15x", "signal long-t15x go 1", "pause box", "resume box", "pause --all",
    "resume --all", "drain box", "resume box", "entity box:t66x resume", "entity box:t43x purge --dry-run", "delayed promote later-t43x",
    "schedules pause t72x", "schedules resume t72x", "schedules trigger t72x", "schedules remove t72x --yes", "limits put store --rate 5/s",
    "limits remove store", "limits release store",
    "shares put acme 3", "shares remove acme", "webhooks pause hook", "webhooks resume hook", "webhooks remove hook",
    "events watch box", "events unwatch box", 'send Put {"box":"now-cli"}', 'call Put {"box":"now-cli"} --timeout 5',
    "types forget nothing", "dlq purge --all --yes", "dlq replay --all --yes", "recount", "cancel later-t43x",
]  # fmt: skip
PAGES = [
    "/", "/entities", "/letters", "/schedules", "/limits", "/workers", "/throughput", "/audit", "/history", "/search?q=t0",
    "/entity?name=box:t00x", "/entity?name=basket:t15x", "/entity?name=parked:t24x", "/command?id=long-t15x", "/command?id=marked",
    "/search?q=long-t15x", "/letters?type=failed",
]  # fmt: skip


class Watch(logging.Handler):
    """Notes the failures of periodic work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.failures: list[str] = []
        self.logged: list[str] = []
        self.worked: set[str] = set()
        failed, worked = LoggedBackoff.failed, LoggedBackoff.worked

        def note(backoff: LoggedBackoff, error: Exception, *, unexpected: bool = False) -> float:
            where = traceback.extract_tb(error.__traceback__)
            place = " < ".join(f"{each.filename.rpartition('/')[2]}:{each.lineno}" for each in reversed(where[-5:]))
            if "Connection refused" not in str(error):  # the thread of a worker of another test, whose server is gone
                self.failures.append(f"{backoff._what}: {type(error).__name__}: {str(error)[:300]} ({place})")
            return failed(backoff, error, unexpected=unexpected)

        def noted(backoff: LoggedBackoff) -> None:
            self.worked.add(backoff._what)
            worked(backoff)

        logging.getLogger("command_bus").addHandler(self)
        monkeypatch.setattr(upkeep, "_ROUND", 0.5)  # what it repairs within minutes it repairs at once
        monkeypatch.setattr(LoggedBackoff, "failed", note)
        monkeypatch.setattr(LoggedBackoff, "worked", noted)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR and record.exc_info:
            error = record.exc_info[1]
            where = traceback.extract_tb(error.__traceback__) if error else []
            place = " < ".join(f"{each.filename.rpartition('/')[2]}:{each.lineno}" for each in reversed(list(where)[-4:]))
            self.logged.append(f"log: {record.getMessage()[:200]}: {type(error).__name__}: {str(error)[:200]} ({place})")


class Bench:
    """Mutates a namespace and looks at what becomes of it."""

    watch: Watch

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = Redis.from_url(url)
        self.snapshot = Snapshot(self.client)
        self.expected: set[str] = set()

    def watched(self, watch: Watch) -> Watch:
        self.watch = watch
        return watch

    async def run(self, *numbers: int, attack: str = "") -> tuple[list[Mutation], list[str]]:
        """Put the namespace back, mutate it, run a worker; return what was changed and what is wrong."""
        self.snapshot.restore()
        mutations = [] if attack else [mutate(self.client, self.snapshot, number) for number in numbers]
        if attack:
            for key, act in [ATTACKS[attack]] if attack in ATTACKS else ATTACKS.values():
                act(self.client)
                mutations.append(Mutation(f"{{{NAMESPACE}:0}}:{key}", attack, key.encode() if TOKEN.search(key) else b""))
        self.watch.failures.clear()
        self.watch.logged.clear()
        self.watch.worked.clear()
        faults: list[str] = []
        try:
            async with asyncio.timeout(60):
                await self._look(mutations, numbers, faults)
        except Exception as error:
            if not ("meta" in _names(mutations) and isinstance(error, CommandBusError)):
                faults.append(f"bus: {_told(error)}")
        allowed = bool(_names(mutations).intersection(REFUSES))
        suffering = set[str]().union(*map(suffers, mutations))
        faults += [told for told in self.watch.logged if not any(token in told for token in suffering)]
        faults += [f"periodic: {failure}" for failure in dict.fromkeys(self.watch.failures) if not allowed]
        return mutations, faults

    async def prepared(self) -> None:
        """See what a worker does where nothing is odd."""
        if not self.expected:
            _, faults = await self.run()
            assert not faults

    async def _look(self, mutations: Sequence[Mutation], numbers: Sequence[int], faults: list[str]) -> None:
        live = Live()
        async with live_bus(self.url, live) as bus:
            Webhooks(bus).serve()
            async with bus.worker():
                await self._goes_on(bus, live, mutations, faults)
                await self._answers(bus, mutations, numbers, faults)

    async def _goes_on(self, bus: CommandBus, live: Live, mutations: Sequence[Mutation], faults: list[str]) -> None:
        names = _names(mutations)
        try:
            await bus.dispatch(Put(box="now-2"), delay=0.001)
            await bus.dispatch(Put(box="now-3"), priority="high")
            await bus.dispatch(Sync(store="now-4", partner="zed"))
            await bus.call(Put(box="now-1"), timeout=PATIENCE)
        except CommandBusError as error:
            if not names.intersection(REFUSES):
                faults.append(f"canary: {_told(error)}")
        if not mutations:
            await asyncio.sleep(3)
            self.expected = set(live.done)
            return
        suffering = tuple(set[str]().union(*map(suffers, mutations)))
        wanted = {name for name in self.expected if not name.startswith(suffering)}
        if names.intersection(REFUSES):
            wanted = {name for name in wanted if not name.startswith("now")}
        if "meta" in names:
            wanted = set()
        deadline = mono() + PATIENCE
        while (missing := wanted - live.done) and mono() < deadline:
            await asyncio.sleep(0.01)
        if missing:
            faults.append(f"do not go on: {sorted(missing)}")

    async def _answers(self, bus: CommandBus, mutations: Sequence[Mutation], numbers: Sequence[int], faults: list[str]) -> None:
        allowed = bool(_names(mutations).intersection(REFUSES))
        for name, view in VIEWS.items():
            try:
                await view(bus)
            except Exception as error:
                is_renamed = isinstance(error, UnknownLimit) and "rules" in _names(mutations)
                if not (isinstance(error, NewerState) or is_renamed or (allowed and isinstance(error, CommandBusError))):
                    faults.append(f"view {name}: {_told(error)}")
        for name, view in ONES.items():
            try:
                await view(bus)
            except Exception as error:
                if not isinstance(error, CommandBusError) or (isinstance(error, UnsuitableServer) and not allowed):
                    faults.append(f"view {name}: {_told(error)}")
        is_whole = not mutations or mutations[0].what == EVERYTHING
        lines = PROGRAM if is_whole else [PROGRAM[number % len(PROGRAM)] for number in numbers]
        paths = PAGES if is_whole else [PAGES[number % len(PAGES)] for number in numbers]
        faults += [fault for fault in await pages(bus, paths) if not allowed]
        ends = [(line, await asyncio.to_thread(run_program, self.url, line)) for line in lines]
        faults += [f"program {line}: {fault}" for line, fault in ends if fault]


def _names(mutations: Sequence[Mutation]) -> set[str]:
    return {name_of(mutation.key.encode()) for mutation in mutations}


async def pages(bus: CommandBus, paths: Sequence[str]) -> list[str]:
    """Open pages of the dashboard; return what is wrong with them."""
    app = dashboard(bus, users=host_check(lambda _: User("ada", "admin")), secret="x" * 32)
    found: list[str] = []
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://ops.example", trust_env=False) as client:
        for path in paths:
            try:
                answer = await client.get(path)
            except Exception as error:
                found.append(f"page {path}: {_told(error)}")
                continue
            if answer.status_code >= 500 or "does not expect" in answer.text:
                found.append(f"page {path}: {answer.status_code} {' '.join(re.sub('<[^>]+>', ' ', answer.text).split())[:300]}")
    return found


def run_program(url: str, line: str) -> str:
    """Run a line of the command line in this process; return what is wrong with how it ended."""
    from command_bus.cli import main

    out, err = io.StringIO(), io.StringIO()
    level = logging.getLogger("command_bus").level
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main([*line.split(" "), "--url", url, "--namespace", NAMESPACE])
    except SystemExit as ended:
        told = out.getvalue() + err.getvalue()
        if ended.code not in (0, 1, 2, 3, None) or "does not expect" in told:
            return f"code {ended.code}: {told[-400:]}"
        if ended.code == 2 and "Usage" in told:
            return told[-300:]
    except BaseException as error:
        return _told(error)
    finally:
        logging.getLogger("command_bus").setLevel(level)
    return ""


def _told(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)
    place = " < ".join(f"{each.filename.rpartition('/')[2]}:{each.lineno}" for each in reversed(list(where)[-5:]))
    return f"{type(error).__name__}: {str(error)[:300]} ({place})"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with EmbeddedServer.start(binary=find_server_binary()) as server:
        asyncio.run(leave_work(server.url))
        yield server.url


@pytest.fixture(scope="module")
def bench(url: str) -> Bench:
    return Bench(url)


@pytest.fixture
def watch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Watch:
    return bench.watched(Watch(monkeypatch))


@pytest.mark.parametrize("attack", [pytest.param(name, marks=() if name in SOON else pytest.mark.slow) for name in ATTACKS])
async def test_a_known_attack_harms_nobody(bench: Bench, watch: Watch, attack: str) -> None:
    del watch
    await bench.prepared()
    mutations, faults = await bench.run(len(attack), attack=attack)
    assert not faults, mutations


async def test_every_view_and_command_answers_beside_all_of_them(bench: Bench, watch: Watch) -> None:
    del watch
    await bench.prepared()
    _, faults = await bench.run(0, attack=EVERYTHING)
    assert not faults


@pytest.mark.parametrize("part", [pytest.param(part, marks=() if part < QUICK else pytest.mark.slow) for part in range(PARTS)])
async def test_189_one_odd_value_harms_only_what_it_concerns(bench: Bench, watch: Watch, part: int) -> None:
    del watch
    await bench.prepared()
    wrong: list[str] = []
    for numbers in together(bench.snapshot, range(part * EACH, (part + 1) * EACH), TOGETHER):
        mutations, faults = await bench.run(*numbers)
        alone = [await bench.run(number) for number in numbers] if faults and len(numbers) > 1 else []
        told = [each for each in alone if each[1]] or [(mutations, faults)]
        wrong += [f"{numbers} {changed}: {fault}" for changed, found in told for fault in found]
    assert not wrong, "\n".join(wrong)
