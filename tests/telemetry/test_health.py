"""`/healthz` and `/readyz` report the worker's state."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

import pytest

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, InvalidSettings
from command_bus.embedded import EmbeddedServer
from command_bus.telemetry.health import HealthServer
from tests.conformance.harness import reader_of
from tests.telemetry.conftest import eventually, fetch, fetched

pytestmark = pytest.mark.server

Make = Callable[..., CommandBus]


class Work(Command[None], entity="line"):
    line: EntityId


async def test_a_worker_that_consumes_is_live_and_ready(make_bus: Make) -> None:
    async with make_bus() as bus, bus.worker() as worker, HealthServer(worker, host="127.0.0.1") as health:
        assert (await fetch(health.port, "/healthz"))[:2] == (200, "live\n")
        assert (await fetch(health.port, "/readyz?verbose"))[:2] == (200, "ready\n")
        assert (await fetch(health.port, "/healthz", "HEAD"))[:2] == (200, "")
        assert (await fetch(health.port, "/"))[0] == 404
        assert (await fetch(health.port, "/healthz", "POST"))[0] == 405


async def test_before_it_starts_it_is_live_only(make_bus: Make) -> None:
    bus = make_bus()
    worker = bus.worker()
    async with HealthServer(worker, host="127.0.0.1") as health:
        assert (await fetch(health.port, "/healthz"))[0] == 200
        assert (await fetch(health.port, "/readyz"))[:2] == (503, "not started yet\n")
        async with worker:
            assert (await fetch(health.port, "/readyz"))[0] == 200
        assert (await fetch(health.port, "/readyz"))[:2] == (503, "stopping\n")
    with pytest.raises(OSError, match="refused"):
        await fetch(health.port, "/healthz")


async def test_without_its_server_it_is_live_and_not_ready(make_bus: Make, server: EmbeddedServer) -> None:
    async with make_bus() as bus, bus.worker() as worker, HealthServer(worker, host="127.0.0.1") as health:
        assert (await fetch(health.port, "/readyz"))[0] == 200
        server.kill()
        answer = await fetch(health.port, "/readyz")  # at once: it asks the server
        assert answer[0] == 503, answer
        assert (await fetch(health.port, "/healthz"))[0] == 200
        server.restart()

        async def ready() -> bool:
            return (await fetch(health.port, "/readyz"))[0] == 200

        assert await eventually(ready)


async def test_a_server_that_hangs_is_noticed_before_the_read_is_late(make_bus: Make, server: EmbeddedServer) -> None:
    async with make_bus() as bus, bus.worker() as worker, HealthServer(worker, host="127.0.0.1") as health:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            assert (await fetch(health.port, "/readyz"))[:2] == (503, "the server does not answer\n")
            assert (await fetch(health.port, "/healthz"))[0] == 200
        finally:
            os.kill(server.pid, signal.SIGCONT)


async def test_what_cannot_read_is_not_ready_even_if_the_server_answers(make_bus: Make) -> None:
    async with make_bus() as bus, bus.worker() as worker, HealthServer(worker, host="127.0.0.1") as health:
        await reader_of(worker)._mend(ConnectionError("no"))  # as after a read that failed
        assert (await fetch(health.port, "/readyz"))[:2] == (503, "it cannot read work: see its log\n")

        async def ready() -> bool:
            return (await fetch(health.port, "/readyz"))[0] == 200

        assert await eventually(ready)  # the next read, two seconds later, succeeds


async def test_a_worker_with_all_its_slots_taken_is_ready(make_bus: Make, registry: HandlerRegistry) -> None:
    running, go = asyncio.Event(), asyncio.Event()

    @registry.handles(Work)
    async def work(command: Work) -> None:
        running.set()
        await go.wait()

    async with make_bus(concurrency=1) as bus, bus.worker() as worker, HealthServer(worker, host="127.0.0.1") as health:
        await bus.dispatch(Work(line="a"))
        await running.wait()
        await asyncio.sleep(0)
        assert worker.silent_for == 0.0
        assert (await fetch(health.port, "/readyz"))[0] == 200
        stop = asyncio.create_task(worker.stop())

        async def stopping() -> bool:
            return (await fetch(health.port, "/readyz"))[:2] == (503, "stopping\n")

        assert await eventually(stopping)
        assert not stop.done()
        assert (await fetch(health.port, "/healthz"))[0] == 200
        go.set()
        await stop


async def test_a_stuck_loop_is_not_live_and_the_answer_says_where(make_bus: Make, registry: HandlerRegistry) -> None:
    @registry.handles(Work)
    async def stuck_here(command: Work) -> None:
        time.sleep(3)

    async with make_bus() as bus, bus.worker() as worker, HealthServer(worker, host="127.0.0.1", stuck_after=0.5) as health:

        def probe() -> tuple[object, object]:
            until = time.monotonic() + 10
            while (answer := fetched(health.port, "/healthz")).status == 200 and time.monotonic() < until:
                time.sleep(0.02)
            return answer, fetched(health.port, "/readyz")

        probed = asyncio.ensure_future(asyncio.to_thread(probe))
        await bus.dispatch(Work(line="a"))
        live, ready = await probed
        assert live[0] == 503  # type: ignore[index]
        assert "stuck_here" in live[1]  # type: ignore[index]
        assert ready[0] == 503  # type: ignore[index]
        assert (await fetch(health.port, "/healthz"))[0] == 200  # it runs again


def test_a_loop_that_was_closed_is_not_live(make_bus: Make) -> None:
    async def start() -> HealthServer:
        health = HealthServer(make_bus().worker(), host="127.0.0.1", stuck_after=0.2)
        await health.start()
        return health

    health = asyncio.run(start())
    until = time.monotonic() + 10
    while (answer := fetched(health.port, "/healthz")).status == 200 and time.monotonic() < until:
        time.sleep(0.02)
    assert answer.status == 503
    assert fetched(health.port, "/readyz").status == 503
    asyncio.run(health.stop())


async def test_how_long_stuck_is_may_be_said(make_bus: Make) -> None:
    async with HealthServer(make_bus().worker(), host="127.0.0.1", stuck_after=0.5) as health:
        port = health.port
        seen = threading.Event()

        def probe() -> None:
            until = time.monotonic() + 8  # less than the default
            while time.monotonic() < until and not seen.is_set():
                if fetched(port, "/healthz").status == 503:
                    seen.set()

        probing = threading.Thread(target=probe)
        probing.start()
        stuck = seen.wait(9)  # and the event loop with it
        probing.join()
        assert stuck


async def test_a_slow_sender_is_cut_off(make_bus: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("command_bus.telemetry.pages._PATIENCE", 0.1)
    async with make_bus() as bus, HealthServer(bus.worker(), host="127.0.0.1") as health:
        for sent in (b"GET /healthz HT", b"x" * 40_000):
            reader, writer = await asyncio.open_connection("127.0.0.1", health.port)
            writer.write(sent)
            with contextlib.suppress(ConnectionResetError):  # it did not read all of it
                assert await reader.read() == b""
            writer.close()


async def test_a_port_that_is_taken_is_refused(make_bus: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        health = HealthServer(make_bus().worker(), host="127.0.0.1", port=taken.getsockname()[1])
        with pytest.raises(InvalidSettings, match="choose another"):
            await health.start()
        await health.stop()
