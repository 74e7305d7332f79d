"""`POST /commands/{name}` and `POST /commands`: dispatch a command, call it, dispatch many. `POST /events/{name}`: publish an event."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NamedTuple, cast

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response

from command_bus.admin.json_data import to_jsonable
from command_bus.errors import CommandBusError, CommandTimeout, InvalidCommand, PublishedInPart
from command_bus.gateway.catalogue import KnownCommand
from command_bus.gateway.incoming import Incoming, Query
from command_bus.gateway.problems import Problem, answer, failed_fields, problem_of
from command_bus.messages.event import Published, PublishOptions
from command_bus.messages.message import Event, Message
from command_bus.messages.options import CallOptions, DispatchOptions
from command_bus.messages.outgoing import Envelope, RawEnvelope
from command_bus.messages.policies import Priority
from command_bus.messages.receipts import BatchOutcome, Receipt
from command_bus.sending.options import new_command_id
from command_bus.serialization.json_forms import read_json
from command_bus.serialization.models import codec_for, reply_codec_for
from command_bus.serialization.msgpack import unpack
from command_bus.spelling import did_you_mean

_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,6})\"?\s*(?=$|[,;])")
_OWN_HEADER = b"x-command-"
_TRACING = (b"traceparent", b"tracestate")
_QUERY_WAIT = 10.0
"""Seconds for a query whose request does not say how long it waits."""


class EventOptions(Query):
    """Options of an event, beside its fields; see `CommandBus.publish`."""

    delay: float | None = Field(default=None, ge=0, description="Seconds until it takes its place in its entity's line.")
    at: AwareDatetime | None = Field(default=None, strict=False, description="The moment when it does, instead of `delay`.")
    expires: float | None = Field(default=None, gt=0, description="Seconds after which it is not started any more.")
    priority: Priority | None = Field(default=None, description="Which entities come first, rather than as its class says.")

    def publish_options(self) -> PublishOptions:
        """Return them as a publication takes them."""
        return cast("PublishOptions", _given(self, EventOptions))


class SendOptions(EventOptions):
    """Options of a command, beside its fields; see `CommandBus.dispatch`."""

    keep_result: bool = Field(default=False, description="Keep its result, as that of a command with an Idempotency-Key is kept.")
    attempt_timeout: float | None = Field(default=None, gt=0, description="Seconds that one attempt may take.")

    def dispatch_options(self) -> DispatchOptions:
        """Return them as a dispatch takes them."""
        return cast("DispatchOptions", _given(self, SendOptions))


def _given(options: Query, kind: type[Query]) -> dict[str, Any]:
    return {name: value for name in kind.model_fields if (value := getattr(options, name)) is not None}


class BatchItem(SendOptions):
    """A command of a batch."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    name: str = Field(description="Its wire name.")
    fields: dict[str, Any] = Field(default_factory=dict, description="Its fields.")
    id: str | None = Field(default=None, min_length=1, description="Makes it idempotent, as an Idempotency-Key does.")
    headers: dict[str, str] = Field(default_factory=dict, description="Text that travels with it.")


class Batch(BaseModel):
    """Many commands. Those of one entity keep their order."""

    model_config = ConfigDict(extra="forbid", strict=True)

    commands: list[BatchItem]


_PLAIN = SendOptions()


class _Asked(NamedTuple):
    """Options of one request."""

    options: SendOptions
    command_id: str | None
    headers: dict[str, str] | None


async def post_command(incoming: Incoming) -> Response:
    """Dispatch a command; call it if the request prefers to wait, or if it is a query."""
    wait = _wait_of(incoming)
    known = await _permitted(incoming, incoming.path[1], calls=wait is not None)
    asked = _Asked(
        incoming.query(SendOptions) if incoming.scope["query_string"] else _PLAIN, _key_of(incoming), _headers_of(incoming)
    )
    body = await incoming.body()
    command = await incoming.apart(len(body), lambda: _command(known, body))
    if wait is not None or known.is_query:
        return await _call(incoming, command, wait or _QUERY_WAIT, asked)
    receipt = await _dispatch(incoming, command, asked)
    is_kept = asked.command_id is not None or asked.options.keep_result
    is_kept = is_kept or (known.kind is not None and known.kind.spec().durable)
    where = {"Location": incoming.url("commands", receipt.command_id)} if is_kept else None
    return answer(receipt._asdict(), 200 if receipt.status == "duplicate" else 202, where)


async def post_batch(incoming: Incoming) -> Response:
    """Dispatch many commands. Nothing is sent if one of them is wrong; whether the server accepts it, each has an outcome of its own."""
    if not incoming.holder.rights.may_some("send"):
        incoming.need("send")
    body = await incoming.body()
    batch = await incoming.apart(len(body), lambda: _batch(body, incoming.state.options.max_batch))
    if incoming.holder.rate is not None:
        incoming.holder.rate.take(max(0, len(batch.commands) - 1))
    known = [await _known(incoming, number, item) for number, item in enumerate(batch.commands)]
    numbered = enumerate(zip(known, batch.commands, strict=True))
    items = await incoming.apart(len(body), lambda: [_item(incoming, number, *each) for number, each in numbered])
    result = await incoming.bus.dispatch_batch(items)
    facts = {
        "accepted": result.accepted,
        "duplicates": result.duplicates,
        "rejected": result.rejected,
        "replaced": result.replaced,
    }
    return answer({**facts, "outcomes": [_outcome(each) for each in result.outcomes]})


async def post_event(incoming: Incoming) -> Response:
    """Publish an event. Without a key it gets one, by which an event that some subscriptions refused is published again."""
    known = await _named(incoming, incoming.path[1], ("publish",), event=True)
    options, key = incoming.query(EventOptions).publish_options(), _chosen_key(incoming) or new_command_id()
    options["event_id"], options["headers"] = incoming.holder.command_id(key), _headers_of(incoming)
    body = await incoming.body()
    event = await incoming.apart(len(body), lambda: _command(known, body))
    try:
        published = await _publish(incoming, event, options)
    except PublishedInPart as error:
        problem = problem_of(error)
        problem.members["idempotency_key"] = key
        raise problem from None
    return answer(published._asdict(), 202)


# Who may send what.


async def _named(incoming: Incoming, name: str, acts: tuple[str, ...], *, event: bool = False) -> KnownCommand:
    """Return the command of this name, or the event, if the holder may do one of these acts with it.

    Raises:
        Problem: They may do none, or there is none.
    """
    rights, catalogue = incoming.holder.rights, incoming.state.catalogue

    def may(what: str) -> bool:
        return any(rights.may(act, what) for act in acts)

    known = await catalogue.find(name, event=event) if may(name) else None
    if known is not None:
        return known
    found = await catalogue.all()
    hint = did_you_mean(name, [each.name for each in found.values() if each.is_event is event and may(each.name)])
    if not may(name):
        raise Problem(403, "forbidden", f"this token may not {acts[0]} {name[:200]!r}{hint}", right=f"{acts[0]}:{name[:200]}")
    if name in found:
        hint = f"; it is a command: POST /commands/{name}" if event else f"; it is an event: POST /events/{name}"
    what = "event" if event else "command"
    raise Problem(404, f"unknown_{what}_name", f"no worker has announced {what} {name[:200]!r}{hint}")


async def _permitted(incoming: Incoming, name: str, *, calls: bool) -> KnownCommand:
    """Return the command of this name, if the holder may send it so.

    Raises:
        Problem: They may not, or there is none.
    """
    known = await _named(incoming, name, ("send", "call"))
    act = "call" if calls or known.is_query else "send"
    if not incoming.holder.rights.may(act, name):
        why = ": a query is always called" if known.is_query and not calls else ""
        raise Problem(403, "forbidden", f"this token may not {act} {name!r}{why}", right=f"{act}:{name}")
    return known


# From JSON to commands.


def _command(known: KnownCommand, body: bytes) -> Message[Any] | RawEnvelope:
    """Return the command whose fields are in a body.

    Raises:
        Problem: It is no JSON, or a field is wrong.
    """
    fields = _json(body)
    return _raw(known, fields, "") if known.kind is None else _message(known, known.kind, fields, "")


def _batch(body: bytes, most: int) -> Batch:
    given = _json(body)
    commands = given.get("commands") if isinstance(given, dict) else None
    if isinstance(commands, list) and len(commands) > most:
        raise Problem(413, "batch_too_large", f"{len(commands)} commands: a batch has at most {most}", max_batch=most)
    try:
        return Batch.model_validate(given)
    except ValidationError as error:
        raise failed_fields("the batch", error) from None


def _json(body: bytes) -> Any:
    try:
        return read_json(body or b"{}")
    except ValueError as error:
        raise Problem(400, "invalid_json", f"the body is no JSON: {error}") from None


def _message(known: KnownCommand, kind: type[Message[Any]], fields: Any, prefix: str) -> Message[Any]:
    """Return a command of a class that is here.

    Raises:
        Problem: A field is wrong.
    """
    try:
        return codec_for(kind).validated(_wire(known, fields, prefix))
    except ValidationError as error:
        raise failed_fields(known.name, error, prefix) from None


def _wire(known: KnownCommand, fields: Any, prefix: str) -> dict[str, Any]:
    """Return fields as they travel, checked by the schema.

    Raises:
        Problem: One is wrong.
    """
    if not isinstance(fields, dict):
        raise _wrong(known.name, [(prefix.rstrip("."), "the fields of a command are a JSON object")])
    if found := known.fields.located(fields):
        raise _wrong(known.name, [(prefix + path, problem) for path, problem in found])
    try:
        return known.fields.wire(fields)
    except InvalidCommand as error:
        raise _wrong(known.name, [(prefix.rstrip("."), error.message)]) from None


def _raw(known: KnownCommand, given: Any, prefix: str) -> RawEnvelope:
    """Return a command without its class."""
    info, fields = known.info, _wire(known, given, prefix)
    assert info is not None  # noqa: S101 - for type checkers: only what is announced has no class
    if info.key is None or info.entity is None:
        return RawEnvelope(None, None, known.name, fields, info.version)
    if info.key not in fields:  # the announced schema did not require it
        raise _wrong(known.name, [(prefix + info.key, "is missing")])
    others, across = info.others(fields), info.across_shards
    return RawEnvelope(info.entity, fields[info.key], known.name, fields, info.version, others=others, across_shards=across)


def _wrong(name: str, found: list[tuple[str, str]]) -> Problem:
    detail = "; ".join(f"{path or 'the value'} {problem}" for path, problem in found)
    return Problem(422, "invalid_command", f"{name}: {detail}", errors=[{"field": path, "problem": why} for path, why in found])


async def _known(incoming: Incoming, number: int, item: BatchItem) -> KnownCommand:
    """Return what a command of a batch is, if the holder may send it so.

    Raises:
        Problem: They may not, or there is none, with its index.
    """
    try:
        known = await _permitted(incoming, item.name, calls=False)
        if known.is_query:
            why = "is a query, which is called: a batch has no replies"
            raise _wrong(known.name, [(f"commands.{number}.name", why)])
    except Problem as problem:
        problem.members["index"] = number
        raise
    return known


def _item(incoming: Incoming, number: int, known: KnownCommand, item: BatchItem) -> Envelope[Any] | RawEnvelope:
    """Return a command of a batch.

    Raises:
        Problem: It is wrong, with its index.
    """
    try:
        options = item.dispatch_options()
        options["headers"] = item.headers or None
        options["command_id"] = None if item.id is None else incoming.holder.command_id(item.id)
        prefix = f"commands.{number}.fields."
        if known.kind is None:
            raw = _raw(known, item.fields, prefix)
            return replace(raw, options=options)
        command = _message(known, known.kind, item.fields, prefix)
    except Problem as problem:
        problem.members["index"] = number
        raise
    return Envelope(command, **options)


# To the bus, and back.


async def _dispatch(incoming: Incoming, command: Message[Any] | RawEnvelope, asked: _Asked) -> Receipt[Any]:
    options = asked.options.dispatch_options()
    options["command_id"], options["headers"] = asked.command_id, asked.headers
    if isinstance(command, RawEnvelope):
        return await incoming.bus.dispatch_raw(
            command.entity_type,
            command.entity_id,
            command.name,
            command.payload,
            version=command.version,
            others=command.others,
            across_shards=command.across_shards,
            **options,
        )
    return await incoming.bus.dispatch(command, **options)


async def _publish(incoming: Incoming, event: Message[Any] | RawEnvelope, options: PublishOptions) -> Published:
    if isinstance(event, Event):
        return await incoming.bus.publish(event, **options)
    if not isinstance(event, RawEnvelope) or event.entity_type is None or event.entity_id is None:
        raise Problem(409, "no_entity", "it is announced without an entity, which every event has")
    return await incoming.bus.publish_raw(
        event.entity_type, event.entity_id, event.name, event.payload, version=event.version, **options
    )


async def _call(incoming: Incoming, command: Message[Any] | RawEnvelope, wait: float, asked: _Asked) -> Response:
    """Call a command, and answer with its reply."""
    options = asked.options
    if options.delay is not None or options.at is not None or options.expires is not None:
        raise Problem(400, "invalid_query", "delay, at and expires: a call has none of them, it waits for its reply")
    seconds = min(wait, incoming.state.options.max_wait)
    given = CallOptions(
        timeout=seconds,
        command_id=asked.command_id,
        headers=asked.headers,
        priority=options.priority,
        attempt_timeout=options.attempt_timeout,
    )
    try:
        if isinstance(command, RawEnvelope):
            reply = await incoming.bus.call_raw(
                command.entity_type,
                command.entity_id,
                command.name,
                command.payload,
                version=command.version,
                others=command.others,
                across_shards=command.across_shards,
                **given,
            )
        else:
            typed = await incoming.bus.call(command, **given)
            reply = unpack(reply_codec_for(type(command).spec().reply).encode(typed))
    except CommandTimeout as error:
        problem = problem_of(error)
        if error.command_id:
            problem.headers["Location"] = incoming.url("commands", error.command_id)
        raise problem from None
    applied = {"Preference-Applied": f"wait={seconds:g}"}
    return answer({"command_id": asked.command_id, "reply": to_jsonable(reply)}, 200, applied)


def _outcome(outcome: BatchOutcome) -> dict[str, Any]:
    error: CommandBusError | None = outcome.error
    found = {"command_id": outcome.command_id or None, "status": outcome.status, "other": outcome.other}
    return found if error is None else {**found, "error": problem_of(error).facts()}


# Headers of the request.


def _wait_of(incoming: Incoming) -> float | None:
    """Return how many seconds the client prefers to wait (RFC 7240); None if it does not."""
    prefer = incoming.header(b"prefer")
    found = None if prefer is None else _WAIT.search(prefer)
    if found is None:
        return None
    if not int(found[1]):
        raise Problem(400, "invalid_header", "Prefer: wait is at least one second")
    return float(found[1])


def _key_of(incoming: Incoming) -> str | None:
    """Return the command id of the key that the client has chosen."""
    key = _chosen_key(incoming)
    return None if key is None else incoming.holder.command_id(key)


def _chosen_key(incoming: Incoming) -> str | None:
    """Return the key that the client has chosen; it may stand in quotes."""
    key = incoming.header(b"idempotency-key")
    if key is None:
        return None
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not key:
        raise Problem(400, "invalid_header", "Idempotency-Key: it is empty")
    return key


def _headers_of(incoming: Incoming) -> dict[str, str] | None:
    """Return the headers that travel with the command: `X-Command-…` and those of a trace."""
    found: dict[str, str] = {}
    for name, _ in incoming.scope["headers"]:
        own = name.startswith(_OWN_HEADER)
        if own or name in _TRACING:
            text = incoming.header(name)
            found[name[len(_OWN_HEADER) :].decode() if own else name.decode()] = text or ""
    return found or None
