"""The bench of the table *ends × states*: a namespace with one command, brought into a state, ended, and looked over key by key.

A state is a function `into_<state>` here, an end one `to_<end>`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from types import GenericAlias
from typing import Any, ClassVar

from pydantic import field_validator

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    DurableContext,
    EntityId,
    GiveUp,
    HandlerRegistry,
    History,
    Limit,
    Reject,
    RetryPolicy,
    Snooze,
    Unique,
    every,
)
from command_bus.errors import CommandOutcomeError
from command_bus.transport.redis.maintenance.upkeep import LetterLimits, LetterPruning
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.test_dispatches import outcomes
from tests.tables.ends import ENDS, RUNNING, UNREAD, Cell
from tests.tables.ends_left import left_of, tick_left_out
from tests.tables.loaded import load

__all__ = ["Bench"]

ID, KEY = "subject", Unique("k")
LATE = 0.5
"""Seconds until a deadline."""
LEAST, TOLD = 6, ("completed", "rejected", "expired", "dead_lettered", "cancelled", "superseded", "discarded")


class Around(Command[int], entity="task"):
    """Stands before the subject in its entity."""

    task: EntityId


class Holder(Command[int], entity="desk", limits=(Limit("desk"),)):
    """Has the only place of the limit."""

    desk: EntityId


class Parent(Command[str], entity="parent", durable=True):
    parent: EntityId


class Reserve(Command[int], entity="stock"):
    stock: EntityId


class Release(Command[None], entity="stock2"):
    stock: EntityId


class Bench:
    """A namespace with one subject, and what its handlers do."""

    def __init__(self, sandbox: Sandbox, cell: Cell) -> None:
        self.cell = cell
        self.namespace = f"{sandbox.namespace}-{cell.end}-{cell.state}-{cell.origin}"
        self.sandbox, self.registry = sandbox, HandlerRegistry()
        self.script: list[str] = []
        self.invalid, self.idle = False, True
        self.gates: dict[str, asyncio.Event] = {
            name: asyncio.Event() for name in ("around", "holder", "subject", "release", "signal")
        }
        self.thread_gate = threading.Event()
        self.seen: list[str] = []
        self.functions: dict[Any, Any] = {}
        self.told: asyncio.Task[Any] | None = None
        self.fired = ""
        self.stack, self.working = AsyncExitStack(), AsyncExitStack()
        self.later = 0.2 if cell.end in ("completed", "rejected", "failed", "given_up", "invalid") else 2.0
        self.subject = self.declared()
        self.message = self.subject(task="t")
        self.handlers()
        self.bus = self.bus_of()

    def bus_of(self, **more: Any) -> CommandBus:
        limits, known = (Limit("desk", concurrency=1),), {"namespace": self.namespace, "registry": self.registry}
        return self.sandbox.bus(**known, limits=limits, grace=0.2, unknown_grace=0, **more)

    def declared(self) -> Any:
        """Return the subject's class: it holds what a command can hold in this state."""
        cell, bench = self.cell, self
        keywords: dict[str, Any] = {
            "entity": "task",
            "retry": RetryPolicy(attempts=2, delay=self.later, jitter=0),
            "limits": (Limit("desk"),),
        }
        if cell.state not in ("lone", "suspended", "compensating") and cell.origin != "child":
            keywords |= {"unique": KEY}
        if cell.origin != "load":
            keywords |= {"history": History("1 day")}
        if cell.state in ("suspended", "compensating"):
            keywords |= {"durable": True}
        if cell.end in ("interrupted", "aborted"):
            keywords |= {"delivery": "at_most_once"}
        if cell.state == "parked":
            keywords |= {"on_poison": "park", "retry": RetryPolicy(attempts=1)}
        if cell.state == "line":
            keywords |= {"priority": "low"}

        class Subject(Command[int], **keywords):
            task: EntityId
            fields: ClassVar[Any] = None

            @field_validator("task")
            @classmethod
            def readable(cls, value: Any) -> Any:
                if bench.invalid:
                    raise ValueError("it cannot be read any more")
                return value

        return Subject

    def act(self) -> int:
        """End an attempt as the script says."""
        what = self.script.pop(0) if self.script else "return"
        if what == "reject":
            raise Reject("as asked")
        if what == "give up":
            raise GiveUp("as asked")
        if what == "fail":
            raise RuntimeError("as asked")
        if what == "snooze":
            raise Snooze(self.later)
        return 7

    def handlers(self) -> None:  # noqa: C901 - a handler of each class
        handles = self.registry.handles
        subject, durable = self.subject, self.cell.state in ("suspended", "compensating")

        async def gated(name: str) -> int:
            self.seen.append(name)
            await self.gates[name].wait()
            return 1

        async def plain(command: Any, context: CommandContext) -> int:
            self.seen.append("subject")
            if self.cell.state == "running":
                await self.gates["subject"].wait()
            return self.act()

        def in_thread(command: Any, context: CommandContext) -> int:
            self.seen.append("subject")
            while not self.thread_gate.wait(0.01) and not context.cancelled:
                pass
            return self.act()

        async def many(commands: Any) -> list[Any]:
            self.seen.append("subject")
            await self.gates["subject"].wait()
            try:
                return [self.act() for _ in commands]
            except Exception as error:
                if self.cell.state == "run":  # a call that fails, beside an outcome that is an error
                    raise
                return [error] * len(commands)

        async def long(command: Any, context: DurableContext) -> int:
            await context.call(Reserve(stock="s"), undo=Release(stock="s"))
            await context.step("count", len, "abc")
            self.seen.append("step")
            if self.cell.state == "suspended":
                await context.signal("go")
            return self.act()

        async def parent(command: Parent, context: DurableContext) -> str:
            try:
                return f"returned {await context.call(self.message)}"
            except CommandOutcomeError as error:
                return type(error).__name__

        async def around(command: Around) -> int:
            return await gated("around")

        async def holder(command: Holder) -> int:
            return await gated("holder")

        async def reserve(command: Reserve) -> int:
            return 1

        async def release(command: Release) -> None:
            await gated("release")

        handler: Any = long if durable else in_thread if self.cell.state == "thread" else plain
        handler.__annotations__["command"] = subject
        many.__annotations__["commands"] = GenericAlias(Sequence, (subject,))
        if self.cell.state in ("batch", "run"):
            self.registry.handles_many(subject, of="entity" if self.cell.state == "run" else None)(many)
        else:
            handles(subject)(handler)
        for kind, function in ((Parent, parent), (Around, around), (Holder, holder), (Reserve, reserve)):
            self.functions[kind] = handles(kind)(function)
        self.functions[Release] = handles(Release)(release)
        if self.cell.state != "compensating":
            self.gates["release"].set()

    # States.

    async def send(self, **options: Any) -> None:
        """Send the subject as its origin does, and let somebody wait for what comes of it."""
        command, origin = self.message, self.cell.origin
        expires: dict[str, Any] = {"expires": LATE} if self.cell.end == "expired" else {}
        if origin == "call":
            self.told = asyncio.ensure_future(self.bus.call(command, command_id=ID, timeout=LATE if expires else 60))
        elif origin == "child":
            self.told = asyncio.ensure_future(self.bus.call(Parent(parent="p"), timeout=60))
        elif origin == "load":
            await load(self.bus, ID, command)
        elif origin == "schedule":
            await self.bus.schedules.put("s", command, every(1_000_000), overlap="skip", **expires)
            self.fired = await self.bus.schedules.trigger("s")
            await self.bus.schedules.firing.fire_due(["s"])
        else:
            receipt = await self.bus.dispatch(command, command_id=ID, **expires, **options)
            self.told = asyncio.ensure_future(receipt.result(timeout=60))
        await until(self.is_accepted)

    async def is_accepted(self) -> bool:
        return any(kind == "accepted" for kind, _ in await self.events())

    async def events(self) -> list[tuple[str, str]]:
        page = await self.bus.events.recent("task", "t", limit=1000)
        return [(each.kind, each.name) for each in page.events if each.name in (self.subject.__name__, "")]  # forged: without

    async def work(self, bus: CommandBus | None = None, **options: Any) -> None:
        self.idle = False
        await self.working.enter_async_context((bus or self.bus).worker(**options))

    async def state_is(self, state: str) -> bool:
        return (await self.bus.entity("task", "t").show()).entity.state == state

    async def into_waiting(self) -> None:
        await self.work()
        await self.bus.dispatch(Around(task="t"))
        await until(lambda: "around" in self.seen)
        await self.send()

    async def into_paused(self) -> None:
        await self.bus.entity("task", "t").pause()
        await self.work()
        await self.send()

    async def into_lone(self) -> None:
        await self.send()

    async def into_line(self) -> None:
        client = self.sandbox.clients.at(f"{{{self.namespace}:0}}:").commands()
        await client.hset(f"{{{self.namespace}:0}}:flows", mapping={"c0": "0", "most": "1"})
        await client.aclose()
        self.gates["holder"].set()
        await self.bus.dispatch(Reserve(stock="first"))
        await self.send()

    async def into_delayed(self) -> None:
        if self.cell.end != "expired":
            await self.work()
        await self.send(delay=0.2 if self.cell.end == "expired" else 60)

    async def into_limited(self) -> None:
        await self.work()
        await self.bus.dispatch(Holder(desk="d"))
        await until(lambda: "holder" in self.seen)
        await self.send()
        await until(lambda: self.state_is("limited"))

    async def started(self, state: str) -> None:
        await self.work()
        await self.send()
        await until(lambda: self.state_is(state))

    async def into_running(self) -> None:
        await self.started("running")
        await until(lambda: "subject" in self.seen)

    into_thread = into_batch = into_run = into_running

    async def into_retrying(self) -> None:
        self.script = ["fail"]
        await self.started("retrying")

    async def into_snoozed(self) -> None:
        self.script = ["snooze"]
        await self.started("snoozed")

    async def into_suspended(self) -> None:
        await self.started("suspended")
        await until(lambda: "step" in self.seen)
        await until(lambda: self.state_is("suspended"))

    async def into_compensating(self) -> None:
        self.script = ["give up"]
        await self.work()
        await self.send()
        await until(lambda: "release" in self.seen)

    async def into_parked(self) -> None:
        self.script = ["fail"]
        await self.started("parked")

    # Ends.

    async def go(self) -> None:
        """Let go of what holds the subject where it is."""
        for name in ("around", "holder", "subject", "release"):
            self.gates[name].set()
        self.thread_gate.set()
        state = self.cell.state
        if state == "paused":
            await self.bus.entity("task", "t").resume()
        elif self.idle:
            await self.work()
        elif state == "delayed":
            await self.bus.commands.reschedule(ID, delay=0)
        elif state == "suspended":
            await self.bus.commands.signal(await self.id(), "go")

    async def id(self) -> str:
        if self.cell.origin != "child":
            return self.fired or ID
        found = await self.bus.entity("task", "t").show(waiting=5)
        return next(
            each.command_id for each in (found.head, *found.waiting) if each is not None and each.name == self.subject.__name__
        )

    async def ran(self, *script: str) -> None:
        self.script = list(script)
        await self.go()

    async def to_completed(self) -> None:
        await self.ran("return")

    async def to_rejected(self) -> None:
        await self.ran("reject")

    async def to_failed(self) -> None:
        await self.ran("fail", "fail")

    async def to_given_up(self) -> None:
        await self.ran("give up")

    async def to_interrupted(self) -> None:
        await self.working.aclose()
        self.thread_gate.set()
        self.working = AsyncExitStack()
        await self.work()

    async def to_expired(self) -> None:
        await asyncio.sleep(LATE + 0.3)
        await self.go()

    async def elsewhere(self, worker: Any) -> None:
        """Let another worker have the subject."""
        entity = self.bus.entity("task", "t")
        await entity.pause()
        for name in ("around", "holder"):
            self.gates[name].set()
        others = 1 + (self.cell.origin == "child")
        if self.cell.state not in ("lone", "line"):
            await until(lambda: self.depth_is(others))
        await self.working.aclose()
        self.working = AsyncExitStack()
        await worker()
        await entity.resume()
        await self.go()

    async def depth_is(self, depth: int) -> bool:
        return (await self.bus.stats()).depth == depth

    async def to_unhandled(self) -> None:
        registry = HandlerRegistry()
        for kind in (Parent, Around, Holder, Reserve, Release):
            registry.handles(kind)(self.functions[kind])
        await self.elsewhere(lambda: self.work(registry=registry))

    async def to_invalid(self) -> None:
        self.invalid = True
        await self.go()

    async def to_forged(self) -> None:
        signed = await self.stack.enter_async_context(self.bus_of(signing_keys=["a:" + "b" * 32], require_signatures=True))
        await self.elsewhere(lambda: self.work(signed))

    async def to_cancelled(self) -> None:
        assert await self.bus.cancel(await self.id(), running=self.cell.state in (*RUNNING, "suspended"))
        if self.cell.state != "suspended":
            await self.go()

    async def to_aborted(self) -> None:
        await self.bus.entity("task", "t").abort("as asked")
        await self.go()

    async def to_purged(self) -> None:
        assert await self.bus.entity("task", "t").purge() >= 1
        await self.go()

    async def to_superseded(self) -> None:
        await self.bus.dispatch(Around(task="t"), unique=Unique("k", wins="latest"))
        await self.go()

    async def letter(self) -> str:
        if self.cell.state == "retrying":
            self.script = ["fail"]
        await until(self.has_letter)
        return next(iter([each.id async for each in self.bus.dead_letters.list()]))

    async def has_letter(self) -> bool:
        return (await self.bus.dead_letters.count()).total() > 0

    async def to_discarded(self) -> None:
        await self.bus.dead_letters.discard(await self.letter())

    async def to_replayed(self) -> None:
        await self.bus.dead_letters.replay(await self.letter())

    async def to_pruned(self) -> None:
        await self.letter()
        await asyncio.sleep(0.05)
        transport: Any = self.bus.transport
        await LetterPruning(transport.connections, transport.keys.shards[0], LetterLimits(ttl_ms=1)).page()

    async def to_obliterated(self) -> None:
        for gate in self.gates.values():
            gate.set()
        self.thread_gate.set()
        await self.working.aclose()
        await self.bus.entities.obliterate(confirm=self.namespace, force=True)

    # What is left.

    async def run(self) -> list[str]:
        """Carry the cell out; return what is wrong."""
        async with self.stack:
            await self.stack.enter_async_context(self.bus)
            await self.bus.events.watch("task", kept=1000)
            try:
                await getattr(self, f"into_{self.cell.state}")()
                await getattr(self, f"to_{self.cell.end}")()
                if self.cell.end == "obliterated":
                    return await left_of(self)
                with suppress(AssertionError):
                    await until(lambda: self.depth_is(0), LEAST)
                faults = await self.waiters()
                self.keys = (await self.bus.entity("task", "t").unique_keys()).keys
            finally:
                if self.told is not None:
                    self.told.cancel()
                for gate in self.gates.values():
                    gate.set()
                self.thread_gate.set()
                await self.working.aclose()
            return faults + await left_of(self)

    async def waiters(self) -> list[str]:
        """Return who was not told, or told twice."""
        faults = []
        if self.told is not None:
            done, _ = await asyncio.wait([self.told], timeout=LEAST)
            if not done:
                faults.append("who waits for its reply waits still")
        kinds = Counter(kind for kind, _ in await self.events() if kind in TOLD)
        ends = ENDS[self.cell.end].split("|")
        if sum(kinds[each] for each in ends) != 1 or (
            self.cell.state != "parked" and self.cell.end not in ("replayed", "discarded", "pruned") and kinds.total() != 1
        ):
            faults.append(f"events tell {dict(kinds)}, not one of {ends}")
        if self.cell.origin == "load":
            if not await outcomes(self.bus, "load"):
                faults.append("its dispatch has no outcome")
        elif self.cell.origin != "child" and self.cell.end not in UNREAD and await self.bus.history.get(await self.id()) is None:
            faults.append("the history has no entry")
        if self.cell.origin == "schedule":
            faults += await tick_left_out(self.bus)
        return faults
