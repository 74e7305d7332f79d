"""`GET /events` and `GET /commands/{id}/progress`: what happens, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, TypeVar, cast, get_args

from pydantic import Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from command_bus.admin.events import CommandEvent, EventKind
from command_bus.admin.json_data import to_jsonable
from command_bus.gateway.hubs import Listener
from command_bus.gateway.incoming import Incoming, Query, header_of
from command_bus.gateway.problems import HEADERS, Problem, encoded, retry_later
from command_bus.integrations.web import counted
from command_bus.messages.message import check_entity_type
from command_bus.spelling import did_you_mean
from command_bus.stream_ids import stream_id
from command_bus.tasks import end_tasks
from command_bus.transport.mailboxes import EVERYTHING, SCHEDULES, scope_label

_PATIENCE = 30.0
"""Seconds for which a client may leave unread what is sent to it."""


class EventStream(Response):
    """Server-sent events.

    Args:
        head: What is sent first.
        chunks: What follows; closed at the end.
    """

    media_type = "text/event-stream"

    def __init__(self, head: bytes, chunks: AsyncGenerator[bytes]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**HEADERS, "X-Accel-Buffering": "no"})
        self._head = head
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. It is closed when this returns, whatever happens."""
        async with aclosing(self._chunks):
            sending = asyncio.create_task(self._send(send), name="command_bus.gateway.stream")
            gone = asyncio.create_task(_until_gone(receive), name="command_bus.gateway.gone")
            try:
                await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end_tasks((sending, gone))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _sent(send, self._head)
        async for chunk in self._chunks:
            await _sent(send, chunk)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _sent(send: Send, chunk: bytes) -> None:
    async with asyncio.timeout(_PATIENCE):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


T = TypeVar("T")
_QUIET = 15.0
"""Seconds after which an open stream says that it is."""
_HEAD = b"retry: 3000\n\n"
_STILL_HERE = b": quiet\n\n"
_FULL = 30
_ALL = scope_label(EVERYTHING)


class EventQuery(Query):
    """Choice of events."""

    type: tuple[str, ...] = Field(
        default=(),
        description="Entity types; an empty one is commands without an entity, `@schedules` schedules. Without any: all.",
    )
    kind: tuple[str, ...] = Field(default=(), description="Kinds, such as `completed`. Without any: all.")
    after: str | None = Field(
        default=None, description="The id of an event to go on behind, as `Last-Event-ID`; empty: all that is kept."
    )


async def get_events(incoming: Incoming) -> Response:
    """Answer with the events of watched entity types as they happen."""
    incoming.need("events")
    query = incoming.query(EventQuery)
    types = frozenset(_type(each) for each in query.type)
    if unknown := sorted(set(query.kind) - set(get_args(EventKind))):
        known = get_args(EventKind)
        raise Problem(400, "invalid_query", f"kind: {unknown[0][:60]!r} is none{did_you_mean(unknown[0], known)}", known=known)
    last = incoming.header(b"last-event-id")
    after = query.after if last is None else last
    return await _stream(incoming, "events", _events(incoming, types, frozenset(query.kind), after))


async def get_progress(incoming: Incoming) -> Response:
    """Answer with how far a command is, until it is settled."""
    incoming.need("look")
    incoming.query(Query)
    return await _stream(incoming, "look", _progress(incoming, incoming.path[1]))


async def _stream(incoming: Incoming, act: str, chunks: AsyncGenerator[bytes]) -> Response:
    """Return a stream, once it is known to begin: its first part is the head."""
    permitted = _permitted(incoming, act, chunks)
    try:
        await anext(permitted)
    except BaseException:
        await permitted.aclose()
        raise
    return EventStream(_HEAD, permitted)


async def _permitted(incoming: Incoming, act: str, chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the same for as long as the token may do this, which may be taken back meanwhile; it counts as an open stream.

    Raises:
        Problem: Too many are open, of all or of this token.
    """
    state, name, authorization = incoming.state, incoming.holder.name, header_of(incoming.scope, b"authorization")
    async with aclosing(chunks):
        everyone, own = state.streams_of.total(), state.streams_of[name]
        if everyone >= state.options.max_streams:
            raise retry_later(503, "too_many_streams", f"{everyone} streams are open", _FULL)
        if own >= state.options.max_streams_each:
            raise retry_later(429, "too_many_streams", f"this token has {own} streams open", _FULL)
        with counted(state.streams_of, name):
            async for chunk in chunks:
                holder = state.allow.holder(authorization)
                if holder is None or not holder.rights.may(act):
                    return
                yield chunk


# Events.


async def _events(
    incoming: Incoming, types: frozenset[str | None], kinds: frozenset[str], after: str | None
) -> AsyncGenerator[bytes]:
    bus = incoming.bus
    async with incoming.state.hub.listening(_wanted(types, kinds)) as (listener, cursor):
        ids = cursor.split(",")
        if after is None:
            yield _HEAD
        else:
            kept = bus.events(*types, kinds=cast("Any", kinds), after=after, follow=False)
            first = await anext(kept, None)
            yield _HEAD
            if after and any(await bus.session.transport.operator.events.lost(after.split(","))):
                yield _message({"missed": None}, kind="gap")
            ids = after.split(",") if after else ["0-0"] * len(ids)
            async for event in _chained(first, kept):
                ids = event.cursor.split(",")
                yield _event(event, event.cursor)
        async for chunk in _heard(listener, ids):
            yield chunk


async def _heard(listener: Listener, ids: list[str]) -> AsyncGenerator[bytes]:
    """Yield what a listener hears behind these ids."""
    while not listener.is_over:
        heard = await listener.next(_QUIET)
        if heard is None:
            yield _STILL_HERE
            continue
        if listener.missed:
            missed, listener.missed = listener.missed, 0
            yield _message({"missed": missed}, kind="gap")
        if stream_id(heard.id) > stream_id(ids[heard.feed]):
            ids[heard.feed] = heard.id
            yield _event(heard.event, ",".join(ids))


def _wanted(types: frozenset[str | None], kinds: frozenset[str]) -> Callable[[CommandEvent], bool]:
    def wants(event: CommandEvent) -> bool:
        if kinds and event.kind not in kinds:
            return False
        return not types or event.entity == _ALL or (SCHEDULES if event.schedule else event.entity_type) in types

    return wants


def _type(text: str) -> str | None:
    return text if text == SCHEDULES else check_entity_type(text) if text else None


def _event(event: CommandEvent, cursor: str) -> bytes:
    facts = to_jsonable(event.outward)
    return _message({name: value for name, value in facts.items() if name != "cursor"}, cursor=cursor)


# Progress.


async def _progress(incoming: Incoming, command_id: str) -> AsyncGenerator[bytes]:
    await incoming.bus.commands.status(command_id, looks_around=False)  # an unknown one is refused before the stream begins
    yield _HEAD
    async with incoming.state.progress.following(command_id) as follower:
        while not follower.is_over:
            info = await follower.next(_QUIET)
            if info is None:
                yield _STILL_HERE
                continue
            yield _message(to_jsonable(info), kind="end" if info.outcome else "")
            if info.outcome:
                return


# Both.


async def _chained(first: T | None, rest: AsyncIterator[T]) -> AsyncGenerator[T]:
    if first is not None:
        yield first
        async for each in rest:
            yield each


def _message(facts: Any, *, cursor: str = "", kind: str = "") -> bytes:
    """Return a message of a stream. JSON has no line breaks, so one line is enough."""
    head = (f"id: {cursor}\n" if cursor else "") + (f"event: {kind}\n" if kind else "")
    return head.encode() + b"data: " + encoded(facts) + b"\n\n"
