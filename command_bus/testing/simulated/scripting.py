"""Runs the bus's scripts in Lua 5.1: one runtime for all servers of this process, each script compiled once."""

from __future__ import annotations

from hashlib import sha1
from typing import Any

from command_bus.errors import MissingExtra
from command_bus.testing.simulated.store import ReplyError, Store, find

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
        self.flushed = 0

    def flush(self) -> None:
        """Forget all scripts."""
        self._known.clear()
        self.flushed += 1

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
