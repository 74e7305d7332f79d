"""The actions of `command-bus entity TYPE:ID ACTION`."""

from __future__ import annotations

from enum import StrEnum


class Action(StrEnum):
    """Actions on one entity."""

    SHOW = "show"
    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"
    PURGE = "purge"
    ABORT = "abort"
    FORGET = "forget"
    KEYS = "keys"
