"""The simulated server: executes requests, parks blocking reads, can be restarted, and its wall clock can jump."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis import exceptions as redis_errors

from command_bus.testing.simulated.scripting import Scripts
from command_bus.testing.simulated.store import COMMANDS, Args, ReplyError, Store, find, option
from command_bus.testing.simulated.streams import read_group

_INFO = b"redis_version:7.2.0\r\nredis_mode:standalone\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\nrole:master\r\n"
_ERRORS: dict[str, type[redis_errors.ResponseError]] = {"NOSCRIPT": redis_errors.NoScriptError}

Answers = list[Any]
Reply = Callable[[Answers], None]


class Link:
    """A connection. `broken`: the client knows that it ended. `gone`: the server knows."""

    __slots__ = ("broken", "gone", "id", "owner")
    ids = itertools.count(1)

    def __init__(self, owner: Any) -> None:
        self.id = next(self.ids)
        self.owner = owner
        self.broken = False
        self.gone = False


@dataclass(slots=True)
class _Parked:
    """A blocking read that waits for data."""

    link: Link
    retry: Callable[[], Any]
    reply: Reply
    until: float


class Server:
    """One Redis, in memory.

    Args:
        time: Returns true time in seconds; the wall clock is that plus `offset`.
        call_at: Schedules a call at a true time.
    """

    def __init__(self, time: Callable[[], float], call_at: Callable[..., Any]) -> None:
        self.time = time
        self._call_at = call_at
        self.offset = 1_700_000_000.0
        self.store = Store(lambda: time() + self.offset)
        self.scripts = Scripts()
        self.down_until = 0.0
        self._parked: dict[int, _Parked] = {}
        self.requests = 0

    # Faults.

    def jump(self, seconds: float) -> None:
        """Let the wall clock jump; blocking reads time out by it."""
        self.offset += seconds
        for link in list(self._parked):
            self._wake_up(link)

    def cut(self, link: Link) -> None:
        """End a connection, and its blocking read."""
        link.gone = True
        self._parked.pop(link.id, None)

    def restart(self) -> None:
        """Restart: forget connections and scripts, keep the data."""
        for parked in list(self._parked.values()):
            self.cut(parked.link)
        self.scripts.flush()

    # Requests.

    def execute(self, link: Link, requests: list[Args], reply: Reply) -> None:
        """Execute requests that arrived together. `reply` is called with all answers, now or when a blocking read has its answer."""
        answers: Answers = []
        for args in requests:
            self.requests += 1
            name = args[0].upper()
            if name in (b"XREADGROUP", b"BLMPOP"):
                if self._blocks(link, name, args[1:], reply, answers):
                    return
                continue
            answers.append(self._answer(link, name, args))
            if self.store.fed:
                self._feed()
        reply(answers)

    def _answer(self, link: Link, name: bytes, args: Args) -> Any:
        try:
            own = _OWN.get(name) or _OWN.get(b" ".join(args[:2]).upper())
            if own is not None:
                return own(self, link, args)
            function, rest = find(args)
            return function(self.store, rest)
        except ReplyError as error:
            return _reply_of(error)

    def unblock(self, link_id: int) -> int:
        """End the blocking read of a connection; return whether it had one."""
        parked = self._parked.pop(link_id, None)
        if parked is not None:
            parked.reply([None])
        return int(parked is not None)

    # Blocking reads.

    def listens(self, link: Link) -> bool:
        """Return whether a blocking read of this connection may be answered."""
        return True

    def _blocks(self, link: Link, name: bytes, args: Args, reply: Reply, answers: Answers) -> bool:
        """Answer a read that may block, or park it; return whether it is parked."""
        if name == b"BLMPOP":
            lasts: float | None = float(args[0])
            key, count = args[2], args[5]

            def look() -> Any:
                values = COMMANDS[b"RPOP"](self.store, [key, count])
                return [key, values] if values else None
        else:
            block = option(args, b"BLOCK")
            lasts = None if block is None else int(block) / 1000

            def look() -> Any:
                return read_group(self.store, args)

        def retry() -> Any:
            try:
                return look()
            except ReplyError as error:
                return redis_errors.ResponseError(str(error))

        found = retry()
        if found is not None or lasts is None:
            answers.append(found)
            return False
        until = self.store.clock() + lasts
        self._parked[link.id] = _Parked(link, retry, lambda values: reply([*answers, *values]), until)
        self._call_at(self.time() + lasts, self._wake_up, link.id)
        return True

    def _wake_up(self, link_id: int) -> None:
        parked = self._parked.get(link_id)
        if parked is None:
            return
        left = parked.until - self.store.clock()
        if left > 0.0005:
            self._call_at(self.time() + left, self._wake_up, link_id)
            return
        del self._parked[link_id]
        parked.reply([None])

    def _feed(self) -> None:
        """Answer parked reads in the order in which they came."""
        self.store.fed.clear()
        for link_id, parked in list(self._parked.items()):
            if not self.listens(parked.link):
                continue
            found = parked.retry()
            if found is not None:
                del self._parked[link_id]
                parked.reply([found])


def _flushed(server: Server) -> bytes:
    server.scripts.flush()
    return b"OK"


def _reply_of(error: ReplyError) -> redis_errors.ResponseError:
    text = str(error)
    return _ERRORS.get(text.partition(" ")[0], redis_errors.ResponseError)(text.removeprefix("ERR "))


_OWN: dict[bytes, Callable[[Server, Link, Args], Any]] = {
    b"EVALSHA": lambda server, _, args: server.scripts.evalsha(server.store, args[1:]),
    b"EVAL": lambda server, _, args: server.scripts.eval(server.store, args[1:]),
    b"INFO": lambda *_: _INFO,
    b"CLIENT ID": lambda _, link, __: link.id,
    b"CLIENT UNBLOCK": lambda server, _, args: server.unblock(int(args[2])),
    b"SCRIPT FLUSH": lambda server, *_: _flushed(server),
    b"SCRIPT LOAD": lambda server, _, args: server.scripts.load(args[2]),
    b"SCRIPT EXISTS": lambda server, _, args: server.scripts.known(args[2:]),
}
"""Commands of a server about itself and its scripts."""
