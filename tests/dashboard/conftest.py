"""A troubled shop and a browser without a screen, for the tests of the dashboard."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field
from html import unescape
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
import pytest_asyncio

pytest.importorskip("jinja2")
pytest.importorskip("starlette")

from command_bus import CommandBus
from command_bus.dashboard import Dashboard, User, dashboard, host_check
from command_bus.embedded import EmbeddedServer
from tests.dashboard.troubled_shop import Shop, make_trouble, open_shop

ORIGIN = "http://ops.example"
ROLES = {"vera": "viewer", "otto": "operator", "ada": "admin"}


@dataclass
class Browser:
    """Somebody with a role, in front of a dashboard: follows links and sends forms as a browser does."""

    app: Any
    name: str = "ada"
    headers: dict[str, str] = field(default_factory=dict)
    base: str = ORIGIN

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, client=("10.1.1.1", 5000))
        return httpx.AsyncClient(
            transport=transport, base_url=self.base, headers={"X-User": self.name, **self.headers}, trust_env=False
        )

    async def get(self, path: str, **options: Any) -> httpx.Response:
        async with self.client() as client:
            return await client.get(path, **options)

    async def page(self, path: str, code: int = 200) -> str:
        answer = await self.get(path)
        assert answer.status_code == code, (path, answer.status_code, page_text(answer.text))
        return answer.text

    async def post(self, path: str, data: Mapping[str, str] | list[tuple[str, str]], **headers: str) -> httpx.Response:
        sent = {"Origin": self.base, "Content-Type": "application/x-www-form-urlencoded", **headers}
        async with self.client() as client:
            return await client.post(path, content=urlencode(data if isinstance(data, list) else dict(data)), headers=sent)

    async def do(self, act: str, why: str = "on call", **fields: str) -> httpx.Response:
        """Ask for an act, and do it with what its form has."""
        form = await self.page(str(httpx.URL("/act", params={"act": act, **fields})))
        return await self.post("/act", {**inputs(form), "why": why, **fields})


def inputs(page: str) -> dict[str, str]:
    """Return the fields of the form of an act, as they stand in it."""
    form = page.partition('<form class="act"')[2]
    found = {
        unescape(name): unescape(value) for name, value in re.findall(r'<input[^>]*name="([^"]*)"[^>]*value="([^"]*)"', form)
    }
    for name, value in re.findall(r'<textarea[^>]*name="([^"]*)"[^>]*>(.*?)</textarea>', form, re.DOTALL):
        found[unescape(name)] = unescape(value)
    return found


def page_text(page: str) -> str:
    """Return the text of a page."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())


def users_by_header() -> Any:
    """Return users that a test names in a header."""

    def check(connection: Any) -> User | None:
        name = connection.headers.get("x-user", "")
        return User(name, ROLES[name]) if name in ROLES else None  # type: ignore[arg-type]

    return host_check(check)


@pytest.fixture(scope="session")
def shop_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def troubled(shop_server: EmbeddedServer, request: pytest.FixtureRequest) -> AsyncGenerator[tuple[CommandBus, Shop]]:
    """Yield a shop in trouble, the same for all tests of a module."""
    namespace = request.node.name.replace("/", ".").removesuffix(".py")
    async with open_shop(shop_server.url, namespace) as (bus, shop):
        await make_trouble(bus)
        yield bus, shop


@pytest.fixture
def app(troubled: tuple[CommandBus, Shop]) -> Dashboard:
    return dashboard(troubled[0], users=users_by_header(), mask=["card", "Mail.subject"], secret="x" * 32)


@pytest.fixture
def admin(app: Dashboard) -> Browser:
    return Browser(app)


@pytest.fixture
def operator(app: Dashboard) -> Browser:
    return Browser(app, "otto")


@pytest.fixture
def viewer(app: Dashboard) -> Browser:
    return Browser(app, "vera")
