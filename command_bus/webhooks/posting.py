"""`Poster`: sends one request to a webhook's receiver, within all limits.

No proxy of the environment, no redirect, and a new connection for each request: one that is kept for an address would be used for another
name at the same address, whose certificate was never checked.

The addresses that a webhook may connect to: those of a name are looked up once, checked, and one of those is connected to.

A name that is looked up again for the connection could have another address by then (*rebinding*). So the request goes to the address
that was checked, and the name stays in the Host header and in the server's certificate.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from threading import Thread
from typing import Any, Final, NamedTuple

from command_bus.errors import CommandBusError, MissingExtra
from command_bus.webhooks.record import BUSY, WebhookRecord

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


try:
    import httpx
except ImportError as error:  # pragma: no cover - depends on the environment
    raise MissingExtra("webhooks need httpx: pip install 'command-bus[webhooks]'") from error

_MOST_READ: Final = 65_536
_AT_ONCE: Final = 50
"""Requests to one webhook's receiver at a time, from one process."""
_MOST_HERE: Final = 200
"""Deliveries of one webhook that wait for their turn or their answer. Further ones wait in their lines."""


class Answer(NamedTuple):
    """An answer of a receiver.

    Attributes:
        status: HTTP status.
        retry_after: Seconds that it asks to wait, with 429 or 503; None if it asks for nothing.
    """

    status: int
    retry_after: float | None


class Poster:
    """Sends requests.

    Args:
        tls: The authorities that are trusted; None: those of the system's certificates.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=0
        )  # a common limit would let one receiver use it up
        self._names = Names()
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_AT_ONCE))
        self._here: Counter[str] = Counter()
        self._client = httpx.AsyncClient(
            verify=tls or ssl.create_default_context(),
            trust_env=False,
            follow_redirects=False,
            timeout=60.0,  # `post` has one for everything together
            limits=limits,
        )

    def is_crowded(self, webhook: str) -> bool:
        """Return whether as many deliveries of a webhook are here as may be: its receiver is slow, and must not hold up others."""
        return self._here[webhook] >= _MOST_HERE

    async def post(self, record: WebhookRecord, headers: Callable[[], Mapping[str, str]], body: bytes) -> Answer:
        """Send a body, in its turn; return the answer.

        Args:
            record: The webhook.
            headers: Makes the headers, when it is sent: a signature has a time.
            body: What is sent.

        Raises:
            TimeoutError: No status came within the webhook's timeout, with looking up and connecting.
            ForbiddenAddress: See `Names`.
            OSError, httpx.HTTPError: The receiver cannot be reached, or speaks no HTTP.
        """
        self._here[record.name] += 1
        try:
            async with self._turns[record.name]:
                return await self._posted(record, headers(), body)
        finally:
            self._here[record.name] -= 1

    async def _posted(self, record: WebhookRecord, headers: Mapping[str, str], body: bytes) -> Answer:
        url = httpx.URL(record.url)
        async with asyncio.timeout(record.timeout) as limit:
            port = url.port or (443 if url.scheme == "https" else 80)
            # As the certificate has it. Of `straße.de` itself `getaddrinfo` makes another name, which belongs to somebody else.
            host = url.raw_host.decode("ascii")
            address = await self._names.allowed_address(host, port, allow_private=record.allow_private)
            request = self._client.build_request(
                "POST",
                url.copy_with(host=address),
                headers={
                    **headers,
                    "Host": url.netloc.decode("ascii"),
                    "Content-Type": "application/json",
                    "User-Agent": "command-bus-webhooks",
                    "Connection": "close",
                },
                content=body,
                extensions={"sni_hostname": host},
            )
            response = await self._client.send(request, stream=True)
        await _take_leave(response, limit.when())
        status = response.status_code
        return Answer(status, _seconds(response.headers.get("retry-after")) if status in BUSY else None)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


async def _take_leave(response: httpx.Response, until: float | None) -> None:
    """Read the body and close. Nothing that fails here changes what the status says.

    The body is not needed, but a receiver that sees the connection end early may take the delivery for failed.
    """
    read = 0
    with suppress(TimeoutError, OSError, httpx.HTTPError, httpx.StreamError):
        try:
            async with asyncio.timeout_at(until):
                async for part in response.aiter_raw():
                    read += len(part)
                    if read > _MOST_READ:
                        break
        finally:
            await response.aclose()


def _seconds(retry_after: Any) -> float | None:
    """Return the seconds of a Retry-After header: a number, or a date."""
    if not isinstance(retry_after, str):
        return None
    if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 10:
        return float(retry_after)
    try:
        at = parsedate_to_datetime(retry_after)
        return max(0.0, ((at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):  # the latter: an offset of thousands of years
        return None
