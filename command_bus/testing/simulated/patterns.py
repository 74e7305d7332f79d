"""The patterns of `MATCH`, as Redis reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence


def matching(options: Sequence[bytes]) -> Callable[[bytes], object]:
    """Return what says whether a name matches the pattern of a scan: that of `MATCH`, else any."""
    names = [option.upper() for option in options[::2]]
    pattern = options[2 * names.index(b"MATCH") + 1] if b"MATCH" in names else b"*"
    parts = re.findall(rb"\\.|\[(?:\\.|[^\]])*\]|.", pattern, re.DOTALL)
    return re.compile(b"".join(map(_as_regex, parts)), re.DOTALL).fullmatch


def _as_regex(part: bytes) -> bytes:
    """Return a part of a pattern of Redis as a regular expression has it."""
    if part in (b"*", b"?"):
        return b".*" if part == b"*" else b"."
    return part if len(part) > 2 else re.escape(part[-1:])
