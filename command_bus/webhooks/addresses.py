"""The addresses that a webhook may connect to: those of a name are looked up once, checked, and one of those is connected to.

A name that is looked up again for the connection could have another address by then (*rebinding*). So the request goes to the address
that was checked, and the name stays in the Host header and in the server's certificate.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from threading import Thread
from typing import Final

from command_bus.errors import CommandBusError

_UNICAST: Final = IPv6Network("2000::/3")
"""What has been given out of IPv6; site-local, translated and other odd addresses are elsewhere."""
_SPECIAL: Final[tuple[IPv4Network | IPv6Network, ...]] = (
    *map(IPv4Network, ("192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.175.48.0/24")),
    *map(IPv6Network, ("2001::/23", "2620:4f:8000::/48", "3fff::/20")),
)
"""Networks of IANA's registries of special purposes: protocols, AS112, AMT, relays of 6to4, documentation. No receiver has an address there,
and not every Python says so."""
_NAT64: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
Address = IPv4Address | IPv6Address


class ForbiddenAddress(CommandBusError):
    """A webhook's host has no address that may be connected to."""

    code = "forbidden_address"


class Names:
    """Looks up names, each in a thread of its own: one that takes long holds up no other, nor what else the process does in threads.

    All who ask for a name while it is looked up get one answer. The thread of a name that no one waits for any more goes on until the system
    gives up; it does not keep the process.
    """

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, int], asyncio.Future[list[str]]] = {}

    async def allowed_address(self, host: str, port: int, *, allow_private: bool) -> str:
        """Return an address of a host that may be connected to.

        Raises:
            ForbiddenAddress: All that it has are of this machine or of private networks, and those are not allowed.
            OSError: The name has none.
        """
        addresses = await asyncio.shield(self._under_way.get((host, port)) or self._begin(host, port))
        for address in addresses:
            if allow_private or is_public(address):
                return address
        shown = ", ".join(dict.fromkeys(addresses))
        raise ForbiddenAddress(
            f"{host} has no public address, only {shown}: a webhook of an internal service needs allow_private=True"
        )

    def _begin(self, host: str, port: int) -> asyncio.Future[list[str]]:
        loop = asyncio.get_running_loop()
        answer = self._under_way[host, port] = loop.create_future()
        answer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # perhaps no one waits for it any more

        def look() -> None:
            found: list[str] | Exception
            try:
                found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
            except (OSError, ValueError) as error:
                found = error
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._end, (host, port), answer, found)

        Thread(target=look, name=f"command_bus.webhooks {host}", daemon=True).start()
        return answer

    def _end(self, name: tuple[str, int], answer: asyncio.Future[list[str]], found: list[str] | Exception) -> None:
        del self._under_way[name]
        if answer.done():
            return
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)


def is_public(address: str) -> bool:
    """Return whether an address is of the public Internet, and so is every address that is wrapped into it."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(_is_given_out(each) for each in _unwrapped(parsed))


def _is_given_out(address: Address) -> bool:
    """Return whether an address belongs to somebody on the Internet, as far as its number says."""
    if isinstance(address, IPv6Address) and address not in _UNICAST and address not in _NAT64[0]:
        return False
    return address.is_global and not address.is_multicast and not any(address in network for network in _SPECIAL)


def _unwrapped(address: Address) -> Iterator[Address]:
    """Yield the address, or what it stands for: IPv4 in IPv6, in all the ways there are."""
    if isinstance(address, IPv4Address):
        yield address
        return
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
        return
    yield address
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if any(address in network for network in _NAT64) or not int(address) >> 32:
        yield IPv4Address(int(address) & 0xFFFF_FFFF)
