"""Variables that look like settings and are none: a misspelt one is silently not read, and the default works on in its place.

They are told of and never refused: others may use the prefix. Kubernetes does (a service called `command-bus` gives every pod
`COMMAND_BUS_PORT` and more), and so do the embedded server, Spark's data source and the testing kit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from command_bus.settings import BusSettings
from command_bus.spelling import nearest

__all__ = ["Stray", "strays"]

_PREFIX = "COMMAND_BUS_"
_OTHERS = ("EMBEDDED_", "SPARK_", "TEST_")
_SERVICE = re.compile(r"(.+_)?(SERVICE_(HOST|PORT(_.+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")
"""What Kubernetes sets for services."""


@dataclass(frozen=True, slots=True)
class Stray:
    """A variable that no setting is read from.

    Attributes:
        name: Its name.
        meant: The variable that it may be a misspelling of, or None.
    """

    name: str
    meant: str | None

    def __str__(self) -> str:
        return f"{self.name} is no setting and is not read{'' if self.meant is None else f'; did you mean {self.meant}?'}"


def strays(names: Iterable[str]) -> list[Stray]:
    """The variables among these names that have the prefix of settings and are none, by name."""
    known = {field.upper() for field in BusSettings.model_fields}
    found: list[Stray] = []
    for name in sorted(names):
        word = name.upper().removeprefix(_PREFIX)  # settings are read whatever the case
        if word == name.upper() or word.startswith(_OTHERS) or _SERVICE.fullmatch(word):
            continue
        head, nested, rest = word.partition("__")
        if head not in known:
            meant = nearest(head, known)
            found.append(Stray(name, None if meant is None else f"{_PREFIX}{meant}{nested}{rest}"))
    return found
