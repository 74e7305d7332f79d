"""Compression of payloads and replies: zlib at its fastest level, kept only where it saves something.

The option `z` of an envelope says that its payload is compressed. Readers expand no more than they may read: a few bytes that would
expand to gigabytes are refused as soon as they pass the limit.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

from command_bus.serialization.limits import Undecodable

COMPRESSED: Final = "z"
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


def is_compression(value: Any) -> bool:
    """Return whether a value names a compression that can be read."""
    return type(value) is str and value == ZLIB
