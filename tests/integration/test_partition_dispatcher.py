"""`PartitionDispatcher` as in a user's own `foreachPartition`: against a real server, without Spark."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from command_bus import (
    BusSettings,
    Command,
    CommandBus,
    DispatchConflict,
    DispatchStalled,
    EntityId,
    EntityPolicy,
    Envelope,
    HandlerRegistry,
    InvalidCommand,
    InvalidRows,
    PayloadTooLarge,
    TransportUnavailable,
    lanes,
)
from command_bus.embedded import EmbeddedServer
from command_bus.serialization.envelope import unpack_envelope
from command_bus.spark import PartitionDispatcher, Target
from command_bus.spark import target as target_module
from command_bus.spark.target import TargetConnection, connection_to
from command_bus.spark.writing.task_results import RowReject
from command_bus.transport.submissions import Admission

NAMESPACE = "parts"


class Note(Command[None], entity="book"):
    book: EntityId
    number: int
    text: str = ""


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    server = EmbeddedServer.start()
    yield server
    for connection in target_module._connections.values():
        connection.close()
    target_module._connections.clear()
    server.stop()


@pytest.fixture
def target(server: EmbeddedServer) -> Target:
    return Target.resolve(server.url, NAMESPACE)


def notes(count: int, books: int = 3, *, start: int = 0) -> list[Envelope[Note]]:
    return [
        Envelope(Note(book=f"b{number % books}", number=number), command_id=f"n{number}")
        for number in range(start, start + count)
    ]


def waiting(target: Target, book: str) -> list[int]:
    """Return the numbers that wait in a book's mailbox."""
    connection = connection_to(target)

    async def read() -> list[int]:
        found: list[int] = []
        async for page in connection.transport.operator.mailboxes.waiting(connection.builder.mailbox_of("book", book)):
            found += [link_payload(each.envelope)["number"] for each in page]
        return found

    return connection.wait(read())


def link_payload(envelope: bytes) -> dict[str, Any]:
    from command_bus.serialization.msgpack import unpack

    return unpack(unpack_envelope(envelope).payload)


@pytest.mark.parametrize("batch_size", [1, 7, 500])
def test_commands_are_sent_in_chunks_and_in_order(target: Target, batch_size: int) -> None:
    with PartitionDispatcher(target, dispatch_id="d", batch_size=batch_size, partition=4) as dispatcher:
        result = dispatcher.dispatch_batch(notes(50))
    assert (result.partition, result.rows, result.added, result.duplicates, result.entities) == (4, 50, 50, 0, 3)
    assert result.seconds > 0
    for book in range(3):
        assert waiting(target, f"b{book}") == list(range(book, 50, 3))
    with PartitionDispatcher(target, dispatch_id="d") as again:
        result = again.dispatch_batch(notes(60))
    assert (result.rows, result.added, result.duplicates) == (60, 10, 50)


def test_chunks_are_bounded_in_bytes(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    load = PartitionDispatcher._load

    def noted(self: Any, shard: int, chunk: Any) -> Any:
        sizes.append(sum(len(item[3]) for item in chunk))
        return load(self, shard, chunk)

    monkeypatch.setattr(PartitionDispatcher, "_load", noted)
    large = [Envelope(Note(book="b", number=number, text="x" * 300_000), command_id=f"l{number}") for number in range(10)]
    with PartitionDispatcher(target, dispatch_id="d") as dispatcher:
        dispatcher.dispatch_batch(large)
    assert max(sizes) <= 1024 * 1024
    assert len(sizes) == 4
    assert waiting(target, "b") == list(range(10))


def test_a_process_has_one_connection(target: Target, server: EmbeddedServer) -> None:
    first = PartitionDispatcher(target, dispatch_id="d")
    copy = pickle.loads(pickle.dumps(first))
    for dispatcher in (first, copy, PartitionDispatcher(target, dispatch_id="e")):
        with dispatcher:
            dispatcher.dispatch_batch(notes(3))
    assert first.connection is copy.connection
    clients = connection_to(target).wait(connection_to(target).transport.connections.ask(lambda client: client.client_list()))
    assert len(clients) == 1
    pickle.dumps(dispatcher)  # also one that was used


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_opens_its_own_connection(target: Target) -> None:
    with PartitionDispatcher(target, dispatch_id="d") as dispatcher:
        dispatcher.dispatch_batch(notes(3))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with PartitionDispatcher(target, dispatch_id="d") as other:
                result = other.dispatch_batch(notes(5))
            code = 0 if (result.added, result.duplicates) == (2, 3) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with PartitionDispatcher(target, dispatch_id="d") as dispatcher:
        assert dispatcher.dispatch_batch(notes(5)).duplicates == 5


def test_order_holds_at_a_limit(target: Target) -> None:
    registry = HandlerRegistry()
    seen: list[int] = []

    @registry.handles(Note)
    async def note(command: Note) -> None:
        seen.append(command.number)
        await asyncio.sleep(0)

    async def drain(until: int) -> None:
        bus = CommandBus(target.url, namespace=target.namespace, registry=registry)
        async with bus, bus.worker(concurrency=4):
            while len(seen) < until:
                await asyncio.sleep(0.01)

    drained = threading.Thread(target=lambda: asyncio.run(drain(400)))
    with PartitionDispatcher(target, dispatch_id="d", batch_size=50, max_backlog=40) as dispatcher:
        dispatcher.add(*_packed(dispatcher, notes(20)))
        drained.start()
        result = dispatcher.dispatch_batch(notes(380, start=20))
    drained.join(30)
    assert result.added == 400
    assert result.waited > 0
    for book in range(3):
        mine = [number for number in seen if number % 3 == book]
        assert mine == sorted(mine)
        assert len(mine) == len(range(book, 400, 3))


def _packed(dispatcher: PartitionDispatcher, envelopes: list[Envelope[Note]]) -> tuple[int, list[Any]]:
    return 0, [dispatcher.pack(envelope)[1] for envelope in envelopes]


def test_a_full_entity_keeps_its_order(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMAND_BUS_MAX_DEPTH", "5")
    target = Target.resolve(server.url, NAMESPACE)
    with pytest.raises(DispatchStalled) as caught, PartitionDispatcher(target, dispatch_id="d", max_wait=0.2) as dispatcher:
        dispatcher.dispatch_batch(notes(20))
    assert caught.value.accepted == 15
    assert caught.value.limit == "entity"
    assert "15 rows of it are in their mailboxes. Are workers running?" in caught.value.message
    assert [waiting(target, f"b{book}") for book in range(3)] == [list(range(book, 15, 3)) for book in range(3)]


def test_a_full_mailbox_blocks_no_other(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven hundred rows of a full mailbox precede a thousand rows of fifty others."""
    monkeypatch.setenv("COMMAND_BUS_MAX_DEPTH", "20")
    target = Target.resolve(server.url, NAMESPACE)
    stuck = [Envelope(Note(book="full", number=number), command_id=f"f{number}") for number in range(700)]
    with pytest.raises(DispatchStalled) as caught, PartitionDispatcher(target, dispatch_id="d", max_wait=0.5) as dispatcher:
        dispatcher.dispatch_batch([*stuck, *notes(1000, books=50)])
    assert "entity limit: waiting for book:full, 680 rows stand aside" in caught.value.message
    assert waiting(target, "full") == list(range(20))
    for book in range(50):
        assert waiting(target, f"b{book}") == list(range(book, 1000, 50))
    seen: list[int] = []
    registry = HandlerRegistry()

    @registry.handles(Note)
    async def note(command: Note) -> None:
        if str(command.book) == "full":
            seen.append(command.number)

    async def drain() -> None:
        bus = CommandBus(target.url, namespace=target.namespace, registry=registry)
        async with bus, bus.worker(concurrency=4):
            while len(seen) < 700:
                await asyncio.sleep(0.01)

    drained = threading.Thread(target=lambda: asyncio.run(drain()))
    drained.start()
    with PartitionDispatcher(target, dispatch_id="d", max_wait=30) as dispatcher:  # goes on while the worker makes room
        result = dispatcher.dispatch_batch([*stuck, *notes(1000, books=50)])
    drained.join(30)
    assert (result.added, result.duplicates) == (680, 1020)
    assert seen == list(range(700))


def test_blocked_commands_are_bounded(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMAND_BUS_MAX_DEPTH", "5")
    monkeypatch.setattr("command_bus.spark.writing.partition._MAX_BLOCKED_BYTES", 100_000)
    target = Target.resolve(server.url, NAMESPACE)
    read = 0

    def rows() -> Iterator[Envelope[Note]]:
        nonlocal read
        for each in notes(10_000, books=1):
            read += 1
            yield each

    with pytest.raises(DispatchStalled), PartitionDispatcher(target, dispatch_id="d", max_wait=0.2, batch_size=50) as dispatcher:
        dispatcher.dispatch_batch(rows())
    assert 100 < read < 500
    assert waiting(target, "b0") == list(range(5))


def test_a_stall_is_logged(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("COMMAND_BUS_MAX_DEPTH", "5")
    monkeypatch.setattr("command_bus.spark.writing.send_queue.WARN_AFTER", 0.1)
    monkeypatch.setattr("command_bus.spark.writing.send_queue.WARN_EVERY", 0.3)
    target = Target.resolve(server.url, NAMESPACE)
    with (
        caplog.at_level("WARNING", "command_bus.spark"),
        pytest.raises(DispatchStalled),
        PartitionDispatcher(target, dispatch_id="d", max_wait=1.5, partition=4) as dispatcher,
    ):
        dispatcher.dispatch_batch(notes(20))
    said = [record.getMessage() for record in caplog.records]
    assert 2 <= len(said) <= 5
    for part in (
        "dispatch 'd', partition 4: nothing could be added for",
        "entity limit: waiting for book:b",
        "and 2 others, 5 rows stand aside",
        "no worker lives there",
        "it gives up in 1 s (max_wait)",
    ):
        assert part in said[0]


def test_a_stalled_partition_reports_and_continues_later(target: Target) -> None:
    began = time.monotonic()
    with (
        pytest.raises(DispatchStalled) as caught,
        PartitionDispatcher(target, dispatch_id="d", max_backlog=30, max_wait=0.3) as dispatcher,
    ):
        dispatcher.dispatch_batch(notes(50))
    assert 0.3 <= time.monotonic() - began < 10
    assert (caught.value.accepted, caught.value.limit, caught.value.retryable) == (30, "total", True)
    assert pickle.loads(pickle.dumps(caught.value)).message == caught.value.message
    with PartitionDispatcher(target, dispatch_id="d", max_backlog=100) as dispatcher:
        result = dispatcher.dispatch_batch(notes(50))
    assert (result.added, result.duplicates) == (20, 30)


def test_a_server_without_memory_is_waited_for(target: Target, server: EmbeddedServer) -> None:
    connection = connection_to(target)

    def limit(size: str) -> None:
        connection.wait(connection.transport.connections.ask(lambda client: client.config_set("maxmemory", size)))

    with PartitionDispatcher(target, dispatch_id="d", batch_size=10) as dispatcher:
        dispatcher.dispatch_batch(notes(10))
        limit("1")
        timer = threading.Timer(0.4, limit, ["0"])
        timer.start()
        result = dispatcher.dispatch_batch(notes(50))
    timer.join()
    assert (result.added, result.duplicates, result.rejected) == (50, 10, 0)  # the first ten once more
    assert result.waited > 0.2
    assert waiting(target, "b1") == list(range(1, 50, 3))


def test_invalid_commands_are_refused_without_effect(target: Target) -> None:
    with PartitionDispatcher(target, dispatch_id="d") as dispatcher:
        with pytest.raises(InvalidCommand, match="a dispatch needs ids"):
            dispatcher.dispatch_batch([Note(book="b", number=1)])
        with pytest.raises(InvalidCommand, match="no delay or deadline"):
            dispatcher.dispatch_batch([Envelope(Note(book="b", number=1), command_id="a", delay=5)])
        with pytest.raises(PayloadTooLarge):
            dispatcher.dispatch_batch([Envelope(Note(book="b", number=1, text="x" * 2_000_000), command_id="a")])
        assert dispatcher.dispatch_batch([Envelope(Note(book="b", number=1), command_id="a")]).added == 1
    assert waiting(target, "b") == [1]


@pytest.mark.parametrize("policy", ["quarantine", "drop", "raise"])
def test_conflicts_follow_on_invalid(target: Target, policy: Any) -> None:
    rows = [Envelope(Note(book="b", number=number), command_id="same") for number in (1, 2)] + notes(1)
    dispatcher = PartitionDispatcher(target, dispatch_id="d", on_invalid=policy)
    dispatcher.open()
    if policy == "raise":
        with pytest.raises(InvalidRows, match="the key is not unique"):
            dispatcher.dispatch_batch(rows)
        return
    result = dispatcher.dispatch_batch(rows)
    assert (result.rows, result.added, result.rejected) == (3, 2, 1)
    connection = connection_to(target)

    async def noted() -> list[Any]:
        return [row async for row in connection.transport.bulk.rejects("d")]

    assert len(connection.wait(noted())) == (1 if policy == "quarantine" else 0)


def test_too_many_rejects_fail_the_partition(target: Target) -> None:
    def reject(number: int) -> RowReject:
        return RowReject.of(
            command_id=f"r{number}", command="Note", entity="b", reason="invalid", error="no", row={"number": number}
        )

    with PartitionDispatcher(target, dispatch_id="d", max_rejects=3) as one:
        for number in range(3):
            one.reject(reject(number))
    with PartitionDispatcher(target, dispatch_id="d", max_rejects=3) as same:
        for number in range(3):
            same.reject(reject(number))  # a second attempt meets the same ones
    other = PartitionDispatcher(target, dispatch_id="d", max_rejects=3)
    other.open()
    other.reject(reject(3))
    with pytest.raises(InvalidRows, match="more than 3 rows"):
        other.flush()


def test_shards_and_lanes_are_read_from_the_namespace(server: EmbeddedServer) -> None:
    async def make() -> None:
        settings = BusSettings(url=server.url, namespace="laned", shards=3, entities={"book": EntityPolicy(mailbox=lanes(2))})
        async with CommandBus(settings=settings) as bus:
            await bus.dispatch(Note(book="b", number=-1))

    asyncio.run(make())
    target = Target.resolve(server.url, "laned")
    with PartitionDispatcher(target, dispatch_id="d", batch_size=4) as dispatcher:
        result = dispatcher.dispatch_batch(notes(30, books=9))
    assert (result.added, result.entities) == (30, 2)
    assert connection_to(target).transport.shards == 3
    assert connection_to(target).wait(_stats(connection_to(target))) == 31


def test_two_tasks_may_share_a_lane_but_no_entity(server: EmbeddedServer) -> None:
    async def make() -> None:
        settings = BusSettings(url=server.url, namespace="laned", entities={"book": EntityPolicy(mailbox=lanes(1))})
        async with CommandBus(settings=settings) as bus:
            await bus.dispatch(Note(book="b", number=-1))

    asyncio.run(make())
    target = Target.resolve(server.url, "laned")

    def send(partition: int, *books: str, keep_order: bool | None = True) -> int:
        rows = [Envelope(Note(book=book, number=partition), command_id=f"{book}-{partition}") for book in books]
        task = PartitionDispatcher(target, dispatch_id="d", run="r", partition=partition, keep_order=keep_order, batch_size=1)
        with task as dispatcher:
            return dispatcher.dispatch_batch(rows).added

    assert send(0, "b0", "b1") == 2
    assert send(1, "b2", "b3") == 2
    with pytest.raises(DispatchConflict, match="rows of 'book/0 b1' are in two tasks"):
        send(2, "b4", "b1")
    assert send(3, "b0", keep_order=False) == 1
    with PartitionDispatcher(target, dispatch_id="d", run="r", partition=4) as counted:
        counted.dispatch_batch([Envelope(Note(book=f"b{number}", number=4), command_id=f"c{number}") for number in range(9)])
    assert counted.result.shared == 5  # b0 to b4: what the task that was refused had begun counts


async def _stats(connection: TargetConnection) -> int:
    return (await connection._thread.bus.stats()).depth


def test_an_unreachable_server_gives_a_short_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "PATIENCE", 0.3)
    with pytest.raises(TransportUnavailable) as caught:
        connection_to(Target("redis://user:secret@127.0.0.1:1", "x"))
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_the_dispatcher_works_without_spark() -> None:
    import subprocess
    import sys

    code = (
        "import sys; sys.modules.update(pyspark=None, pyarrow=None, pandas=None)\n"
        "import command_bus.spark as s\n"
        "from command_bus.spark import PartitionDispatcher, Target, command_id_of\n"
        "assert command_id_of(['a', None]) == '%s'\n"
        "try: s.dispatch_dataframe\n"
        "except ImportError as error: assert \"pip install 'command-bus[spark]'\" in str(error), error\n"
        "else: raise SystemExit('no error')\n"
    )
    from command_bus.spark import command_id_of

    done = subprocess.run(
        [sys.executable, "-c", code % command_id_of(["a", None])], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_admission_is_counted_somewhere() -> None:
    from command_bus.spark.writing.send_queue import LIMITS, MAILBOX_LIMITS
    from command_bus.spark.writing.task_results import PERMANENT_REFUSALS

    of_unique_keys = {Admission.FOLDED, Admission.REPLACED, Admission.MAY_NOT_REPLACE}  # two are counted, the third is raised
    assert {Admission.ACCEPTED, Admission.DUPLICATE, *LIMITS, *PERMANENT_REFUSALS} == set(Admission) - of_unique_keys
    assert set(LIMITS.values()) > MAILBOX_LIMITS
