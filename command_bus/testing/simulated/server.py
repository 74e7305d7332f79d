"""The simulated server: executes requests, parks blocking reads, can be restarted, and its wall clock can jump."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis import exceptions as redis_errors

from command_bus.testing.simulated import ranges
from command_bus.testing.simulated.scripting import Scripts
from command_bus.testing.simulated.store import COMMANDS, Args, ReplyError, Store, popped
from command_bus.testing.simulated.streams import read_group

_INFO = b"redis_version:7.2.0\r\nredis_mode:standalone\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\nrole:master\r\n"
_REGISTERS = (ranges,)  # its commands, as it is imported
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
            function = COMMANDS.get(name)
            if function is not None:
                return function(self.store, args[1:])
            if name == b"EVALSHA":
                return self.scripts.evalsha(self.store, args[1:])
            if name == b"EVAL":
                return self.scripts.eval(self.store, args[1:])
            return self._about_itself(link, name, args)
        except ReplyError as error:
            text = str(error)
            code = text.partition(" ")[0]
            return _ERRORS.get(code, redis_errors.ResponseError)(text.removeprefix("ERR "))

    def _about_itself(self, link: Link, name: bytes, args: Args) -> Any:
        if name == b"INFO":
            return _INFO
        two = name + b" " + args[1].upper() if len(args) > 1 else name
        if two == b"CLIENT ID":
            return link.id
        if two == b"CLIENT UNBLOCK":
            parked = self._parked.pop(int(args[2]), None)
            if parked is not None:
                parked.reply([None])
            return int(parked is not None)
        if two == b"SCRIPT FLUSH":
            self.scripts.flush()
            return b"OK"
        if two == b"SCRIPT LOAD":
            return self.scripts.load(args[2])
        if two == b"SCRIPT EXISTS":
            return self.scripts.known(args[2:])
        function = COMMANDS.get(name) or COMMANDS.get(two)
        if function is None:
            raise ReplyError(f"ERR unknown command '{two.decode()}'")
        return function(self.store, args[2:])

    # Blocking reads.

    def listens(self, link: Link) -> bool:
        """Return whether a blocking read of this connection may be answered."""
        return True

    def _blocks(self, link: Link, name: bytes, args: Args, reply: Reply, answers: Answers) -> bool:
        """Answer a read that may block, or park it; return whether it is parked."""
        if name == b"BLMPOP":
            block, key, count = float(args[0]), args[2], int(args[5])

            def retry() -> Any:
                values = popped(self.store, key, count)
                return [key, values] if values else None
        else:
            words = [word.upper() for word in args]
            block = int(args[words.index(b"BLOCK") + 1]) / 1000 if b"BLOCK" in words else None  # type: ignore[assignment]

            def retry() -> Any:
                return read_group(self.store, args)

        try:
            found = retry()
        except ReplyError as error:
            found = redis_errors.ResponseError(str(error))
        if found is not None or block is None:
            answers.append(found)
            return False
        until = self.store.clock() + block
        self._parked[link.id] = _Parked(link, retry, lambda values: reply([*answers, *values]), until)
        self._call_at(self.time() + block, self._wake_up, link.id)
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
            try:
                found = parked.retry()
            except ReplyError as error:
                found = redis_errors.ResponseError(str(error))
            if found is not None:
                del self._parked[link_id]
                parked.reply([found])
