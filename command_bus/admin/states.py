"""`States`: what entities are, read and corrected from outside of their handlers. Reached as `bus.states`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast, overload

from command_bus.clock import wall_ms
from command_bus.errors import BadState, EntityBusy, InvalidCommand, NewerState, RegistrationError, StateConflict
from command_bus.messages.message import canonical_entity_id, check_entity_type
from command_bus.messages.policies import PerEntity
from command_bus.messages.state import EntityState, is_state
from command_bus.serialization.limits import Undecodable
from command_bus.serialization.msgpack import unpack
from command_bus.serialization.states import StateCodec, StoredState, is_kept
from command_bus.session import OnSession, Session
from command_bus.transport.mailboxes import mailbox_name, mailbox_parts

S = TypeVar("S", bound=EntityState)
V = TypeVar("V")
Kind = type[EntityState] | str
_NAMED = 5


@dataclass(frozen=True, slots=True)
class StateEntry(Generic[V]):
    """The state of an entity.

    Attributes:
        entity_id: Of an id over 512 bytes only `~` and its digest.
        value: Of the class that was asked for, or all fields by name.
        changed_ms: When it was last changed, by the server's clock.
        revision: Grows with each change.
        size: Bytes that are stored.
        version: Number of the form in which it is stored.
    """

    entity_id: str
    value: V
    changed_ms: int
    revision: int
    size: int
    version: int


class States(OnSession):
    """The states of all entities. A class of states is given, or an entity type: then states are read as fields by name.

    Args:
        session: Connections and settings of the bus.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._codec = StateCodec(session.settings, session.protection)

    async def get(self, kind: type[S], entity_id: str | int) -> S | None:
        """Return the state of an entity as its last settled command left it, at once and beside its line; None: nothing is stored.

        After a `call` has returned, its own effect is seen. To see all that was accepted before, send a query with the state as parameter.

        Raises:
            BadState: It cannot be read or verified, or is of a later version than the class.
            TransportUnavailable: The server cannot be reached.
        """
        entry = await self.find(kind, entity_id)
        return None if entry is None else entry.value

    @overload
    async def find(self, kind: type[S], entity_id: str | int) -> StateEntry[S] | None: ...
    @overload
    async def find(self, kind: str, entity_id: str | int) -> StateEntry[dict[str, Any]] | None: ...
    async def find(self, kind: Kind, entity_id: str | int) -> StateEntry[Any] | None:
        """Return the state of an entity with its revision: as `get`."""
        mailbox = self._mailbox(kind, entity_id)
        found = await self._operator.states.read([mailbox])
        return self._entry(kind, mailbox, found[mailbox]) if mailbox in found else None

    async def get_many(self, kind: type[S], entity_ids: Sequence[str | int]) -> dict[str, S]:
        """Return the states of several entities, by id, of those that have one: as `get`, in one request for each shard."""
        ids = {self._mailbox(kind, each): canonical_entity_id(each) for each in entity_ids}
        found = await self._operator.states.read(list(ids))
        entries = {ids[mailbox]: self._entry(kind, mailbox, data) for mailbox, data in found.items()}
        return {entity_id: cast("S", entry.value) for entity_id, entry in entries.items() if entry is not None}

    @overload
    def list(self, kind: type[S]) -> AsyncIterator[StateEntry[S]]: ...
    @overload
    def list(self, kind: str) -> AsyncIterator[StateEntry[dict[str, Any]]]: ...
    async def list(self, kind: Kind) -> AsyncIterator[StateEntry[Any]]:
        """Iterate over the states of all entities of a type: `async for each in bus.states.list(Account)`.

        They are read page by page in no order: each is whole, but they are not all of one moment. What changes meanwhile may come twice.

        Raises:
            BadState: Some cannot be read or verified, or are of a later version than the class; raised behind all others.
            TransportUnavailable: The server cannot be reached.
        """
        unread: list[str] = []
        async for page in self._operator.states.pages(_type_of(kind)):
            for mailbox, data in page.items():
                try:
                    entry = self._entry(kind, mailbox, data)
                except BadState as error:
                    unread.append(error.message)
                    continue
                if entry is not None:
                    yield entry
        if unread:
            raise BadState(f"{len(unread):,} states cannot be read, all others were given: {'; '.join(unread[:_NAMED])}")

    async def put(self, entity_id: str | int, state: EntityState, *, expected: int | None = None) -> int:
        """Store a state in place of what is there, beside the line of the entity; return its revision. A correction, mostly: send commands else.

        Args:
            entity_id: The entity; its type is that of the class.
            state: What is stored.
            expected: The revision that it must have now, 0 for none; None: whatever it has.

        Raises:
            EntityBusy: A command of the entity runs or is suspended.
            StateConflict: It has another revision.
            BadState: It cannot be stored.
            TransportUnavailable: The server cannot be reached; it may be stored.
        """
        mailbox, payload = self._mailbox(type(state), entity_id), self._codec.packed(state)
        before = (await self._operator.states.read([mailbox])).get(mailbox, b"")
        try:
            revision = self._codec.read(mailbox, before).fence if before else 0
        except BadState:
            if expected is not None:
                raise
            revision = 0  # whatever is there is replaced
        if expected is not None and revision != expected:
            raise StateConflict(
                f"{_named(state, entity_id)} has revision {revision}, not {expected}: it was changed since, read it again"
            )
        now_us = await self._operator.entities.now_us()
        following = max(revision + 1, now_us)  # a deleted state leaves no revision
        stored = StoredState(state.spec().version, following, now_us // 1000, payload)
        await self._change(mailbox, self._codec.pack(mailbox, stored), before)
        return following

    async def delete(self, kind: Kind, entity_id: str | int) -> bool:
        """Delete the state of an entity; False if there is none. Its next command begins with the defaults.

        Raises:
            EntityBusy: A command of the entity runs or is suspended.
            TransportUnavailable: The server cannot be reached; it may be deleted.
        """
        return await self._change(self._mailbox(kind, entity_id), b"", None)

    async def _change(self, mailbox: str, state: bytes, before: bytes | None) -> bool:
        entity = ":".join(map(str, mailbox_parts(mailbox)))
        match await self._operator.states.change(mailbox, state, before):
            case "busy":
                raise EntityBusy(
                    f"a command of {entity} runs or is suspended, and has read the state: pause the entity and try again, or send a command"
                )
            case "other":
                raise StateConflict(f"the state of {entity} was changed meanwhile: read it again")
            case "newer":
                raise NewerState(f"{entity} is in a state of a later release: use that")
            case answer:
                return answer == "done"

    def _mailbox(self, kind: Kind, entity_id: str | int) -> str:
        entity_type = _type_of(kind)
        if not isinstance(policy := self._session.settings.entity(entity_type).mailbox, PerEntity):
            raise InvalidCommand(f"entities of type {entity_type!r} share {policy}: they have no states")
        return mailbox_name(entity_type, canonical_entity_id(entity_id), policy)

    def _entry(self, kind: Kind, mailbox: str, data: bytes) -> StateEntry[Any] | None:
        """Return what is stored; None if it is kept no longer."""
        try:
            stored = self._codec.read(mailbox, data)
            if not isinstance(kind, str) and not is_kept(kind, stored, wall_ms()):
                return None
            value = _fields(stored) if isinstance(kind, str) else self._codec.value(kind, stored)
        except BadState as error:
            raise BadState(f"the state of {mailbox}: {error.message}") from None
        entity_id = mailbox_parts(mailbox)[1] or mailbox.partition(":")[2]
        return StateEntry(entity_id, value, stored.changed_ms, stored.fence, len(data), stored.version)


def _type_of(kind: Kind) -> str:
    if isinstance(kind, str):
        return check_entity_type(kind)
    if not is_state(kind):
        raise RegistrationError(f'{kind!r} is no class of states: write class Account(EntityState, entity="account")')
    return kind.spec().entity


def _named(state: EntityState, entity_id: str | int) -> str:
    return f"the state of {state.spec().entity}:{entity_id}"


def _fields(stored: StoredState) -> dict[str, Any]:
    try:
        fields = unpack(stored.payload)
    except Undecodable as error:
        raise BadState(error.reason) from None
    if not isinstance(fields, dict):
        raise BadState("it is no map of fields")
    return fields
