"""The Lua scripts, read once. The server knows them by the digest of their text, so two versions may run side by side."""

from __future__ import annotations

import re
from hashlib import sha1
from importlib.resources import files
from itertools import chain
from typing import NamedTuple

_FOLDER = files("command_bus.transport.redis").joinpath("lua")
_USES = re.compile(r"^-- uses: (.+)$", re.MULTILINE)
_PART = re.compile(r"\w+(?:\([^)]*\))?")
_NAME = re.compile(r"\w+")
_LETTERS = dict(re.findall(r"^(\w+\.\w+) = ('\w')$", _FOLDER.joinpath("letters.lua").read_text(encoding="utf-8"), re.MULTILINE))
_LETTER = re.compile(rf"\b(?:{'|'.join({name.partition('.')[0] for name in _LETTERS})})\.\w+")


class Script(NamedTuple):
    """A script with the digest by which the server knows it.

    Attributes:
        name: What its file or folder is called.
        text: The shared parts, then the script's own text. Some parts are one function, which defines theirs when it is called.
        sha: Digest of the text.
        shared: Names of the shared parts.
        without: The file of its folder that it lacks, if there is one.
    """

    name: str
    text: str
    sha: str
    shared: tuple[str, ...] = ()
    without: str = ""


def with_letters(text: str) -> str:
    """Return a script with letters in place of their names, which `lua/letters.lua` gives.

    Raises:
        KeyError: A name that it does not give.
    """
    return _LETTER.sub(lambda found: _LETTERS[found[0]], text)


def _read(*path: str) -> str:
    return with_letters(_FOLDER.joinpath(*path).read_text(encoding="utf-8"))


def _files(name: str, without: str) -> list[str]:
    """Return the texts of a script's own files: its file, or those of its folder in their order, but one."""
    folder = _FOLDER.joinpath(name)
    if not folder.is_dir():
        return [_read(f"{name}.lua")]
    kept = sorted(file.name for file in folder.iterdir() if file.name != without)
    return [_read(name, file) for file in kept]


def _shared(uses: str) -> str:
    """Return the text of a shared part; of `name(part, …)` one function of that name, which defines the parts' functions when it is called.

    Each function that a script defines costs time in every request. What few requests need is one function so.
    """
    opened, _, parts = uses.rstrip(")").partition("(")
    if not parts:
        return _read("shared", f"{uses}.lua")
    texts = "".join(_read("shared", f"{part}.lua") for part in parts.split(", "))
    return f"local function {opened}(...)\n{texts}return {opened}(...)\nend\n"


def _load(name: str, *, without: str = "") -> Script:
    """Read a script, and the parts in `lua/shared/` that its lines `-- uses: …` list, in that order (see `_shared`).

    Args:
        name: What its file or folder is called.
        without: A file of its folder that most requests do not need. Each function that a script defines costs time in every request.
    """
    texts = _files(name, without)
    uses = [_PART.findall(found) for text in texts for found in _USES.findall(text)]
    parts = tuple(dict.fromkeys(chain.from_iterable(uses)))
    shared = tuple(chain.from_iterable(_NAME.findall(part.partition("(")[2] or part) for part in parts))
    text = "".join([*map(_shared, parts), "\n".join(texts)])
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest(), shared, without)


ENQUEUE = _load("enqueue")
ENQUEUE_ONE = _load("enqueue_one")
OUTBOX = _load("outbox")
FETCH = _load("fetch")
ADVANCE = _load("advance", without="8a_send.lua")
ADVANCE_AND_SEND = _load("advance")
PROMOTE = _load("promote")
FILL_LINE = _load("fill_line")
PRUNE_LETTERS = _load("prune_letters")
DELAYED_MAILBOXES = _load("delayed_mailboxes")
CHANGE_NOTE = _load("change_note")
CHANGE_STATE = _load("change_state")
CLAIM = _load("claim")
HOLD = _load("hold")
REMOVE = _load("remove")
REACTIVATE = _load("reactivate")
RECOUNT = _load("recount")
RAISE_FENCE = _load("raise_fence")
RELAY = _load("relay")
RELAYED = _load("relayed")
SETTLE_DEAD_LETTER = _load("settle_dead_letter")
REMOVE_WORKER = _load("remove_worker")
SWEEP_UNIQUE = _load("sweep_unique")
RECORD_STEPS = _load("record_steps")
TAKE_HINT = _load("take_hint")
TELL = _load("tell")
BULK_LOAD = _load("bulk_load")
BULK_COMMIT = _load("bulk_commit")
OUTCOME_OFFSET = _load("outcome_offset")
MAILBOX_HEADS = _load("mailbox_heads")
READ_MAILBOXES = _load("read_mailboxes")
READ_RECORDS = _load("read_records")
RESCHEDULE = _load("reschedule")
PRIORITIZE = _load("prioritize")
SCHEDULE_CHANGE = _load("schedule_change")
SCHEDULE_FIRE = _load("schedule_fire")
SCHEDULE_BAR = _load("schedule_bar")
LIMITS = _load("limits")
RULE = _load("rule")
LIMIT_LOOK = _load("limit_look")
WAKE_LIMITED = _load("wake_limited")
CONFIRM = _load("confirm")
WEIGHT = _load("weight")

SCRIPTS = (
    ENQUEUE,
    ENQUEUE_ONE,
    OUTBOX,
    FETCH,
    ADVANCE,
    ADVANCE_AND_SEND,
    PROMOTE,
    FILL_LINE,
    PRUNE_LETTERS,
    DELAYED_MAILBOXES,
    CHANGE_NOTE,
    CHANGE_STATE,
    CLAIM,
    HOLD,
    REMOVE,
    REACTIVATE,
    RECORD_STEPS,
    RECOUNT,
    RAISE_FENCE,
    RELAY,
    RELAYED,
    SETTLE_DEAD_LETTER,
    REMOVE_WORKER,
    SWEEP_UNIQUE,
    TAKE_HINT,
    TELL,
    BULK_LOAD,
    BULK_COMMIT,
    OUTCOME_OFFSET,
    MAILBOX_HEADS,
    READ_MAILBOXES,
    READ_RECORDS,
    RESCHEDULE,
    PRIORITIZE,
    SCHEDULE_CHANGE,
    SCHEDULE_FIRE,
    SCHEDULE_BAR,
    LIMITS,
    LIMIT_LOOK,
    RULE,
    WAKE_LIMITED,
    CONFIRM,
    WEIGHT,
)
