"""The only import of msgpack, which has no type annotations: its names that are used here, as `Any`.

Callers state the type of the result; nothing untyped leaves this package.
"""

from __future__ import annotations

from typing import Any, cast

import msgpack  # type: ignore[import-untyped]
import msgpack.exceptions  # type: ignore[import-untyped]

_msgpack = cast("Any", msgpack)

ExtType: Any = _msgpack.ExtType
Packer: Any = _msgpack.Packer
Unpacker: Any = _msgpack.Unpacker
unpackb: Any = _msgpack.unpackb

unpack_errors: tuple[tuple[type[Exception], str], ...] = (
    (UnicodeDecodeError, "text that is not UTF-8"),
    (_msgpack.exceptions.ExtraData, "bytes after the end"),
    (_msgpack.exceptions.StackError, "nested too deeply"),
    (RecursionError, "nested too deeply"),
    (_msgpack.exceptions.FormatError, "not MessagePack"),
    (_msgpack.exceptions.OutOfData, "cut short"),
    (TypeError, "a map key or a member of a set that cannot be one"),
)
"""What unpacking raises, and what that means. The errors' own texts may quote the data."""
