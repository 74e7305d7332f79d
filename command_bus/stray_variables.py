"""`unknown_variables`: variables of the environment that look like settings and are none."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from command_bus.settings import BusSettings
from command_bus.spelling import nearest

_PREFIX = "COMMAND_BUS_"
_OTHERS = ("EMBEDDED_", "SPARK_", "TEST_")
_PROGRAMS = frozenset({"DASHBOARD_SECRET"})
"""The variables that our programs read, and that are no settings of a bus."""
_SERVICE = re.compile(r"(.+_)?(SERVICE_(HOST|PORT(_.+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")
"""What Kubernetes sets for services."""


@dataclass(frozen=True, slots=True)
class UnknownVariable:
    """A variable that no setting is read from.

    Attributes:
        name: Its name.
        meant: The variable that it may be a misspelling of, or None.
    """

    name: str
    meant: str | None

    def __str__(self) -> str:
        return f"{self.name} is no setting and is not read{'' if self.meant is None else f'; did you mean {self.meant}?'}"


def unknown_variables(names: Iterable[str]) -> list[UnknownVariable]:
    """Return the variables that have the prefix of settings and are none, by name."""
    known = {field.upper() for field in BusSettings.model_fields} | _PROGRAMS
    found: list[UnknownVariable] = []
    for name in sorted(names):
        word = name.upper().removeprefix(_PREFIX)  # settings are read in any case, upper or lower
        if word == name.upper() or word.startswith(_OTHERS) or _SERVICE.fullmatch(word):
            continue
        head, nested, rest = word.partition("__")
        if head not in known:
            meant = nearest(head, known)
            found.append(UnknownVariable(name, None if meant is None else f"{_PREFIX}{meant}{nested}{rest}"))
    return found
