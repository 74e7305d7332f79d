"""A child process: runs handlers for its worker, one at a time, and ends with it.

Requests and answers are MessagePack behind four bytes of length, on a socket of its own; what a handler or an extension prints goes where the
worker's output goes.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from functools import cache
from importlib import import_module
from multiprocessing import current_process
from operator import attrgetter
from typing import Any

from command_bus.errors import BadResult
from command_bus.messages.context import ProcessContext
from command_bus.serialization.limits import PayloadLimits
from command_bus.serialization.models import codec_for, reply_codec_for
from command_bus.serialization.native import Packer, unpackb
from command_bus.worker.runnable import CommandContexts

_HEAD = 4


def framed(parts: list[Any]) -> bytes:
    """Return a request or an answer with its length."""
    data: bytes = Packer().pack(parts)
    return len(data).to_bytes(_HEAD, "big") + data


def serve(work: socket.socket, life: socket.socket) -> None:
    """Run handlers until the worker closes its end of the first socket. It ends at once when the worker does: that closes the second."""
    os.setsid()  # the leader of its group, with which it is killed; and no Ctrl-C of a terminal reaches it
    current_process().daemon = False  # a handler may have children of its own
    # A supervisor may tell all processes of a service to end: the worker then lets what runs finish. What a handler starts is told as ever, since
    # a function, unlike SIG_IGN, is not inherited.
    signal.signal(signal.SIGTERM, lambda _signal, _frame: None)
    _end_with(life)
    while (head := _read(work, _HEAD)) is not None:
        request = _read(work, int.from_bytes(head, "big"))
        if request is None:
            return
        work.sendall(_answer(unpackb(request)))


def _end_with(life: socket.socket) -> None:
    """Have this process killed as soon as the other end of a socket is closed, also while an extension holds the interpreter."""
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
        life.setblocking(False)
        try:
            gone = life.recv(1) == b""  # it was closed before
        except BlockingIOError:
            return
        if not gone:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def wait() -> None:
        life.recv(1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="command_bus.child", daemon=True).start()


def _read(work: socket.socket, size: int) -> bytes | None:
    """Return so many bytes; None if the other end is closed."""
    found = bytearray()
    while len(found) < size:
        more = work.recv(size - len(found))
        if not more:
            return None
        found += more
    return bytes(found)


@cache
def _named(module: str, name: str) -> Any:
    return attrgetter(name)(import_module(module))


def _answer(request: list[Any]) -> bytes:
    """Run the handler that a request names; return its reply, or what it raised."""
    module, function, of_module, of_class, payload, context, (most, nesting) = request
    limits = PayloadLimits(max_bytes=most, max_nesting=nesting)
    try:
        kind = _named(of_module, of_class)
        call = _named(module, function)
        given = {} if context is None else {context[0]: ProcessContext(*context[1:])}

        def reply() -> bytes:
            return reply_codec_for(kind.spec().reply).encode(call(codec_for(kind).decode(payload, limits), **given), limits)

        return framed([True, CommandContexts().new().run(reply)])  # made here: what modules set when they are imported holds
    except BaseException as error:  # noqa: BLE001 - a handler may raise anything
        return framed([False, *_described(error)])


def _described(error: BaseException) -> list[Any]:
    """Return an exception so that the worker can raise it: packed if it can be, its type and text, and where it came from."""
    name, trace = type(error).__qualname__, "".join(traceback.format_exception(error))
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - its class may be anything
        text = "(its text cannot be read)"
    packed = None
    if isinstance(error, Exception | BadResult):
        try:
            packed = pickle.dumps(error.with_traceback(None))
            if type(pickle.loads(packed)) is not type(error):  # noqa: S301 - our own, just made
                packed = None
        except Exception:  # noqa: BLE001 - any of its attributes may refuse
            packed = None
    return [packed, name, text.encode(errors="backslashreplace").decode(), trace.encode(errors="backslashreplace").decode()]
