"""The table *prefixes × proxies × paths*: an application sees one root and path, whoever takes the prefix off; and pages link below it."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import httpx

from command_bus import CommandBus, HandlerRegistry, InvalidSettings
from command_bus.dashboard import dashboard, loopback
from command_bus.integrations.serving import Prefixed, checked_prefix
from tests.tables.prefixes import PROXY, REFUSED, REQUESTS


async def _seen(option: str, header: str | None, client: str, path: str) -> tuple[str, str]:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    transport = httpx.ASGITransport(Prefixed(app, option, [f"{PROXY}/32"]), client=(client, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://intern.example") as http:
        await http.get(path, headers={} if header is None else {"X-Forwarded-Prefix": header})
    (scope,) = seen
    assert scope["raw_path"].decode().endswith(path if path != scope.get("root_path") else "/")
    return scope.get("root_path", ""), scope["path"]


async def test_an_application_sees_one_root_and_path() -> None:
    found = {name: await _seen(*row[:4]) for name, row in REQUESTS.items()}
    assert found == {name: row[4] for name, row in REQUESTS.items()}


@pytest.mark.parametrize("prefix", REFUSED)
def test_a_prefix_that_is_none_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidSettings, match="prefix: "):
        checked_prefix(prefix)
    with pytest.raises(InvalidSettings, match="proxies: "):
        Prefixed(None, "", ["nowhere"])


@pytest.mark.parametrize("path", ["/", "/ops", "/ops/", "/entities", "/ops/entities"])
async def test_all_links_of_a_page_are_below_the_prefix(path: str) -> None:
    async with CommandBus.in_memory(registry=HandlerRegistry()) as bus:
        transport = httpx.ASGITransport(Prefixed(dashboard(bus, users=loopback("viewer")), "/ops"), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            page = await http.get(path, follow_redirects=True)
            assert page.status_code == 200
            links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
            assert len(links) > 5
            assert [link for link in links if not link.startswith("/ops/")] == []
            for link in {each.partition("#")[0] for each in links}:
                assert (await http.get(link)).status_code in (200, 303, 405), link
