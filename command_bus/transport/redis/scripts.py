"""The Lua steps, loaded once, addressed by their content: a rolling deploy may run two versions side by side."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files

__all__ = [
    "ADVANCE",
    "CLAIM",
    "DISPATCH",
    "ENQUEUE",
    "FORGET",
    "HOMES",
    "LETTER",
    "LOAD",
    "OPERATE",
    "PROMOTE",
    "REMOVE",
    "REPAIR",
    "SCRIPTS",
    "SKIP",
    "SURVEY",
    "TELLING",
    "Script",
]


@dataclass(frozen=True, slots=True)
class Script:
    """A script and the digest by which the server knows it."""

    name: str
    text: str
    sha: str


def _read(name: str) -> str:
    return files("command_bus.transport.redis").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def _load(name: str) -> Script:
    text = _read(name)
    if "teller(" in text:
        text = TELLING + text
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())


TELLING = _read("telling")
"""The beginning of every script that tells of events."""


ENQUEUE = _load("enqueue")
ADVANCE = _load("advance")
PROMOTE = _load("promote")
HOMES = _load("homes")
CLAIM = _load("claim")
OPERATE = _load("operate")
REMOVE = _load("remove")
REPAIR = _load("repair")
LETTER = _load("letter")
FORGET = _load("forget")
LOAD = _load("load")
DISPATCH = _load("dispatch")
SKIP = _load("skip")
SURVEY = _load("survey")

SCRIPTS = (ENQUEUE, ADVANCE, PROMOTE, HOMES, CLAIM, OPERATE, REMOVE, REPAIR, LETTER, FORGET, LOAD, DISPATCH, SKIP, SURVEY)
