"""A mailbox's entry as one text, where it does not stand in its mailbox: in `delayed` and in dead letters.

The text of an entry that has an envelope only is the envelope. Any other (or one whose envelope begins as such a text does, which no MessagePack
does) is the byte 0xc1, and for each field its name, a colon, the length of its value, a colon and the value. So what a later release writes
beside the envelope is kept. `lua/shared/entry_text.lua` does the same in the scripts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARK = b"\xc1"
_MOST = 32
"""Fields of an entry that are kept: no release writes more, and the scripts unpack them at once."""
_FIELD = re.compile(rb"([^:]+):(\d{1,10}):")


def pack_entry(fields: Sequence[bytes]) -> bytes:
    """Return the text of an entry; `fields` are names and values by turns. What no release writes is left out."""
    pairs = [(name, value) for name, value in zip(fields[::2], fields[1::2], strict=True) if name and b":" not in name]
    if len(pairs) > _MOST:
        pairs = [pair for pair in pairs if pair[0] == b"e"][:1]
    if len(pairs) == 1 and pairs[0][0] == b"e" and not pairs[0][1].startswith(_MARK):
        return pairs[0][1]
    return _MARK + b"".join(b"%b:%d:%b" % (name, len(value), value) for name, value in pairs)


def unpack_entry(text: bytes) -> list[tuple[bytes, bytes]]:
    """Return the fields of an entry. A text that is none of ours is an envelope."""
    if not text.startswith(_MARK):
        return [(b"e", text)]
    fields: list[tuple[bytes, bytes]] = []
    at = len(_MARK)
    while at < len(text):
        found = _FIELD.match(text, at)
        if found is None or len(fields) == _MOST or found.end() + int(found[2]) > len(text):
            return [(b"e", text)]
        at = found.end() + int(found[2])
        fields.append((found[1], text[found.end() : at]))
    return fields or [(b"e", text)]


def envelope_in(text: bytes) -> bytes:
    """Return the envelope of an entry; empty if it has none."""
    return dict(reversed(unpack_entry(text))).get(b"e", b"")
