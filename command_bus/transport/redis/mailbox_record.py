"""The value of a mailbox in the hash `active`: `state|activation|fence|message|attempt|first|holder`, and perhaps parts `|key=value` behind it.

`lua/shared/record.lua` describes the fields, and packs and parses them in the scripts. Two parts of the record also travel alone: fence and
message are an attempt's id (`transport/interrupts.py`), and advance.lua answers a start with the four fields from fence to first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote

from command_bus.errors import NewerState
from command_bus.serialization.envelope import WireEnvelope, pack_envelope
from command_bus.serialization.odd_values import stored_text
from command_bus.transport.mailboxes import mailbox_label
from command_bus.transport.records import Failure
from command_bus.transport.redis.connection.connections import PageSize
from command_bus.transport.redis.keys import ShardKeys
from command_bus.transport.redis.scripts import READ_MAILBOXES, Script
from command_bus.transport.steps import NO_RUN, NO_SNOOZES, RunNotes, Snoozes, attempt_id

_FIELDS = 7
READY, HELD, HELD_AND_CHANGED, RETRYING, LIMITED, IN_LINE, STOPPED, SUSPENDED, BLOCKED = (
    "r",
    "h",
    "H",
    "w",
    "l",
    "q",
    "s",
    "u",
    "b",
)
LONE, LONE_HELD, LONE_SUSPENDED = "o", "O", "U"
"""States of a record, named as in `lua/letters.lua`."""
_READY, _HELD, _LONE = {READY, LONE, IN_LINE}, {HELD, HELD_AND_CHANGED, LONE_HELD}, {LONE, LONE_HELD, LONE_SUSPENDED}
_STATES = {"", *_READY, *_HELD, *_LONE, RETRYING, LIMITED, STOPPED, SUSPENDED, BLOCKED}
_NEWER = b"newer"
_SNOOZES = "z"
_ERROR = "err"
PLACE = "place=1"
"""Behind the parts of a record in an answer: limits gave this lease a place."""
AGAIN = "again=1"
"""Behind those: the step that is answered did not start the command."""
_NO_PARTS: Mapping[str, str] = MappingProxyType({})


class MailboxRecord(NamedTuple):
    """A mailbox's record.

    Attributes:
        state: `r` or `o` ready, `h`, `H` or `O` held, `w` waits for a retry, `l` waits for a limit, `q` waits in the line, `s` stopped,
            `u` or `U` suspended, `b` blocked: its oldest command also stands in other lines;
            empty if the mailbox has no record; others are of a later release.
        activation: Id of its entry in the ready stream; empty in the states `w`, `l`, `q`, `s`, `u` and `U`.
        fence: Number of the start of the command that runs; empty if none does.
        message: Id of the command that runs, is suspended or blocks, or of a lone one that was or is in the line; else empty.
        attempt: The number of times the oldest command was started.
        first_ms: When it was first started; 0 if it never was, below zero: of a durable command that has stored something, or when it was
            replayed while parked, or woken after a snooze or a suspension.
        holder: The lease under which the command runs: a worker's name, `#` and what tells its leases apart; in the state `q` its place; else
            empty.
        parts: What stands behind it, by key: `z` for snoozes and the first start, `c` for classes, others of later releases.
    """

    state: str
    activation: str
    fence: str
    message: str
    attempt: int
    first_ms: int
    holder: str
    parts: Mapping[str, str] = _NO_PARTS

    @property
    def attempt_id(self) -> str:
        """Id of the attempt that runs."""
        return attempt_id(self.fence, self.message)

    @property
    def is_ready(self) -> bool:
        """Whether it waits for a worker."""
        return self.state in _READY

    @property
    def is_held(self) -> bool:
        """Whether one of its commands runs."""
        return self.state in _HELD

    @property
    def is_newer(self) -> bool:
        """Whether only a later release knows its state: then the mailbox is left to that."""
        return self.state not in _STATES

    @property
    def is_lone(self) -> bool:
        """Whether its only command has no entry in the mailbox's stream."""
        return self.state in _LONE or (self.state == IN_LINE and self.message != "")

    def snoozes_of(self, message: str) -> Snoozes:
        """Return how often its oldest command was put off by its handler, and its first start: nothing if the part is of another command.

        Args:
            message: The oldest command; empty if it is not known.
        """
        return _snoozes(self.parts.get(_SNOOZES, ""), message)

    def failure_of(self, message: str) -> Failure | None:
        """Return the last error of its oldest command; None if it has failed in no attempt.

        Args:
            message: The oldest command; empty if it is not known.
        """
        of, _, rest = self.parts.get(_ERROR, "").partition(":")
        at, _, text = rest.partition(":")
        return Failure(_number(at), unquote(text)) if text and of == message else None

    @property
    def run(self) -> RunNotes:
        """Return the notes of runs."""
        return runs_of(f"{key}={value}" for key, value in self.parts.items()) if self.parts else NO_RUN

    @property
    def last_running(self) -> str:
        """The last command that runs: of a run its last one."""
        return self.parts.get("run", "").partition(":")[0] or self.message

    @property
    def started_us(self) -> int:
        """The server's time in microseconds when the attempt started, apart from jumps of its clock: fences are made of it."""
        return _number(self.fence)

    @property
    def worker(self) -> str:
        """Name of the worker that holds the mailbox."""
        return self.holder.partition("#")[0]


def parse_record(record: bytes | None) -> MailboxRecord:
    """Return the fields of a record. Fields that it lacks are empty or 0, and so are numbers that are none."""
    fields = (record or b"").decode(errors="replace").split("|")
    state, activation, fence, message, attempt, first_ms, holder = (*fields, *[""] * (_FIELDS - len(fields)))[:_FIELDS]
    parts = {key: value for key, _, value in (part.partition("=") for part in fields[_FIELDS:])} or _NO_PARTS
    return MailboxRecord(state, activation, fence, message, _number(attempt), _number(first_ms), holder, parts)


def held_record(state: str, activation: str, attempt_id: str, attempt: str, first: str, holder: str) -> str:
    """Return the record of a mailbox whose command runs, if it has no parts.

    Args:
        state: `HELD` or `LONE_HELD`.
        activation: Id of its entry in the ready stream.
        attempt_id: Fence and message.
        attempt: The number of the start.
        first: The server's time of the first start.
        holder: The lease under which it runs.
    """
    return f"{state}|{activation}|{attempt_id}|{attempt}|{first}|{holder}"


def refuse_newer(answer: Any, mailbox: str) -> None:
    """Check a script's answer to an operator.

    Raises:
        NewerState: It left the mailbox alone, whose state only a later release knows.
    """
    if answer == _NEWER:
        raise NewerState(
            f"{mailbox_label(mailbox)} is in a state that only a later release of command_bus knows: nothing was changed; "
            "use that release's command line"
        )


def parse_started(state: bytes) -> list[str]:
    """Return fence, message, attempt and first start of a command that was started, then the parts of its record."""
    return state.decode("utf-8", "backslashreplace").split("|")


def is_first_start(attempt: str, first: str, now: str, parts: Sequence[str]) -> bool:
    """Return whether a command that was started just now certainly was never started before.

    Args:
        attempt: The number of the start.
        first: The server's time of the first start.
        now: That of this one.
        parts: What the record of this start consists of. A command that was started before, within the same millisecond, left one that says so.
    """
    return first == now and attempt == "1" and not (parts and any(part.startswith("started=") for part in parts))


def snoozes_of(parts: Iterable[str], message: str) -> Snoozes:
    """Return how often a command was put off, by the parts of the record of its start."""
    return next((_snoozes(part[2:], message) for part in parts if part.startswith(f"{_SNOOZES}=")), NO_SNOOZES)


def _snoozes(text: str, message: str) -> Snoozes:
    """Read the part that counts snoozes, and keeps the first start (see `lua/shared/snooze.lua`); it may be of another command."""
    count, of, first, waits, *_ = [*text.split(":"), "", "", ""]
    if not _number(first) or (message and of != message):
        return NO_SNOOZES
    return Snoozes(_number(count), _number(first), waits == "1")


def runs_of(parts: Iterable[str]) -> RunNotes:
    """Return what the parts of a record say of runs (see `lua/advance/6a_run.lua`)."""
    found = {key: value for key, _, value in (part.partition("=") for part in parts)}
    count, cap, begun = found.get("run", ""), found.get("cap", ""), found.get("begun", "")
    if not (count or cap or begun):
        return NO_RUN
    return RunNotes(_number(count.rpartition(":")[2]) or 1, _number(cap), begun)


def _number(text: str) -> int:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else 0


Entry = tuple[str, dict[bytes, bytes]]
"""An entry of a mailbox: its id and its fields. The id of a lone command is in its record, so it may be any text."""

RunScript = Callable[[Script, list[str], list[Any]], Awaitable[Any]]
"""Runs a script with keys and arguments, and returns its answer."""

OLDEST = "-"
"""The first command of a mailbox that is not settled."""

_MOST = 500
"""Mailboxes of one script call: it takes a few milliseconds."""


def shown_envelope(fields: Mapping[bytes, bytes]) -> bytes:
    """Return the envelope of an entry, for people: that of a place names the home of its command."""
    home = fields.get(b"s")
    if home is None:
        return fields.get(b"e", b"")
    return pack_envelope(WireEnvelope("-", f"(of {mailbox_label(stored_text(home))})", None, None, b"\x80"))


async def read_mailboxes(run: RunScript, keys: ShardKeys, wanted: Sequence[tuple[str, str]], count: int) -> list[list[Entry]]:
    """Return for each mailbox its first commands, oldest first, without those that are settled.

    Args:
        run: Runs the script.
        keys: Names of the shard's keys.
        wanted: Mailboxes of this shard, each with the id of the first command that is returned, with `(` and the id before it, or `OLDEST`.
        count: How many commands of each mailbox.

    Raises:
        CommandBusError: The server cannot be asked, or this user may not read mailboxes.
    """
    found: list[list[Entry]] = []
    for at in range(0, len(wanted), _MOST):
        part = wanted[at : at + _MOST]
        names = [keys.active, keys.lone, *(keys.mailbox(mailbox) for mailbox, _ in part)]
        answer = await run(READ_MAILBOXES, names, [len(keys.mailboxes), count, *(start for _, start in part)])
        found += [
            [(stored_text(entry), dict(zip(fields[::2], fields[1::2], strict=True))) for entry, fields in entries]
            for entries in answer
        ]
    return found


async def read_entry(run: RunScript, keys: ShardKeys, mailbox: str, message: str) -> dict[bytes, bytes]:
    """Return the fields of one command; empty if it is not in its mailbox any more.

    Raises:
        CommandBusError: As for `read_mailboxes`.
    """
    (entries,) = await read_mailboxes(run, keys, [(mailbox, message)], 1)
    return entries[0][1] if entries and entries[0][0] == message else {}


async def mailbox_pages(run: RunScript, keys: ShardKeys, mailbox: str, count: int) -> AsyncIterator[list[Entry]]:
    """Yield what waits in a mailbox, oldest first, at most `count` a page.

    Args:
        run: Runs a script on the shard, as for `read_mailboxes`.
        keys: Names of the shard's keys.
        mailbox: Its name.
        count: As said.
    """
    size, start = PageSize(count), OLDEST
    while True:
        asked = size.count
        (entries,) = await read_mailboxes(run, keys, [(mailbox, start)], asked)
        if entries:
            yield entries
            start = "(" + entries[-1][0]
        if len(entries) < asked:
            return
        size.observe(sum(len(fields.get(b"e", b"")) for _, fields in entries), len(entries))
