"""The policy that applies to a command: what its dispatch says, else its class, its entity type, the settings of the worker."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from command_bus import (
    Command,
    CommandBus,
    CommandContext,
    CommandFailed,
    CommandTimeout,
    EntityId,
    EntityPolicy,
    Envelope,
    InvalidCommand,
    RetryPolicy,
)
from command_bus.sync.bus import SyncCommandBus
from tests.conformance.conftest import Sandbox

QUICK: dict[str, Any] = {"delay": 0.0, "jitter": 0.0}


class Plain(Command[int], entity="box"):
    box: EntityId


class Told(Command[int], entity="box", retry=RetryPolicy(attempts=4, **QUICK), attempt_timeout=0.15):
    box: EntityId


class Picky(Command[int], entity="box", retry=RetryPolicy(attempts=4, retry_on=(OSError,), **QUICK)):
    box: EntityId


class Seen:
    """The handlers, and the attempts that they saw, with their times."""

    def __init__(self, sandbox: Sandbox, error: BaseException | None = None, seconds: float = 0.0) -> None:
        self.attempts: list[int] = []
        self.times: list[float] = []

        async def handle(command: Any, context: CommandContext) -> int:
            self.attempts.append(context.attempt)
            self.times.append(time.monotonic())
            if seconds:
                await asyncio.sleep(seconds)
            if error is not None:
                raise error
            return context.attempt

        for kind in (Plain, Told, Picky):
            handle.__annotations__["command"] = kind
            sandbox.registry.handles(kind)(handle)

    def taken(self) -> list[int]:
        found, self.attempts = self.attempts, []
        return found


async def fails(bus: CommandBus, command: Command[int], **options: Any) -> CommandFailed:
    with pytest.raises(CommandFailed) as caught:
        await bus.call(command, timeout=20, **options)
    return caught.value


async def test_retries_are_those_of_the_dispatch_then_the_class_then_the_type_then_the_bus(sandbox: Sandbox) -> None:
    seen = Seen(sandbox, ValueError("no"))
    settings: dict[str, Any] = {"retry": RetryPolicy(attempts=2, **QUICK)}
    async with sandbox.bus(**settings) as bus, bus.worker():
        await fails(bus, Plain(box="b"))
        assert seen.taken() == [1, 2], "the bus"
        await fails(bus, Told(box="b"))
        assert seen.taken() == [1, 2, 3, 4], "the class"
        await fails(bus, Told(box="b"), retry=RetryPolicy(attempts=1))
        assert seen.taken() == [1], "the dispatch"
    settings["entities"] = {"box": EntityPolicy(retry=RetryPolicy(attempts=3, **QUICK))}
    async with sandbox.bus(**settings) as bus, bus.worker():
        await fails(bus, Plain(box="b"))
        assert seen.taken() == [1, 2, 3], "the entity type"
        await fails(bus, Plain(box="b"), retry=RetryPolicy(attempts=5, **QUICK))
        assert seen.taken() == [1, 2, 3, 4, 5]


async def test_so_is_the_time_of_an_attempt(sandbox: Sandbox) -> None:
    seen = Seen(sandbox, seconds=5.0)
    once = RetryPolicy(attempts=1)
    async with sandbox.bus(attempt_timeout=0.2, entities={"box": EntityPolicy(attempt_timeout=0.1)}) as bus, bus.worker():
        for command, given, wanted in (
            (Plain(box="b"), None, "0.1 s"),
            (Told(box="b"), None, "0.15 s"),
            (Told(box="b"), 0.05, "0.05 s"),
        ):
            error = await fails(bus, command, retry=once, attempt_timeout=given)
            assert f"longer than its attempt_timeout of {wanted}" in str(error)
    async with sandbox.bus(attempt_timeout=0.2) as bus, bus.worker():
        assert "attempt_timeout of 0.2 s" in str(await fails(bus, Plain(box="b"), retry=once))
    assert len(seen.attempts) == 4


async def test_a_longer_time_of_a_dispatch_replaces_that_of_its_class(sandbox: Sandbox) -> None:
    Seen(sandbox, seconds=0.4)
    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Told(box="b"), timeout=10, attempt_timeout=5.0) == 1


async def test_delays_are_kept_to(sandbox: Sandbox) -> None:
    seen = Seen(sandbox, ValueError("no"))
    async with sandbox.bus() as bus, bus.worker():
        await fails(bus, Plain(box="b"), retry=RetryPolicy(delays=(0.05, 0.4, 0.1), jitter=0))
    pauses = [after - before for before, after in zip(seen.times, seen.times[1:], strict=False)]
    assert len(pauses) == 3
    assert all(wanted <= pause < wanted + 0.25 for wanted, pause in zip((0.05, 0.4, 0.1), pauses, strict=True)), pauses


async def test_a_function_of_backoff_is_asked_with_the_attempt_and_the_error(sandbox: Sandbox) -> None:
    asked: list[tuple[int, str]] = []

    def backoff(attempt: int, error: BaseException) -> float:
        asked.append((attempt, str(error)))
        return 0.0

    class Own(Command[int], entity="box", retry=RetryPolicy(attempts=3, backoff=backoff)):
        box: EntityId

    @sandbox.registry.handles(Own)
    async def own(command: Own) -> int:
        raise ValueError("no")

    async with sandbox.bus() as bus, bus.worker():
        assert (await fails(bus, Own(box="b"))).attempts == 3
    assert asked == [(1, "no"), (2, "no")]


def raises(attempt: int, error: BaseException) -> float:
    raise LookupError("of its own")


@pytest.mark.parametrize(
    "backoff", [raises, lambda _, __: -1, lambda _, __: float("nan"), lambda _, __: "soon", lambda _, __: None]
)
async def test_59_a_function_of_backoff_that_fails_delays_as_usual(
    sandbox: Sandbox, backoff: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Own(Command[int], entity="box", retry=RetryPolicy(attempts=2, delay=0.01, backoff=backoff)):
        box: EntityId

    @sandbox.registry.handles(Own)
    async def own(command: Own, context: CommandContext) -> int:
        if context.attempt == 1:
            raise ValueError("no")
        return context.attempt

    async with sandbox.bus() as bus, bus.worker():
        assert await bus.call(Own(box="b"), timeout=10) == 2
    assert "the function of backoff of Own failed" in caplog.text


async def test_which_errors_are_retried_stays_with_the_class(sandbox: Sandbox) -> None:
    seen = Seen(sandbox, ValueError("no"))
    async with sandbox.bus() as bus, bus.worker():
        await fails(bus, Picky(box="b"), retry=RetryPolicy(attempts=3, **QUICK))
        assert seen.taken() == [1]


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"retry": RetryPolicy(retry_on=(OSError,))}, "exception types do not travel"),
        ({"retry": RetryPolicy(give_up_on=(OSError,))}, "exception types do not travel"),
        ({"retry": RetryPolicy(backoff=lambda _, __: 1.0)}, "a function of backoff does not travel"),
        ({"retry": RetryPolicy(delays=(1.0,) * 51)}, "at most 50 delays travel"),
        ({"retry": 3}, "retry is a RetryPolicy, not 3"),
        ({"attempt_timeout": 0}, "attempt_timeout is a positive number"),
        ({"attempt_timeout": float("nan")}, "attempt_timeout is a positive number"),
        ({"attempt_timeout": "soon"}, "attempt_timeout is a positive number"),
    ],
)
async def test_60_what_cannot_travel_is_refused_before_anything_is_sent(
    sandbox: Sandbox, options: dict[str, Any], advice: str
) -> None:
    Seen(sandbox)
    async with sandbox.bus() as bus:
        for send in (
            lambda: bus.dispatch(Plain(box="b"), **options),
            lambda: bus.call(Plain(box="b"), timeout=5, **options),
            lambda: bus.dispatch_raw("box", "b", "Plain", {"box": "b"}, **options),
            lambda: bus.call_raw("box", "b", "Plain", {"box": "b"}, timeout=5, **options),
            lambda: bus.entity("box", "b").dispatch(Plain(box="b"), **options),
        ):
            with pytest.raises(InvalidCommand, match=advice):
                await send()
        result = await bus.dispatch_batch([Envelope(Plain(box="b"), **options)])
        assert advice in str(result.outcomes[0].error)
        assert (await bus.stats()).depth == 0


@pytest.mark.promise("A dispatch's policy holds everywhere")
async def test_every_way_of_sending_takes_them(sandbox: Sandbox) -> None:
    seen = Seen(sandbox, ValueError("no"))
    options: dict[str, Any] = {"retry": RetryPolicy(attempts=2, **QUICK), "attempt_timeout": 9.0}
    async with sandbox.bus() as bus, bus.worker():
        for send in (
            lambda: bus.dispatch(Told(box="b"), **options),
            lambda: bus.dispatch_raw("box", "b", "Told", {"box": "b"}, **options),
            lambda: bus.entity("box", "b").dispatch(Told(box="b"), **options),
            lambda: bus.dispatch(Told(box="b"), delay=0.05, expires=60, command_id="given", headers={"a": "b"}, **options),
            lambda: bus.dispatch_batch([Envelope(Told(box="b"), **options)]),
        ):
            await send()
            await bus.wait_idle(10)
            assert seen.taken() == [1, 2]
        with pytest.raises(CommandFailed):
            await bus.call_raw("box", "b", "Told", {"box": "b"}, timeout=10, **options)
        with pytest.raises(CommandFailed):
            await bus.entity("box", "b").call(Told(box="b"), timeout=10, **options)
        assert seen.taken() == [1, 2, 1, 2]
        letters = [letter async for letter in bus.dead_letters.list()]
        await bus.dead_letters.replay(letters[0].id)
        await bus.wait_idle(10)
        assert seen.taken() == [1, 2], "a replayed letter has them still"


async def test_a_blocking_caller_has_them_too(sandbox: Sandbox) -> None:
    if sandbox.url is None:
        pytest.skip("its thread needs a server")
    seen = Seen(sandbox, ValueError("no"))
    async with sandbox.bus() as bus, bus.worker():

        def work() -> None:
            with SyncCommandBus(sandbox.url, namespace=sandbox.namespace) as blocking:
                blocking.dispatch(Told(box="b"), retry=RetryPolicy(attempts=2, **QUICK))
                with pytest.raises(CommandFailed):
                    blocking.call(Told(box="b"), timeout=10, retry=RetryPolicy(attempts=1), attempt_timeout=3)

        await asyncio.to_thread(work)
    assert seen.taken() == [1, 2, 1]


async def test_a_call_waits_as_long_as_its_entity_type_says(sandbox: Sandbox) -> None:
    async with sandbox.bus(call_timeout=30, entities={"box": EntityPolicy(call_timeout=0.2)}) as bus:
        began = time.monotonic()
        with pytest.raises(CommandTimeout):
            await bus.call(Plain(box="b"))
        receipt = await bus.dispatch(Plain(box="c"), keep_result=True)
        with pytest.raises(CommandTimeout):
            await receipt.result()
        assert time.monotonic() - began < 5


@pytest.mark.promise("Snoozes keep the place")
@pytest.mark.parametrize("where", ["type", "bus"])
async def test_at_most_once_by_type_or_bus_starts_once(sandbox: Sandbox, where: str) -> None:
    seen = Seen(sandbox, ValueError("no"))
    policy: dict[str, Any] = {"delivery": "at_most_once"}
    retried: dict[str, Any] = {"retry": RetryPolicy(attempts=5, **QUICK)}
    settings: dict[str, Any] = policy if where == "bus" else {**retried, "entities": {"box": EntityPolicy(**policy)}}
    async with sandbox.bus(**settings) as bus, bus.worker():
        await fails(bus, Plain(box="b"))
        assert seen.taken() == [1], "retries that a wider level has for all are not meant for it"
        await fails(bus, Told(box="b"))
        assert seen.taken() == [1, 2, 3, 4], "the class asks for retries of what its handler raised"
        assert (await bus.fleet.command("Plain")).delivery == "at_most_once"  # type: ignore[union-attr]


@pytest.mark.promise("A dispatch's policy holds everywhere")
async def test_61_an_envelope_with_an_option_of_a_later_release_waits_for_one(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    from command_bus.serialization import envelope

    seen = Seen(sandbox, ValueError("no"))
    async with sandbox.bus(unknown_grace=0.3) as bus, bus.worker():
        monkeypatch.delitem(envelope.KNOWN_OPTIONS, "r")  # as in the release before
        await bus.dispatch(Told(box="b"), retry=RetryPolicy(attempts=1), command_id="new")
        await bus.wait_idle(10)
        (letter,) = [each async for each in bus.dead_letters.list()]
        assert (letter.reason, seen.taken()) == ("unsupported_version", [])
        assert "unknown options 'r', of a later release" in letter.error_message
        monkeypatch.undo()
        await bus.dead_letters.replay(letter.id)
        await bus.wait_idle(10)
        assert seen.taken() == [1], "and the newer worker keeps to it"
