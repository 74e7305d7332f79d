"""`DeliverWebhook`: one request to one receiver, as a command of the bus.

Its entity is the webhook and the entity that the event is about. So a receiver gets the events of one entity in order, one request at a time, and
one that fails holds up this entity only. Retries, dead letters and pauses are those of every command.

A worker signs what it sends, and any sender can put a command into a mailbox. So a delivery has a seal, made with the key in the webhook's record,
which no sender may read; a worker sends nothing without. The name is the library's own: no sender can address it (see `is_internal`).
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from command_bus.admin.events import CommandEvent
from command_bus.admin.json_data import to_jsonable
from command_bus.clock import wall_ms
from command_bus.errors import CommandBusError, InvalidSettings, Reject
from command_bus.messages.context import CommandContext, while_lent
from command_bus.messages.event import RawEvent
from command_bus.messages.message import Command, EntityId
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.messages.snooze import GiveUp, Snooze
from command_bus.observer import OutwardObserver
from command_bus.transport.mailboxes import SCHEDULES
from command_bus.webhooks.record import BUSY, DELIVERIES, WebhookRecord
from command_bus.webhooks.signing import signed_headers
from command_bus.webhooks.store import WebhookStore

if TYPE_CHECKING:
    from command_bus.webhooks.posting import Answer, Poster

DELAYS: Final = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Seconds before the second attempt, the third, and so on: three days in all, as Standard Webhooks recommends."""

SUBSCRIPTION: Final = "webhook."
"""The names of subscriptions of webhooks begin so."""
_PAUSED: Final = 15.0
_CROWDED: Final = 5.0
_LONGEST_WAIT: Final = 86_400.0
_SHORTEST_WAIT: Final = 1.0
_MOST_PUT_OFF: Final = 1_000
_GONE: Final = 410
_TOLD: Final = ("entity_type", "entity_id", "command_id", "name", "attempt", "letter_id", "reason", "schedule", "count", "delay")
_log = logging.getLogger("command_bus.webhooks")


class DeliveryFailed(Exception):
    """Raised for a receiver that did not take a delivery.

    Attributes:
        result: As `OutwardObserver.posted` has it.
    """

    def __init__(self, message: str, result: str = "failed") -> None:
        super().__init__(message)
        self.result = result


class DeliverWebhook(
    Command[int], entity=DELIVERIES, name="command_bus.DeliverWebhook", retry=RetryPolicy(delays=DELAYS, attempts=len(DELAYS) + 1)
):
    """A request to a receiver; its reply is the status of HTTP, 0 if the webhook was removed meanwhile.

    Attributes:
        line: The webhook, `|`, and the entity that it is about.
        webhook: Name of the webhook.
        message_id: The header `webhook-id`: the same at each attempt.
        body: What is sent.
        forced: Whether it is sent although the webhook is paused: a test.
        seal: Says that a holder of the webhook's record made it.
    """

    line: EntityId
    webhook: str
    message_id: str
    body: str
    forced: bool = False
    seal: str = ""


def delivery_of(record: WebhookRecord, event: CommandEvent, place: str) -> DeliverWebhook:
    """Return the delivery of an event.

    Args:
        record: The webhook.
        event: What happened.
        place: Names the event: its shard, and its id there.
    """
    about = f"{event.entity_type}:{event.entity_id}" if event.entity_id else event.entity
    if not event.entity_type and event.command_id and not event.schedule:
        about = f"~{event.command_id}"  # without an entity nothing is in order
    data: dict[str, Any] = {name: value for name in _TOLD if (value := getattr(event.outward, name))}
    kind = f"schedule.{event.kind}" if event.schedule else f"command.{event.kind}"
    return _delivery(record, place, about, kind, event.at_ms, data)


def gap_delivery(record: WebhookRecord, place: str, at_ms: int) -> DeliverWebhook:
    """Return the delivery that tells that events were lost."""
    return _delivery(record, f"gap {place}", SCHEDULES.replace("schedules", "gaps"), "events.gap", at_ms, {})


def test_delivery(record: WebhookRecord, token: str) -> DeliverWebhook:
    """Return a delivery that only tests the way."""
    return _delivery(record, f"test {token}", f"@tests:{token}", "webhook.test", wall_ms(), {}, forced=True)


def _unsealed(
    record: WebhookRecord, place: str, about: str, kind: str, at_ms: int, data: dict[str, Any], *, forced: bool = False
) -> DeliverWebhook:
    digest = sha256(f"{record.name} {record.created_ms} {place}".encode()).hexdigest()
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    body = json.dumps({"type": kind, "timestamp": at, "data": data}, separators=(",", ":"))
    return DeliverWebhook(
        line=f"{record.name}|{about}", webhook=record.name, message_id=f"msg_{digest[:32]}", body=body, forced=forced
    )


def _delivery(
    record: WebhookRecord, place: str, about: str, kind: str, at_ms: int, data: dict[str, Any], *, forced: bool = False
) -> DeliverWebhook:
    made = _unsealed(record, place, about, kind, at_ms, data, forced=forced)
    return made.model_copy(update={"seal": _seal(record, made)})


def _seal(record: WebhookRecord, delivery: DeliverWebhook) -> str:
    """Return the seal of a delivery, over all its fields."""
    fields = json.dumps(delivery.model_dump(exclude={"seal"}), sort_keys=True)
    return hmac.digest(record.key.encode(), b"command_bus delivery\0" + fields.encode(), "sha256").hex()


class Deliverer:
    """The handlers of deliveries, and of events that applications publish.

    Args:
        store: Reads and changes webhooks.
        poster: Returns what sends the requests.
        outward: Returns what is told of them, if anything is.
    """

    def __init__(self, store: WebhookStore, poster: Callable[[], Poster], outward: Callable[[], OutwardObserver | None]) -> None:
        self._store = store
        self._poster = poster
        self._outward = outward

    async def deliver(self, command: DeliverWebhook) -> int:
        """Send what a pump or a test has made."""
        record = await self._store.recent(command.webhook)
        if record is None:
            return 0
        if not record.key or not hmac.compare_digest(command.seal.encode(), _seal(record, command).encode()):
            raise GiveUp(f"webhook {record.name} did not make this delivery: it is not sent")
        if command.forced:
            return await _tested(self._post, record, command)
        return await self._send(record, command)

    async def deliver_event(self, event: RawEvent, context: CommandContext) -> None:
        """Send an event with its fields."""
        record = await self._store.recent(context.subscription.removeprefix(SUBSCRIPTION))
        if record is not None:
            about, fields = f"{event.entity_type}:{event.id}", to_jsonable(event.fields)
            await self._send(record, _unsealed(record, event.event_id, about, event.name, context.accepted_ms, fields))

    async def _send(self, record: WebhookRecord, command: DeliverWebhook) -> int:
        if record.paused:
            raise Snooze(_PAUSED, most=1_000_000_000, reason=f"webhook {record.name} is paused: {record.paused}")
        answer = await self._post(record, command)
        if answer.status == _GONE:
            await self._store.change(record.name, _gone)
        return _decided(answer)

    async def _post(self, record: WebhookRecord, command: DeliverWebhook) -> Answer:
        result = "cancelled"
        try:
            answer = await _posted(self._poster(), record, command)
            result = _result_of(answer)
        except DeliveryFailed as error:
            result = error.result
            raise
        finally:
            if (told := self._outward()) is not None and result != "cancelled":
                told.posted(record.name, result)
        return answer


async def _tested(
    post: Callable[[WebhookRecord, DeliverWebhook], Awaitable[Answer]], record: WebhookRecord, command: DeliverWebhook
) -> int:
    """Send a test: what fails is refused, and leaves no dead letter."""
    try:
        return _decided(await post(record, command))
    except (DeliveryFailed, GiveUp, Snooze) as error:
        raise Reject(getattr(error, "reason", "") or str(error), code="webhook_test_failed") from error


async def _posted(poster: Poster, record: WebhookRecord, command: DeliverWebhook) -> Answer:
    """Send a request; every way in which that can fail is a failure of this delivery."""
    import httpx

    if poster.is_crowded(record.name):
        raise Snooze(_CROWDED, most=1_000_000_000, reason=f"many deliveries of webhook {record.name} wait for its receiver")
    body = command.body.encode()

    def headers() -> dict[str, str]:
        return signed_headers(record.secrets, command.message_id, wall_ms() // 1000, body)

    try:
        return await while_lent(poster.post(record, headers, body))  # others run meanwhile: a receiver takes as long as it likes
    except InvalidSettings as error:
        raise DeliveryFailed(error.message, "unsigned") from error
    except TimeoutError:
        raise DeliveryFailed(f"no answer within {record.timeout:g} s", "silent") from None
    except CommandBusError as error:  # an address that it may not connect to
        raise DeliveryFailed(error.message, "forbidden") from error
    except (OSError, httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise DeliveryFailed(f"the receiver cannot be reached: {type(error).__name__}: {error}", "unreachable") from error


def _result_of(answer: Answer) -> str:
    """Return what became of a request that was answered, as `OutwardObserver.posted` has it."""
    if 200 <= answer.status < 300:
        return "delivered"
    if answer.status in BUSY and answer.retry_after is not None:
        return "put_off"
    if 300 <= answer.status < 400:
        return "redirected"
    return "gone" if answer.status == _GONE else "failed"


def _decided(answer: Answer) -> int:
    """Return the status of a delivery that was taken.

    Raises:
        Snooze: The receiver asks to wait.
        DeliveryFailed: It did not take it.
    """
    said = f"the receiver answered {answer.status}"
    match _result_of(answer):
        case "delivered":
            return answer.status
        case "put_off":
            wait = min(max(answer.retry_after or 0.0, _SHORTEST_WAIT), _LONGEST_WAIT)
            raise Snooze(wait, most=_MOST_PUT_OFF, reason=said)
        case "redirected":
            raise DeliveryFailed(f"{said}, a redirect, which is not followed: put the webhook with its new URL")
        case "gone":
            raise GiveUp(f"{said}: it is gone, and the webhook is paused")
        case _:
            raise DeliveryFailed(said)


def _gone(record: WebhookRecord | None) -> WebhookRecord | None:
    if record is None or record.paused:
        return record
    _log.warning("webhook %s is paused: its receiver answered 410, gone", record.name)
    return replace(record, paused="its receiver answered 410, gone")
