"""The context that a handler may ask for."""

from __future__ import annotations

import asyncio
import pickle
import threading

from command_bus.messages import context as context_module
from command_bus.messages.context import CommandContext, Running, current_command


def test_a_test_needs_to_give_only_what_it_cares_for() -> None:
    context = CommandContext(command_id="c-1")
    assert (context.command_id, context.attempt, context.fence, context.headers) == ("c-1", 1, 0, {})
    assert context.entity is None
    assert context.remaining() is None
    assert not context.cancelled


def test_the_entity_reads_as_type_and_id() -> None:
    assert CommandContext(entity_type="account", entity_id="a-17").entity == "account:a-17"
    assert CommandContext(entity_type="account", entity_id="a:b").entity == "account:a:b"


def test_remaining_counts_down_and_stops_at_zero(monkeypatch) -> None:
    monkeypatch.setattr(context_module, "mono", lambda: 100.0)
    assert CommandContext(deadline=102.5).remaining() == 2.5
    assert CommandContext(deadline=99.0).remaining() == 0.0


def test_the_first_reason_to_cancel_stays() -> None:
    context = CommandContext()
    assert context.cancel_reason is None
    context.cancel("lease lost")
    context.cancel("stopping")
    assert context.cancelled
    assert context.cancel_reason == "lease lost"


def test_a_thread_sees_the_cancellation() -> None:
    context = CommandContext()
    started, done = threading.Event(), threading.Event()

    def long_handler() -> None:
        started.set()
        while not context.cancelled:
            pass
        done.set()

    thread = threading.Thread(target=long_handler, daemon=True)
    thread.start()
    assert started.wait(5)
    assert not done.is_set()
    context.cancel("timeout")
    assert done.wait(5)
    thread.join(5)


def test_it_holds_no_more_than_it_says() -> None:
    assert not hasattr(CommandContext(), "__dict__")
    assert not hasattr(Running("m", "c", "r", "n"), "__dict__")
    assert "secret" not in repr(CommandContext(headers={"authorization": "secret"}))


def test_it_can_be_sent_to_another_process() -> None:
    context = CommandContext(command_id="c-1", headers={"a": "b"})
    context.cancel("stopping")
    copy = pickle.loads(pickle.dumps(context))
    assert (copy.command_id, copy.headers, copy.cancelled) == ("c-1", {"a": "b"}, True)


async def test_each_task_has_its_own_running_command() -> None:
    seen: list[str | None] = []

    async def handle(name: str) -> None:
        current_command.set(Running(f"mailbox-{name}", name, name, "Deposit"))
        await asyncio.sleep(0)
        running = current_command.get()
        seen.append(running.command_id if running else None)
        in_thread = await asyncio.to_thread(current_command.get)
        assert in_thread is running

    assert current_command.get() is None
    await asyncio.gather(*(asyncio.create_task(handle(name)) for name in "abc"))
    assert sorted(map(str, seen)) == ["a", "b", "c"]
    assert current_command.get() is None
