"""Traces as OpenTelemetry's SDK receives them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from command_bus import (
    Command,
    CommandBus,
    CommandFailed,
    CommandRejected,
    DurableContext,
    EntityId,
    HandlerRegistry,
    QueueFull,
    Reject,
    RetryPolicy,
)
from command_bus.messages.context import CommandContext
from command_bus.telemetry.tracing import Tracing, trace_ids

pytestmark = pytest.mark.server
Make = Callable[..., CommandBus]


class Work(Command[int], entity="shelf", retry=RetryPolicy(attempts=3, delay=0.01, jitter=0)):
    shelf: EntityId
    end: str = "well"
    secret: str = "hidden-payload"


class Follow(Command[None], entity="other"):
    other: EntityId


class Spans:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.exporter.get_finished_spans()]


@pytest.fixture
def spans() -> Spans:
    return Spans()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def place(context: Any) -> tuple[int, int]:
    return context.trace_id, context.span_id


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


async def test_one_trace_from_dispatch_through_retries_and_what_the_handler_sends(
    make_bus: Make, registry: HandlerRegistry, spans: Spans
) -> None:
    ids: list[dict[str, str]] = []
    bus = make_bus(middleware=[Tracing(spans.provider)])

    @registry.handles(Work)
    async def work(command: Work, context: CommandContext) -> int:
        ids.append(trace_ids())
        if context.attempt < 3:
            raise ValueError("not yet")
        await bus.dispatch(Follow(other="o-1"))
        return 1

    @registry.handles(Follow)
    def follow(command: Follow) -> None:  # in a thread
        ids.append(trace_ids())

    async with bus, bus.worker() as worker:
        with spans.tracer.start_as_current_span("request") as request:
            receipt = await bus.dispatch(Work(shelf="s-1"))
        await bus.wait_idle(10)

    trace_id = request.get_span_context().trace_id
    assert {span.context.trace_id for span in spans.exporter.get_finished_spans() if span.context} == {trace_id}
    send = spans.one("send Work")
    assert send.kind is SpanKind.PRODUCER
    assert parent_of(send) == request.get_span_context().span_id
    common = {
        "messaging.system": "redis",
        "messaging.destination.name": "Work",
        "messaging.destination.partition.id": "shelf:s-1",
        "messaging.message.id": receipt.command_id,
        "messaging.message.conversation_id": receipt.command_id,
    }
    found = attributes(send)
    assert found.pop("messaging.message.body.size") > 0
    assert found == {**common, "messaging.operation.name": "send", "messaging.operation.type": "send"}
    attempts = spans.named("process Work")
    assert [span.kind for span in attempts] == [SpanKind.CONSUMER] * 3
    assert {parent_of(span) for span in attempts} == {send.context.span_id}
    for number, span in enumerate(attempts, 1):
        found = attributes(span)
        error = found.pop("error.type", None)
        assert found == {
            **common,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": "workers",
            "messaging.client.id": worker.name,
            "command_bus.attempt": number,
        }
        assert error == (None if number == 3 else "ValueError")
        assert span.status.status_code is (StatusCode.UNSET if number == 3 else StatusCode.ERROR)
    follow_sent, followed = spans.one("send Follow"), spans.one("process Follow")
    assert parent_of(follow_sent) == attempts[2].context.span_id
    assert parent_of(followed) == follow_sent.context.span_id
    assert attributes(follow_sent)["messaging.message.conversation_id"] == receipt.command_id
    assert {each["trace_id"] for each in ids} == {f"{trace_id:032x}"}
    assert "hidden-payload" not in "".join(span.to_json() for span in spans.exporter.get_finished_spans())


async def test_the_span_of_a_call_lasts_until_its_reply(make_bus: Make, registry: HandlerRegistry, spans: Spans) -> None:
    @registry.handles(Work)
    async def work(command: Work) -> int:
        if command.end == "refused":
            raise Reject("no", code="empty")
        if command.end == "failed":
            raise LookupError("nothing there")
        return 1

    bus = make_bus(middleware=[Tracing(spans.provider)])
    async with bus, bus.worker():
        assert await bus.call(Work(shelf="s-1"), timeout=5) == 1
        call, process = spans.one("call Work"), spans.one("process Work")
        send = spans.one("send Work")
        assert sorted(spans.names) == ["call Work", "process Work", "send Work"]
        assert (call.end_time or 0) >= (process.end_time or 0)
        assert (parent_of(send), parent_of(process)) == (call.context.span_id, send.context.span_id)
        assert (call.kind, send.kind, process.kind) == (SpanKind.CLIENT, SpanKind.PRODUCER, SpanKind.CONSUMER)
        assert attributes(call)["messaging.operation.name"] == "call"
        assert "messaging.operation.type" not in attributes(call)
        spans.exporter.clear()
        with pytest.raises(CommandRejected):
            await bus.call(Work(shelf="s-1", end="refused"), timeout=5)
        for span in (spans.one("call Work"), spans.one("process Work")):
            assert span.status.status_code is StatusCode.UNSET
            assert attributes(span)["command_bus.outcome"] == "rejected"
            assert attributes(span)["command_bus.rejection_code"] == "empty"
        spans.exporter.clear()
        with pytest.raises(CommandFailed):
            await bus.call(Work(shelf="s-1", end="failed"), timeout=5)
        assert attributes(spans.one("call Work"))["error.type"] == "CommandFailed"
        assert [attributes(span)["error.type"] for span in spans.named("process Work")] == ["LookupError"] * 3


async def test_a_batch_is_one_span_and_its_commands_link_to_it(make_bus: Make, registry: HandlerRegistry, spans: Spans) -> None:
    @registry.handles(Work)
    async def work(command: Work) -> int:
        return 1

    bus = make_bus(middleware=[Tracing(spans.provider)])
    async with bus, bus.worker():
        result = await bus.dispatch_batch([Work(shelf=f"s-{number}") for number in range(3)])
        assert result.accepted == 3
        await bus.dispatch(Work(shelf="s-1"))  # what follows the batch is no part of it
        await bus.wait_idle(10)
    batch, send = spans.one("send batch"), spans.one("send Work")
    assert attributes(batch)["messaging.batch.message_count"] == 3
    linked = [span for span in spans.named("process Work") if span.links]
    assert len(linked) == 3
    assert {place(link.context) for span in linked for link in span.links} == {place(batch.context)}
    assert {span.parent for span in linked} == {None}
    assert len({span.context.trace_id for span in linked if span.context}) == 3
    [below] = [span for span in spans.named("process Work") if not span.links]
    assert parent_of(below) == send.context.span_id


async def test_links_on_request(make_bus: Make, registry: HandlerRegistry, spans: Spans) -> None:
    @registry.handles(Work)
    async def work(command: Work) -> int:
        return 1

    bus = make_bus(middleware=[Tracing(spans.provider, mode="link")])
    async with bus, bus.worker():
        await bus.dispatch(Work(shelf="s-1"))
        await bus.wait_idle(10)
    process = spans.one("process Work")
    assert process.parent is None
    assert [place(link.context) for link in process.links] == [place(spans.one("send Work").context)]


async def test_a_command_without_context_begins_a_trace(make_bus: Make, registry: HandlerRegistry, spans: Spans) -> None:
    @registry.handles(Work)
    async def work(command: Work) -> int:
        return 1

    plain = make_bus()
    bus = make_bus(middleware=[Tracing(spans.provider, mode="link")])
    async with plain, bus, bus.worker():
        await plain.dispatch(Work(shelf="s-1"), headers={"traceparent": "nonsense"})
        await plain.wait_idle(10)
    process = spans.one("process Work")
    assert process.parent is None
    assert not process.links


async def test_a_refused_dispatch_is_an_error(make_bus: Make, spans: Spans) -> None:
    bus = make_bus(middleware=[Tracing(spans.provider)], max_depth=1)
    async with bus:
        await bus.dispatch(Work(shelf="s-1"))
        with pytest.raises(QueueFull):
            await bus.dispatch(Work(shelf="s-1"))
    accepted, refused = spans.named("send Work")
    assert accepted.status.status_code is StatusCode.UNSET
    assert refused.status.status_code is StatusCode.ERROR
    assert attributes(refused)["error.type"] == "QueueFull"


async def test_without_an_sdk_nothing_is_sent_along(make_bus: Make, registry: HandlerRegistry) -> None:
    headers: list[dict[str, str]] = []

    @registry.handles(Work)
    async def work(command: Work, context: CommandContext) -> int:
        headers.append(dict(context.headers))
        return 1

    async with make_bus(middleware=[Tracing()]) as bus, bus.worker():
        assert await bus.call(Work(shelf="s-1"), timeout=5) == 1
        await bus.dispatch_batch([Work(shelf="s-1")])
        await bus.wait_idle(10)
    assert headers == [{}, {}]
    assert trace_ids() == {}


class Trip(Command[int], entity="trip", durable=True):
    trip: EntityId


async def test_each_start_of_a_durable_command_is_a_span_of_its_trace(
    make_bus: Make, registry: HandlerRegistry, spans: Spans
) -> None:
    """A start that ends in a suspension is no error, and what the handler calls belongs to the start that called it."""
    bus = make_bus(middleware=[Tracing(spans.provider)])
    resumed: list[bool] = []

    @registry.handles(Follow)
    async def follow(command: Follow) -> None: ...

    @registry.handles(Trip)
    async def travel(command: Trip, context: DurableContext) -> int:
        resumed.append(context.resumed)
        await context.call(Follow(other="o-1"))
        return await context.signal("go", returns=int)

    async with bus, bus.worker():
        receipt = await bus.dispatch(Trip(trip="t-1"))
        async with asyncio.timeout(10):
            while not (await bus.stats()).suspended:
                await asyncio.sleep(0.01)
        await bus.commands.signal(receipt.command_id, "go", 5)
        assert await bus.result(receipt.command_id, Trip, timeout=10) == 5

    send, starts = spans.one("send Trip"), spans.named("process Trip")
    assert {parent_of(span) for span in starts} == {send.context.span_id}
    assert len({span.context.span_id for span in starts}) == len(starts) > 1
    assert [attributes(span).get("command_bus.outcome") for span in starts] == ["suspended"] * (len(starts) - 1) + [None]
    assert {attributes(span)["command_bus.attempt"] for span in starts} == {1}
    assert [attributes(span).get("command_bus.resumed") for span in starts] == [None] + [True] * (len(starts) - 1)
    assert resumed == [False] + [True] * (len(starts) - 1)
    assert "command_bus.resumed" not in attributes(spans.one("process Follow"))
    assert {span.status.status_code for span in starts} == {StatusCode.UNSET}
    followed = spans.one("process Follow")
    assert followed.context.trace_id == send.context.trace_id
    [sent] = [span for span in spans.exporter.get_finished_spans() if span.context.span_id == parent_of(followed)]
    assert sent is starts[0] or parent_of(sent) == starts[0].context.span_id
