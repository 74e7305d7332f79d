"""Arguments of a gateway, and the things that its requests share."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from command_bus.bus import CommandBus
from command_bus.gateway.catalogue import Catalogue
from command_bus.gateway.event_hub import EventHub
from command_bus.gateway.progress_hub import ProgressHub
from command_bus.gateway.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of `gateway`, checked.

    Attributes:
        max_body: Bytes of a request's body.
        body_timeout: Seconds in which it has to arrive.
        max_batch: Commands of one batch.
        max_wait: Seconds that a request may wait for an outcome.
        max_streams: Streams of events and of progress that are open at a time.
        max_streams_each: The max streams each of them, those of one token.
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
        bus: The bus.
        allow: Who may do what.
        options: Limits.
        catalogue: What can be sent.
        hub: Who hears events.
        progress: Who follows commands.
        streams: How many streams are open.
        streams_of: How many of them each token has, by its name.
        requests_of: How many requests of each token are being answered, by its name.
        reading: Large bodies that are being read, by the name of the token: one at a time.
    """

    bus: CommandBus
    allow: Tokens
    options: Options
    catalogue: Catalogue
    hub: EventHub
    progress: ProgressHub
    streams: int = 0
    streams_of: Counter[str] = field(default_factory=Counter)
    requests_of: Counter[str] = field(default_factory=Counter)
    reading: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
