"""Carries out the table of `webhook_forgeries.py` with a producer's password, on a server that knows the roles."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgpack
import pytest
import pytest_asyncio

pytest.importorskip("httpx")

from redis.exceptions import NoPermissionError

from command_bus import CommandBus, InvalidCommand, RegistrationError, every
from command_bus.embedded import EmbeddedServer
from command_bus.gateway.catalogue import Catalogue
from command_bus.gateway.tokens import Rights
from command_bus.messages.message import Command
from command_bus.messages.outgoing import RawEnvelope
from command_bus.webhooks import DeliverWebhook, Webhooks, new_secret
from command_bus.webhooks.store import WebhookStore
from tests.conformance.put_service import until
from tests.conformance.receiver import Receiver, receiving
from tests.security.acl_users import Place, Work, made
from tests.tables.webhook_forgeries import REFUSED, SETTLED, WAYS

FORGED = json.dumps({"type": "command.completed", "data": {"entity_id": "forged"}})
NAME = "command_bus.DeliverWebhook"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start(tcp=True) as found:
        yield found


@dataclass
class Shop:
    """A shop whose webhook tells of its lines, and a thief with a producer's password."""

    place: Place
    workers: CommandBus
    thief: CommandBus
    receiver: Receiver
    hook: Callable[..., Awaitable[Any]]
    seals: list[str] = field(default_factory=list)

    def fields(self, **changes: Any) -> dict[str, Any]:
        return {"line": "crm|line:a", "webhook": "crm", "message_id": "msg_1", "body": FORGED, **changes}

    async def raw(self) -> None:
        await self.thief.dispatch_raw("webhook", "crm|line:a", NAME, self.fields())

    async def call_raw(self) -> None:
        await self.thief.call_raw("webhook", "crm|line:a", NAME, self.fields(), timeout=1)

    async def batch(self) -> None:
        result = await self.thief.dispatch_batch([RawEnvelope("webhook", "crm|line:a", NAME, self.fields())])
        if (error := result.outcomes[0].error) is not None:
            raise error

    async def schedule(self) -> None:
        await self.thief.schedules.put_raw("x", "webhook", "crm|line:a", NAME, self.fields(), every(1))

    async def class_(self) -> None:
        await self.thief.dispatch(DeliverWebhook(**self.fields()))

    async def copied(self) -> None:
        await self.thief.dispatch(DeliverWebhook(**self.fields(seal=self.seals[0], forced=True)))

    async def settled(self) -> None:
        await self._add("events", _event("completed"))

    async def said(self) -> None:
        await self._add("arrivals", _event("completed"))

    async def accepted(self) -> None:
        await self._add("arrivals", _event("accepted"))

    async def gap(self) -> None:
        await self._add("arrivals", _event("accepted"), maxlen=1, approximate=False)

    async def _add(self, key: str, fields: Any, **options: Any) -> None:
        async with self.place.client("producer") as client:
            await client.xadd(f"{{shop:0}}:{key}", fields, **options)


def _event(kind: str) -> Any:
    names = b"".join(map(msgpack.packb, ("c-1", "Work", "line", "forged")))
    return {"v": f"{kind}|1|1|w|", "m": "line:forged", "c": names}


@pytest_asyncio.fixture(params=list(SETTLED))
async def shop(server: EmbeddedServer, request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    required: Any = SETTLED[request.param]
    async with made(server, selectors=True, webhooks=True) as place, receiving() as receiver:
        await place.admin.flushall()
        workers = place.bus("worker", **required)
        Webhooks(workers).serve()
        async with place.bus("operator", **required) as operator, workers, place.bus("producer") as thief:
            hooks = Webhooks(operator)
            put = partial(hooks.put, "crm", receiver.url, secret=new_secret(), allow_http=True, allow_private=True)
            await put(kinds={"completed", "rejected"})
            async with workers.worker():
                yield Shop(place, workers, thief, receiver, put, [await _a_seal(hooks)])


async def _a_seal(hooks: Webhooks) -> str:
    from command_bus.webhooks.deliveries import test_delivery

    return test_delivery(await WebhookStore(hooks._bus).get("crm"), "t").seal


async def test_192_a_forged_command_is_told_without_the_ids_that_it_claims(shop: Shop) -> None:
    """Its dead letter says what it claims to be; what is signed does not."""
    if not shop.workers.settings.require_signatures:
        pytest.skip("without signatures a sender may send what it likes")
    await shop.hook(kinds={"dead_lettered"})
    await shop.thief.dispatch(Work(line="a", number=1), command_id="somebody-s-payment")
    await until(lambda: shop.receiver.got)
    (told,) = shop.receiver.got
    assert (told.type, told.data["entity_id"], "letter_id" in told.data) == ("command.dead_lettered", "a", True)
    assert "somebody" not in told.body.decode()
    assert "Work" not in told.body.decode()


@pytest.mark.parametrize("way", WAYS)
async def test_186_no_text_of_a_sender_is_signed(shop: Shop, way: str) -> None:
    act = getattr(shop, way, None) or getattr(shop, f"{way}_")
    try:
        await act()
        refused = False
    except (InvalidCommand, NoPermissionError):
        refused = True
    assert refused is (way in REFUSED)
    await shop.workers.call(Work(line="b", number=1), timeout=10)
    await until(lambda: shop.receiver.got)
    await shop.workers.wait_idle(10)
    assert [(each.type, each.data["entity_id"]) for each in shop.receiver.got] == [("command.completed", "b")], (
        "the forged one was never sent, and the true one is"
    )


async def test_185_no_door_shows_or_takes_the_name(shop: Shop) -> None:
    async with shop.place.bus("operator", registry=shop.workers.registry) as operator:
        known = [each.name for each in await operator.fleet.commands()]
        assert ("Work" in known, NAME in known) == (True, False)
        assert NAME not in await Catalogue(operator).all()
    with pytest.raises(Exception, match="DeliverWebhook"):
        Rights("thief", [f"send:{NAME}"])
    with pytest.raises(RegistrationError, match="library's own"):

        class Own(Command[None], name="command_bus.Own"):
            """A command that calls itself ours."""


async def test_the_command_line_finds_no_class_of_the_name(shop: Shop) -> None:
    from command_bus.cli.commands.send import message_from_class

    assert message_from_class(shop.workers, NAME, shop.fields()) is None
    assert message_from_class(shop.workers, "Work", {"line": "a", "number": 1}) is not None


@pytest.mark.spark
def test_spark_finds_no_class_of_the_name() -> None:
    from command_bus.spark.writing.command_lookup import _importable

    assert _importable("tests.security.acl_users", "Work") is not None
    assert _importable("command_bus.webhooks", "DeliverWebhook") is None
