"""The promises, each a coroutine that raises an `AssertionError` with what was broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from command_bus.errors import (
    CommandExpired,
    CommandFailed,
    CommandRejected,
    EntitiesStopped,
    IdempotencyConflict,
    NoHandler,
    QueueFull,
)
from command_bus.testing.conformance.fixtures import LEASE, PromiseSandbox, expect, raised, until
from command_bus.testing.conformance.messages import Forward, Held, Journey, Log, Once, Parking, Refuse, Unknown, Work

Promise = Callable[[PromiseSandbox], Coroutine[Any, Any, None]]
_IDLE = 20.0


def work(number: int, item: str = "a", *, fails: int = 0) -> Work:
    """Return a piece of work."""
    return Work(item=item, number=number, fails=fails)


async def order_and_one_at_a_time(sandbox: PromiseSandbox) -> None:
    """Start each entity's commands in the accepted order, one at a time, with several workers."""
    log = Log(sandbox.registry)
    async with sandbox.working(3) as bus:
        for number in range(20):
            await bus.dispatch_batch(work(number, f"i{item}") for item in range(10))
        await bus.wait_idle(_IDLE)
        expect((await bus.stats()).completed, 200, "commands completed")
    expect(log.overlaps, 0, "attempts that overlapped another of their entity")
    for item in range(10):
        expect(log.of(f"i{item}"), list(range(20)), f"order of entity i{item}")


async def entities_run_concurrently(sandbox: PromiseSandbox) -> None:
    """Run other entities while one takes long."""
    log = Log(sandbox.registry)
    log.gate.clear()
    async with sandbox.working() as bus:
        await bus.dispatch_batch(work(0, f"i{item}") for item in range(10))
        await until(lambda: log.most == 10, "ten entities at a time")
        log.gate.set()
        await bus.wait_idle(_IDLE)


async def a_retry_holds_its_entity(sandbox: PromiseSandbox) -> None:
    """Let no command overtake one that waits for its retry."""
    log = Log(sandbox.registry)
    async with sandbox.working(2) as bus:
        await bus.dispatch_batch([work(1, fails=2), work(2), work(1, "b")])
        await bus.wait_idle(_IDLE)
    expect(log.of("a"), [1, 1, 1, 2], "starts of the entity")
    expect([attempt for item, number, attempt, _ in log.started if (item, number) == ("a", 1)], [1, 2, 3], "attempts")


async def a_repeated_id_runs_once(sandbox: PromiseSandbox) -> None:
    """Report a repeated id as a duplicate, answer a repeated call with the stored reply, and refuse other content as a conflict."""
    log = Log(sandbox.registry)
    async with sandbox.bus() as bus:
        statuses = [(await bus.dispatch(work(1), command_id="c-1")).status for _ in range(2)]
        expect(statuses, ["accepted", "duplicate"], "receipts")
        async with bus.worker():
            await bus.wait_idle(_IDLE)
            expect((await bus.dispatch(work(1), command_id="c-1")).status, "duplicate", "receipt after the end")
            replies = [await bus.call(work(2), command_id="c-2") for _ in range(2)]
            expect(replies, [2, 2], "replies of a repeated call")
            await raised(
                IdempotencyConflict,
                bus.dispatch(work(3), command_id="c-2"),
                "another command under a used id was accepted",
            )
    expect(log.of("a"), [1, 2], "starts")


async def callers_learn_the_outcome(sandbox: PromiseSandbox) -> None:
    """Return a result, raise a refusal with code and details, raise a failure with its cause, each as soon as it is decided."""
    Log(sandbox.registry)
    async with sandbox.working() as bus:
        expect(await bus.call(work(7), timeout=_IDLE), 7, "result")
        refusal = await raised(CommandRejected, bus.call(Refuse(item="a"), timeout=_IDLE), "a refusal did not reach its caller")
        expect((refusal.code, refusal.details), ("planned", {"left": 3}), "refusal")
        failure = await raised(CommandFailed, bus.call(work(1, fails=9), timeout=_IDLE), "a failure did not reach its caller")
        expect((failure.error_type, failure.attempts), ("OSError", 3), "failure")


async def dead_letters_and_replay(sandbox: PromiseSandbox) -> None:
    """Store a command without attempts left as a dead letter with its cause, go on with its entity, and start it again on replay."""
    log = Log(sandbox.registry)
    async with sandbox.working() as bus:
        await bus.dispatch_batch([work(1, fails=4), work(2)])
        await bus.wait_idle(_IDLE)
        expect(log.of("a"), [1, 1, 1, 2], "starts")
        (letter,) = await sandbox.letters(bus)
        expect((letter.reason, letter.entity, letter.error_message), ("failed", "item:a", "as planned"), "dead letter")
        await bus.dead_letters.replay(letter.id)
        await bus.wait_idle(_IDLE)
        expect(log.of("a")[:5], [1, 1, 1, 2, 1], "starts with the replay")
        await bus.dead_letters.purge()
        expect(await sandbox.letters(bus), [], "dead letters after the purge")


async def a_parked_entity_waits(sandbox: PromiseSandbox) -> None:
    """Hold the followers of a parked command until an operator replays it; then run them in order."""
    log = Log(sandbox.registry)
    async with sandbox.working(2) as bus:
        await bus.dispatch_batch([Parking(item="a", number=1), work(2), work(1, "b")])
        await raised(EntitiesStopped, bus.wait_idle(_IDLE), "a parked entity counts as idle")
        expect((log.of("a"), log.of("b")), ([1], [1]), "starts while it is parked")
        log.mended = True
        (letter,) = await sandbox.letters(bus)
        await bus.dead_letters.replay(letter.id)
        await bus.wait_idle(_IDLE)
        expect(log.of("a"), [1, 1, 2], "starts after the replay")


async def a_delay_holds_nobody(sandbox: PromiseSandbox) -> None:
    """Run a delayed command when it is due, without holding others."""
    log = Log(sandbox.registry)
    async with sandbox.working() as bus:
        await bus.dispatch(work(1), delay=0.3)
        await bus.dispatch(work(2))
        await bus.wait_idle(_IDLE)
    expect(log.of("a"), [2, 1], "starts")


async def what_expired_is_not_started(sandbox: PromiseSandbox) -> None:
    """Settle a command past its expiry as expired, without starting it."""
    log = Log(sandbox.registry)
    async with sandbox.bus() as bus:
        receipt = await bus.dispatch(work(1), expires=0.05, command_id="late")
        await asyncio.sleep(0.1)
        async with bus.worker():
            await bus.wait_idle(_IDLE)
            await raised(CommandExpired, bus.result(receipt.command_id, timeout=_IDLE), "an expired command has a result")
    expect(log.started, [], "starts")


async def limits_refuse(sandbox: PromiseSandbox) -> None:
    """Refuse commands of a full entity, with a time to retry after, and do not run them."""
    log = Log(sandbox.registry)
    async with sandbox.bus() as bus:
        await bus.dispatch_batch(work(number) for number in range(bus.settings.max_depth))
        refusal = await raised(QueueFull, bus.dispatch(work(-1)), "more than max_depth was accepted")
        expect(refusal.retry_after > 0, True, "retry_after is positive")
        await bus.entity("item", "a").purge()
        await bus.dispatch(work(1))
        async with bus.worker():
            await bus.wait_idle(_IDLE)
    expect(log.of("a"), [1], "starts")


async def pause_and_resume(sandbox: PromiseSandbox) -> None:
    """Start and lose no command of a paused entity."""
    log = Log(sandbox.registry)
    async with sandbox.working() as bus:
        entity = bus.entity("item", "a")
        await entity.pause()
        await bus.dispatch_batch([work(1), work(2), work(1, "b")])
        await until(lambda: log.of("b"), "the other entity goes on")
        expect(log.of("a"), [], "starts while it is paused")
        await entity.resume()
        await bus.wait_idle(_IDLE)
    expect(log.of("a"), [1, 2], "starts after it was resumed")


async def an_unknown_command_is_answered(sandbox: PromiseSandbox) -> None:
    """Store a command that no worker handles as a dead letter after its grace, and answer its caller."""
    log = Log(sandbox.registry)
    async with sandbox.working() as bus:
        await raised(NoHandler, bus.call(Unknown(item="a"), timeout=_IDLE), "a command without a handler has a result")
        expect(await bus.call(work(1), timeout=_IDLE), 1, "what follows it")
    expect(log.of("a"), [1], "starts")


async def a_lost_worker_is_succeeded(sandbox: PromiseSandbox) -> None:
    """Run the started command of a lost worker on another one, after its lease, under a larger fence and before its followers."""
    log = Log(sandbox.registry)
    log.gate.clear()
    async with sandbox.bus() as bus, sandbox.worker_to_lose() as line:
        await bus.dispatch_batch([work(1), work(2)])
        await until(lambda: log.started, "the first start")
        line.sever()
        async with bus.worker():
            await until(lambda: len(log.started) == 2, "the takeover")
            log.gate.set()
            await bus.wait_idle(_IDLE)
    expect(log.of("a"), [1, 1, 2], "starts")
    (_, _, first, fence), (_, _, second, larger) = log.started[:2]
    expect((first, second), (1, 2), "attempts")
    expect(larger > fence, True, "the fence grows")


async def at_most_once_never_starts_again(sandbox: PromiseSandbox) -> None:
    """Store an interrupted at-most-once command as a dead letter, and go on with its entity."""
    log = Log(sandbox.registry)
    log.gate.clear()
    async with sandbox.bus() as bus, sandbox.worker_to_lose() as line:
        await bus.dispatch_batch([Once(item="a", number=1), work(2)])
        await until(lambda: log.started, "the first start")
        line.sever()
        async with bus.worker():
            await until(lambda: log.of("a") == [1, 2], "the follower's start")
            log.gate.set()
            await bus.wait_idle(_IDLE)
        expect([letter.reason for letter in await sandbox.letters(bus)], ["interrupted"], "dead letters")
    expect(log.of("a"), [1, 2], "starts")


async def a_lost_holder_changes_nothing(sandbox: PromiseSandbox) -> None:
    """Ignore a worker that lost its lease and comes back: the other worker's result stays."""
    log = Log(sandbox.registry)
    async with sandbox.bus() as bus:
        try:
            async with sandbox.worker_to_lose() as line:
                await bus.dispatch(Held(item="a"), command_id="held")
                await until(lambda: log.started, "the first start")
                line.sever()
                async with bus.worker():
                    await until(lambda: len(log.started) == 2, "the takeover")
                    await bus.wait_idle(_IDLE)
                    line.heal()
                    log.release.set()
                    await asyncio.sleep(LEASE / 2)
                    fences = [fence for _, _, _, fence in log.started]
                    expect(await bus.call(Held(item="a"), command_id="held", timeout=_IDLE), fences[1], "the stored result")
                    expect((await bus.stats()).settled, 1, "settled commands")
        finally:
            log.release.set()
    expect([attempt for _, _, attempt, _ in log.started], [1, 2], "attempts")


async def what_a_handler_sends_comes_with_its_end(sandbox: PromiseSandbox) -> None:
    """Accept what a handler sends when the handler's command is settled, once, in its order; nothing of an attempt that failed."""
    log = Log(sandbox.registry)
    async with sandbox.working() as bus:
        await bus.call(Forward(item="a", fails=2), timeout=_IDLE)
        await bus.wait_idle(_IDLE)
        expect([log.of("a-0"), log.of("a-1")], [[0, 2, 4], [1, 3, 5]], "starts")


async def a_durable_command_waits_without_a_worker(sandbox: PromiseSandbox) -> None:
    """Store what a durable command has done, let it wait without a slot, and let it go on once what it waits for is there."""
    log = Log(sandbox.registry)
    async with sandbox.working() as bus:
        await bus.dispatch(Journey(item="a", fails=1), command_id="journey")
        await bus.dispatch(work(7))
        await until(lambda: log.journeys >= 2, "its run after the calls")
        expect(await bus.commands.signal("journey", "go", 5, signal_id="s-1"), True, "the first signal")
        expect(await bus.commands.signal("journey", "go", 6, signal_id="s-1"), False, "the same signal again")
        expect(await bus.result("journey", Journey, timeout=_IDLE), [1, 0, 1, 5], "the result")
        await bus.wait_idle(_IDLE)
        expect((log.steps, log.of("a-0"), log.of("a-1"), log.of("a")), (1, [0], [1], [7]), "steps, calls and the follower")


async def idle_costs_nothing(sandbox: PromiseSandbox) -> None:
    """Keep nothing for an entity without work."""
    Log(sandbox.registry)
    async with sandbox.working() as bus:
        await bus.dispatch_batch(work(0, f"i{item}") for item in range(50))
        await bus.wait_idle(_IDLE)
        stats = await bus.stats()
        expect((stats.entities, stats.depth, stats.in_flight), (0, 0, 0), "entities, depth, in flight")


PROMISES: tuple[Promise, ...] = (
    order_and_one_at_a_time,
    entities_run_concurrently,
    a_retry_holds_its_entity,
    a_repeated_id_runs_once,
    callers_learn_the_outcome,
    dead_letters_and_replay,
    a_parked_entity_waits,
    a_delay_holds_nobody,
    what_expired_is_not_started,
    limits_refuse,
    pause_and_resume,
    an_unknown_command_is_answered,
    a_lost_worker_is_succeeded,
    at_most_once_never_starts_again,
    a_lost_holder_changes_nothing,
    what_a_handler_sends_comes_with_its_end,
    a_durable_command_waits_without_a_worker,
    idle_costs_nothing,
)
"""All promises."""

NEED_A_LOST_WORKER = frozenset({a_lost_worker_is_succeeded, at_most_once_never_starts_again, a_lost_holder_changes_nothing})
"""Promises for which a worker is cut off; see `PromiseSandbox.can_lose_workers`."""
