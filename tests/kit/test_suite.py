"""The conformance suite as its users have it: it runs from a module of theirs, and it fails where a promise is broken."""

from __future__ import annotations

from typing import Any

import pytest

from command_bus import IdempotencyConflict
from command_bus.settings import BusSettings
from command_bus.testing.conformance import promises
from command_bus.testing.conformance.fixtures import PromiseSandbox
from command_bus.testing.conformance.promises import Promise
from command_bus.testing.conformance.suite import test_promise as the_test
from command_bus.transport.ports.transport import Transport
from command_bus.transport.redis.memory import MemoryClients
from command_bus.transport.steps import GiveBack
from command_bus.transport.submissions import NO_DIGEST
from command_bus.worker.decisions import Decisions

BREAKAGES: list[tuple[str, Any, Promise]] = [
    ("interrupted", lambda self, started, *_: GiveBack(counts=True), promises.at_most_once_never_starts_again),
    ("failed", lambda self, run, error: self.completed(run, 0), promises.a_retry_holds_its_entity),
    ("failed", lambda self, run, error: self.completed(run, 0), promises.dead_letters_and_replay),
    ("rejected", lambda self, run, error: self.completed(run, None), promises.callers_learn_the_outcome),
]


@pytest.mark.parametrize(("name", "broken", "promise"), BREAKAGES)
async def test_a_broken_promise_is_found(monkeypatch: pytest.MonkeyPatch, name: str, broken: Any, promise: Promise) -> None:
    monkeypatch.setattr(Decisions, name, broken)
    monkeypatch.setattr("command_bus.testing.conformance.fixtures._PATIENCE", 3.0)
    with pytest.raises((AssertionError, ValueError)):
        await promise(PromiseSandbox(MemoryClients()))


async def test_conflicts_that_go_unseen_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("command_bus.sending.envelope_builder.command_digest", lambda *_, **__: NO_DIGEST)
    with pytest.raises(IdempotencyConflict):
        await promises.a_repeated_id_runs_once(PromiseSandbox(MemoryClients()))


def test_it_needs_no_async_plugin() -> None:
    the_test(promises.order_and_one_at_a_time, PromiseSandbox(MemoryClients()))


def test_promises_about_lost_workers_are_skipped_where_none_can_be_lost() -> None:
    async def opens_nothing(_: BusSettings) -> Transport:
        raise AssertionError("the promise is not begun")

    sandbox = PromiseSandbox(open_transport=opens_nothing)
    with pytest.raises(pytest.skip.Exception):
        the_test(promises.a_lost_worker_is_succeeded, sandbox)
    with pytest.raises(AssertionError):
        the_test(promises.order_and_one_at_a_time, sandbox)
