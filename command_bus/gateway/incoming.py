"""`Incoming`: one request, read within limits; and what requests share."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, unquote

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.types import Receive, Scope

from command_bus.bus import CommandBus
from command_bus.gateway.catalogue import Catalogue
from command_bus.gateway.hubs import EventHub, ProgressHub
from command_bus.gateway.problems import Problem
from command_bus.gateway.tokens import Holder, Tokens
from command_bus.serialization.models import problems_of
from command_bus.spelling import did_you_mean


class Options(NamedTuple):
    """The arguments of `gateway`, checked.

    Attributes:
        max_body: Bytes of a request's body.
        body_timeout: Seconds in which it has to arrive.
        max_batch: Commands of one batch.
        max_wait: Seconds that a request may wait for an outcome.
        max_streams: Streams of events and of progress that are open at a time.
        max_streams_each: How many of these streams one token may have open.
        max_requests_each: Requests of one token that are answered at a time.
        hosts: Names under which the gateway is reached; empty: any.
    """

    max_body: int
    body_timeout: float
    max_batch: int
    max_wait: float
    max_streams: int
    max_streams_each: int
    max_requests_each: int
    hosts: Collection[str]


@dataclass(slots=True)
class State:
    """The things that requests share.

    Attributes:
        bus: Sends what requests bring.
        allow: Who may do what.
        options: Limits.
        catalogue: What can be sent.
        hub: Who hears events.
        progress: Who follows commands.
        streams_of: How many streams each token has open, by its name.
        requests_of: How many requests of each token are being answered, by its name.
        reading: Large bodies that are being read, by the name of the token: one at a time.
    """

    bus: CommandBus
    allow: Tokens
    options: Options
    catalogue: Catalogue
    hub: EventHub
    progress: ProgressHub
    streams_of: Counter[str] = field(default_factory=Counter)
    requests_of: Counter[str] = field(default_factory=Counter)
    reading: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))


Q = TypeVar("Q", bound="Query")
T = TypeVar("T")
_MOST_FIELDS = 50
_LONGEST_QUERY = 8_000
_AT_ONCE = 8_192
"""Bytes of a body that are read in the event loop. A megabyte of lists takes a second."""
_CLOSE = {"Connection": "close"}
"""Of an answer to a request whose body was not read to its end."""


class ClientGone(Exception):
    """The client has gone before its request was read."""


class Query(BaseModel):
    """The fields of an address behind its `?`. One that is not known is refused: a misspelt `delay` must not dispatch at once."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(eq=False, slots=True)
class Incoming:
    """A request of somebody whose token is known.

    Attributes:
        scope: As ASGI has it.
        receive: Gives its body.
        state: What requests share.
        holder: Who.
        path: The segments of its path below the gateway, decoded.
    """

    scope: Scope
    receive: Receive
    state: State
    holder: Holder
    path: tuple[str, ...]

    @property
    def bus(self) -> CommandBus:
        """The bus."""
        return self.state.bus

    def header(self, name: bytes) -> str | None:
        """Return a header that may stand once; None without it.

        Raises:
            Problem: It stands twice, or has characters that are not printable ASCII.
        """
        value = header_of(self.scope, name)
        if value is None:
            return None
        text = value.decode("latin-1").strip()
        if not (text.isascii() and text.isprintable()):
            raise Problem(400, "invalid_header", f"{name.decode()}: only printable ASCII")
        return text

    def query(self, kind: type[Q]) -> Q:
        """Return the fields of the address.

        Raises:
            Problem: One is not known, twice there or not what it may be; or the address is too long.
        """
        raw: bytes = self.scope["query_string"]
        if not raw:
            return kind()
        if len(raw) > _LONGEST_QUERY:
            raise Problem(414, "address_too_long", f"what stands behind the ? has {len(raw)} bytes, at most {_LONGEST_QUERY} may")
        try:
            pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
        except ValueError:
            raise Problem(
                400, "invalid_query", f"the address: at most {_MOST_FIELDS} fields, in UTF-8, percent-encoded"
            ) from None
        try:
            return kind.model_validate(_collected(pairs, kind))
        except ValidationError as error:
            raise Problem(400, "invalid_query", problems_of(error)) from None

    async def body(self) -> bytes:
        """Return the body, which is JSON.

        Raises:
            Problem: It is declared as something else, too large, or too slow.
            Gone: The client has gone.
        """
        kind = (self.header(b"content-type") or "application/json").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Problem(415, "not_json", "Content-Type: application/json", headers=_CLOSE)
        if (self.header(b"content-encoding") or "identity").lower() != "identity":
            raise Problem(415, "encoded_body", "Content-Encoding: none is understood", headers=_CLOSE)
        limit = self.state.options.max_body
        declared = self.header(b"content-length") or "0"
        if declared.isdecimal() and (len(declared) > 18 or int(declared) > limit):
            raise _too_large(limit)
        try:
            async with asyncio.timeout(self.state.options.body_timeout):
                return await self._read(limit)
        except TimeoutError:
            seconds = self.state.options.body_timeout
            raise Problem(408, "too_slow", f"the body did not arrive within {seconds:g} s", headers=_CLOSE) from None

    async def _read(self, limit: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def apart(self, size: int, work: Callable[[], T]) -> T:
        """Return what is made of a body of this size: of a large one in a thread, one at a time for each token. No other request waits for it."""
        if size <= _AT_ONCE:
            return work()
        async with self.state.reading[self.holder.name]:
            return await asyncio.to_thread(work)

    def url(self, *segments: str) -> str:
        """Return the path of something of the gateway, as an address."""
        root = quote(str(self.scope.get("root_path", "")).rstrip("/"))
        return "/".join([root, *(quote(each, safe="") for each in segments)])

    def need(self, act: str, what: str | None = None) -> None:
        """Check that the holder may do this, to one thing or at all.

        Raises:
            Problem: They may not.
        """
        if not self.holder.rights.may(act, what):
            right = act if what is None else f"{act}:{what}"
            raise Problem(403, "forbidden", f"this token does not have the right {right!r}", right=right)


def header_of(scope: Scope, name: bytes) -> bytes | None:
    """Return a header that may stand once; None without it.

    Raises:
        Problem: It stands twice: a proxy and the gateway might each believe another one.
    """
    found = [value for key, value in scope["headers"] if key == name]
    if len(found) > 1:
        raise Problem(400, "invalid_header", f"{name.decode()}: it may stand once")
    return found[0] if found else None


def segments_of(scope: Scope) -> tuple[str, ...]:
    """Return the segments of the path below the gateway. One may hold a `/`, percent-encoded."""
    root = str(scope.get("root_path", "")).strip("/")
    raw = scope.get("raw_path")
    path = str(scope["path"]) if raw is None else raw.decode("latin-1").partition("?")[0]
    found = path.removeprefix("/").split("/")[root.count("/") + 1 if root else 0 :]
    return tuple(found if raw is None else map(_decoded, found))


def _decoded(segment: str) -> str:
    try:
        return unquote(segment, errors="strict") if "%" in segment else segment
    except UnicodeDecodeError:
        raise Problem(400, "invalid_path", "the path: UTF-8, percent-encoded") from None


def _collected(pairs: list[tuple[str, str]], kind: type[Query]) -> dict[str, Any]:
    """Return the fields by name; those that may stand several times as lists."""
    found: dict[str, Any] = {}
    lists: Collection[str] = {name for name, field in kind.model_fields.items() if isinstance(field.default, list | tuple)}
    for name, value in pairs:
        if name not in kind.model_fields:
            known = sorted(kind.model_fields)
            raise Problem(400, "invalid_query", f"{name[:60]!r} is not known here{did_you_mean(name, known)}", known=known)
        if name in lists:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise Problem(400, "invalid_query", f"{name} stands twice")
        else:
            found[name] = value
    return found


def _too_large(limit: int) -> Problem:
    return Problem(413, "body_too_large", f"the body may have {limit} bytes", headers=_CLOSE, max_body=limit)
