"""Webhooks, against a receiver that answers well, badly, slowly, or not at all."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from standardwebhooks import Webhook as StandardWebhook

from command_bus import Command, CommandBus, CommandRejected, EntityId, HandlerRegistry, InvalidSettings, Reject, UnknownWebhook
from command_bus.clock import mono, wall_ms
from command_bus.webhooks import Webhooks, deliveries, new_secret, posting
from command_bus.webhooks.pump import Pump
from command_bus.webhooks.record import PumpState
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.receiver import Receiver, Request, answering, receiving
from tests.selection import quick

pytest.importorskip("httpx")
SECRET = new_secret()


class Pack(Command[int], entity="order"):
    order: EntityId
    fails: bool = False


class Ping(Command[None]):
    """Without an entity."""


def handlers() -> HandlerRegistry:
    registry = HandlerRegistry()

    @registry.handles(Pack)
    async def pack(command: Pack) -> int:
        if command.fails:
            raise Reject("no")
        return 1

    @registry.handles(Ping)
    async def ping(command: Ping) -> None:
        return None

    return registry


@dataclass
class Shop:
    bus: CommandBus
    hooks: Webhooks
    receiver: Receiver

    async def put(self, **options: Any) -> None:
        await self.hooks.put(
            "crm",
            **{
                "url": self.receiver.url,
                "kinds": {"completed", "rejected"},
                "entity_types": {"order"},
                "secret": SECRET,
                "timeout": 1.0,
                "retries": (0.05, 0.05),
                "allow_http": True,
                "allow_private": True,
                **options,
            },
        )

    async def come(self, count: int) -> list[Any]:
        await until(lambda: len(self.receiver.got) >= count)
        return self.receiver.got


@pytest.fixture
async def shop(sandbox: Sandbox, request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    bus = sandbox.bus(registry=handlers(), grace=1.0, shards=getattr(request, "param", 1))
    hooks = Webhooks(bus, lease=3.0)
    hooks.serve()
    async with receiving() as receiver, bus:
        yield Shop(bus, hooks, receiver)


async def test_what_happens_is_sent_signed_and_in_order_for_each_entity(shop: Shop) -> None:
    await shop.put()
    async with shop.bus.worker():
        for number in range(4):
            await shop.bus.dispatch(Pack(order=f"o-{number % 2}", fails=number > 1), command_id=f"c-{number}")
        await shop.bus.dispatch(Ping())
        got = await shop.come(4)
        assert sorted((each.data["entity_id"], each.type) for each in got) == [
            ("o-0", "command.completed"),
            ("o-0", "command.rejected"),
            ("o-1", "command.completed"),
            ("o-1", "command.rejected"),
        ]
        for entity in ("o-0", "o-1"):
            assert [each.type for each in got if each.data["entity_id"] == entity] == ["command.completed", "command.rejected"]
        for each in got:
            verified = StandardWebhook(SECRET).verify(each.body, each.headers)
            assert verified["data"]["command_id"].startswith("c-")
        assert len({each.headers["webhook-id"] for each in got}) == 4
        assert got[0].path == "/hook?from=bus"
        assert got[0].headers["host"] == shop.receiver.url.split("/")[2]
        await until(_seen(shop, 4))
    assert (await shop.hooks.get("crm")).pump == "", "a worker that stops gives up the lease"


def _seen(shop: Shop, events: int) -> Any:
    async def seen() -> bool:
        return (await shop.hooks.get("crm")).events == events

    return seen


async def test_a_replaced_secret_signs_beside_the_new_one(shop: Shop) -> None:
    newest = new_secret()
    await shop.put(secret=[newest, SECRET])
    async with shop.bus.worker():
        assert await shop.hooks.test("crm") == 204
    (got,) = shop.receiver.got
    for secret in (newest, SECRET):
        StandardWebhook(secret).verify(got.body, got.headers)
    assert got.type == "webhook.test"


async def test_a_failing_receiver_gets_it_again_and_then_it_is_a_dead_letter_that_can_be_replayed(shop: Shop) -> None:
    await shop.put()
    shop.receiver.answer = lambda request: answering(500) if "o-1" in request.body.decode() else answering(200)
    async with shop.bus.worker():
        await shop.bus.dispatch(Pack(order="o-1"))
        await shop.bus.dispatch(Pack(order="o-2"))
        await shop.come(4)
        await until(_letters(shop, 1))
        ((delivery,), got) = await _letters(shop, 1)(), shop.receiver.got
        assert (delivery.about, delivery.attempts, delivery.error) == ("order:o-1", 3, "the receiver answered 500")
        assert len({each.headers["webhook-id"] for each in got if each.data["entity_id"] == "o-1"}) == 1
        shop.receiver.answer = lambda _: answering(200)
        await shop.bus.dead_letters.replay(delivery.letter_id)
        await shop.come(5)
        await until(_letters(shop, 0))


def _letters(shop: Shop, count: int) -> Any:
    async def letters() -> Any:
        found = [each async for each in shop.hooks.deliveries("crm")]
        return (found or True) if len(found) == count else None

    return letters


@pytest.mark.parametrize("status", quick([429, 503], [429]))
async def test_a_receiver_that_asks_to_wait_is_left_alone_for_so_long(shop: Shop, status: int) -> None:
    await shop.put(retries=())
    busy = [answering(status, "Retry-After: 1")] * 2
    shop.receiver.answer = lambda _: busy.pop() if busy else answering(200)
    async with shop.bus.worker():
        await shop.bus.dispatch(Pack(order="o-1"))
        first, second, third = await shop.come(3)
        assert second.at - first.at > 0.9
        assert third.at - second.at > 0.9
        await shop.bus.wait_idle(10)
    assert await _letters(shop, 0)(), "it used up no attempt"


async def test_a_wait_that_is_none_undoes_no_delivery(shop: Shop) -> None:
    await shop.put(retries=())
    shop.receiver.answer = lambda _: answering(200, "Retry-After: Fri, 31 Dec 2025 23:59:59 +99999999999999999999")
    async with shop.bus.worker():
        assert await shop.hooks.test("crm") == 200
    assert len(shop.receiver.got) == 1


async def test_a_receiver_that_is_silent_or_drips_is_given_up_in_time(shop: Shop) -> None:
    await shop.put(timeout=0.3, retries=(0.01,))
    shop.receiver.answer = lambda request: 5.0 if "o-1" in request.body.decode() else answering(200, body=b"x" * 1000)
    shop.receiver.drip = True
    async with shop.bus.worker():
        await shop.bus.dispatch(Pack(order="o-1"))
        await shop.bus.dispatch(Pack(order="o-2"))
        await until(_letters(shop, 2))
        assert {each.error for each in await _letters(shop, 2)()} == {"no answer within 0.3 s"}


async def test_193_a_slow_receiver_holds_up_no_other_and_no_command(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its deliveries had a slot of the worker until its time was over; five slots, and twenty of them."""
    monkeypatch.setattr(posting, "_AT_ONCE", 4)
    monkeypatch.setattr(posting, "_MOST_HERE", 8)
    monkeypatch.setattr(deliveries, "_CROWDED", 0.1)
    slow: list[Request] = []
    shop.receiver.answer = lambda request: slow.append(request) or 30.0  # type: ignore[func-returns-value]
    async with receiving() as other, shop.bus.worker(concurrency=5):
        await shop.put(kinds={"completed"}, timeout=30.0)
        options: Any = {"allow_http": True, "allow_private": True, "secret": SECRET}
        await shop.hooks.put("erp", other.url, kinds={"rejected"}, entity_types={"order"}, **options)
        for number in range(20):
            await shop.bus.dispatch(Pack(order=f"o-{number}"))
        await until(lambda: len(slow) == 4)
        began = mono()
        with pytest.raises(CommandRejected):
            await shop.bus.call(Pack(order="o-last", fails=True), timeout=5)
        await until(lambda: len(other.got) == 1)
        assert mono() - began < 5, "it waits for no slow one"
        assert len(slow) == 4, "its others wait for their turn"
        await shop.hooks.remove("crm")


async def test_an_endless_answer_is_not_read_to_its_end(shop: Shop) -> None:
    """Its end does not come: who reads on fails."""
    await shop.put(retries=())
    shop.receiver.answer = lambda _: b"HTTP/1.1 200 X\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 3_000_000
    async with shop.bus.worker():
        assert await shop.hooks.test("crm") == 200


async def test_a_redirect_is_not_followed_and_gone_pauses(shop: Shop) -> None:
    async with receiving() as private:
        await shop.put(retries=())
        shop.receiver.answer = lambda _: answering(307, f"Location: {private.url}")
        async with shop.bus.worker():
            with pytest.raises(CommandRejected, match="redirect, which is not followed"):
                await shop.hooks.test("crm")
            shop.receiver.answer = lambda _: answering(410)
            await shop.bus.dispatch(Pack(order="o-1"))
            await until(_letters(shop, 1))
            assert "410" in (await shop.hooks.get("crm")).paused
        assert private.got == []


async def test_176_addresses_of_this_machine_and_of_private_networks_are_refused(shop: Shop) -> None:
    port = shop.receiver.url.split(":")[2]
    async with shop.bus.worker():
        for host in (
            "127.0.0.1",
            "localhost",
            "[::1]",
            "10.0.0.1",
            "169.254.169.254",
            "[::ffff:127.0.0.1]",
            "2130706433",
            "0.0.0.0",
        ):
            await shop.put(url=f"http://{host}:{port}", allow_private=False)
            with pytest.raises(CommandRejected, match=r"has no public address|cannot be reached"):
                await shop.hooks.test("crm")
    assert shop.receiver.got == []


@pytest.mark.parametrize(("given", "asked"), [("crm.example", "crm.example"), ("straße.example", "xn--strae-oqa.example")])
async def test_a_name_is_looked_up_once_and_that_address_connected_to(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, given: str, asked: str
) -> None:
    """A second look, at another address, would come from the client. Python's own form of a name with ß is another name."""
    looked: list[str] = []
    real = socket.getaddrinfo

    def look(host: Any, *given: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        looked.append(name)
        return real("127.0.0.1" if name == asked else name, *given, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look)
    await shop.put(url=shop.receiver.url.replace("127.0.0.1", given))
    async with shop.bus.worker():
        assert await shop.hooks.test("crm") == 204
    assert looked.count(asked) == 1
    assert shop.receiver.got[0].headers["host"].startswith(f"{asked}:")


async def test_a_paused_webhook_waits_in_line(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("command_bus.webhooks.deliveries._PAUSED", 0.2)
    await shop.put()
    await shop.hooks.pause("crm", "they move")
    async with shop.bus.worker():
        for number in range(3):
            await shop.bus.dispatch(Pack(order="o-1"), command_id=f"c-{number}")
        await until(_seen(shop, 3))
        assert await shop.hooks.test("crm") == 204, "a test is sent"
        assert [each.type for each in shop.receiver.got] == ["webhook.test"]
        await shop.hooks.resume("crm")
        got = await shop.come(4)
        assert [each.data["command_id"] for each in got[1:]] == ["c-0", "c-1", "c-2"]


async def test_a_removed_webhook_sends_nothing_more(shop: Shop) -> None:
    await shop.put()
    await shop.hooks.pause("crm")
    async with shop.bus.worker():
        await shop.bus.dispatch(Pack(order="o-1"))
        await until(_seen(shop, 1))
        assert await shop.hooks.remove("crm")
        assert not await shop.hooks.remove("crm")
        assert await shop.hooks.list() == []
        for act in (shop.hooks.get, shop.hooks.pause, shop.hooks.resume, shop.hooks.test):
            with pytest.raises(UnknownWebhook, match="webhooks list"):
                await act("crm")
    assert shop.receiver.got == []


@pytest.mark.parametrize("shop", [3], indirect=True)
async def test_a_killed_pump_is_taken_over_and_each_event_is_delivered_once(shop: Shop, sandbox: Sandbox) -> None:
    """The killed one had dispatched, and not written how far it was."""
    await shop.put()
    for number in range(5):
        await shop.bus.dispatch(Pack(order=f"o-{number}"), command_id=f"c-{number}")
    store = shop.hooks._store
    data, before = await store.state("crm")
    assert before is not None
    async with shop.bus.worker():
        await shop.come(5)
        await until(_seen(shop, 5))
        await shop.bus.wait_idle(10)
    data, after = await store.state("crm")
    assert after is not None
    now = await store.notes.now_ms()
    killed = PumpState(before.cursor, "a killed one", now + 3_600_000)
    assert await store.set_state("crm", data, killed)
    await Pump(shop.bus, store, "crm", "another").run()
    data, left = await store.state("crm")
    assert left == killed, "its lease lasts"
    assert await store.set_state("crm", data, replace(killed, until_ms=now - 1))
    other = sandbox.bus(registry=handlers(), grace=1.0, shards=3)
    Webhooks(other, lease=3.0).serve()
    async with other, other.worker():
        await shop.bus.dispatch(Pack(order="o-9"), command_id="c-9")
        await shop.come(6)
        await until(_seen(shop, 6))
        await other.wait_idle(10)
    assert sorted(each.data["command_id"] for each in shop.receiver.got) == [f"c-{number}" for number in (0, 1, 2, 3, 4, 9)]


@pytest.mark.parametrize("shop", [3], indirect=True)
async def test_of_several_workers_one_pumps_all_shards(shop: Shop, sandbox: Sandbox) -> None:
    await shop.put()
    other = sandbox.bus(registry=handlers(), grace=1.0, shards=3)
    Webhooks(other, lease=3.0).serve()
    async with shop.bus.worker(), other, other.worker():
        for number in range(30):
            await shop.bus.dispatch(Pack(order=f"o-{number}"), command_id=f"c-{number}")
        await shop.come(30)
        await until(_seen(shop, 30))
        await shop.bus.wait_idle(10)
    assert len({each.data["command_id"] for each in shop.receiver.got}) == len(shop.receiver.got) == 30


async def test_a_gap_is_told(shop: Shop, sandbox: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    await shop.bus.events.watch("order")
    async with shop.bus.worker():
        await shop.bus.call(Pack(order="before"), timeout=10)
    await shop.put()
    async with sandbox.bus(registry=handlers()) as other, other.worker():  # which tells nobody
        for number in range(3):
            await other.call(Pack(order=f"o-{number}"), timeout=10)
    async with sandbox.client() as client:
        await client.xtrim(f"{{{shop.bus.settings.namespace}:0}}:events", maxlen=2, approximate=False)
    async with shop.bus.worker():
        await until(lambda: "events.gap" in [each.type for each in shop.receiver.got])
    info = await shop.hooks.get("crm")
    assert (info.gaps, info.gap_ms > 0) == (1, True)
    assert any("larger `kept`" in record.getMessage() for record in caplog.records)


async def test_a_full_bus_holds_up_the_pump_and_loses_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("command_bus.webhooks.pump._PAUSE", 0.05)
    await shop.put()
    async with shop.bus.worker():
        await shop.bus.entities.of("webhook").drain()
        await shop.bus.dispatch(Pack(order="o-1"))
        await until(lambda: any("deliveries are not accepted" in record.getMessage() for record in caplog.records))
        await shop.bus.entities.of("webhook").resume()
        await shop.come(1)


async def test_177_a_secret_in_a_variable_that_is_not_set_is_a_failed_delivery(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.put(secret="env:NO_SUCH_SECRET")
    async with shop.bus.worker():
        with pytest.raises(CommandRejected, match="variable NO_SUCH_SECRET, which is not set"):
            await shop.hooks.test("crm")
        monkeypatch.setenv("NO_SUCH_SECRET", SECRET)
        assert await shop.hooks.test("crm") == 204
    StandardWebhook(SECRET).verify(shop.receiver.got[0].body, shop.receiver.got[0].headers)


async def test_175_webhooks_that_cannot_be_are_refused(shop: Shop) -> None:
    wrong: list[dict[str, Any]] = [
        {"kinds": ()},
        {"kinds": {"complete"}},
        {"entity_types": {"webhook"}},
        {"secret": "hunter2"},
        {"secret": "whsec_" + "QUJD"},
        {"secret": "env:"},
        {"secret": []},
        {"timeout": 0},
        {"timeout": 61},
        {"retries": (-1.0,)},
        *(
            {"url": url}
            for url in ("", "crm", "ftp://crm.example", "https://", "https://crm:pw@crm.example", "https://crm.example/#x")
        ),
        *(
            {"url": url}
            for url in ("https://crm.example/a b", "https://crm.example/\r\nX: y", "https://crm.example:99999", "https://[::1")
        ),
    ]
    for options in wrong:
        with pytest.raises(InvalidSettings) as refused:
            await shop.put(**options)
        assert "hunter2" not in str(refused.value)
    with pytest.raises(InvalidSettings, match="a new webhook has one"):
        await shop.put(secret=None)
    with pytest.raises(InvalidSettings, match="allow_http"):
        await shop.put(allow_http=False)
    for name in ("", "a b", "x" * 65, "a|b", "a:b"):
        with pytest.raises(InvalidSettings, match="1 to 64"):
            await shop.hooks.get(name)
    assert await shop.hooks.list() == []


async def test_a_webhook_of_all_types_is_not_told_of_its_own_deliveries(shop: Shop) -> None:
    await shop.put(entity_types=(), kinds={"completed"})
    async with shop.bus.worker():
        await shop.bus.call(Pack(order="o-1"), timeout=10)
        await shop.bus.call(Ping(), timeout=10)
        await shop.come(2)
        await shop.bus.wait_idle(10)
        await until(_seen(shop, 2))
        await shop.bus.call(Pack(order="o-2"), timeout=10)
        await shop.come(3)
        await shop.bus.wait_idle(10)
    assert [each.data.get("entity_id") for each in shop.receiver.got] == ["o-1", None, "o-2"]


class Backwards:
    """A cipher for tests."""

    def encrypt(self, data: bytes, aad: bytes) -> bytes:
        return aad[::-1] + data[::-1]

    def decrypt(self, data: bytes, aad: bytes) -> bytes:
        if not data.startswith(aad[::-1]):
            raise ValueError("of something else")
        return data[len(aad) :][::-1]


async def test_with_a_cipher_no_secret_is_on_the_server(sandbox: Sandbox) -> None:
    async with sandbox.bus(cipher=Backwards()) as bus, sandbox.bus() as plain:
        hooks = Webhooks(bus)
        for name in ("crm", "erp"):
            await hooks.put(name, "https://crm.example", kinds={"completed"}, secret=SECRET)
        assert (await hooks.get("crm")).secrets == 1
        records = await bus.transport.notes.all("webhooks")
        assert SECRET.encode() not in b"".join(records.values())
        assert await Webhooks(plain).list() == []
        with pytest.raises(InvalidSettings, match="cipher"):
            await Webhooks(plain).get("crm")
        assert await bus.transport.notes.change("webhooks", "crm", records["crm"], records["erp"])
        with pytest.raises(InvalidSettings, match="cannot be decrypted"):
            await hooks.get("crm")


async def test_notes_are_written_by_comparison(shop: Shop) -> None:
    notes = shop.bus.transport.notes
    assert await notes.change("book", "a", None, b"1")
    assert await notes.change("book", "a", None, b"1"), "asked again it is as asked"
    assert not await notes.change("book", "a", None, b"2")
    assert not await notes.change("book", "a", b"0", b"2")
    assert await notes.change("book", "a", b"1", b"2")
    assert (await notes.read("book", "a"), await notes.all("book")) == (b"2", {"a": b"2"})
    assert not await notes.change("book", "a", b"1", None)
    assert await notes.change("book", "a", b"2", None)
    assert (await notes.read("book", "a"), await notes.all("book")) == (None, {})
    assert abs(await notes.now_ms() - wall_ms()) < 60_000
