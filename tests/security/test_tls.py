"""TLS: the server is verified, the client proves who it is where it must, and each refusal says which of the two it was."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from redis.asyncio import Redis

from command_bus import (
    BusSettings,
    Command,
    CommandBus,
    CommandBusError,
    EntityId,
    HandlerRegistry,
    InvalidSettings,
    TransportUnavailable,
    UnsuitableServer,
)
from command_bus.transport.redis.connection.clients import clients_of
from command_bus.transport.redis.connection.credentials import connection_options
from tests.conformance.conftest import Starter
from tests.security.conftest import Certificates, TlsServer

Tls = Callable[..., TlsServer]


class Add(Command[int], entity="box"):
    box: EntityId
    value: int


def registry() -> HandlerRegistry:
    handlers = HandlerRegistry()

    @handlers.handles(Add)
    async def add(command: Add) -> int:
        return command.value + 1

    return handlers


async def served(url: str, **settings: Any) -> None:
    """Check that a bus and a worker there work."""
    async with CommandBus(url, registry=registry(), **settings) as bus, bus.worker():
        assert await bus.call(Add(box="a", value=1), timeout=5) == 2


async def refusal(url: str, **settings: Any) -> CommandBusError:
    """Return the error of opening a bus there."""
    with pytest.raises(CommandBusError) as error:
        async with CommandBus(url, **{"dispatch_timeout": 1.0, **settings}):
            pass
    return error.value


async def refused_at_once(url: str, **settings: Any) -> str:
    """Return the text of a refusal that is not retried."""
    began = time.monotonic()
    error = await refusal(url, **{"dispatch_timeout": 30.0, **settings})
    assert time.monotonic() - began < 5, "it was tried again and again"
    assert isinstance(error, UnsuitableServer)
    return str(error)


async def test_a_verified_server_is_used(tls: Tls, certificates: Certificates) -> None:
    await served(tls().url, tls_ca=certificates.ca)


async def test_the_files_may_come_from_the_environment(
    tls: Tls, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMAND_BUS_TLS_CA", str(certificates.ca))
    await served(tls().url)


async def test_a_foreign_authority_is_not_trusted(tls: Tls, certificates: Certificates) -> None:
    server = tls()
    for settings in ({"tls_ca": certificates.foreign}, {}):
        assert "check tls_ca" in await refused_at_once(server.url, **settings)


async def test_a_certificate_for_another_host_is_not_trusted(tls: Tls, certificates: Certificates) -> None:
    server = tls(certificate="elsewhere")
    text = await refused_at_once(server.url, tls_ca=certificates.ca)
    assert "not valid for '127.0.0.1'" in text
    assert "the URL names the certificate's host" in text


async def test_a_server_may_want_to_know_its_clients(tls: Tls, certificates: Certificates) -> None:
    server = tls(clients="yes")
    assert "set tls_cert and tls_key" in await refused_at_once(server.url, tls_ca=certificates.ca)
    await served(server.url, tls_ca=certificates.ca, tls_cert=certificates.client, tls_key=certificates.client_key)
    foreign = {"tls_cert": certificates.foreign, "tls_key": certificates.foreign_key}
    assert "another authority" in await refused_at_once(server.url, tls_ca=certificates.ca, **foreign)


async def test_a_plain_client_is_refused_by_a_tls_server(tls: Tls) -> None:
    error = await refusal(tls().url.replace("rediss", "redis"))
    assert isinstance(error, TransportUnavailable)
    assert error.message.endswith("the server speaks TLS, use rediss:// instead of redis://")


async def test_a_plain_server_is_no_tls_server(start: Starter) -> None:
    error = await refusal(start(tcp=True).url.replace("redis", "rediss"))  # it takes the greeting for the start of a request
    assert isinstance(error, TransportUnavailable)
    assert "the server does not speak TLS on this port" in error.message


async def test_a_server_that_is_not_there_gets_no_advice_about_tls() -> None:
    for url in ("redis://127.0.0.1:1", "rediss://127.0.0.1:1"):
        assert "TLS" not in (await refusal(url, dispatch_timeout=0.1)).message


async def test_the_command_line_tells_of_tls_on_one_side(tls: Tls, start: Starter) -> None:
    for url, advice in (
        (tls().url.replace("rediss", "redis"), "use rediss:// instead of redis://"),
        (start(tcp=True).url.replace("redis", "rediss"), "does not speak TLS on this port"),
    ):
        for command in ("stats", "doctor"):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "command_bus", "--url", url, command,
                env={**os.environ, "COMMAND_BUS_DISPATCH_TIMEOUT": "0.5"}, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            _, said = await process.communicate()
            assert process.returncode == 4
            assert advice in said.decode()


async def test_verification_is_turned_off_only_on_purpose(tls: Tls) -> None:
    server = tls()
    for query in ("ssl_cert_reqs=none", "ssl_cert_reqs=optional", "ssl_cert_reqs=%6Eone", "ssl_check_hostname=false"):
        with pytest.raises(InvalidSettings, match="insecure=True"):
            CommandBus(f"{server.url}?{query}")
        with pytest.raises(InvalidSettings, match="insecure=True"):
            CommandBus(f"rediss+sentinel://127.0.0.1:1/main?sentinel_{query}")
    await served(f"{server.url}?ssl_cert_reqs=none&ssl_check_hostname=false", insecure=True)
    await served(f"{server.url}?ssl_cert_reqs=none", insecure=True)


@pytest.mark.parametrize("url", ["rediss://a", "rediss+sentinel://a:1,b:2/main", "rediss+cluster://a:1"])
def test_the_host_name_is_checked_whatever_the_default(url: str) -> None:
    assert connection_options(BusSettings(url=SecretStr(url)))["ssl_check_hostname"] is True
    own = connection_options(BusSettings(url=SecretStr(f"{url}?ssl_check_hostname=false"), insecure=True))
    assert "ssl_check_hostname" not in own, "what the URL says holds"


async def test_files_that_are_no_certificates_are_refused(certificates: Certificates, tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate")
    wrong: list[dict[str, Path]] = [
        {"tls_ca": rubbish},
        {"tls_ca": tmp_path / "absent.pem"},
        {"tls_cert": certificates.client, "tls_key": certificates.server_key},
    ]
    for settings in wrong:
        error = await refusal("rediss://127.0.0.1:1", **settings)
        assert isinstance(error, InvalidSettings)
        assert "tls_ca, tls_cert, tls_key" in str(error)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"url": "redis://host", "tls_ca": "ca.pem"}, "rediss://"),
        ({"url": "rediss://host", "tls_cert": "client.pem"}, "both or neither"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidSettings, match=told):
        BusSettings(**values)


async def test_user_and_password_fill_what_the_url_leaves_open(start: Starter) -> None:
    server = start(tcp=True)
    address = server.url.partition("//")[2]
    client = Redis.from_url(server.url)
    await client.acl_setuser("jo", enabled=True, passwords=["+settings"], categories=["+@all"], keys=["*"])
    await client.acl_setuser("al", enabled=True, passwords=["+of-url"], categories=["+@all"], keys=["*"])
    await client.acl_setuser("default", enabled=False)
    await client.aclose()
    await served(f"redis://{address}", username="jo", password="settings")
    await served(f"redis://jo@{address}", password="settings")
    await served(f"redis://al:of-url@{address}", username="jo", password="settings")
    error = await refusal(f"redis://{address}", username="jo", password="something else")
    assert isinstance(error, UnsuitableServer)
    assert "something else" not in str(error)


@pytest.mark.parametrize("kind", ["rediss+sentinel://a:1,b:2/main", "rediss+cluster://a:1,b:2"])
def test_several_servers_get_the_same_credentials(certificates: Certificates, kind: str) -> None:
    values: dict[str, Any] = {"url": kind, "username": "jo", "password": "settings", "tls_ca": certificates.ca}
    settings = BusSettings(**values)
    clients: Any = clients_of(kind, connection_options(settings))
    made = clients.commands().connection_pool.connection_kwargs
    assert (made["username"], made["password"], made["ssl_ca_certs"]) == ("jo", "settings", str(certificates.ca))
    assert clients._url.sentinel_options["ssl_ca_certs"] == str(certificates.ca)
    assert "password" not in clients._url.sentinel_options, "Sentinels have users of their own"
    own = kind.replace("//a", "//al:of-url@a")
    made = clients_of(own, connection_options(settings)).commands().connection_pool.connection_kwargs
    assert (made["username"], made["password"]) == ("al", "of-url")
