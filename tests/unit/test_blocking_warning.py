"""A blocking bus in a running event loop warns, once per process."""

from __future__ import annotations

import warnings

import pytest

from command_bus import BlockingCallWarning, SyncCommandBus
from command_bus.sync import thread as bus_thread
from command_bus.sync.thread import ThreadedBus


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_thread, "_warned", False)


async def test_made_in_a_running_loop_it_warns_once() -> None:
    with pytest.warns(BlockingCallWarning, match="use `async with CommandBus") as told:
        SyncCommandBus("redis://nowhere.invalid")
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SyncCommandBus("redis://nowhere.invalid")


async def test_used_in_a_running_loop_it_warns() -> None:
    bus = ThreadedBus(lambda: pytest.fail("it is closed"))
    bus.close()
    with pytest.warns(BlockingCallWarning), pytest.raises(Exception, match="the bus is closed"):
        bus.open()


def test_in_blocking_code_it_does_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SyncCommandBus("redis://nowhere.invalid")
