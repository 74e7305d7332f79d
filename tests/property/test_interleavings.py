"""Random interleavings of all steps of one shard, over a server in this process.

In any order, with any request or reply lost, the promises hold after every step, and at the end everything can be drained.

Producers send batches (repeated ids, delays, more than fits). Workers read, start, settle, let go, fall silent, wake up too late and
meet activations that they lost. Others take over. An operator pauses, purges, cancels, replays and discards. Nothing sleeps: a crash
is a lease that no worker uses any more, and its end is a takeover at any moment. The oracle is `ledger.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from command_bus.transport.redis.connection.outage_log import Backoff
from command_bus.transport.redis.keys import GROUP, delayed_id
from command_bus.transport.redis.memory import MemoryClients
from command_bus.transport.redis.ready_stream import ensure_ready
from command_bus.transport.steps import (
    Answer,
    DeadLetterStep,
    Done,
    GiveBack,
    Lease,
    LeaseLost,
    Park,
    Released,
    Retry,
    Started,
    Step,
    Take,
)
from command_bus.transport.submissions import NO_DIGEST, Admission, Submission
from tests.conformance.harness import TAKE, ManualWorker, TransportHarness, bury, done, left, park, removal
from tests.property.ledger import DEEP, Ledger, Line, max_depth
from tests.property.lossy_connections import FATES, LossyConnections
from tests.selection import quick

pytestmark = pytest.mark.timeout(300)

BOXES = ("box:a", "box:b", "box:c")
WORKERS = ("w0", "w1", "w2")

VERBS = ("done", "done", "done", "bury", "park", "retry", "retry free", "back", "back free", "take")
FOLLOWS = ("stay", "stay", "yield", "leave")
DECISIONS = ("back", "back", "bury", "park")

boxes = st.sampled_from(BOXES)
worker_names = st.sampled_from(WORKERS)
fates = st.lists(st.sampled_from(FATES), max_size=4)
batches = st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0, 0, 0, 1])), min_size=1, max_size=8)
moves = st.lists(
    st.tuples(st.sampled_from([True, True, True, False]), st.integers(0, 5), st.sampled_from(VERBS), st.sampled_from(FOLLOWS)),
    min_size=1,
    max_size=4,
)
decisions = st.sampled_from(DECISIONS)


def step_of(verb: str, command: str, follow: Any) -> Step:
    match verb:
        case "take":
            return TAKE
        case "done":
            return done(command, follow)
        case "bury":
            return bury(command, follow)
        case "park":
            return park(command)
        case "retry" | "retry free":
            return Retry(0, counts=verb == "retry")
        case _:
            return GiveBack(counts=verb == "back")


class Interleavings(RuleBasedStateMachine):
    """One shard, three mailboxes, three workers."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.instantly = patch.object(Backoff, "next", lambda _: 0.0)
        self.instantly.start()
        self.ledger = Ledger()
        self.leases: list[tuple[ManualWorker, Lease]] = []
        self.letters: dict[str, tuple[str, bool]] = {}

    def run(self, work: Any, fates: list[str] | None = None) -> Any:
        """Do something; `fates` are those of its requests, the last first."""
        if fates is not None:
            self.connections.fates = list(fates)
        try:
            return self.runner.run(work)
        finally:
            if fates is not None:
                self.connections.fates = []

    @initialize()
    def open(self) -> None:
        async def opened() -> None:
            self.connections = LossyConnections(MemoryClients())
            self.harness = TransportHarness(self.connections.factory, "p", self.connections)
            await ensure_ready(self.connections, self.harness.shard)
            self.workers = {name: self.harness.worker(name) for name in WORKERS}
            for worker in self.workers.values():
                worker.batches._reads_ahead = lambda mailbox: mailbox == DEEP

        self.run(opened())
        self.enqueue([(number, 0) for number in range(9)], [])

    # Producers.

    @rule(batch=batches, fates=fates)
    def enqueue(self, batch: list[tuple[int, int]], fates: list[str]) -> None:
        # An id belongs to one mailbox, as in applications, where an id belongs to a command of one entity.
        named = [(BOXES[number % 3], f"c{number}", bool(delay)) for number, delay in batch]
        submissions = [
            Submission(box, command, command.encode(), NO_DIGEST, max_depth(box), int(delayed)) for box, command, delayed in named
        ]
        answers: list[Admission] = self.run(self.harness.producer.enqueue_many(submissions, 60), fates)
        assert "".join(answer.value for answer in answers) == self.ledger.expected_admissions(named)

    @rule()
    def promote(self) -> None:
        async def promoted() -> list[str]:
            client, shard = self.harness.client, self.harness.shard
            before: Any = await client.zrange(shard.due, 0, -1)
            await self.harness.promote(self.workers["w0"])
            await self.harness.promote(self.workers["w1"])
            return [
                delayed_id(member.decode())
                for member in before
                if member[:2] == b"d:" and not await client.hexists(shard.delayed, delayed_id(member.decode()))
            ]  # type: ignore[misc]

        for command in self.run(promoted()):
            if command in self.ledger.lines[self.ledger.home[command]].delayed:
                self.ledger.promoted(command)

    # Workers.

    @rule(name=worker_names, count=st.integers(1, 3), take=st.booleans(), fates=fates)
    def read(self, name: str, count: int, take: bool, fates: list[str]) -> None:
        worker = self.workers[name]
        found = [(worker, lease) for lease in self.run(worker.read(count))]
        self.leases += found
        if take:
            self.take(found, fates)

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 40))
    def lose_sight(self, which: int) -> None:
        """Let a worker read an activation again that it holds or held, and try to start it under another lease."""
        worker, lease = self.choose(which, alive=which % 3 > 0)
        again = (worker, worker.lease(lease.mailbox, lease.activation))
        self.leases.append(again)
        self.take([again], [])

    @precondition(lambda self: self.leases)
    @rule(moves=moves, fates=fates)
    def advance(self, moves: list[tuple[bool, int, str, str]], fates: list[str]) -> None:
        """Let some leases take a step each: those that hold something, or any that there ever were."""
        chosen: dict[str, tuple[ManualWorker, Lease, Step]] = {}
        for alive, which, verb, follow in moves:
            worker, lease = self.choose(which, alive=alive)
            line = self.ledger.line(lease.mailbox)
            command = line.waiting[0] if line.held is lease else "nobody's"
            chosen.setdefault(lease.mailbox, (worker, lease, step_of(verb, command, follow)))
        self.do(list(chosen.values()), fates)

    def choose(self, which: int, *, alive: bool) -> tuple[ManualWorker, Lease]:
        """Return one of the leases that hold something, if `alive` and there are any; else one of all leases ever."""
        pool = [item for item in self.leases if self.ledger.line(item[1].mailbox).held is item[1]] if alive else []
        pool = pool or self.leases
        return pool[-1 - which % len(pool)]

    def take(self, found: list[tuple[ManualWorker, Lease]], fates: list[str]) -> None:
        self.do([(worker, lease, TAKE) for worker, lease in found], fates)

    def do(self, steps: list[tuple[ManualWorker, Lease, Step]], fates: list[str]) -> None:
        """Send a step for each of some mailboxes; those of one worker together, those of several in any order."""

        async def answered() -> list[Answer]:
            return list(await asyncio.gather(*(worker.do(lease, step) for worker, lease, step in steps)))

        lost = "reply lost" in fates
        answers: list[Answer] = self.run(answered(), fates)
        order = sorted(range(len(steps)), key=lambda at: int(answers[at].fence) if isinstance(answers[at], Started) else 0)
        for at in order:
            self.enter(steps[at][1], steps[at][2], answers[at], lost=lost)

    def enter(self, lease: Lease, step: Step, answer: Answer, *, lost: bool) -> None:
        """Note what a step did, if it was allowed to do it."""
        line = self.ledger.line(lease.mailbox)
        if line.held is not lease:
            assert isinstance(answer, LeaseLost | Released) or isinstance(step, Take), f"{answer} for who holds nothing"
            if isinstance(answer, Released):
                assert isinstance(step, Take | GiveBack), "what was delivered is taken or given back"
            if isinstance(answer, Started):
                self.ledger.has_started(lease, answer)
            return
        if isinstance(step, Take):
            assert isinstance(answer, Started)
            assert line.started is not None
            assert (answer.fence, answer.message, answer.attempt) == (line.started.fence, line.started.message, line.attempts)
            return
        self.settle(line, step)
        if isinstance(answer, Started):
            self.ledger.has_started(lease, answer)
        else:
            assert isinstance(answer, Released) or lost, "its own lease is said to be gone"

    def settle(self, line: Line, step: Step) -> None:
        command = line.waiting[0]
        match step:
            case Done():
                self.ledger.end(command, "done")
            case DeadLetterStep():
                self.ledger.buried(command)
            case Park():
                line.parked = True
                line.let_go(counts=True)
            case Retry(_, counts) | GiveBack(counts):
                line.let_go(counts=counts)
        if isinstance(step, DeadLetterStep | Park):
            self.find_letters()

    def find_letters(self) -> None:
        async def listed() -> list[Any]:
            return [letter async for letter in self.harness.dead_letters.all()]

        self.letters = {letter.id: (letter.raw.decode(), letter.parked) for letter in self.run(listed())}

    @rule(name=worker_names, which=st.integers(0, 10), decision=decisions, fates=fates)
    def take_over(self, name: str, which: int, decision: str, fates: list[str]) -> None:
        """End the lease of some activation, delivered or running: another worker settles it."""
        worker = self.workers[name]

        async def pending() -> list[tuple[str, str]]:
            client, shard = self.harness.client, self.harness.shard
            found: Any = await client.xpending_range(shard.ready, GROUP, min="-", max="+", count=100)
            entries = dict(await client.xrange(shard.ready))
            return [(item["message_id"].decode(), entries[item["message_id"]][b"e"].decode()) for item in found]

        waiting = self.run(pending())
        if not waiting:
            return
        activation, mailbox = waiting[which % len(waiting)]
        line = self.ledger.line(mailbox)
        was_held = line.held is not None
        command = line.waiting[0] if was_held else ""
        step = {"back": GiveBack(counts=True), "bury": bury(command, "leave"), "park": park(command)}[decision]

        async def taken_over() -> None:
            await worker.claim(activation)
            await self.harness.recovery(worker, step).settle(0, [(activation, mailbox)])

        self.run(taken_over(), fates)
        if was_held:
            self.settle(line, step)

    # Operators.

    @rule(box=boxes)
    def pause(self, box: str) -> None:
        line = self.ledger.line(box)
        assert self.run(self.harness.scopes.pause(box, "")) is not line.paused
        line.paused = True

    @rule(box=boxes)
    def resume(self, box: str) -> None:
        line = self.ledger.line(box)
        assert self.run(self.harness.scopes.resume(box)) is line.paused
        line.paused = False

    @rule(box=boxes, some=st.booleans(), which=st.integers(0, 5))
    def purge(self, box: str, some: bool, which: int) -> None:
        """Take all commands that wait out of line, or one."""
        line = self.ledger.line(box)

        async def removed() -> int:
            pages = [page async for page in self.harness.mailboxes.waiting(box)]
            commands = [command for page in pages for command in page]
            if some:
                commands = commands[which : which + 1]
            chosen.extend(command.envelope.decode() for command in commands)
            return await self.harness.mailboxes.remove(
                box, [removal(command, left(command.envelope.decode())) for command in commands]
            )

        chosen: list[str] = []
        count = self.run(removed())
        running = line.waiting[0] if line.held is not None else None
        gone = [command for command in chosen if command != running]
        assert count == len(gone)
        if not some:
            assert sorted(gone) == sorted(command for command in line.waiting + line.delayed if command != running)
        for command in gone:
            self.ledger.end(command, "purged")
        self.find_letters()

    @precondition(lambda self: self.letters)
    @rule(which=st.integers(0, 10), verb=st.sampled_from(["replay", "discard"]))
    def decide_letter(self, which: int, verb: str) -> None:
        letter_id = sorted(self.letters)[which % len(self.letters)]
        command, parked = self.letters[letter_id]

        async def decided() -> bool:
            stored = await self.harness.dead_letters.get(letter_id)
            assert stored is not None
            again = await self.harness.dead_letters.settle(stored, verb, left(command))
            assert not await self.harness.dead_letters.settle(stored, verb, left(command))
            return again

        assert self.run(decided())
        line = self.ledger.lines[self.ledger.home[command]]
        if parked and verb == "replay":
            line.parked, line.attempts = False, 0
        elif parked:
            self.ledger.end(command, "purged")
        elif verb == "replay":
            self.ledger.replayed(command)
        del self.letters[letter_id]

    # What holds after every step.

    @invariant()
    def the_server_agrees(self) -> None:
        if hasattr(self, "harness"):
            self.run(self.check())

    async def check(self) -> None:
        client, shard = self.harness.client, self.harness.shard
        active: Any = {name.decode(): value.decode().split("|") for name, value in (await client.hgetall(shard.active)).items()}  # type: ignore[misc]
        mailboxes = {key.decode().removeprefix(shard.mailboxes) async for key in client.scan_iter(f"{shard.mailboxes}*")}
        lined_up = {name for name, (state, *_) in active.items() if state not in "oO"}
        assert mailboxes == lined_up, "a mailbox exists if and only if its record does, unless its only command is alone"
        lone: Any = {name.decode(): value for name, value in (await client.hgetall(shard.lone)).items()}  # type: ignore[misc]
        assert set(active) - lined_up <= set(lone) <= set(active)
        activations: dict[str, str] = {}
        ready: Any = await client.xrange(shard.ready)
        for entry, fields in ready:
            if b"e" in fields:
                name = fields[b"e"].decode()
                assert name not in activations, f"{name} has two activations"
                activations[name] = entry.decode()
        oldest = {}
        for name, (state, activation, fence, message, attempts, _, holder, *_parts) in active.items():
            oldest[name] = message if state in "hHO" else "-"
            line = self.ledger.line(name)
            assert activations.pop(name, "") == activation, f"the activation of {name} is not its record's"
            assert bool(activation) == (state in "rhHoO")
            assert (state in "hHO") == (line.held is not None)
            assert int(attempts) == line.attempts
            if line.held is not None:
                assert (fence, holder) == (line.held.attempt_id.partition("|")[0], line.held.holder)
        assert not activations, "activations of nobody"
        for name in BOXES:
            entries: Any = await client.xrange(shard.mailbox(name), min=oldest.get(name, "-"))  # before it are settled ones
            envelopes = [fields[b"e"] if b"e" in fields else lone[name] for _, fields in entries]
            alone = [] if name in lined_up or name not in active else [lone[name]]
            assert [envelope.decode() for envelope in (*alone, *envelopes)] == self.ledger.line(name).waiting
            assert await self.harness.mailboxes.depth(name) == self.ledger.line(name).depth
        counters = await self.harness.counters()
        assert counters.get("depth", 0) == self.ledger.depth
        assert counters.get("accepted", 0) == len(self.ledger.outcomes)

    # The end.

    def teardown(self) -> None:
        try:
            if hasattr(self, "harness"):
                self.drain()
                self.run(self.nothing_is_left())
        finally:
            self.close()

    def close(self) -> None:
        if hasattr(self, "harness"):
            self.run(self.connections.close())
        self.instantly.stop()
        self.runner.close()

    def drain(self) -> None:
        """Whatever was done before, this must bring everything to its end."""
        for box in BOXES:
            self.resume(box)
        for _ in range(200):
            for letter in list(self.letters):
                self.decide_letter(sorted(self.letters).index(letter), "discard")
            for _ in range(len(BOXES)):
                self.take_over("w0", 0, "back", [])
            self.promote()
            self.leases.clear()
            self.read("w1", 10, False, [])
            for worker, lease in self.leases:
                answer = self.run(worker.do(lease, TAKE))
                self.enter(lease, TAKE, answer, lost=False)
                while isinstance(answer, Started):
                    step = done(self.ledger.line(lease.mailbox).waiting[0])
                    answer = self.run(worker.do(lease, step))
                    self.enter(lease, step, answer, lost=False)
            if not self.ledger.depth:
                return
        raise AssertionError(f"it cannot be drained: {self.ledger.lines}")

    async def nothing_is_left(self) -> None:
        assert all(outcome is not None for outcome in self.ledger.outcomes.values())
        await self.check()
        standing = {"ready", "fence", "stats", "dead"}
        found = {key.decode().partition("}:")[2] async for key in self.harness.client.scan_iter("{p:*")}
        assert {name for name in found if not name.startswith(("k:", "p:"))} <= standing
        for command in self.ledger.outcomes:
            mark = await self.harness.client.get(self.harness.shard.mark(command))
            assert mark is not None
            assert mark[:1] == b"d"
            assert await self.harness.client.pttl(self.harness.shard.mark(command)) > 0
        pending = await self.harness.client.xpending(self.harness.shard.ready, GROUP)
        assert pending["pending"] == 0


class Chance:
    """Draws what a rule needs, from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = 9

    def fates(self) -> list[str]:
        return self._random.choices(FATES, weights=[12, 1, 2, 1], k=4)

    def step(self, machine: Interleavings) -> tuple[str, dict[str, Any]]:
        """Return a rule that can run now, with its arguments."""
        pick, number = self._random.choice, self._random.randrange
        choices: dict[str, tuple[int, Callable[[], dict[str, Any]]]] = {
            "enqueue": (3, lambda: {"batch": [self._command() for _ in range(number(1, 7))], "fates": self.fates()}),
            "promote": (3, dict),
            "read": (6, lambda: {"name": pick(WORKERS), "count": number(1, 4), "take": number(5) > 0, "fates": self.fates()}),
            "advance": (12, lambda: {"moves": [self._move() for _ in range(number(1, 4))], "fates": self.fates()}),
            "lose_sight": (1, lambda: {"which": number(40)}),
            "take_over": (
                2,
                lambda: {"name": pick(WORKERS), "which": number(10), "decision": pick(DECISIONS), "fates": self.fates()},
            ),
            "pause": (1, lambda: {"box": pick(BOXES)}),
            "resume": (2, lambda: {"box": pick(BOXES)}),
            "purge": (1, lambda: {"box": pick(BOXES), "some": number(4) > 0, "which": number(5)}),
            "decide_letter": (2, lambda: {"which": number(10), "verb": pick(["replay", "discard"])}),
        }
        if not machine.leases:
            del choices["advance"], choices["lose_sight"]
        if not machine.letters:
            del choices["decide_letter"]
        name = self._random.choices(list(choices), weights=[weight for weight, _ in choices.values()])[0]
        return name, choices[name][1]()

    def _command(self) -> tuple[int, int]:
        """Mostly new, sometimes one that was sent before."""
        self._number += 1
        number = self._number if self._random.random() < 0.8 else self._random.randrange(self._number)
        return number, int(self._random.random() < 0.25)

    def _move(self) -> tuple[bool, int, str, str]:
        alive = self._random.random() < 0.8
        return alive, self._random.randrange(6), self._random.choice(VERBS), self._random.choice(FOLLOWS)


@pytest.mark.promise("Order per entity")
@pytest.mark.parametrize("seed", quick(range(16), range(3)))
def test_long_histories(seed: int) -> None:
    """Deeper than the search above goes, and without a reduced example: the seed reproduces it, the trace shows it."""
    machine, chance, trace = Interleavings(), Chance(seed), []
    try:
        machine.open()
        for _ in range(250):
            name, arguments = chance.step(machine)
            trace.append((name, arguments))
            getattr(machine, name)(**arguments)
            machine.the_server_agrees()
    except BaseException as error:
        error.add_note("the last steps were:\n" + "\n".join(f"    {name}({arguments})" for name, arguments in trace[-15:]))
        machine.close()
        raise
    machine.teardown()


Interleavings.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=40,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestInterleavings = Interleavings.TestCase
