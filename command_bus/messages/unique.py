"""`Unique`: folds repeated triggers of one entity into one command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from command_bus.clock import duration_fault
from command_bus.errors import InvalidCommand

MAX_UNIQUE_KEY_BYTES = 512


@dataclass(frozen=True, slots=True)
class Unique:
    """A key within one entity: of the commands that have it, at most one waits. What runs, or waits for a retry, is never touched.

    Attributes:
        key: Tells apart what is folded; None takes the command's wire name.
        wins: Decides between one that waits and a new one. `"first"`: the new one is dropped, its receipt says `duplicate` and names the other.
            `"latest"`: the one that waits is taken out, its caller gets `CommandCancelled` with the code `superseded`, and the new one joins
            the end of the line.
        until: How long the key is held. `"settled"` (the default of `"first"`): to the end of the command, so what comes while it runs is
            dropped. `"started"` (the default of `"latest"`, which takes nothing else): while it waits, so what comes while it runs waits for
            its turn: at least one run after the last trigger.
        window: Seconds from its acceptance for which the key is held besides, even if the command is settled; for `"first"`.
        debounce: Seconds without another one until it takes its place in line; for `"latest"`, and not with a delay.
        extend: Whether each command that is dropped begins the window again; for `window`.
        max_wait: Most seconds that others put it off: then it takes its place and keeps it, and the next one waits by itself. With `extend`, most
            seconds from its acceptance for which they hold the key. For `debounce` and `extend`.

    Raises:
        InvalidCommand: A value is not what it may be, or two do not go together.
    """

    key: str | None = None
    wins: Literal["first", "latest"] = "first"
    until: Literal["settled", "started"] | None = None
    window: float | None = None
    debounce: float | None = None
    max_wait: float | None = None
    extend: bool = False

    def __post_init__(self) -> None:
        _check_key(self.key)
        _require(self.wins in ("first", "latest"), f"Unique(wins={self.wins!r}): 'first' or 'latest'")
        _require(self.until in (None, "settled", "started"), f"Unique(until={self.until!r}): 'settled' or 'started'")
        for name, value in (("window", self.window), ("debounce", self.debounce), ("max_wait", self.max_wait)):
            fault = None if value is None else duration_fault(value)
            _require(fault is None, f"Unique({name}={value!r}): {name} {fault}")
        latest = self.wins == "latest"
        _require(
            not (latest and self.until == "settled"),
            "Unique(wins='latest', until='settled'): what runs cannot be replaced, so what comes meanwhile would be lost; "
            "leave `until` out, or let the first win",
        )
        _require(
            not (latest and self.window is not None),
            "Unique(wins='latest', window=…): a window drops what comes in it, so the first wins",
        )
        _require(latest or self.debounce is None, "Unique(debounce=…): each puts the one before it off, so write wins='latest'")
        _require(type(self.extend) is bool, f"Unique(extend={self.extend!r}): True or False")
        _require(self.window is not None or not self.extend, "Unique(extend=True) begins the window again: give window=, too")
        bounded = ("window", self.window) if self.extend else ("debounce", self.debounce)
        _require(bounded[1] is not None or self.max_wait is None, "Unique(max_wait=…) bounds `debounce` or `extend`: give one")
        if bounded[1] is not None and self.max_wait is not None:
            _require(self.max_wait >= bounded[1], f"Unique(max_wait={self.max_wait!r}): not below {bounded[0]}={bounded[1]!r}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidCommand(message)


def _check_key(key: str | None) -> None:
    if key is None:
        return
    _require(
        isinstance(key, str) and key != "",
        f"Unique({key!r}): the key is a text that is not empty; without one it is the wire name",
    )
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidCommand("the unique key has lone surrogates, which UTF-8 cannot carry") from error
    _require(
        size <= MAX_UNIQUE_KEY_BYTES,
        f"a unique key may have {MAX_UNIQUE_KEY_BYTES} bytes, this one has {size}: use a digest of it",
    )
