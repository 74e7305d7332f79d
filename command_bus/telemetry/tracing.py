"""`Tracing`: a middleware that traces commands from sender to handler, with OpenTelemetry (extra `otel`, the API only).

    bus = CommandBus(middleware=[Tracing()])

A dispatch is a span `send Deposit`. Its context travels in the header `traceparent` (W3C Trace Context), and each attempt is a span `process
Deposit` below it, so that retries are side by side in one trace, and what a handler sends is below its attempt. A call is a span `call Deposit`
around its `send`, which lasts until its reply. A batch is one span, whatever its size: the attempts of its commands are traces of their own
that link to it, because a trace of a hundred thousand spans is of no use.

Names follow OpenTelemetry's semantic conventions for messaging, which are still in development. The destination is the command's name, which is what
senders address and handlers subscribe to; the entity is the partition, by which it is ordered. Payloads are never recorded.

Kinds of spans: the conventions for messaging ("Span kind", https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/) want a PRODUCER
where the context comes from that a message carries, and refer to the specification of the API (https://opentelemetry.io/docs/specs/otel/trace/api/#spankind)
for the rest: a PRODUCER ends when the broker has accepted the message, a CLIENT waits for its answer. So `send` is the PRODUCER, and `call` around it
a CLIENT without a `messaging.operation.type`, as theirs has none for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from command_bus.errors import CommandRejected, MissingExtra, Reject
from command_bus.messages.context import CommandContext, running_command
from command_bus.messages.durable import Suspended
from command_bus.messages.outgoing import OutgoingMessage
from command_bus.messages.receipts import BatchResult
from command_bus.messages.snooze import Snooze, leading
from command_bus.middleware import Middleware, Sending
from command_bus.sending.admission import refusal
from command_bus.transport.redis.keys import GROUP
from command_bus.transport.submissions import Admission
from command_bus.worker.run_ends import text_of

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:  # pragma: no cover - depends on the environment
    raise MissingExtra("command_bus.telemetry.tracing needs OpenTelemetry's API: pip install 'command-bus[otel]'") from error

_W3C = TraceContextTextMapPropagator()
_MODE, _LINK = "trace-mode", "link"
_in_batch: ContextVar[bool] = ContextVar("command_bus_in_batch", default=False)


def trace_ids() -> dict[str, str]:
    """Return the ids of the current span, for logs; empty if there is none."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}


class Tracing(Middleware):
    """A middleware that records a span around each send and each attempt.

    Args:
        tracer_provider: By default OpenTelemetry's global one; without an SDK it records nothing.
        mode: `parent` puts the attempts of single commands below the span that sent them, `link` makes each a trace of its own that links to
            it; those of batches always link.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None, *, mode: Literal["parent", "link"] = "parent") -> None:
        self._tracer = trace.get_tracer("command_bus", tracer_provider=tracer_provider)
        self._mode = mode

    async def dispatch(self, outgoing: OutgoingMessage, proceed: Sending) -> Any:
        """Implement `Middleware`."""
        if _in_batch.get():  # whose span is around this one
            self._inject(outgoing)
            return await proceed(outgoing)
        with self._span("send", outgoing.name, SpanKind.PRODUCER, _sending(outgoing)) as span:
            self._inject(outgoing)
            admission = await proceed(outgoing)
            if isinstance(admission, Admission) and (refused := refusal(admission, outgoing.command_id)) is not None:
                _fail(span, refused)
            return admission

    async def call(self, outgoing: OutgoingMessage, proceed: Sending) -> Any:
        """Implement `Middleware`."""
        with self._span("call", outgoing.name, SpanKind.CLIENT, _sending(outgoing)):
            return await proceed(outgoing)

    async def batch(self, proceed: Callable[[], Awaitable[BatchResult]]) -> BatchResult:
        """Implement `Middleware`."""
        with self._span("send", "batch", SpanKind.PRODUCER, {}) as span:
            token = _in_batch.set(True)
            try:
                result = await proceed()
            finally:
                _in_batch.reset(token)
            span.set_attribute("messaging.batch.message_count", len(result.outcomes))
            span.set_attribute("command_bus.rejected", result.rejected)
            return result

    async def handle(self, command: Any, context: CommandContext, proceed: Callable[[], Awaitable[Any]]) -> Any:
        """Implement `Middleware`."""
        sent = _W3C.extract(context.headers, Context())
        links: list[Link] = []
        if self._mode == _LINK or context.headers.get(_MODE) == _LINK:
            sent, links = Context(), _links(context)
        with self._span("process", context.name, SpanKind.CONSUMER, _handling(context), sent, links):
            return await proceed()

    async def handle_many(
        self, commands: Sequence[Any], contexts: Sequence[CommandContext], proceed: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Implement `Middleware`: one span for the call, which links to what has sent each of its commands."""
        links = [link for each in contexts for link in _links(each)]
        attributes = _handling(contexts[0]) | {"messaging.batch.message_count": len(commands)}
        with self._span("process", contexts[0].name, SpanKind.CONSUMER, attributes, Context(), links):
            return await proceed()

    @contextmanager
    def _span(
        self,
        operation: str,
        destination: str,
        kind: SpanKind,
        attributes: dict[str, Any],
        parent: Context | None = None,
        links: list[Link] | None = None,
    ) -> Generator[Span]:
        """Open a span for the block, and record how the block ends."""
        named: dict[str, Any] = {
            "messaging.system": "redis",
            "messaging.operation.name": operation,
            "messaging.destination.name": destination,
        }
        if operation != "call":
            named["messaging.operation.type"] = operation
        with self._tracer.start_as_current_span(
            f"{operation} {destination}",
            context=parent,
            kind=kind,
            attributes=named | attributes,
            links=links,
            record_exception=False,  # its text and its frames: here it is said what it may say
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                _say(span, leading(error))
                raise

    def _inject(self, outgoing: OutgoingMessage) -> None:
        _W3C.inject(outgoing.headers)
        if _in_batch.get() and "traceparent" in outgoing.headers:
            outgoing.headers[_MODE] = _LINK


def _links(context: CommandContext) -> list[Link]:
    """Return the link to the span that has sent a command."""
    origin = trace.get_current_span(_W3C.extract(context.headers, Context())).get_span_context()
    return [Link(origin)] if origin.is_valid else []


def _say(span: Span, error: BaseException) -> None:
    """Say how something ended. What the business says no to is no error of the system, nor is work that is put off, nor a handler that waits."""
    match error:
        case Reject() | CommandRejected():
            span.set_attribute("command_bus.outcome", "rejected")
            if error.code:
                span.set_attribute("command_bus.rejection_code", error.code)
        case Snooze():
            span.set_attribute("command_bus.outcome", "snoozed")
            span.set_attribute("command_bus.snooze_seconds", error.seconds)
        case Suspended():
            span.set_attribute("command_bus.outcome", "suspended")
        case _:
            _fail(span, error)


def _fail(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, text_of(error)))


def _sending(outgoing: OutgoingMessage) -> dict[str, Any]:
    running = running_command()
    found: dict[str, Any] = {
        "messaging.message.id": outgoing.command_id,
        "messaging.message.conversation_id": outgoing.command_id if running is None else running.correlation_id,
        "messaging.message.body.size": len(outgoing.payload),
    }
    if outgoing.entity_type is not None:
        found["messaging.destination.partition.id"] = f"{outgoing.entity_type}:{outgoing.entity_id}"
    return found


def _handling(context: CommandContext) -> dict[str, Any]:
    found: dict[str, Any] = {
        "messaging.message.id": context.command_id,
        "messaging.message.conversation_id": context.correlation_id,
        "messaging.consumer.group.name": GROUP,
        "messaging.client.id": context.worker,
        "command_bus.attempt": context.attempt,
    }
    if context.entity is not None:
        found["messaging.destination.partition.id"] = context.entity
    if context.resumed:
        found["command_bus.resumed"] = True
    return found
