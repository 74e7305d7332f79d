"""Parts of webhooks that decide: addresses, signatures, answers."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

pytest.importorskip("httpx")

from standardwebhooks import Webhook

from command_bus import InvalidSettings, Snooze
from command_bus.messages.snooze import GiveUp
from command_bus.webhooks import DeliveryFailed, new_secret, signed_headers
from command_bus.webhooks.deliveries import DELAYS, _decided
from command_bus.webhooks.posting import Answer, Names, _seconds, is_public
from command_bus.webhooks.record import PumpState, WebhookRecord
from command_bus.webhooks.signing import checked_secret


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "8.8.8.8", "2606:2800:220:1:248:1893:25c8:1946", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "255.255.255.255",
        "224.0.0.1", "198.18.0.1", "192.0.2.1", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::7f00:1", "2002:7f00:1::", "2002:a00:1::1",
        "::7f00:1", "2001:0:7f00:1::", "localhost", "", "fec0::1", "::ffff:0:7f00:1", "3fff::1", "5f00::1", "192.88.99.1",
        "192.0.0.8", "192.0.0.9", "192.0.0.170", "192.31.196.1", "192.52.193.1", "192.175.48.1", "100::1", "100:0:0:1::1", "2001:1::1", "2001:2::1",
        "2001:3::1", "2001:4:112::1", "2001:10::1", "2001:20::1", "2001:30::1", "2620:4f:8000::1", "240.0.0.1", "64:ff9b::c000:8",
    ],
)  # fmt: skip
def test_176_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_the_signature_is_the_one_that_the_standard_gives() -> None:
    """The example of its specification."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    headers = signed_headers([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_every_secret_signs_and_each_verifies_alone() -> None:
    secrets = [new_secret() for _ in range(3)]
    now = int(datetime.now(UTC).timestamp())
    headers = signed_headers(secrets, "msg_1", now, b"{}")
    for secret in secrets:
        Webhook(secret).verify(b"{}", headers)
    with pytest.raises(Exception, match="signature"):
        Webhook(new_secret()).verify(b"{}", headers)
    with pytest.raises(Exception, match="signature"):
        Webhook(secrets[0]).verify(b"[]", headers)


def test_a_secret_is_long_enough_and_a_variable_is_looked_up() -> None:
    assert len(base64.b64decode(new_secret().removeprefix("whsec_"))) == 32
    for wrong in (
        "",
        "whsec_",
        "whsec_" + base64.b64encode(b"x" * 23).decode(),
        "whsec_" + base64.b64encode(b"x" * 65).decode(),
        "whsec_!",
        "env:A B",
    ):
        with pytest.raises(InvalidSettings) as refused:
            checked_secret(wrong)
        assert wrong.removeprefix("whsec_") == "" or wrong not in str(refused.value)
    secret = new_secret()
    assert signed_headers(["env:S"], "m", 1, b"", environment={"S": secret}) == signed_headers([secret], "m", 1, b"")
    with pytest.raises(InvalidSettings, match="not set"):
        signed_headers(["env:S"], "m", 1, b"", environment={})


def test_what_an_answer_means() -> None:
    assert [_decided(Answer(status, None)) for status in (200, 204, 299)] == [200, 204, 299]
    for status in (100, 301, 307, 400, 404, 429, 500, 503):
        with pytest.raises(DeliveryFailed, match=str(status)):
            _decided(Answer(status, None))
    with pytest.raises(DeliveryFailed, match="500"):
        _decided(Answer(500, 5.0))
    with pytest.raises(GiveUp):
        _decided(Answer(410, None))
    for asked, waits in ((0.0, 1.0), (30.0, 30.0), (1e9, 86_400.0)):
        with pytest.raises(Snooze) as wait:
            _decided(Answer(429, asked))
        assert wait.value.seconds == waits


def test_how_long_a_receiver_asks_to_wait() -> None:
    soon = datetime.now(UTC) + timedelta(seconds=60)
    assert 50 < (_seconds(format_datetime(soon, usegmt=True)) or 0) <= 60
    assert _seconds("120") == 120
    assert _seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    far = "Fri, 31 Dec 2025 23:59:59 +99999999999999999999"
    for nothing in (
        None,
        "",
        "soon",
        "-1",
        "1.5",
        "9" * 400,
        "\u0661",
        far,
        far.replace("+", "-"),
        "Fri, 31 Dec 9999 23:59:59 +99999",
    ):
        assert _seconds(nothing) is None


def test_records_survive_their_bytes_and_nonsense_is_refused() -> None:
    record = WebhookRecord("crm", "https://crm.example", ("completed",), (), ("env:S",), 5.0, False, False, (1.0,), 7, "p")
    assert WebhookRecord.unpack(record.pack()) == record
    for nonsense in (b"", b"[]", b"{}", b'{"name":1}', b"\xff"):
        with pytest.raises(InvalidSettings, match="cannot be read"):
            WebhookRecord.unpack(nonsense)
    state = PumpState("1-1", "w", 5, 6, 7, 8)
    assert PumpState.unpack(state.pack()) == state
    assert sum(DELAYS) > 3 * 86_400


async def test_a_name_that_takes_long_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, told, real = list[str](), threading.Event(), socket.getaddrinfo

    def look(host: str, *given: Any, **options: Any) -> Any:
        if host.endswith(".example"):  # threads of other tests connect
            looked.append(host)
        if host.startswith("slow"):
            told.wait(10)
        return real("127.0.0.1", *given, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look)
    names = Names()
    slow = [
        asyncio.ensure_future(names.allowed_address(f"slow-{number % 50}.example", 80, allow_private=True))
        for number in range(200)
    ]
    async with asyncio.timeout(5):
        assert await names.allowed_address("quick.example", 80, allow_private=True) == "127.0.0.1"
        assert await asyncio.to_thread(lambda: 7) == 7, "nor what else needs a thread"
        slow[0].cancel()  # its time is over: the others get the answer
        told.set()
        assert set(await asyncio.gather(*slow[1:])) == {"127.0.0.1"}
    assert sorted(looked) == sorted([*(f"slow-{number}.example" for number in range(50)), "quick.example"])
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: (_ for _ in ()).throw(socket.gaierror("no such name")))
    with pytest.raises(OSError, match="no such name"):
        await names.allowed_address("none.example", 80, allow_private=True)
