"""Commands with their options: as an application gives them to a batch, and as middleware sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from command_bus.messages.history import HistoryChoice
from command_bus.messages.message import Message
from command_bus.messages.options import DispatchOptions
from command_bus.messages.policies import Priority
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.messages.unique import Unique

OtherEntities = Sequence[tuple[str, str | int]]
"""Types and ids of entities."""


class Across(NamedTuple):
    """The whole of a command whose entities are of several shards, in what is called for it in a later one.

    Attributes:
        command_id: The id under which it was dispatched.
        fence: That of the start that holds its lines of the shard before; its own starts have higher ones.
        entities: Types and ids of all its entities, in the order of the fields of its class.
    """

    command_id: str
    fence: int
    entities: Sequence[tuple[str, str]]


M_co = TypeVar("M_co", bound=Message[Any], covariant=True)


@dataclass(frozen=True, slots=True)
class Envelope(Generic[M_co]):
    """A command with options of its own, for `dispatch_batch`.

    Attributes:
        command: The message.
        command_id: As for `dispatch`.
        delay: Seconds until it takes its place.
        at: The moment when it does; instead of `delay`.
        headers: As for `dispatch`.
        expires: Seconds after which it is not started any more.
        keep_result: Whether its result can be read later, by `bus.result(outcome.command_id, …)`; that of a given id can be anyway.
        priority: As for `dispatch`.
        retry: As for `dispatch`.
        attempt_timeout: As for `dispatch`.
        unique: As for `dispatch`.
        history: As for `dispatch`.
    """

    command: M_co
    command_id: str | UUID | None = None
    delay: float = 0.0
    headers: Mapping[str, str] | None = None
    expires: float | None = None
    keep_result: bool = False
    priority: Priority | None = None
    retry: RetryPolicy | None = None
    attempt_timeout: float | None = None
    unique: Unique | None = None
    at: datetime | None = None
    history: HistoryChoice | None = None


@dataclass(frozen=True, slots=True)
class RawEnvelope:
    """A command without its class and with options of its own, for `dispatch_batch`: the worker validates the payload.

    Attributes:
        entity_type: Type of its entity; None without one.
        entity_id: Id of its entity; None without one.
        name: Its wire name.
        payload: Its fields.
        version: Number of the form that the fields have, if the class has versions (see `upcasts`).
        options: Those of `dispatch_raw`.
        others: Types and ids of the further entities in whose lines it stands, in the order of the fields of its class.
        across_shards: Whether these may be of several shards: its class says so.
    """

    entity_type: str | None
    entity_id: str | int | None
    name: str
    payload: Mapping[str, Any]
    version: int = 1
    options: DispatchOptions = field(default_factory=DispatchOptions)
    others: OtherEntities = ()
    across_shards: bool = False


@dataclass(slots=True)
class OutgoingMessage:
    """A message on its way out, as middleware sees it.

    Attributes:
        name: The wire name.
        entity_type: The entity's type, or None.
        entity_id: The canonical id, or None.
        payload: The encoded payload.
        command_id: Given or generated.
        given_id: Whether the id is remembered, and the result with it: it was given, or the result is to be kept.
        headers: May be added to.
        command: The model, or None for a raw dispatch.
        deadline: Monotonic time until which its caller waits, or None.
        priority: What its dispatch or class says; None leaves it to the entity type's policy.
        tenant: Who it is for, by the class's `fair_by`; empty if none is named.
        options: What is asked for this command alone, as the envelope has it (see `docs/wire-format.md`).
        unique: How it is folded with others, or None.
        other: Once it is answered: the command that it was folded into, or that it replaced.
        across_shards: Whether its entities may be of several shards.
    """

    name: str
    entity_type: str | None
    entity_id: str | None
    payload: bytes
    command_id: str = ""
    given_id: bool = False
    at_most_once: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    command: Message[Any] | None = None
    delay_ms: int = 0
    ttl_ms: int | None = None
    inbox: str | None = None
    deadline: float | None = None
    priority: Priority | None = None
    tenant: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    unique: Unique | None = None
    other: str | None = None
    across_shards: bool = False


class PackedMessage(BaseModel):
    """An outgoing message as it travels in another one.

    Attributes:
        name: Wire name.
        entity_type: Type of its entity.
        entity_id: Id of its entity.
        payload: Its packed fields.
        options: What its envelope says beside, by letter.
        at_most_once: Whether it is never started again after an interruption.
        priority: As its class or its sender says.
        tenant: Who it is for.
        headers: Text that travels with it.
        across_shards: Whether its entities may be of several shards.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: str
    entity_type: str | None
    entity_id: str | None
    payload: bytes
    options: dict[str, Any]
    at_most_once: bool
    priority: Priority | None
    tenant: str
    headers: dict[str, str]
    across_shards: bool = False

    @classmethod
    def facts_of(cls, out: OutgoingMessage) -> dict[str, Any]:
        """Return the values of these fields of a message."""
        return {name: getattr(out, name) for name in PackedMessage.model_fields}

    def outgoing(self, payload: bytes | None = None) -> OutgoingMessage:
        """Return the message, with other fields if these are given."""
        facts: dict[str, Any] = {name: getattr(self, name) for name in PackedMessage.model_fields}
        facts |= {"headers": dict(self.headers), "options": dict(self.options)}
        out = OutgoingMessage(**facts)
        if payload is not None:
            out.payload = payload
        return out


Outbound = OutgoingMessage
"""The former name of `OutgoingMessage`."""
