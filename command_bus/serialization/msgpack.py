"""MessagePack with limits: what `pack(value, limits)` accepts, `unpack` under the same limits reads back.

Reading is built for hostile bytes. The size is checked first, then whether the bytes *could* nest too deeply: with no more
container headers than levels they cannot, and counting candidates for headers is one `bytes.translate`. So a usual payload takes
one call into C, and only an odd one pays for the careful way: a dry run that allocates nothing (an array may claim more members
than it has), decoding under limits, and a walk over the result. Every failure is one exception, `Undecodable`, whose text never
repeats the data.

Map keys may be anything hashable: text and bytes read at full speed; numbers, dates, UUIDs and tuples take a second reading.
Tuples come back as lists, unless they are keys or members of sets; sets inside sets come back frozen. The last of two equal keys
wins.

A packer is made per call: that costs 70 ns more than a shared one, and needs no care about threads, re-entry or failed calls.

The place in a value that MessagePack refused: found by a walk, on the failure path only.

MessagePack says *that* an object cannot be packed, not where it is. Users need the field, so once packing has failed the value is
walked depth first, in order, without recursion (it may be nested a million levels deep, or contain itself), and each leaf is
packed alone.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from command_bus.errors import InvalidCommand, PayloadTooLarge
from command_bus.serialization.equality import difference
from command_bus.serialization.extensions import DECODERS, ENCODERS, SET
from command_bus.serialization.hash_collisions import CROWD, is_crowded
from command_bus.serialization.limits import DEFAULT_LIMITS, PayloadLimits, Undecodable, excess
from command_bus.serialization.native import ExtType, Packer, Unpacker, unpack_errors, unpackb

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


class _Place:
    """One value on the way, linked to where it was found."""

    __slots__ = ("depth", "parent", "step", "value")

    def __init__(self, value: Any, parent: _Place | None, step: str) -> None:
        self.value = value
        self.parent = parent
        self.step = step
        self.depth: int = 1 if parent is None else parent.depth + 1

    def path(self) -> str:
        steps: list[str] = []
        place: _Place | None = self
        while place is not None:
            steps.append(place.step)
            place = place.parent
        path = "".join(reversed(steps)).removeprefix(".").strip()
        return path if len(path) <= 120 else f"{path[:80]} … {path[-30:]}"


def find_fault(value: Any, limits: PayloadLimits, pack_leaf: Callable[[Any], object], otherwise: str) -> InvalidCommand:
    """Return the error for a value that could not be packed: the path of the first fault and what is wrong there.

    Args:
        value: What was to be packed.
        limits: Its limits.
        pack_leaf: Packs one value or raises.
        otherwise: Text of the error if no single place is at fault.
    """
    stack = [_Place(value, None, "")]
    while stack:
        place = stack.pop()
        if isinstance(place.value, _CONTAINERS):
            fault = _container_fault(place, limits)
            if fault is None:
                stack.extend(reversed(list(_children(place))))
        else:
            fault = _leaf_fault(place.value, pack_leaf)
        if fault is not None:
            return InvalidCommand(f"{place.path() or 'the value'}: {fault}")
    return InvalidCommand(f"the value: {otherwise}")


def _children(place: _Place) -> Iterator[_Place]:
    value = place.value
    if isinstance(value, dict):
        for key, item in value.items():
            shown = _shown(key)
            yield _Place(key, place, f" (the key {shown})")
            yield _Place(item, place, f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{shown}]")
    elif isinstance(value, set | frozenset):
        yield from (_Place(item, place, "{…}") for item in value)
    else:
        yield from (_Place(item, place, f"[{index}]") for index, item in enumerate(value))


def _shown(key: Any) -> str:
    """Return a key as part of a path. The `repr` of other objects may be long, or raise; that of a huge int does."""
    if isinstance(key, str | bytes | float) or (isinstance(key, int) and key.bit_length() <= 128):
        return repr(key)[:40]
    return type(key).__qualname__


def _container_fault(place: _Place, limits: PayloadLimits) -> str | None:
    if place.depth > limits.max_nesting:
        return f"nested deeper than {limits.max_nesting} levels"
    if len(place.value) > limits.max_items:
        return f"{len(place.value)} items, the limit of one collection is {limits.max_items}"
    return None


def _leaf_fault(value: Any, pack_leaf: Callable[[Any], object]) -> str | None:
    name = type(value).__qualname__
    try:
        pack_leaf(value)
    except UnicodeEncodeError:
        return "text with lone surrogates, which UTF-8 cannot carry"
    except (TypeError, OverflowError):
        if isinstance(value, int):
            return "an int beyond 64 bits cannot be sent; use Decimal or text"
        return (
            f"a value of type {name} cannot be sent; there are text, bytes, numbers, dates, Decimal, UUID, enums, "
            "lists, sets, dicts and declared models"
        )
    except ValueError as error:
        return f"this {name} cannot be sent: {error}"
    except Exception as error:  # noqa: BLE001 - whatever a user's type raises
        return f"this {name} cannot be sent ({type(error).__name__})"
    return None


MAX_SET_NESTING = 8
"""Sets inside sets. Each level is one more call into C, which takes 40 KB of the stack."""

_SET_WITHIN = re.compile(
    rb"[\xd4-\xd8]\x08|\xc7.\x08|\xc8..\x08|\xc9....\x08", re.DOTALL
)  # perhaps: the body of a text may look so
_PLAIN_KEYS = frozenset({str, bytes, int, float, bool, type(None)})
_HEADERS = ((0x80, 0x9F), (0xDC, 0xDF))  # of maps and arrays; the body of a set is an array too
_EXTENSIONS = ((0xC7, 0xC9), (0xD4, 0xD8))


def _all_but(*ranges: tuple[int, int]) -> bytes:
    return bytes(byte for byte in range(256) if not any(low <= byte <= high for low, high in ranges))


_NO_HEADER = _all_but(*_HEADERS)
_NO_STRUCTURE = _all_but(*_HEADERS, *_EXTENSIONS)
_UNREAD: Any = object()
_CROWDED = "a map or set with too many equal hashes"
_NATIVE = (str, bytes, int, float, type(None), list, tuple, dict)  # an ExtType is a tuple


def pack(value: Any, limits: PayloadLimits = DEFAULT_LIMITS) -> bytes:
    """Return the value as MessagePack; equal sets give equal bytes, dicts keep their order.

    Raises:
        InvalidCommand: Something in it cannot be sent or exceeds a limit; the message names its path.
        PayloadTooLarge: The result has more than `max_bytes` bytes.
    """
    data = pack_flat(value, limits)
    if len(data) > limits.harmless_bytes and _suspicious(data, limits):
        try:
            unpack(data, limits)
        except Undecodable as error:
            raise find_fault(value, limits, _packed, error.reason) from None
    return data


def pack_flat(value: Any, limits: PayloadLimits = DEFAULT_LIMITS) -> bytes:
    """Pack a value that is known to keep within `max_nesting` and `max_items`: those are not checked."""
    try:
        data: bytes = Packer(default=_encode, buf_size=512).pack(value)
    except MemoryError:
        raise
    except Exception as error:
        otherwise = str(error) if isinstance(error, ValueError) else f"it cannot be sent ({type(error).__name__})"
        raise find_fault(value, limits, _packed, otherwise) from error
    if len(data) > limits.max_bytes:
        raise PayloadTooLarge(
            f"{len(data)} bytes packed, the limit is {limits.max_bytes}: store large data elsewhere and send its address",
            size=len(data),
            limit=limits.max_bytes,
        )
    return data


def unpack(data: bytes, limits: PayloadLimits = DEFAULT_LIMITS) -> Any:
    """Return the value that was packed. Takes time and memory in proportion to the size, whatever the bytes.

    Raises:
        Undecodable: The bytes are damaged, of an unknown extension type, or beyond a limit.
    """
    size = len(data)
    if size > limits.max_bytes:
        raise Undecodable(f"{size} bytes, the limit is {limits.max_bytes}")
    if size > limits.harmless_bytes and _suspicious(data, limits):
        return _unpack_carefully(data, limits)
    try:
        return unpackb(data, ext_hook=_decode, timestamp=3)
    except Exception:  # noqa: BLE001, S110 - read again, for keys that are not text, or for the reason
        pass
    return _unpack_any_keys(data)


def reason_of(error: Exception) -> str:
    """Return why MessagePack refused the bytes, without quoting them."""
    for kind, reason in unpack_errors:
        if isinstance(error, kind):
            return reason
    text = str(error)
    if "incomplete" in text:
        return "cut short"
    return "a length beyond the data or the limits" if "exceeds max_" in text else f"malformed ({type(error).__name__})"


def _packed(value: Any) -> bytes:
    data: bytes = Packer(default=_encode).pack(value)
    return data


def _suspicious(data: bytes, limits: PayloadLimits) -> bool:
    """Return whether the bytes could exceed the limits of nesting or items; if false, they certainly do not."""
    return len(data) > limits.max_items or len(data.translate(None, _NO_HEADER)) > limits.max_nesting


def _unpack_carefully(data: bytes, limits: PayloadLimits) -> Any:
    _dry_run(data)
    items = limits.max_items
    value = _UNREAD
    with suppress(Exception):
        value = unpackb(data, ext_hook=_decode, timestamp=3, max_array_len=items, max_map_len=items)
    if value is _UNREAD:  # keys that are not text, or a fault
        value = _unpack_any_keys(data, max_array_len=items, max_map_len=items)
    found = excess(value, limits)
    if found is not None:
        raise Undecodable(found)
    return value


def _unpack_any_keys(data: bytes, **limits: int) -> Any:
    try:
        return unpackb(data, ext_hook=_decode, timestamp=3, strict_map_key=False, object_pairs_hook=_as_map, **limits)
    except (Undecodable, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - eight types are known, and hostile bytes find the ninth
        raise Undecodable(reason_of(error)) from None


def _dry_run(data: bytes) -> None:
    """Go through the bytes without making objects, so that arrays that claim more than they have cannot reserve memory."""
    unpacker = Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    try:
        unpacker.skip()
    except Exception as error:  # noqa: BLE001 - as above
        raise Undecodable(reason_of(error)) from None
    if unpacker.tell() != len(data):
        raise Undecodable("bytes after the end")


def _as_map(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    if _PLAIN_KEYS.issuperset([type(key) for key, _ in pairs]):
        return dict(pairs)
    keys = [_as_key(key) for key, _ in pairs]
    if is_crowded(keys):
        raise Undecodable(_CROWDED)
    return dict(zip(keys, (value for _, value in pairs), strict=True))


def _as_key(key: Any) -> Any:
    if type(key) is list:
        return tuple(_as_key(member) for member in key)
    return frozenset(key) if type(key) is set else key


def _set_encoder(depth: int) -> Callable[[Any], Any]:
    """Pack a value that MessagePack has no type for, inside `depth` sets: the packer's hook."""

    def encode(value: Any) -> Any:
        kind = type(value)
        for base in kind.__mro__:
            encoder = ENCODERS.get(base)
            if encoder is not None:
                found = encoder(value)
                if base is not kind and type(found) is ExtType and difference(value, DECODERS[found.code](found.data)):
                    raise ValueError(f"a {kind.__qualname__} has what a {base.__qualname__} cannot hold")
                return found if isinstance(found, _NATIVE) else encode(found)  # the packer calls its hook only once per object
        if isinstance(value, set | frozenset):
            return ExtType(SET, _pack_set(value, depth + 1))
        if hasattr(kind, "unicode_string"):
            return str(value)  # pydantic's URLs, whose base classes are private
        raise TypeError(kind.__qualname__)

    return encode


def _pack_set(members: set[Any] | frozenset[Any], depth: int) -> bytes:
    if depth > MAX_SET_NESTING:
        raise ValueError(f"sets nested deeper than {MAX_SET_NESTING}")
    packer = Packer(default=_ENCODE_AT[depth], buf_size=512)
    packed: list[bytes] = sorted(map(packer.pack, members))
    header: bytes = packer.pack_array_header(len(packed))
    return header + b"".join(packed)


def _set_decoder(depth: int) -> Callable[[int, bytes], Any]:
    """Read an extension found inside `depth` sets: the reader's hook."""

    def decode(code: int, data: bytes) -> Any:
        if code == SET:
            return _unpack_set(data, depth + 1)
        decoder = DECODERS.get(code)
        if decoder is None:
            raise Undecodable(f"unknown extension type {code}")
        try:
            return decoder(data)
        except Exception:  # noqa: BLE001 - struct, decimal, datetime: each has its own
            raise Undecodable(f"a malformed extension of type {code}") from None

    return decode


def _unpack_set(data: bytes, depth: int) -> set[Any] | frozenset[Any]:
    if depth > MAX_SET_NESTING:
        raise Undecodable(f"sets nested deeper than {MAX_SET_NESTING}")
    structure = len(data.translate(None, _NO_STRUCTURE))  # 1, the header, if it is a set of text or numbers
    if structure > DEFAULT_LIMITS.max_nesting or len(data) > DEFAULT_LIMITS.max_items:
        _dry_run(data)
    members = unpackb(data, use_list=False, ext_hook=_DECODE_AT[depth], timestamp=3)
    if type(members) is not tuple:
        raise Undecodable("a set that is not an array")
    if (
        structure > 1 and (len(members) > CROWD or _SET_WITHIN.search(data)) and is_crowded(members)
    ):  # sets of few within sets of few
        raise Undecodable(_CROWDED)
    return set(members) if depth == 1 else frozenset(members)


_ENCODE_AT = tuple(_set_encoder(depth) for depth in range(MAX_SET_NESTING + 1))
_DECODE_AT = tuple(_set_decoder(depth) for depth in range(MAX_SET_NESTING + 1))
_encode = _ENCODE_AT[0]
_decode = _DECODE_AT[0]
