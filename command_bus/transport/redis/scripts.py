"""The Lua scripts, read once. The server knows them by the digest of their text, so two versions may run side by side."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files

__all__ = [
    "ADVANCE",
    "BULK_COMMIT",
    "BULK_LOAD",
    "CLAIM",
    "CONFIRM",
    "DELAYED_MAILBOXES",
    "ENQUEUE",
    "ENQUEUE_ONE",
    "ENQUEUE_UNIQUE",
    "FETCH",
    "FILL_LINE",
    "HOLD",
    "LIMITS",
    "LIMIT_LOOK",
    "MAILBOX_HEADS",
    "OUTCOME_OFFSET",
    "PROMOTE",
    "PRUNE_LETTERS",
    "REACTIVATE",
    "READ_MAILBOXES",
    "RECOUNT",
    "REMOVE",
    "REMOVE_WORKER",
    "RESCHEDULE",
    "RULE",
    "SCHEDULE_BAR",
    "SCHEDULE_CHANGE",
    "SCHEDULE_FIRE",
    "SCRIPTS",
    "SETTLE_DEAD_LETTER",
    "SWEEP_UNIQUE",
    "WAKE_LIMITED",
    "Script",
]

_FOLDER = files("command_bus.transport.redis").joinpath("lua")
_USES = re.compile(r"^-- uses: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A script with the digest by which the server knows it.

    Attributes:
        name: Name of its file or folder.
        text: The shared parts, then the script's own text.
        sha: Digest of the text.
        shared: Names of the shared parts.
    """

    name: str
    text: str
    sha: str
    shared: tuple[str, ...] = ()


def _read(*path: str) -> str:
    return _FOLDER.joinpath(*path).read_text(encoding="utf-8")


def _body(name: str) -> str:
    """Return a script's own text: its file, or the files of its folder one behind the other."""
    folder = _FOLDER.joinpath(name)
    if not folder.is_dir():
        return _read(f"{name}.lua")
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.iterdir(), key=lambda file: file.name))


def _load(name: str) -> Script:
    """Read a script, and the parts in `lua/shared/` that its line `-- uses: …` lists, in that order."""
    body = _body(name)
    uses = _USES.search(body)
    shared = tuple(uses[1].split(", ")) if uses else ()
    text = "".join([*(_read("shared", f"{part}.lua") for part in shared), body])
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest(), shared)


ENQUEUE = _load("enqueue")
ENQUEUE_ONE = _load("enqueue_one")
ENQUEUE_UNIQUE = _load("enqueue_unique")
FETCH = _load("fetch")
ADVANCE = _load("advance")
PROMOTE = _load("promote")
FILL_LINE = _load("fill_line")
PRUNE_LETTERS = _load("prune_letters")
DELAYED_MAILBOXES = _load("delayed_mailboxes")
CLAIM = _load("claim")
HOLD = _load("hold")
REMOVE = _load("remove")
REACTIVATE = _load("reactivate")
RECOUNT = _load("recount")
SETTLE_DEAD_LETTER = _load("settle_dead_letter")
REMOVE_WORKER = _load("remove_worker")
SWEEP_UNIQUE = _load("sweep_unique")
BULK_LOAD = _load("bulk_load")
BULK_COMMIT = _load("bulk_commit")
OUTCOME_OFFSET = _load("outcome_offset")
MAILBOX_HEADS = _load("mailbox_heads")
READ_MAILBOXES = _load("read_mailboxes")
RESCHEDULE = _load("reschedule")
SCHEDULE_CHANGE = _load("schedule_change")
SCHEDULE_FIRE = _load("schedule_fire")
SCHEDULE_BAR = _load("schedule_bar")
LIMITS = _load("limits")
RULE = _load("rule")
LIMIT_LOOK = _load("limit_look")
WAKE_LIMITED = _load("wake_limited")
CONFIRM = _load("confirm")

SCRIPTS = (
    ENQUEUE,
    ENQUEUE_ONE,
    ENQUEUE_UNIQUE,
    FETCH,
    ADVANCE,
    PROMOTE,
    FILL_LINE,
    PRUNE_LETTERS,
    DELAYED_MAILBOXES,
    CLAIM,
    HOLD,
    REMOVE,
    REACTIVATE,
    RECOUNT,
    SETTLE_DEAD_LETTER,
    REMOVE_WORKER,
    SWEEP_UNIQUE,
    BULK_LOAD,
    BULK_COMMIT,
    OUTCOME_OFFSET,
    MAILBOX_HEADS,
    READ_MAILBOXES,
    RESCHEDULE,
    SCHEDULE_CHANGE,
    SCHEDULE_FIRE,
    SCHEDULE_BAR,
    LIMITS,
    LIMIT_LOOK,
    RULE,
    WAKE_LIMITED,
    CONFIRM,
)
