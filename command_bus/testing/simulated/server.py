"""The simulated server: executes requests and scripts, parks blocking reads, can be restarted, and its wall clock can jump.

The bus's scripts run in Lua 5.1: one runtime for all servers of this process, each script compiled once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

from redis import exceptions as redis_errors

from command_bus.errors import MissingExtra
from command_bus.testing.simulated.store import COMMANDS, Args, ReplyError, Store, find, option
from command_bus.testing.simulated.streams import read_group

try:
    import lupa.lua51
except ImportError as error:  # pragma: no cover - depends on the environment
    raise MissingExtra("TestBus needs Lua: pip install 'command-bus[testing]'") from error

# As in Redis 7, what a command refuses is a table with `err`, raised by `call` and returned by `pcall`.
_API = b"""
local request = ...
redis = {}
function redis.pcall(...) return request(...) end
function redis.call(...)
  local reply = request(...)
  if type(reply) == 'table' and reply.err then error(reply, 0) end
  return reply
end
return function(body)
  return function(keys, argv)
    local answered, reply = pcall(body, keys, argv)
    if answered then return true, reply end
    return false, type(reply) == 'table' and reply.err or tostring(reply)
  end
end
"""

lua51: Any = lupa.lua51  # its stubs know text only, here all is bytes
_lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
_table_from = _lua.table_from
_lua_type = lua51.lua_type
_current: list[Store] = []


def _text(value: Any) -> bytes:
    """Convert an argument as Redis does."""
    if type(value) is bytes:
        return value
    if type(value) is int:
        return b"%d" % value
    return b"%.17g" % value


def _to_lua(reply: Any) -> Any:
    if type(reply) is list:
        return _table_from([_to_lua(item) for item in reply])
    return False if reply is None else reply


def _from_lua(reply: Any) -> Any:
    kind = type(reply)
    if kind is bytes or kind is int:
        return reply
    if kind is float:
        return int(reply)
    if kind is bool:
        return 1 if reply else None
    if _lua_type(reply) == "table":
        if reply[b"err"] is not None:
            raise ReplyError(reply[b"err"].decode())
        items: list[Any] = []
        while (item := reply[len(items) + 1]) is not None:
            items.append(_from_lua(item))
        return items
    return reply


def _request(name: bytes, *args: Any) -> Any:
    try:
        function, rest = find([name, *map(_text, args)])
        return _to_lua(function(_current[-1], rest))
    except ReplyError as error:
        return _table_from({b"err": str(error).encode()})


_wrapped = _lua.execute(_API, _request)
_compiled: dict[bytes, Any] = {}
_digests: dict[bytes, bytes] = {}


class Scripts:
    """Scripts that one server has loaded."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}

    def flush(self) -> None:
        """Forget all scripts."""
        self._known.clear()

    def load(self, text: bytes) -> bytes:
        """SCRIPT LOAD: store a script; return its digest."""
        digest = _digests.get(text)
        if digest is None:
            digest = _digests[text] = sha1(text, usedforsecurity=False).hexdigest().encode()
        self._known[digest] = text
        return digest

    def known(self, digests: list[bytes]) -> list[int]:
        """SCRIPT EXISTS: return 1 for each script that is loaded, else 0."""
        return [int(digest in self._known) for digest in digests]

    def eval(self, store: Store, args: list[bytes]) -> Any:
        """EVAL: run a script and store it."""
        self.load(args[0])
        return self._run(store, args[0], args)

    def evalsha(self, store: Store, args: list[bytes]) -> Any:
        """EVALSHA: run a loaded script."""
        text = self._known.get(args[0])
        if text is None:
            raise ReplyError("NOSCRIPT No matching script. Please use EVAL.")
        return self._run(store, text, args)

    def _run(self, store: Store, text: bytes, args: list[bytes]) -> Any:
        function = _compiled.get(text)
        if function is None:
            body = _lua.execute(b"return function(KEYS, ARGV)\n" + text + b"\nend")
            function = _compiled[text] = _wrapped(body)
        count = int(args[1])
        _current.append(store)
        try:
            answered, reply = function(_table_from(args[2 : 2 + count]), _table_from(args[2 + count :]))
        finally:
            _current.pop()
        if store.watch is not None:
            store.watch.ran(store, args[2 : 2 + count])
        if not answered:
            raise ReplyError(reply.decode(errors="replace"))
        return _from_lua(reply)


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
