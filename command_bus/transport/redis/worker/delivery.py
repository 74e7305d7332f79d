"""`Delivery`: an activation that a worker was given, as XREADGROUP and fetch.lua answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from command_bus.transport.redis.mailbox_record import PLACE, is_first_start, parse_record, parse_started
from command_bus.transport.redis.ready_stream import mailbox_of
from command_bus.transport.steps import Started


@dataclass(slots=True)
class Delivery:
    """An entry of the ready stream that is assigned to this worker.

    Attributes:
        activation: Its id.
        mailbox: The mailbox that it names; None for a tick, which names none.
        holder: The lease under which its command was started together with the delivery; empty if none was.
        attempt_id: Of that start; empty if its answer was lost.
        started: That command; None if a take has to start it, or the answer was lost.
        has_place: Whether limits gave it a place.
    """

    activation: str
    mailbox: str | None
    holder: str = ""
    attempt_id: str = ""
    started: Started | None = None
    has_place: bool = False


def deliveries_of(entries: list[tuple[bytes, dict[bytes, bytes]]]) -> list[Delivery]:
    """Return the entries of the ready stream as deliveries."""
    return [Delivery(entry.decode(), mailbox_of(fields) if b"e" in fields else None) for entry, fields in entries]


def parse_fetched(answer: list[Any], worker: str, first: int) -> list[Delivery]:
    """Return the deliveries in an answer of fetch.lua.

    Args:
        answer: Unparsed.
        worker: Name of the worker that fetched.
        first: Number of the lease of the first activation.
    """
    now = answer[0].decode()
    now_ms = int(now)
    found: list[Delivery] = []
    for number, at in enumerate(range(1, len(answer), 4), first):
        activation, name, running, envelope = answer[at : at + 4]
        delivery = Delivery(activation.decode(), None if name is None else mailbox_of({b"e": name}))
        if running is not None:
            fence, message, attempt, first_ms, *parts = parse_started(running)
            delivery.holder, delivery.attempt_id = f"{worker}#f{number}", f"{fence}|{message}"
            delivery.started = Started(
                fence,
                message,
                int(attempt),
                int(first_ms),
                now_ms,
                envelope,
                is_first=is_first_start(attempt, first_ms, now, parts),
            )
            delivery.has_place = PLACE in parts
        found.append(delivery)
    return found


def note_unheard(deliveries: Sequence[Delivery], records: Iterable[bytes | None], worker: str, unheard: Sequence[range]) -> None:
    """Note which activations were started by a fetch whose answer was lost.

    Args:
        deliveries: The activations.
        records: Of their mailboxes.
        worker: Name of the worker that fetched.
        unheard: Numbers of the leases of those fetches.
    """
    for delivery, record in zip(deliveries, map(parse_record, records), strict=True):
        number = record.holder.removeprefix(f"{worker}#f")
        if record.activation == delivery.activation and number.isdecimal() and any(int(number) in each for each in unheard):
            delivery.holder, delivery.attempt_id = record.holder, record.attempt_id
