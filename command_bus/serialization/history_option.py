"""The option `h` of an envelope: how long the end of its command is kept, as `[age in ms, number]`, and a 1 if its payload is kept, too.

It is critical, as all options are: a release that ignored it would leave a gap in the history without a word. Nothing travels without a history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from command_bus.clock import LONGEST
from command_bus.messages.history import MOST_KEPT, History

HISTORY: Final = "h"
_LENGTHS = (2, 3)


class KeptHistory(NamedTuple):
    """A history that travels.

    Attributes:
        age_ms: For how long the end is kept.
        number: Among how many others of its shard.
        payload: 1 if the command's payload is kept, too.
    """

    age_ms: int
    number: int
    payload: int = 0

    @property
    def bounds(self) -> str:
        """Its bounds, as the scripts take them."""
        return f"h{self.age_ms}:{self.number}"


def history_option(history: History) -> list[int]:
    """Return a history as it travels."""
    return [history.age_ms, cast("int", history.number), *([1] if history.payload else [])]


def is_history(value: Any) -> bool:
    """Return whether a value is a history that travels."""
    if type(value) is not list or len(value) not in _LENGTHS or not all(type(each) is int for each in value):
        return False
    return 1 <= value[0] <= LONGEST * 1000 and 1 <= value[1] <= MOST_KEPT and value[2:] in ([], [1])


def history_in(options: Mapping[str, Any] | None) -> KeptHistory | None:
    """Return the history in the options of an envelope that was read; None without one."""
    return KeptHistory(*options[HISTORY]) if options and HISTORY in options else None
