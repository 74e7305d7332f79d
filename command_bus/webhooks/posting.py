"""`Poster`: sends one request to a webhook's receiver, within all limits.

No proxy of the environment, no redirect, and a new connection for each request: one that is kept for an address would be used for another
name at the same address, whose certificate was never checked.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple

from command_bus.errors import MissingExtra
from command_bus.webhooks.addresses import Names
from command_bus.webhooks.record import BUSY, WebhookRecord

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
