"""`Webhooks`: tell others by HTTP what happens to commands.

    bus = CommandBus(registry=registry)
    hooks = Webhooks(bus)
    hooks.serve()    # the workers of this bus deliver

    async with bus:
        await hooks.put("crm", "https://crm.example/hook", kinds={"completed"}, entity_types={"order"}, secret=new_secret())

Nothing of it is in the bus itself: deliveries are commands, and the events that they come from are `bus.events`.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from command_bus.admin.events import EventKind
from command_bus.bus import CommandBus
from command_bus.clock import wall_ms
from command_bus.errors import InvalidSettings, UnknownSubscription, UnknownWebhook
from command_bus.handlers.registry import SubscriptionRegistration
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.observer import outward_of
from command_bus.randomness import token
from command_bus.webhooks.deliveries import SUBSCRIPTION, Deliverer, DeliverWebhook, test_delivery
from command_bus.webhooks.pump import LEASE, Pumps
from command_bus.webhooks.record import DELIVERIES, MOST_DELAYS, PumpState, WebhookInfo, WebhookRecord, checked, checked_name
from command_bus.webhooks.store import WebhookStore, unknown

if TYPE_CHECKING:
    from command_bus.webhooks.posting import Poster


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery that was given up.

    Attributes:
        webhook: Name of the webhook.
        message_id: Its `webhook-id`.
        about: The entity that it is about, `order:17`.
        body: What was sent.
        attempts: The number of attempts.
        error: Why the last attempt failed.
        failed_ms: When it was given up.
        letter_id: Its dead letter, for `bus.dead_letters.replay`.
    """

    webhook: str
    message_id: str
    about: str
    body: str
    attempts: int
    error: str
    failed_ms: int
    letter_id: str


class Webhooks:
    """The webhooks of a bus.

    Args:
        bus: Keeps them on its server.
        tls: The authorities that workers trust; None: the system's.
        lease: Seconds after which another worker takes over the pump of one that was lost.
    """

    def __init__(self, bus: CommandBus, *, tls: ssl.SSLContext | None = None, lease: float = LEASE) -> None:
        self._bus = bus
        self._store = WebhookStore(bus)
        self._tls = tls
        self._lease = lease
        self._posters: list[Poster] = []  # of the workers of this process that run

    def serve(self) -> None:
        """Let the workers of this bus deliver: call it once, before they start. They need the extra `webhooks`.

        Raises:
            MissingExtra: httpx is not installed.
        """
        import_module("command_bus.webhooks.posting")  # says now what is missing
        deliverer = Deliverer(self._store, self._post_by, lambda: outward_of(self._bus.session.observer))
        self._bus.registry.handles(DeliverWebhook)(deliverer.deliver)
        retry = DeliverWebhook.spec().retry
        family = SubscriptionRegistration(self._bus.registry, f"{SUBSCRIPTION}*", ("*",), 1, {"retry": retry})
        family(deliverer.deliver_event)  # of all webhooks: they come and go
        self._bus.lifespan = self._around(self._bus.lifespan)

    async def put(
        self,
        name: str,
        url: str,
        *,
        kinds: Collection[EventKind] = (),
        events: Collection[str] = (),
        secret: str | Sequence[str] | None = None,
        entity_types: Collection[str] = (),
        timeout: float = 5.0,
        retries: Sequence[float] | None = None,
        allow_http: bool = False,
        allow_private: bool = False,
    ) -> WebhookInfo:
        """Put a webhook, or change the one of this name. It receives events from now on; a changed one goes on where it was.

        Args:
            name: Unique in the namespace.
            url: The place where to; https.
            kinds: Events of commands that it receives, by kind.
            events: Names, and patterns of names, of what applications publish: it receives that with its fields. See `subscribes`.
            secret: Signs; `new_secret()` makes one, `env:NAME` names a variable of the workers. Several, the newest first, while one is replaced.
                None leaves it to what the webhook has.
            entity_types: Events of these entity types, `@schedules` are schedules; by default of all but those.
            timeout: Seconds for a request in all, at most 60.
            retries: Seconds before the second attempt, the third, and so on; by default nine of them, three days in all.
            allow_http: Whether http will do.
            allow_private: Whether an address of a private network or of this machine will do.

        Raises:
            InvalidSettings: Something of it is not what it may be.
            InvalidCommand: One is no entity type.
            TransportUnavailable: The server cannot be reached. Asking again is safe.
        """
        secrets = await self._secrets(name) if secret is None else _several(secret)
        given = checked(
            WebhookRecord(
                name, url, _several(kinds), _several(entity_types), tuple(secrets), timeout, allow_http, allow_private,
                None if retries is None else tuple(retries[:MOST_DELAYS]), created_ms=wall_ms(), events=_several(events),
            )
        )  # fmt: skip
        if given.kinds:
            await self._bus.events.watch(*given.entity_types)
        if given.events and given.retries is not None:
            raise InvalidSettings("retries: what is published is retried as the workers say, three days long: leave it out")
        if (await self._store.state(name))[0] is None:
            ends = await self._bus.transport.operator.events.ends()
            await self._store.set_state(name, None, PumpState(",".join(ends)))

        def merged(known: WebhookRecord | None) -> WebhookRecord:
            kept = known or given
            return replace(given, created_ms=kept.created_ms, paused=kept.paused, key=kept.key or given.key)

        await self._store.change(name, merged)
        if given.events:
            await self._bus.subscriptions.put(SUBSCRIPTION + name, given.events)
        else:
            await self._unsubscribe(name)
        return await self.get(name)

    async def _unsubscribe(self, name: str) -> None:
        with suppress(UnknownSubscription):
            await self._bus.subscriptions.remove(SUBSCRIPTION + name)

    async def get(self, name: str) -> WebhookInfo:
        """Return a webhook.

        Raises:
            UnknownWebhook: There is none of this name.
            TransportUnavailable: The server cannot be reached.
        """
        record = await self._store.get(checked_name(name))
        _, state = await self._store.state(name)
        return WebhookInfo.of(record, state, await self._store.notes.now_ms())

    async def list(self) -> list[WebhookInfo]:
        """Return all webhooks, by name."""
        records, states = await self._store.all(), await self._store.states()
        now = await self._store.notes.now_ms()
        return [WebhookInfo.of(record, states.get(name), now) for name, record in records.items()]

    async def remove(self, name: str) -> bool:
        """Remove a webhook; return whether there was one. Deliveries that wait are dropped as their turn comes. Types stay watched."""
        await self._unsubscribe(checked_name(name))
        return await self._store.remove(name)

    async def pause(self, name: str, reason: str = "paused by an operator") -> None:
        """Send nothing until `resume`: deliveries wait, each in its line. A request that is under way is ended.

        Raises:
            UnknownWebhook: There is none of this name.
        """
        if not reason:
            raise InvalidSettings("reason: a text, which operators see")
        await self._changed(name, reason)

    async def resume(self, name: str) -> None:
        """Send again: what waits is sent within 15 seconds.

        Raises:
            UnknownWebhook: There is none of this name.
        """
        await self._changed(name, "")

    async def test(self, name: str, *, timeout: float = 30.0) -> int:
        """Send a delivery of the type `webhook.test` through a worker, once, paused or not; return the status that was answered.

        Raises:
            UnknownWebhook: There is none of this name.
            CommandRejected: It was not taken; the error says why.
            CommandTimeout: No worker has sent it in time.
        """
        delivery = test_delivery(await self._store.get(checked_name(name)), token(8).hex())
        return await self._bus.call(delivery, timeout=timeout, retry=RetryPolicy(attempts=1))

    async def deliveries(self, name: str, *, limit: int | None = None) -> AsyncIterator[Delivery]:
        """Yield the deliveries of a webhook that were given up, oldest first. `bus.dead_letters.replay(letter_id)` sends one again.

        Those that wait are the entities of the type `webhook`, whose ids begin with the name and `|`.
        """
        checked_name(name)
        found = 0
        async for letter in self._bus.dead_letters.list(entity_type=DELIVERIES):
            payload: Any = letter.payload or {}
            if payload.get("webhook") != name:
                continue
            yield Delivery(
                webhook=name,
                message_id=str(payload.get("message_id", "")),
                about=str(letter.entity_id or "").partition("|")[2],
                body=str(payload.get("body", "")),
                attempts=letter.attempts,
                error=letter.error_message,
                failed_ms=letter.failed_ms,
                letter_id=letter.id,
            )
            found += 1
            if limit is not None and found >= limit:
                return

    async def _secrets(self, name: str) -> Sequence[str]:
        try:
            return (await self._store.get(checked_name(name))).secrets
        except UnknownWebhook:
            raise InvalidSettings("secret: a new webhook has one: new_secret() makes it, 'env:NAME' names a variable") from None

    async def _changed(self, name: str, paused: str) -> None:
        def change(known: WebhookRecord | None) -> WebhookRecord | None:
            if known is None:
                raise unknown(name)
            return replace(known, paused=paused)

        await self._store.change(checked_name(name), change)

    def _around(
        self, lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None
    ) -> Callable[[], AbstractAsyncContextManager[Any]]:
        @asynccontextmanager
        async def running() -> AsyncGenerator[None]:
            async with self._delivering(), (lifespan or nullcontext)():
                yield

        return running

    @asynccontextmanager
    async def _delivering(self) -> AsyncGenerator[None]:
        from command_bus.webhooks.posting import Poster

        pumps = Pumps(self._bus, self._store, lease=self._lease)
        poster = Poster(self._tls)
        self._posters.append(poster)
        await pumps.start()
        try:
            yield
        finally:
            await pumps.stop()
            self._posters.remove(poster)
            await poster.close()

    def _post_by(self) -> Poster:
        if not self._posters:
            raise InvalidSettings("webhooks are served by the workers of their own bus: call serve() before they start")
        return self._posters[-1]


def _several(given: str | Collection[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
