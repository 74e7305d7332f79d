"""Typed values to bytes and back: a codec per message class and per reply type, bound once.

A message whose fields are scalars and collections is packed straight from its `__dict__`: pydantic has validated it when it was
made, and its serializer would only copy. What is read back goes through a validator made for the wire (see `schemas`). Both are
bound when they are first needed, because a class may name others that are defined after it.

What is sent is what arrives, or it is refused here. Scalars need no look: they are as pydantic has made them. Collections and models may
have been changed since, so they are validated again, strictly. Where the type leaves it open whether a value comes back as it was
(see `certainty`), it is read back before it is sent, and compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, SchemaSerializer, SchemaValidator

from command_bus.errors import BadResult, InvalidCommand, PayloadTooLarge, RegistrationError
from command_bus.messages.message import Message, MessageSpec
from command_bus.messages.unreadable import unreadable
from command_bus.messages.upcasting import upcast
from command_bus.serialization.certainty import Certainty, certainty_of, certainty_of_fields, strict_fields, strict_validator
from command_bus.serialization.envelope_options import VERSION
from command_bus.serialization.equality import difference
from command_bus.serialization.limits import DEFAULT_LIMITS, PayloadLimits, Undecodable
from command_bus.serialization.msgpack import pack, pack_flat, unpack
from command_bus.serialization.schemas import Packing, packing_of, packing_of_fields, wire_validator

M = TypeVar("M", bound=BaseModel)
R = TypeVar("R")

_PACKERS: dict[Packing, Callable[[Any, PayloadLimits], bytes] | None] = {
    Packing.FLAT: pack_flat,
    Packing.DIRECT: pack,
    Packing.SERIALIZED: None,
}
# Fields under their own names, without computed ones; a value that is not of its declared type is an error.
_AS_DATA: dict[str, Any] = {"by_alias": False, "round_trip": True, "warnings": "error"}
_NOT_READ = "So it could not be read: a validator takes what it has made before, and what a serializer has made of it"
_NOT_THE_SAME = (
    "What is sent is what arrives: declare the class that is sent, give a union a discriminator, let a validator leave what it has made "
    "before as it is"
)
_UNBUILDABLE = (PydanticUserError, NameError, TypeError)  # an undefined annotation is a NameError
_SHOWN_PROBLEMS = 10
_COUNTED_PROBLEMS = 1_000  # listing them takes time and memory in proportion, and hostile payloads have a million
_QUOTING = {"union_tag_invalid": "Input should have one of the known tags"}  # pydantic's own text repeats the input


class MessageCodec(Generic[M]):
    """Encodes and decodes the payload of one message class; get it from `codec_for`."""

    __slots__ = ("_certainty", "_count", "_name", "_pack", "_pack_fields", "_serializer", "_strict", "_type", "_validate")

    def __init__(self, message_type: type[M]) -> None:
        self._type = message_type
        self._name = message_type.__name__
        self._count = -1
        self._pack: Callable[[Any, PayloadLimits], bytes] | None = None  # None: there is more to do than to pack
        self._pack_fields: Callable[[Any, PayloadLimits], bytes] | None = None  # None: the serializer has to go first
        self._certainty: Certainty | None = None
        self._strict: SchemaValidator | None = None
        self._serializer: SchemaSerializer | None = None
        self._validate: Callable[[Any], Any] | None = None

    def prepare(self) -> None:
        """Build all that is built once, now rather than with the first message.

        Raises:
            RegistrationError: The class names a type that does not exist (yet), or no value of it could be read back.
        """
        try:
            self._type.model_rebuild()
            schema = self._type.__pydantic_core_schema__
            if fault := unreadable(schema):
                raise RegistrationError(f"{self._name}: {fault}")
            self._validate = wire_validator(schema).validate_python
            self._count = len(self._type.model_fields)
            self._certainty = certainty_of_fields(schema)
            self._strict = None if self._certainty is None else strict_fields(schema)
            packing = packing_of_fields(schema)
            self._pack_fields = _PACKERS[packing]
            if packing is Packing.FLAT and self._certainty is not None and self._certainty.valid:
                self._pack = pack_flat
            self._serializer = self._type.__pydantic_serializer__
        except _UNBUILDABLE as error:
            raise RegistrationError(f"{self._name}: {error}") from error

    def encode(self, message: M, limits: PayloadLimits = DEFAULT_LIMITS) -> bytes:
        """Return the payload: a map of the fields by their names. Equal messages with equally ordered dicts give equal bytes.

        Raises:
            InvalidCommand: A field cannot be sent, or would not come back as it is; the message names its path.
            PayloadTooLarge: The payload is larger than the limits allow.
        """
        fields = message.__dict__
        try:
            if self._pack is not None and len(fields) == self._count:  # a cached property would be in there too, or UNCHECKED
                return self._pack(fields, limits)
            return self._encode_checked(message, limits)
        except PayloadTooLarge as error:
            raise PayloadTooLarge(f"{self._name}: {error.message}", size=error.size, limit=error.limit) from None
        except InvalidCommand as error:
            raise InvalidCommand(f"{self._name}.{error.message}") from error

    def decode(
        self,
        payload: bytes,
        limits: PayloadLimits = DEFAULT_LIMITS,
        upcast: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> M:
        """Return the message, validated.

        Args:
            payload: Its fields.
            limits: Bounds of what is read.
            upcast: Makes fields of this version of those that the payload has; None: it has this version.

        Raises:
            InvalidCommand: The payload does not match the class; the text has places and reasons, never values.
        """
        try:
            fields: dict[str, Any] = unpack(payload, limits)
        except Undecodable as error:
            raise InvalidCommand(f"{self._name}: the payload cannot be read: {error.reason}") from None
        if type(fields) is not dict:
            raise InvalidCommand(f"{self._name}: the payload is a map of fields, not a value of type {type(fields).__name__}")
        return self.validate(fields if upcast is None else upcast(fields))

    def validate(self, fields: dict[str, Any]) -> M:
        """Return the message made of plain values, as they come from the wire or from a table.

        Raises:
            InvalidCommand: They do not match the class.
        """
        try:
            return self.validated(fields)
        except ValidationError as error:
            raise InvalidCommand(f"{self._name}: {problems_of(error)}") from None

    def validated(self, fields: dict[str, Any]) -> M:
        """Return the same, for who tells each place.

        Raises:
            ValidationError: The values do not match the class.
            InvalidCommand: A validator of the class raised something else.
        """
        validate = self._validate or self._built()
        try:
            message: M = validate(fields)
        except (ValidationError, MemoryError):
            raise
        except (Exception, SystemExit) as error:  # a worker must not stop for what a validator raises
            raise InvalidCommand(f"{self._name}: one of its validators raised {type(error).__qualname__}") from error
        return message

    def _encode_checked(self, message: M, limits: PayloadLimits) -> bytes:
        if self._serializer is None:  # the first message of the class
            self.prepare()
        fields, certainty = message.__dict__, self._certainty
        is_whole = len(fields) == self._count
        data = self._pack_fields(fields, limits) if self._pack_fields and is_whole else self._serialized(message, limits)
        if certainty is None or not is_whole or (certainty.classes and certainty.has_derived()):
            self._read_back(message, data, limits)
        elif self._strict is not None:
            try:
                self._strict.validate_python(fields, strict=True)
            except ValidationError as error:
                raise InvalidCommand(f"{problems_of(error)}") from None
        return data

    def _serialized(self, message: M, limits: PayloadLimits) -> bytes:
        try:
            data = cast("SchemaSerializer", self._serializer).to_python(message, **_AS_DATA)
        except PydanticSerializationError as error:
            raise InvalidCommand(_unserializable(error)) from error
        except ValueError as error:  # it contains itself
            raise InvalidCommand(f"the value: {error}") from error
        except TypeError as error:
            raise InvalidCommand(f"the value: {_unhashable_records(error)}") from error
        return pack(data, limits)

    def _read_back(self, message: M, data: bytes, limits: PayloadLimits) -> None:
        try:
            found = difference(message, self.decode(data, limits))
        except InvalidCommand as error:
            raise InvalidCommand(f"{error.message.removeprefix(f'{self._name}: ')}. {_NOT_READ}") from None
        if found:
            raise InvalidCommand(f"{found.removeprefix('.')}. {_NOT_THE_SAME}")

    def _built(self) -> Callable[[Any], Any]:
        try:
            self.prepare()
        except RegistrationError as error:
            raise InvalidCommand(error.message) from error
        return cast("Callable[[Any], Any]", self._validate)


class ReplyCodec(Generic[R]):
    """Encodes and decodes replies of one type; get it from `reply_codec_for`."""

    __slots__ = ("_adapter", "_certainty", "_name", "_pack", "_strict", "_type", "_validator")

    def __init__(self, reply_type: Any) -> None:
        self._type = type(None) if reply_type is None else reply_type
        self._name = _name_of(self._type)
        self._adapter: TypeAdapter[Any] | None = None
        self._certainty: Certainty | None = None
        self._pack: Callable[[Any, PayloadLimits], bytes] | None = None
        self._strict: SchemaValidator | None = None
        self._validator: SchemaValidator | None = None

    def prepare(self) -> None:
        """Build all that is built once, now rather than with the first reply.

        Raises:
            RegistrationError: Values of the type cannot be sent, or it names a type that does not exist.
        """
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(self._type)
            schema = adapter.core_schema
            if fault := unreadable(schema):
                raise RegistrationError(f"the reply type {self._name} cannot be sent: {fault}")
            self._validator = wire_validator(schema, {"strict": True})
            self._certainty = certainty_of(schema)
            self._strict = None if self._certainty is None else strict_validator(schema)
            self._pack = _PACKERS[packing_of(schema)]
            self._adapter = adapter
        except _UNBUILDABLE as error:
            raise RegistrationError(f"the reply type {self._name} cannot be sent: {error}") from error

    def encode(self, value: Any, limits: PayloadLimits = DEFAULT_LIMITS, *, reads_back: bool = True) -> bytes:
        """Return the packed reply, checked strictly against the type: no text for a number, no list for a tuple; a dict may replace a model.

        Args:
            value: The reply.
            limits: Bounds of what is packed.
            reads_back: Whether it has to come back as it is; if not, its reader says what it is.

        Raises:
            BadResult: It is of another type, cannot be sent, would not come back as it is, or is too large.
        """
        adapter = self._adapter or self._built()
        try:
            certainty = self._certainty
            if self._strict is not None and certainty is not None and not (certainty.classes and certainty.has_derived()):
                return self._packed(adapter, self._strict.validate_python(value, strict=True), limits)
            checked = adapter.validator.validate_python(value, strict=True)
            data = self._packed(adapter, checked, limits)
            if reads_back:
                self._read_back(checked, data, limits)
            return data
        except BadResult as error:
            raise BadResult(f"the reply of type {self._name} cannot be sent: {error.message}") from error.__cause__
        except ValidationError as error:
            found = _name_of(type(value))
            raise BadResult(f"the reply is {self._name}, the handler returned {found}: {problems_of(error)}") from None
        except PydanticSerializationError as error:
            raise BadResult(f"the reply of type {self._name} cannot be sent: {_unserializable(error)}") from error
        except InvalidCommand as error:
            raise BadResult(f"the reply of type {self._name} cannot be sent: {error.message}") from error
        except TypeError as error:
            raise BadResult(f"the reply of type {self._name} cannot be sent: {_unhashable_records(error)}") from error
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:  # the same for validators and serializers of replies
            raise BadResult(
                f"the reply of type {self._name} cannot be sent: checking it raised {_name_of(type(error))}"
            ) from error

    def decode(self, data: bytes, limits: PayloadLimits = DEFAULT_LIMITS) -> R:
        """Return the typed reply.

        Raises:
            BadResult: The bytes are not of the type: the worker has another version of it.
        """
        validator = self._validator
        if validator is None:
            self._built()
            validator = cast("SchemaValidator", self._validator)
        try:
            value: R = validator.validate_python(unpack(data, limits))
        except ValidationError as error:
            raise BadResult(f"the reply is not {self._name} as this process knows it: {problems_of(error)}") from None
        except Undecodable as error:
            raise BadResult(f"the reply cannot be read: {error.reason}") from None
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:
            raise BadResult(f"the reply of type {self._name}: a validator raised {type(error).__qualname__}") from error
        return value

    def _read_back(self, value: R, data: bytes, limits: PayloadLimits) -> None:
        try:
            found = difference(value, self.decode(data, limits))
        except BadResult as error:
            raise BadResult(f"{error.message}. {_NOT_READ}") from error
        if found:
            raise BadResult(f"{found.removeprefix('.')}. {_NOT_THE_SAME}")

    def _packed(self, adapter: TypeAdapter[Any], value: Any, limits: PayloadLimits) -> bytes:
        if self._pack is not None:
            return self._pack(value, limits)
        return pack(adapter.serializer.to_python(value, **_AS_DATA), limits)

    def check(self) -> None:
        """Check that replies of the type can be read.

        Raises:
            BadResult: Values of the type cannot be sent, or it names a type that does not exist.
        """
        if self._validator is None:
            self._built()

    def _built(self) -> TypeAdapter[Any]:
        try:
            self.prepare()
        except RegistrationError as error:
            raise BadResult(error.message) from error
        return cast("TypeAdapter[Any]", self._adapter)


@lru_cache(maxsize=4096)
def _message_codec(message_type: type[BaseModel]) -> MessageCodec[Any]:
    return MessageCodec(message_type)


def codec_for(message_type: type[M]) -> MessageCodec[M]:
    """Return the codec of a message class, always the same one."""
    return _message_codec(message_type)


_unhashable: dict[int, tuple[Any, ReplyCodec[Any]]] = {}


@lru_cache(maxsize=4096)
def _reply_codec(reply_type: Any) -> ReplyCodec[Any]:
    return ReplyCodec(reply_type)


def reply_codec_for(reply_type: Any) -> ReplyCodec[Any]:
    """Return the codec of a reply type, always the same one."""
    try:
        return _reply_codec(reply_type)
    except TypeError:  # it cannot be hashed: some metadata in Annotated. By identity then; each class keeps its own for ever
        _, codec = _unhashable.setdefault(id(reply_type), (reply_type, ReplyCodec(reply_type)))
        return codec


def problems_of(error: ValidationError) -> str:
    """Return places and reasons of a failed validation, without the input: at most ten, and none of thousands."""
    count = error.error_count()
    shown = [f"{place}: {reason}" if place else reason for place, reason in located_problems(error)]
    if not shown:
        return f"{count} problems"
    return "; ".join(shown) + (f"; and {count - _SHOWN_PROBLEMS} more" if count > _SHOWN_PROBLEMS else "")


def located_problems(error: ValidationError) -> list[tuple[str, str]]:
    """Return the first places and reasons of a failed validation, without the input; none if there are thousands."""
    if error.error_count() > _COUNTED_PROBLEMS:
        return []
    found = error.errors(include_url=False, include_input=False, include_context=False)[:_SHOWN_PROBLEMS]
    return [(".".join(str(part) for part in item["loc"])[:120], _QUOTING.get(item["type"], item["msg"])) for item in found]


def _unserializable(error: PydanticSerializationError) -> str:
    """Return pydantic's errors, without the values that it quotes."""
    named = sorted(set(re.findall(r"field_name='([^']*)'", str(error))))
    if named:
        return f"{', '.join(named)}: not of the declared type"
    return str(error).partition("\n")[0][:300]


def _unhashable_records(error: TypeError) -> str:
    """Return what an error of a serializer means: it makes maps of models, which are no members of sets, and no keys."""
    return "models as members of a set, or as keys, cannot be sent: use a list" if "unhashable" in str(error) else str(error)


def _name_of(kind: Any) -> str:
    if kind is type(None):
        return "None"
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def newer_version(spec: MessageSpec, options: Mapping[str, Any] | None) -> str | None:
    """Return why a command is for newer workers than one with this class; None if it is not."""
    version = VERSION.of(options)
    if version <= spec.version:
        return None
    return f"no worker handles version {version} of {spec.name!r}: this one has version {spec.version}"


def decoded(
    message_type: type[Message[Any]], payload: bytes, options: Mapping[str, Any] | None, limits: PayloadLimits
) -> Message[Any]:
    """Return the message of a payload whose version is not newer than the class.

    Raises:
        InvalidCommand: The payload does not match the class, or an upcaster failed.
    """
    codec, version = codec_for(message_type), VERSION.of(options)
    if version == message_type.spec().version:
        return codec.decode(payload, limits)
    return codec.decode(payload, limits, lambda fields: upcast(message_type, fields, version))
