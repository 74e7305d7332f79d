"""Mechanisms that the dashboard and the gateway share: hosts, probes and proxies of requests, and files that are read again once changed."""

from __future__ import annotations

import ipaddress
import logging
import signal
import tomllib
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

from command_bus.clock import mono
from command_bus.errors import InvalidSettings

T = TypeVar("T")
_FRESH: Final = 1.0
"""Seconds between two looks at a file."""
_log = logging.getLogger("command_bus")
_files: WeakSet[RereadFile[Any]] = WeakSet()


class RereadFile(Generic[T]):
    """A value that a file holds. It is looked at where it is used, at most once a second: nothing runs meanwhile.

    A file that cannot be read any more changes nothing; the log says so.

    Args:
        file: Path of what is read.
        read: Reads its value.

    Raises:
        InvalidSettings: It cannot be read at first.
    """

    def __init__(self, file: str | Path, read: Callable[[str | Path], T]) -> None:
        self._file = file
        self._read = read
        self._seen = self._state()
        self._value = read(file)
        self._look_at = mono() + _FRESH
        _files.add(self)

    @property
    def value(self) -> T:
        """The value, as the file has had it within the last second."""
        if mono() >= self._look_at:
            self._look_at = mono() + _FRESH
            if (state := self._state()) != self._seen:
                self._seen = state
                try:
                    self._value = self._read(self._file)
                    _log.info("%s has changed, and was read again", self._file)
                except InvalidSettings as error:
                    _log.error("what was read of %s before holds on: %s", self._file, error.message)
        return self._value

    def forget(self) -> None:
        """Read it again where it is used next, changed or not."""
        self._seen, self._look_at = None, 0.0

    def _state(self) -> tuple[int, int, int] | None:
        """Return what differs when the file was written or replaced; None if it is not there."""
        with suppress(OSError):
            found = Path(self._file).stat()
            return found.st_mtime_ns, found.st_size, found.st_ino
        return None


def reread_on_hangup(loop: AbstractEventLoop) -> None:
    """Read all such files of this process again on SIGHUP, which would end it otherwise."""
    with suppress(NotImplementedError, RuntimeError, ValueError, AttributeError):  # not on Windows, nor outside the main thread
        loop.add_signal_handler(signal.SIGHUP, _forget_all)


def _forget_all() -> None:
    for each in _files:
        each.forget()


def read_tables(file: str | Path, what: str) -> dict[str, Any]:
    """Return the tables of a file of users or tokens, by name.

    Raises:
        InvalidSettings: It cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"the file of {what} cannot be read: {error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{file} is no TOML: {error}") from None


PROBE = "/healthz"
"""The path of probes, below where an application is mounted: it needs no user, and says nothing but that the process answers."""
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def is_probe(scope: Mapping[str, Any]) -> bool:
    """Return whether a request asks whether this process lives: probes have no token, and know its address, not its name."""
    return bool(scope["path"] == f"{scope.get('root_path', '')}{PROBE}")


def host_name(host: str) -> str:
    """Return the name in a header `Host`, without its port."""
    return (host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host).casefold()


def networks_of(proxies: Sequence[str]) -> list[Network]:
    """Return the networks of proxies.

    Raises:
        InvalidSettings: One is neither an address nor a network.
    """
    try:
        return [ipaddress.ip_network(each) for each in proxies]
    except ValueError as error:
        raise InvalidSettings(f"proxies: {error}; addresses or networks, as 10.0.0.0/8") from None


def address_of(client: Sequence[Any] | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of a client as ASGI names it; None if it is not known."""
    try:
        return None if client is None else ipaddress.ip_address(client[0])
    except ValueError:
        return None


def is_from(client: Sequence[Any] | None, networks: Sequence[Network]) -> bool:
    """Return whether a client is in one of these networks."""
    address = address_of(client)
    return address is not None and any(address in network for network in networks)


@contextmanager
def counted(counts: Counter[str], name: str) -> Generator[None]:
    """Count somebody while the block runs."""
    counts[name] += 1
    try:
        yield
    finally:
        counts[name] -= 1
