"""No secret is shown: not in a repr, not in an error or its cause, not in a log at any level, not in a dead letter.

Each secret here is a word that is used nowhere else, so all output can be searched for it.
"""

from __future__ import annotations

import logging
import pickle
import traceback
from typing import Annotated, Any

import msgpack
import pytest
from pydantic import Field, ValidationError
from redis.asyncio import Redis

from command_bus import (
    BusSettings,
    Command,
    CommandBus,
    CommandBusError,
    CommandFailed,
    EntityId,
    HandlerRegistry,
    InvalidSettings,
    RetryPolicy,
)
from command_bus.serialization.protection import Protection
from command_bus.server_urls import redacted
from command_bus.spark.target import Target, connection_to
from command_bus.transport.redis.connection.connections import Connections
from command_bus.transport.redis.connection.credentials import connection_options
from command_bus.transport.redis.connection.factory import UrlClients
from command_bus.transport.redis.memory import MemoryClients
from tests.conformance.conftest import Sandbox, Starter
from tests.conformance.put_service import put_service, until
from tests.conformance.test_bad_input import envelope

URL_PASSWORD = "swordfish-in-the-url"
PASSWORD = "swordfish-in-the-settings"
KEY = "swordfish-that-signs"
PAYLOAD = "swordfish-in-the-payload"
SECRETS = (URL_PASSWORD, PASSWORD, KEY, PAYLOAD)


class Store(Command[str], entity="box", retry=RetryPolicy(attempts=2, delay=0.01, jitter=0.0)):
    box: EntityId
    text: Annotated[str, Field(max_length=40)]


def assert_clean(*shown: object) -> None:
    for each in shown:
        texts = [str(each), repr(each)]
        if isinstance(each, BaseException):
            texts += traceback.format_exception(each)
        for text in texts:
            assert not any(secret in text for secret in SECRETS), text


def guarded(**more: Any) -> dict[str, Any]:
    values = {
        "url": f"redis://jo:{URL_PASSWORD}@127.0.0.1:1",
        "password": PASSWORD,
        "signing_keys": {"k": KEY},
        "dispatch_timeout": 0.2,
    }
    return {**values, **more}


def test_nothing_that_can_be_printed_shows_a_secret() -> None:
    settings = BusSettings(**guarded())
    bus = CommandBus(settings=settings)
    clients = UrlClients(f"redis://jo:{URL_PASSWORD}@127.0.0.1:1", connection_options(settings))
    protection = Protection.of(settings)
    assert protection is not None
    target = Target.resolve(settings.server_url)
    assert_clean(settings, bus, bus.worker(), clients, clients.label, Connections(clients), clients.commands(), clients.thread(1))
    assert_clean(
        clients.commands().connection_pool,
        protection,
        protection.signatures,
        bus.session,
        bus.sender.builder,
        target,
        target.label,
    )
    assert_clean(settings.model_dump(), settings.model_dump_json(exclude={"url"}))
    assert_clean({name: getattr(settings, name) for name in BusSettings.model_fields})


def test_a_target_carries_its_secrets_to_executors_and_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PASSWORD", PASSWORD), ("SIGNING_KEYS", f'["k:{KEY}"]')):
        monkeypatch.setenv(f"COMMAND_BUS_{name}", value)
    target = Target.resolve(f"redis://jo:{URL_PASSWORD}@127.0.0.1:1", "shop")
    monkeypatch.delenv("COMMAND_BUS_PASSWORD")
    monkeypatch.delenv("COMMAND_BUS_SIGNING_KEYS")
    copy = pickle.loads(pickle.dumps(target))
    assert copy == target
    assert hash(copy) == hash(target)
    assert_clean(copy)
    settings = BusSettings(url=copy.url, **dict(copy.access))
    assert settings.password is not None
    assert settings.password.get_secret_value() == PASSWORD
    assert settings.signing_keys["k"].get_secret_value() == KEY


@pytest.mark.parametrize(
    ("values", "environment"),
    [
        ({"signing_keys": [f"bad id:{KEY}"]}, {}),
        ({"signing_keys": [f"k:{KEY}", f"k:{KEY}"]}, {}),
        ({"signing_keys": [KEY]}, {}),
        ({"signing_keys": {"k": KEY[:4]}}, {}),
        ({"signing_keys": KEY}, {}),
        ({"password": [PASSWORD]}, {}),
        ({"password": PASSWORD, "lease": PASSWORD}, {}),
        ({"lease": "x", "url": f"rediss://:{URL_PASSWORD}@h?ssl_cert_reqs=none"}, {}),
        ({"url": f"rediss://:{URL_PASSWORD}@h?ssl_cert_reqs=none"}, {}),
        ({"url": f"redis://:{URL_PASSWORD}@h", "tls_ca": "x"}, {}),
        ({}, {"COMMAND_BUS_SIGNING_KEYS": f"k:{KEY}"}),
        ({}, {"COMMAND_BUS_SIGNING_KEYS": f'["{KEY}"]'}),
        ({}, {"COMMAND_BUS_LEASE": PASSWORD}),
    ],
)
def test_settings_that_are_refused_are_not_quoted(
    values: dict[str, Any], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidSettings) as error:
        BusSettings(**values)
    assert_clean(error.value)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://jo:{URL_PASSWORD}@host:1/0",
        f"redis://:{URL_PASSWORD}@host",
        f"redis://jo:{URL_PASSWORD}@in@it@host",
        f"redis://host?username=jo&password={URL_PASSWORD}",
        f"rediss://host/0?db=1&ssl_password={URL_PASSWORD}&protocol=2",
        f"redis+sentinel://jo:{URL_PASSWORD}@a:1,b:2/main",
    ],
)
def test_a_url_is_shown_without_its_password(url: str) -> None:
    assert_clean(redacted(url))
    assert "host" in redacted(url) or "a:1,b:2" in redacted(url)


async def test_whatever_goes_wrong_on_the_way_to_a_server(start: Starter, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = start(tcp=True)
    address = server.url.partition("//")[2]
    client = Redis.from_url(server.url)
    await client.acl_setuser("jo", enabled=True, passwords=["+right"], categories=["+@all"], keys=["*"])
    await client.aclose()
    urls = [
        f"redis://jo:{URL_PASSWORD}@{address}",
        f"redis://:{URL_PASSWORD}@127.0.0.1:1",
        f"redis://:{URL_PASSWORD}@no-such-host.invalid",
        f"rediss://:{URL_PASSWORD}@{address}",
        f"unix:///no/such/socket?password={URL_PASSWORD}",
        f"redis://{address}?password={URL_PASSWORD}&username=jo",
    ]
    for url in urls:
        with pytest.raises(CommandBusError) as error:
            async with CommandBus(settings=BusSettings(**guarded(url=url))):
                pass
        assert_clean(error.value)
        with pytest.raises(CommandBusError) as error:
            connection_to(Target(url, "shop", (("password", PASSWORD),)), 0.2)
        assert_clean(error.value)
    assert_clean(*(record.getMessage() for record in caplog.records), caplog.text)


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox("memory", MemoryClients(), registry=HandlerRegistry())


async def test_no_value_of_a_payload_is_logged_or_shown(sandbox: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    """Done, refused by the model, failed, undecodable, unknown: at every level of logging."""
    caplog.set_level(logging.DEBUG)

    @sandbox.registry.handles(Store)
    async def store(command: Store) -> str:
        if command.box == "broken":
            Store(box="x", text=command.text * 10)  # pydantic's error quotes what it refuses
        return command.text

    async with put_service(sandbox, signing_keys={"k": KEY}) as service:
        assert await service.bus.call(Store(box="a", text=PAYLOAD), timeout=5) == PAYLOAD
        await service.bus.dispatch(Store(box="a", text=PAYLOAD), delay=0.01, headers={"h": PAYLOAD})
        with pytest.raises(CommandFailed) as failed:
            await service.bus.call(Store(box="broken", text=PAYLOAD), timeout=5)
        assert_clean(failed.value)
        await service.bus.dispatch_raw("box", "a", "Store", {"box": "a", "text": [PAYLOAD]})
        await service.inject("box:a", {"e": envelope(msgpack.packb({"box": "a", "text": PAYLOAD})[:-3], name="Store")})
        await service.inject("box:a", {"e": PAYLOAD.encode()})
        letters = await until(lambda: _four(service))
        for letter in letters:
            assert_clean(letter.error_message, letter.error_type, letter.traceback.replace("PAYLOAD", ""))
            await service.bus.dead_letters.discard(letter.id)
        with pytest.raises(ValidationError) as refused:
            Store(box="a", text=PAYLOAD * 9)
        assert_clean(str(refused.value))
        await service.bus.wait_idle(5)
    assert_clean(*(record.getMessage() for record in caplog.records), caplog.text)
    assert any("failed" in record.getMessage() for record in caplog.records), "something was logged"


async def _four(service: Any) -> list[Any]:
    letters = await service.letters()
    return letters if len(letters) == 4 else []
