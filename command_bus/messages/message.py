"""Commands and queries: pydantic models that name their entity and their reply.

    class Deposit(Command[int], entity="account"):
        account_id: EntityId
        amount: int

The type argument is the reply, for type checkers and at run time alike. What the bus needs to know of a class is worked out once, when
the class is defined, into a frozen `MessageSpec`; a mistake is an error there and then, not when the first command arrives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Self, TypeAlias, TypeVar, cast, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function
from typing_extensions import Unpack

from command_bus.clock import duration_fault
from command_bus.errors import InvalidCommand, InvalidSettings, RegistrationError
from command_bus.messages.history import HistoryChoice, checked_history
from command_bus.messages.limits import Limit, checked_limits
from command_bus.messages.policies import PRIORITIES, Delivery, OnPoison, Priority
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.messages.unique import Unique
from command_bus.messages.unreadable import unreadable
from command_bus.spelling import shown

Reply_co = TypeVar("Reply_co", covariant=True)

REPLY_TYPE = "__reply_type__"
"""The slot of a workflow that has the type of its reply: no part of what is sent."""
_UNCHECKED = "__unchecked__"
"""Stands beside the fields of a message that pydantic has not validated as a whole: it is read back before it is sent (see `MessageCodec`)."""
MAX_COMMAND_ID_BYTES = 512
MAX_ENTITY_ID_BYTES = 4096
MOST_VERSION = 1_000_000
MOST_ENTITIES = 8
"""Entities in whose lines a command can stand."""
_ENTITY_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,64}(?:@[A-Za-z0-9_.-]{0,64})?")
_CLASS_ARGUMENTS = frozenset((
    "entity", "delivery", "retry", "on_poison", "attempt_timeout", "unique", "limits", "priority", "fair_by", "compress_above",
    "history", "version", "durable", "across_shards",
))  # fmt: skip
_EVENT_ARGUMENTS = frozenset({"entity", "version", "priority", "fair_by", "compress_above", "history"})
_WIRE_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,200}")
_INTERNAL = "command_bus."


def canonical_entity_id(value: object) -> str:
    """Return the one form of an entity id: text, so that `7` and `"7"` name the same entity.

    Raises:
        InvalidCommand: Not a string or an int (bool is neither), empty, over 4 KiB, or text that UTF-8 cannot carry.
    """
    if isinstance(value, str):
        text = value
    elif isinstance(value, int) and not isinstance(value, bool):
        try:
            text = str(value)
        except ValueError:  # Python's limit of digits
            raise InvalidCommand(f"an entity id may have {MAX_ENTITY_ID_BYTES} bytes, this int has more digits") from None
    else:
        raise InvalidCommand(f"an entity id is a string or an int, not {type(value).__name__}")
    if not text:
        raise InvalidCommand("an entity id must not be empty")
    if len(text) > MAX_ENTITY_ID_BYTES // 4 or not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidCommand(f"the entity id {text[:40]!r} has lone surrogates, which UTF-8 cannot carry") from error
        if size > MAX_ENTITY_ID_BYTES:
            raise InvalidCommand(f"an entity id may have {MAX_ENTITY_ID_BYTES} bytes, this one has {size}; use a digest of it")
    return text


def checked_id(command_id: str | UUID) -> str:
    """Return a command id as text.

    Raises:
        InvalidCommand: It is empty, too long or no text.
    """
    text = str(command_id) if isinstance(command_id, UUID) else command_id
    if not isinstance(text, str) or not text:
        raise InvalidCommand(f"a command id is a non-empty string or a UUID, not {shown(command_id)}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidCommand("the command id has lone surrogates, which UTF-8 cannot carry") from error
    if size > MAX_COMMAND_ID_BYTES:
        raise InvalidCommand(f"a command id may have {MAX_COMMAND_ID_BYTES} bytes, this one has {size}: use a digest of it")
    return text


def _check_entity_id(value: str | int) -> str | int:
    canonical_entity_id(value)
    return value


setattr(_check_entity_id, "keeps_value", True)  # noqa: B010 - see `certainty`: a function has no such attribute for type checkers


@dataclass(frozen=True, slots=True)
class EntityOf:
    """A mark of a field that holds the id of an entity of another type than the message's: `account: Annotated[str, EntityOf("account")]`.

    The command then stands in the line of that entity, too. The value is as for `EntityId`.

    Attributes:
        entity: The type of that entity; None, of `EntityId`: that of the message.
    """

    entity: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(_check_entity_id, handler(source))


EntityId: TypeAlias = Annotated[str | int, EntityOf()]
"""Annotates the field of a message that holds its entity's id: a non-empty string, or an int.

A command with two to eight such fields, or fields with `EntityOf`, stands in the lines of all those entities, and runs when it is the oldest
in each. The first field is its home, which answers for it.

The field stands alone, not in a union or a container. The value has at most 4 KiB in UTF-8. `7` and `"7"` name the same
entity, and the value keeps its type; `str(command.account_id)` is the same text for both. An empty or too long id is a `ValidationError` where the
message is made."""


def check_entity_type(entity: str, *, declared: bool = False) -> str:
    """Return the entity type if it can be part of a key.

    Args:
        entity: As an application declares it; or that of the deliveries of a subscription, as `account@ledger`.
        declared: Whether the latter will not do.

    Raises:
        InvalidCommand: Not 1 to 64 letters, digits, `_`, `.` or `-`.
    """
    if not isinstance(entity, str) or not is_entity_type(entity) or (declared and "@" in entity):
        raise InvalidCommand(f"entity type {shown(entity)} must have 1 to 64 letters, digits, '_', '.' and '-'")
    return entity


def is_entity_type(name: str) -> bool:
    """Return whether a text can be an entity type."""
    return _ENTITY_TYPE.fullmatch(name) is not None


def check_wire_name(name: str) -> str:
    """Return the wire name if it is one.

    Raises:
        InvalidCommand: Not 1 to 200 letters, digits, `_`, `.`, `:`, `/` or `-`, or the library's own.
    """
    if not isinstance(name, str) or not is_wire_name(name):
        raise InvalidCommand(
            f"wire name {shown(name)}: 1 to 200 of letters, digits, '_', '.', ':', '/' and '-'; '{_INTERNAL}…' are the library's own"
        )
    return name


def is_wire_name(name: str) -> bool:
    """Return whether a text can be the name by which an application declares, sends or permits a command."""
    return _WIRE_NAME.fullmatch(name) is not None and not is_internal(name)


def is_internal(name: str) -> bool:
    """Return whether a wire name is the library's own: such commands are not announced, and no one sends them by name."""
    return name.startswith(_INTERNAL)


@dataclass(frozen=True, slots=True)
class MessageSpec:
    """The facts about a message class.

    Attributes:
        name: The wire name, stable across modules and renames when given with `name=`.
        entity: Type of its entities, or None for a message that runs freely.
        key: The field that holds the entity id, or None.
        others: The types of further entities in whose lines its commands stand, each with the field that holds the id.
        reply: Type of its result, the type argument of the class.
        delivery: What an interruption means: run again, or dead-letter. None, as in what follows, leaves it to the policy of the entity type,
            and that to the bus's (see `handling_policy`).
        retry: How failures are retried.
        on_poison: What a poisoned command does to its entity.
        attempt_timeout: Seconds that one attempt of the handler may take.
        unique: How repeated triggers are folded, or None.
        limits: The named limits that its starts are held to.
        priority: What its commands have if their dispatch says nothing else.
        fair_by: The field that holds the tenant, or None: workers are shared fairly between tenants.
        compress_above: Payloads and replies of more bytes travel compressed; None leaves it to the bus.
        history: What is kept of their ends; `False`: nothing.
        version: Number of the form that its fields have: see `upcasts`.
        durable: Whether its handler survives its worker: see `DurableContext`.
        across_shards: Whether its entities may be of several shards: then its order in the lines of a later shard is weaker.
    """

    name: str
    entity: str | None = None
    key: str | None = None
    reply: Any = None
    delivery: Delivery | None = None
    retry: RetryPolicy | None = None
    on_poison: OnPoison | None = None
    attempt_timeout: float | None = None
    unique: Unique | None = None
    limits: tuple[Limit, ...] = ()
    priority: Priority | None = None
    fair_by: str | None = None
    compress_above: int | None = None
    history: HistoryChoice | None = None
    version: int = 1
    durable: bool = False
    others: tuple[tuple[str, str], ...] = ()
    across_shards: bool = False


class Message(BaseModel, Generic[Reply_co]):
    """The base of `Command` and `Query`; declare one of those."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)

    __message_spec__: ClassVar[MessageSpec | None] = None

    def __init_subclass__(
        cls,
        *,
        entity: str | None = None,
        name: str | None = None,
        delivery: Delivery | None = None,
        retry: RetryPolicy | None = None,
        on_poison: OnPoison | None = None,
        attempt_timeout: float | None = None,
        unique: Unique | None = None,
        limits: Sequence[Limit] | None = None,
        priority: Priority | None = None,
        fair_by: str | None = None,
        compress_above: int | None = None,
        history: HistoryChoice | None = None,
        version: int | None = None,
        durable: bool | None = None,
        across_shards: bool | None = None,
        **config: Unpack[ConfigDict],
    ) -> None:
        """Name the class arguments for type checkers; pydantic passes the same ones to the hook below, once fields are known."""
        super().__init_subclass__()

    @classmethod
    def __pydantic_init_subclass__(cls, *, name: str | None = None, **given: Any) -> None:
        super().__pydantic_init_subclass__()
        if cls.__module__ == __name__ or cls.__pydantic_generic_metadata__["origin"] is not None or "[" in cls.__name__:
            return  # Command, Command[int], or Command[int] as cloudpickle makes it again, empty at first: none declares a message
        unknown = sorted(set(given) - _CLASS_ARGUMENTS)
        if unknown:
            raise RegistrationError(
                f"{cls.__qualname__}: unknown class argument {unknown[0]!r}; there are name, {', '.join(sorted(_CLASS_ARGUMENTS))}"
            )
        _check_fields(cls)
        cls.__message_spec__ = _build_spec(
            cls, name, {key: value for key, value in given.items() if value is not None}, cls.__message_spec__
        )

    @classmethod
    def spec(cls) -> MessageSpec:
        """Return what the bus knows of this class.

        Raises:
            RegistrationError: The class declares no message (`Command` itself, say).
        """
        if cls.__message_spec__ is None:
            raise RegistrationError(f"{cls.__qualname__} is no message: write `class {cls.__qualname__}X(Command[ReplyType]): …`")
        return cls.__message_spec__

    @classmethod
    def model_construct(cls, _fields_set: set[str] | None = None, **values: Any) -> Self:
        """Make a message without validation, as pydantic does; it is checked when it is sent."""
        made = super().model_construct(_fields_set, **values)
        vars(made)[_UNCHECKED] = True
        return made

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy, as pydantic does; what `update` brings is checked when it is sent."""
        copied = super().model_copy(update=update, deep=deep)
        if update:
            vars(copied)[_UNCHECKED] = True
        return copied

    def entity_id(self) -> str | None:
        """Return the canonical id of the entity that this message names, or None for a message without one."""
        key = type(self).spec().key
        return None if key is None else canonical_entity_id(getattr(self, key))

    def entity_ids(self) -> tuple[tuple[str, str], ...]:
        """Return type and canonical id of each further entity in whose line this message stands, in the order of its fields."""
        spec = type(self).spec()
        others = [(entity, getattr(self, key, None)) for entity, key in spec.others]
        return other_entities(spec.entity, self.entity_id(), others) if others else ()


def other_entities(
    entity_type: str | None, entity_id: str | None, others: Sequence[tuple[str, Any]]
) -> tuple[tuple[str, str], ...]:
    """Return types and canonical ids of further entities than a command's first one: each once, and not that again.

    Raises:
        InvalidCommand: There are too many, there is no first, or one is none.
    """
    try:
        named = [(check_entity_type(of, declared=True), canonical_entity_id(each)) for of, each in others]
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidCommand):
            raise
        raise InvalidCommand(f"others: pairs of an entity type and an id, not {shown(others)}") from None
    if named and (entity_type is None or len(named) >= MOST_ENTITIES):
        raise InvalidCommand(f"others: at most {MOST_ENTITIES - 1} further entities, of a command that has a first one")
    return tuple(each for each in dict.fromkeys(named) if each != (entity_type, entity_id))


def reply_of(message: Message[Any]) -> Any:
    """Return the type of a message's reply: that of its class, or of a workflow that of its last command."""
    return getattr(message, REPLY_TYPE, None) or type(message).spec().reply


_OWN_NAMES = frozenset({"entity_id", "entity_ids", "spec"})


class Command(Message[Reply_co]):
    """A request to change an entity. The type argument is the reply: `class Deposit(Command[int], entity="account")`.

    Class arguments (all optional):
        entity: Type of its entity; then one field is annotated with `EntityId`. Without it the command runs freely.
        name: The wire name, by default the class's name.
        delivery: `"at_least_once"` (default) or `"at_most_once"`: never started again after an interruption.
        retry: A `RetryPolicy` for handlers that raise; three attempts, but one for `"at_most_once"`.
        on_poison: `"skip"` or `"park"`.
        attempt_timeout: Seconds that one attempt of the handler may take.
        unique: A `Unique`: repeated triggers are folded into one.
        limits: Named limits, as in `limits=(Limit("shopify", key="partner", cost="points"),)`.
        priority: `"high"`, `"normal"` or `"low"`: which entities come first where several wait for a worker.
        fair_by: Name of the field that holds the tenant: workers are shared fairly between tenants.
        compress_above: Payloads and replies of more bytes travel compressed; by default as the bus says.
        history: What is kept of the ends of its commands, as `"30 days"` or a `History`; `False`: nothing.
        version: Raise it with a change of the fields, and write an `upcasts` function for what was sent before; 1 at first. Not inherited.
        durable: Its handler survives its worker, and waits without one: see `DurableContext`.

    What a class does not say, the policy of its entity type says, and then that of the bus.

    Models are strict (no `"12"` for an int), forbid unknown fields, are frozen and refuse NaN.
    """


class Query(Message[Reply_co]):
    """A request to read an entity, sequenced with its commands: it sees the effect of all that was accepted before it."""


class Event(Message[None]):
    """Something that has happened to an entity: `bus.publish` gives it to each subscription, in a line of its own. See `subscribes`.

    Class arguments: `entity`, which is needed, and of those of `Command` `name`, `version`, `priority`, `fair_by`, `history` and
    `compress_above`. The rest is said by each subscription.
    """


def _check_fields(cls: type[Message[Any]]) -> None:
    """Refuse fields that hide what every message has, and those that no value could be read back of."""
    hidden = sorted(
        name for name in cls.model_fields if name in _OWN_NAMES or (name.startswith("model_") and hasattr(Message, name))
    )
    if hidden:
        raise RegistrationError(
            f"{cls.__qualname__}.{hidden[0]}: every message has an attribute of that name: call the field otherwise, "
            f'with alias="{hidden[0]}" if senders give it that name'
        )
    if cls.__pydantic_complete__ and (fault := unreadable(cls.__pydantic_core_schema__)):
        raise RegistrationError(f"{cls.__qualname__}: {fault}")


def _build_spec(cls: type[Message[Any]], name: str | None, given: dict[str, Any], inherited: MessageSpec | None) -> MessageSpec:
    """Build the spec of a class from its class arguments, its fields and its base."""
    values: dict[str, Any] = {}
    if inherited is not None:
        values = {slot: getattr(inherited, slot) for slot in sorted(_CLASS_ARGUMENTS - {"version"})}
        if given.get("delivery") == "at_most_once" and inherited.delivery != "at_most_once":
            values["retry"] = None  # at most one start, unless the class itself asks for retries of what it raised
    values |= given
    own = name is not None and is_internal(name) and cls.__module__.startswith(_INTERNAL)
    try:
        values["name"] = name if own else check_wire_name(name if name is not None else cls.__name__)
        if values.get("entity") is not None:
            check_entity_type(values["entity"], declared=True)
    except InvalidCommand as error:
        raise RegistrationError(f"{cls.__qualname__}: {error}") from error
    for fault in _faults(cls, values):
        raise RegistrationError(f"{cls.__qualname__}: {fault}")
    values["limits"] = checked_limits(cls.__qualname__, values.get("limits", ()), cls.model_fields)
    values["key"], values["others"] = _entity_fields(cls, values.get("entity"))
    for fault in _several_faults(cls, values):
        raise RegistrationError(f"{cls.__qualname__}: {fault}")
    values["reply"] = _reply_type(cls)
    return MessageSpec(**values)


def _faults(cls: type[Message[Any]], values: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the arguments of a class."""
    if issubclass(cls, Event):
        if values.get("entity") is None:
            yield 'an event belongs to an entity: add entity="…", and annotate the field that holds its id with EntityId'
        for name in sorted(set(values) - _EVENT_ARGUMENTS - {"name"}):
            if values[name]:
                yield f"an event has no {name}: each subscription says its own, where it can, as @subscribes(…, {name}=…)"
    fair_by = values.get("fair_by")
    if fair_by is not None and fair_by not in cls.model_fields:
        yield f"fair_by={fair_by!r} names no field: it is the field that holds the tenant, as `customer: str`"
    if not isinstance(values.get("unique"), Unique | None):
        yield f"unique is a Unique, not {values['unique']!r}"
    if values.get("unique") is not None and values.get("entity") is None:
        yield 'a unique key is one within an entity: add entity="…"'
    try:
        checked_history(cls.__qualname__, values.get("history"))
    except InvalidSettings as error:
        yield str(error)
    yield from policy_faults(values)


def policy_faults(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with what a class, or a subscription, says of its commands."""
    if values.get("delivery") not in (None, "at_least_once", "at_most_once"):
        yield f"delivery is 'at_least_once' or 'at_most_once', not {values['delivery']!r}"
    if values.get("on_poison") not in (None, "skip", "park"):
        yield f"on_poison is 'skip' or 'park', not {values['on_poison']!r}"
    if values.get("priority") not in (None, *PRIORITIES):
        yield f"priority is 'high', 'normal' or 'low', not {values['priority']!r}"
    if not isinstance(values.get("retry"), RetryPolicy | None):
        yield f"retry is a RetryPolicy, not {values['retry']!r}"
    yield from _durable_faults(values)
    yield from _number_faults(values)


def _durable_faults(values: Mapping[str, Any]) -> Iterator[str]:
    if values.get("durable") not in (None, True, False):
        yield f"durable is True or False, not {values['durable']!r}"
    if values.get("durable") and values.get("delivery") == "at_most_once":
        yield "a durable command is started again and again, so it cannot be at_most_once"
    if values.get("durable") and values.get("unique") is not None:
        yield "a durable command has no unique key: let a plain command with one dispatch it"


def _number_faults(values: Mapping[str, Any]) -> Iterator[str]:
    above = values.get("compress_above")
    if above is not None and (type(above) is not int or above < 1):
        yield f"compress_above is a number of bytes, at least 1, not {above!r}"
    version = values.get("version", 1)
    if type(version) is not int or not 1 <= version <= MOST_VERSION:
        yield f"version is a whole number from 1 to {MOST_VERSION:,}, not {version!r}"
    timeout = values.get("attempt_timeout")
    if timeout is not None and (fault := duration_fault(timeout)) is not None:
        yield f"attempt_timeout {fault}"


def _entity_fields(cls: type[Message[Any]], entity: str | None) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    """Return the field that holds the entity id, if and only if an entity type is given; and those of further entities."""
    fields = cls.model_fields.items()
    marks = {name: item for name, info in fields for item in info.metadata if isinstance(item, EntityOf)}
    hidden = [name for name, info in fields if name not in marks and _holds_marker(info.annotation)]
    if hidden:
        raise RegistrationError(f"{cls.__qualname__}.{hidden[0]}: EntityId stands alone, not inside a union or container")
    if entity is None and marks:
        raise RegistrationError(
            f'{cls.__qualname__} marks {next(iter(marks))!r} with EntityId but names no entity type: add entity="…"'
        )
    home = next((name for name, mark in marks.items() if mark.entity in (None, entity)), None)
    if entity is not None and home is None:
        raise RegistrationError(
            f"{cls.__qualname__} has entity={shown(entity)} but marks no field with EntityId: annotate the field that holds the id"
        )
    for name in marks:
        if not cls.model_fields[name].is_required():
            raise RegistrationError(f"{cls.__qualname__}.{name} holds the entity id: it must be required, without a default")
    return home, tuple((mark.entity or entity or "", name) for name, mark in marks.items() if name != home)


def _several_faults(cls: type[Message[Any]], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a class whose commands stand in several lines."""
    others: tuple[tuple[str, str], ...] = values["others"]
    yield from _across_faults(values, others)
    if not others:
        return
    if len(others) >= MOST_ENTITIES:
        yield f"it names {len(others) + 1} entities, at most {MOST_ENTITIES} go: name one entity that contains them"
    if issubclass(cls, Event):
        yield f"an event belongs to one entity: take EntityId away from {others[0][1]!r}"
    if values.get("unique") is not None and values["unique"].wins == "latest":
        yield "a command of several entities replaces no other: let its unique key be one of wins='first'"
    for entity, _ in others:
        try:
            check_entity_type(entity, declared=True)
        except InvalidCommand as error:
            yield str(error)


def _across_faults(values: Mapping[str, Any], others: tuple[tuple[str, str], ...]) -> Iterator[str]:
    across = values.get("across_shards")
    if across not in (None, True, False):
        yield f"across_shards is True or False, not {shown(across)}"
    if across and not others:
        yield "across_shards is for commands of several entities: this one names one"
    if across and values.get("durable"):
        yield "a durable command stands in lines of one shard: let it call a plain one that is across_shards"


def _holds_marker(annotation: Any) -> bool:
    """Return whether a marker hides inside a union such as `EntityId | None`, which would allow a command without its entity."""
    if get_origin(annotation) is Annotated:
        return any(isinstance(item, EntityOf) for item in get_args(annotation)[1:])
    return any(_holds_marker(item) for item in get_args(annotation))


def _reply_type(cls: type[Message[Any]]) -> Any:
    for base in cls.__mro__:
        metadata = cast("dict[str, Any]", getattr(base, "__pydantic_generic_metadata__", {}))
        if metadata.get("origin") in (Command, Query, Message) and metadata["args"]:
            reply = metadata["args"][0]
            if isinstance(reply, TypeVar):
                break
            return type(None) if reply is None else reply
    raise RegistrationError(f"{cls.__qualname__} names no reply type: write Command[int], or Command[None] if there is none")
