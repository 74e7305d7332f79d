"""Limits of size, nesting and width of a message, and the exception for bytes that cannot be read."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from command_bus.settings import BusSettings


@dataclass(frozen=True, slots=True)
class PayloadLimits:
    """Limits of one packed value; the same on both sides, so that what can be sent can be read.

    Attributes:
        max_bytes: Size of the packed value.
        max_nesting: Containers inside each other: 1 is a flat map. At most 512.
        max_items: Members of one array, map or set.
    """

    max_bytes: int = 1024 * 1024
    max_nesting: int = 64
    max_items: int = 100_000
    harmless_bytes: int = field(init=False, repr=False, compare=False)
    """Fewer bytes than this cannot exceed the other two: each container and each item takes one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "harmless_bytes", min(self.max_nesting, self.max_items))


DEFAULT_LIMITS = PayloadLimits()


class Undecodable(ValueError):
    """Bytes that are not what this library writes, or exceed the limits. The text never contains the data.

    Attributes:
        reason: Why, for logs and dead letters.
        command_id: Id from the envelope or reply, so that its caller can be answered; None if it cannot be read.
        name: The command's wire name; None if it cannot be read.
        inbox: The place where the caller waits; None if it cannot be read.
    """

    def __init__(self, reason: str, *, command_id: str | None = None, name: str | None = None, inbox: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.command_id = command_id
        self.name = name
        self.inbox = inbox


class UnsupportedVersion(Undecodable):
    """Written by a later version of this library: to be kept for a newer worker, not to be thrown away.

    Attributes:
        version: What was found.
        flags: Critical flags that are not known; 0 if there are none.
        options: Keys of options that are not known.
    """

    def __init__(
        self,
        version: int,
        *,
        flags: int = 0,
        options: tuple[str, ...] = (),
        command_id: str | None = None,
        name: str | None = None,
        inbox: str | None = None,
    ) -> None:
        super().__init__(_reason(version, flags, options), command_id=command_id, name=name, inbox=inbox)
        self.version = version
        self.flags = flags
        self.options = options


def _reason(version: int, flags: int, options: tuple[str, ...]) -> str:
    if flags:
        return f"unknown critical flags {flags:#x}, of a later release"
    if options:
        return f"unknown options {', '.join(map(repr, options))[:200]}, of a later release"
    return f"unsupported version {version}"


_CONTAINERS = frozenset({dict, list, tuple, set, frozenset})


def _members(node: Any) -> Iterable[Any]:
    return chain(node, node.values()) if type(node) is dict else node


def excess(value: Any, limits: PayloadLimits) -> str | None:
    """Return the limit that a decoded value exceeds, or None. Goes level by level: as deep as the limit and no deeper."""
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(limits.max_nesting):
        if not level:
            return None
        if any(len(node) > limits.max_items for node in level):
            return f"more than {limits.max_items} items in one collection"
        level = [child for node in level for child in _members(node) if type(child) in _CONTAINERS]
    return f"nested deeper than {limits.max_nesting} levels" if level else None


_HEAD = 64 * 1024
"""Bytes that an envelope or reply may have beside its payload."""


def reading_limits(settings: BusSettings) -> PayloadLimits:
    """Return the limits of reading: all that could be sent under these settings can be read."""
    return PayloadLimits(max_bytes=settings.max_payload + _HEAD, max_nesting=settings.max_nesting)


ZLIB: Final = "zlib"
_LEVEL: Final = 1
_WORTH: Final = 16
"""Bytes that the option takes in an envelope; who saves fewer sends the payload as it is."""


def compressed(data: bytes, above: int | None = 0) -> bytes | None:
    """Return data of more than `above` bytes compressed; None if it is not larger, or would not become smaller, or `above` is None."""
    if above is None or len(data) <= above:
        return None
    smaller = zlib.compress(data, _LEVEL)
    return smaller if len(smaller) + _WORTH < len(data) else None


def expanded(data: bytes, most: int) -> bytes:
    """Return what was compressed. Takes no more memory than the data and `most` bytes, and time in proportion.

    Raises:
        Undecodable: It is damaged, or expands to more than `most` bytes.
    """
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(data, most + 1)
    except zlib.error:
        raise Undecodable("a compressed part that is damaged") from None
    if len(found) > most:
        raise Undecodable(f"{len(data)} compressed bytes that expand to more than {most}, the limit")
    if not reader.eof or reader.unused_data:
        raise Undecodable("a compressed part that is cut short, or has bytes after its end")
    return found


def capped(text: object, limit: int) -> str:
    """Return the start of a text, at most `limit` bytes of UTF-8 and an ellipsis; lone surrogates escaped. Other objects by `str`."""
    data = _encoded(text)
    return data.decode() if len(data) <= limit else data[:limit].decode("utf-8", "ignore") + "…"


def capped_tail(text: object, limit: int) -> str:
    """Return the end of a text, limited in the same way: the fault is at the end of a traceback."""
    data = _encoded(text)
    return data.decode() if len(data) <= limit else "…" + data[-limit:].decode("utf-8", "ignore")


def printable(text: str) -> str:
    """Return a text that is safe in a line of a log: newlines, control characters and changes of writing direction are escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _encoded(text: object) -> bytes:
    return str(text).encode("utf-8", "backslashreplace")
