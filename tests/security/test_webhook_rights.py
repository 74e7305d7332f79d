"""Webhooks under users of the ACL, and over TLS: who may deliver, who may put, and whom a worker believes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from command_bus import CommandBus, CommandRejected, HandlerRegistry, UnsuitableServer
from command_bus.webhooks import Webhooks, new_secret
from tests.conformance.conftest import Starter
from tests.conformance.receiver import receiving
from tests.security.acl_users import Work, made
from tests.security.conftest import Certificates

pytest.importorskip("httpx")


@pytest.mark.parametrize("selectors", [True, False], ids=["selectors", "patterns"])
async def test_a_worker_delivers_and_an_operator_puts(binary: Path, start: Starter, selectors: bool) -> None:
    async with made(start(tcp=True, binary=binary), selectors=selectors, webhooks=True) as place, receiving() as receiver:
        workers = place.bus("worker")
        Webhooks(workers).serve()
        options: dict[str, Any] = {"kinds": {"completed"}, "secret": new_secret(), "allow_http": True, "allow_private": True}
        async with place.bus("operator") as operator, workers:
            hooks = Webhooks(operator)
            await hooks.put("crm", receiver.url, entity_types={"line"}, **options)
            async with workers.worker(), place.bus("producer") as producer:
                await producer.call(Work(line="a", number=1), timeout=10)
                async with asyncio.timeout(10):
                    while not receiver.got:
                        await asyncio.sleep(0.01)
                await operator.wait_idle(10)
            assert [each.events for each in await hooks.list()] == [1]
            assert [each async for each in hooks.deliveries("crm")] == []
            await hooks.pause("crm")
            assert await hooks.remove("crm")
        assert await place.denied() == []
        async with place.bus("producer") as producer:
            with pytest.raises(UnsuitableServer):
                await Webhooks(producer).list()


async def test_178_a_receiver_whose_certificate_is_of_another_authority_gets_nothing(
    start: Starter, certificates: Certificates
) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificates.server, certificates.server_key)
    trusted = ssl.create_default_context(cafile=str(certificates.ca))
    async with receiving("127.0.0.1", tls=server) as receiver:
        for tls, status in ((trusted, 204), (None, 0)):
            bus = CommandBus(start().url, registry=HandlerRegistry())
            hooks = Webhooks(bus, tls=tls)
            hooks.serve()
            async with bus, bus.worker():
                await hooks.put("crm", receiver.url, kinds={"completed"}, secret=new_secret(), allow_private=True)
                if status:
                    assert await hooks.test("crm") == status
                else:
                    with pytest.raises(CommandRejected, match="CERTIFICATE_VERIFY_FAILED"):
                        await hooks.test("crm")
    assert len(receiver.got) == 1


@pytest.mark.parametrize(("certificate", "believed"), [("elsewhere", True), ("server", False)])
async def test_a_certificate_is_that_of_the_name_and_not_of_the_address(
    start: Starter, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, certificate: str, believed: bool
) -> None:
    """It connects to an address that it has looked up, and that the certificate of the second server is for."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(getattr(certificates, certificate), getattr(certificates, f"{certificate}_key"))
    real = socket.getaddrinfo

    def look(host: Any, *given: Any, **options: Any) -> Any:
        return real("127.0.0.1" if host == "elsewhere.example" else host, *given, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look)
    async with receiving("127.0.0.1", tls=server) as receiver:
        bus = CommandBus(start().url, registry=HandlerRegistry())
        hooks = Webhooks(bus, tls=ssl.create_default_context(cafile=str(certificates.ca)))
        hooks.serve()
        async with bus, bus.worker():
            url = receiver.url.replace("127.0.0.1", "elsewhere.example")
            await hooks.put("crm", url, kinds={"completed"}, secret=new_secret(), allow_private=True)
            if believed:
                assert await hooks.test("crm") == 204
            else:
                with pytest.raises(CommandRejected, match="CERTIFICATE_VERIFY_FAILED"):
                    await hooks.test("crm")
    assert len(receiver.got) == believed
