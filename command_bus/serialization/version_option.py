"""The option `v` of an envelope: the version of its command's fields. Nothing travels for version 1.

A release that does not know the option treats the command as one of a later release, and a worker whose class has a lower version as
one that it has no handler for. So a handler never gets fields of a version that its class does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from command_bus.messages.message import MOST_VERSION

VERSION: Final = "v"


def is_version(value: Any) -> bool:
    """Return whether a value is a version that travels."""
    return type(value) is int and 1 < value <= MOST_VERSION


def version_in(options: Mapping[str, Any] | None) -> int:
    """Return the version of a command's fields, by the options of its envelope."""
    version: int = options.get(VERSION, 1) if options else 1
    return version


def with_version(options: Mapping[str, Any] | None, version: int) -> dict[str, Any] | None:
    """Return the options with another version in them; None if there are none."""
    others = {name: value for name, value in (options or {}).items() if name != VERSION}
    return others | ({VERSION: version} if version > 1 else {}) or None
