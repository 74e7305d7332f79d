"""The dashboard and the gateway below a path of a real nginx, which passes the path on or takes it off, seen in a browser."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import pytest_asyncio

pytest.importorskip("playwright")
pytest.importorskip("uvicorn")

from playwright.async_api import Browser, expect

from command_bus import CommandBus
from command_bus.gateway.tokens import hash_token, new_token
from tests.dashboard.test_browser import CHROMIUM, PASSWORD, Sitting, browser
from tests.dashboard.test_users import HASHED
from tests.dashboard.troubled_shop import Deposit, Shop, until

__all__ = ["browser"]

NGINX = shutil.which("nginx")
ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(NGINX is None, reason="there is no nginx: apt-get install nginx-light"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
]

CONFIG = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log; user root;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  proxy_http_version 1.1;
  proxy_set_header Connection "";
  proxy_set_header Host $http_host;
  proxy_set_header X-Forwarded-For $remote_addr;
  proxy_set_header X-Forwarded-Proto $scheme;
  server {{
    listen 127.0.0.1:{port};
    location /ops/ {{ proxy_pass http://127.0.0.1:{trusting}; }}
    location = /ops {{ proxy_pass http://127.0.0.1:{trusting}; }}
    location /intern/bus/ {{
      proxy_pass http://127.0.0.1:{trusting}/;
      proxy_set_header Connection ""; proxy_set_header Host $http_host; proxy_set_header X-Forwarded-Prefix /intern/bus;
    }}
    location /unknown/ {{
      proxy_pass http://127.0.0.1:{distrusting}/;
      proxy_set_header Connection ""; proxy_set_header Host $http_host; proxy_set_header X-Forwarded-Prefix /unknown;
    }}
    location /api/ {{ proxy_pass http://127.0.0.1:{gateway}; }}
  }}
}}
"""


class Place(NamedTuple):
    """Nginx, and what stands behind it."""

    url: str
    token: str


@contextmanager
def program(*arguments: str) -> Iterator[str]:
    """Run a command of the program until the end; yields the port that it listens on."""
    command = [sys.executable, "-m", "command_bus", *arguments, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        try:
            assert running.stderr is not None
            found = re.search(r"http://[^:]+:(\d+)", running.stderr.readline())
            assert found is not None
            yield found[1]
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(15)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def place(troubled: tuple[CommandBus, Shop], tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Place]:
    bus, folder, token = troubled[0], tmp_path_factory.mktemp("nginx"), new_token()
    (folder / "users.toml").write_text(f'[ann]\npassword = "{HASHED}"\nrole = "operator"\n')
    (folder / "tokens.toml").write_text(f'[ops]\ntoken = "{hash_token(token)}"\nrights = ["*"]\n')
    where = ("--url", bus.url, "-n", bus.settings.namespace)
    users, proxy = ("--users", str(folder / "users.toml")), ("--proxy", "127.0.0.1")
    with (
        program("dashboard", *users, *proxy, "--prefix", "/ops", *where) as trusting,
        program("dashboard", *users, *where) as distrusting,
        program("serve", "--tokens", str(folder / "tokens.toml"), *proxy, "--prefix", "/api", *where) as gateway,
        socket.create_server(("127.0.0.1", 0)) as free,
    ):
        port = free.getsockname()[1]
        free.close()
        given = {"trusting": trusting, "distrusting": distrusting, "gateway": gateway}
        (folder / "nginx.conf").write_text(CONFIG.format(folder=folder, port=port, **given))
        assert NGINX is not None
        with subprocess.Popen([NGINX, "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]) as nginx:
            url = f"http://127.0.0.1:{port}"

            async def answers() -> bool:
                try:
                    async with httpx.AsyncClient(trust_env=False) as client:
                        return (await client.get(f"{url}/ops/healthz")).text == "live\n"
                except httpx.TransportError:
                    assert nginx.poll() is None, (folder / "error.log").read_text()
                    return False

            try:
                await until(answers)
                yield Place(url, token)
            finally:
                nginx.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(("number", "prefix"), [(1, "/ops"), (2, "/intern/bus")])
async def test_all_of_the_dashboard_stays_below_the_path(
    troubled: tuple[CommandBus, Shop], browser: Browser, place: Place, number: int, prefix: str
) -> None:
    """The first path is passed on, and `--prefix` names it; the second is taken off, and the proxy's header names it."""
    bus, root = troubled[0], f"{place.url}{prefix}"
    context = await browser.new_context()
    page, asked = await context.new_page(), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    sitting = Sitting(page, root)
    await page.goto(f"{root}/letters?name=Mail")  # leads to the sign-in, and back
    await page.wait_for_url(f"{root}/sign-in?**")
    await page.fill("[name=name]", "ann")
    await page.fill("[name=password]", PASSWORD)
    await page.click("button")
    await page.wait_for_url(f"{root}/letters?name=Mail")
    await expect(page.locator("h1")).to_have_text("Dead letters")
    assert await page.evaluate("getComputedStyle(document.querySelector('.top')).position") == "sticky", "the style is there"
    await page.get_by_role("link", name="Stuck").click()
    await page.wait_for_url(f"{root}/")
    await bus.entity("account", f"below-{number}").pause("seen at once")
    await bus.dispatch(Deposit(account_id=f"below-{number}", amount=1))
    await expect(page.locator("#still")).to_contain_text(f"below-{number}", timeout=15_000)  # nginx holds no event back
    await page.goto(f"{root}/entity?type=account&id=below-{number}")
    await page.get_by_role("link", name="Resume").click()
    await page.get_by_label("Reason").fill("test")
    await page.get_by_role("button", name="Resume").click()
    await page.wait_for_url(f"{root}/entity?type=account&id=below-{number}")
    await expect(page.locator(".said")).to_be_visible()
    await page.locator("#theme").click()
    await page.wait_for_url(f"{root}/entity?type=account&id=below-{number}")
    await expect(page.locator("html")).to_have_attribute("data-theme", re.compile("dark|light"))
    assert {each.get("path") for each in await context.cookies()} == {prefix}
    await page.get_by_role("button", name="Sign out").click()
    await page.wait_for_url(f"{root}/sign-in")
    assert [each for each in asked if not each.startswith(f"{root}/")] == []
    assert sitting.complaints == []
    await context.close()


async def test_a_header_of_a_proxy_that_is_not_trusted_changes_no_path(place: Place) -> None:
    async with httpx.AsyncClient(base_url=place.url, trust_env=False) as client:
        page = await client.get("/unknown/sign-in")
        assert (page.status_code, 'action="/sign-in"' in page.text, "/unknown" in page.text) == (200, True, False)
        assert (await client.get("/unknown/")).headers["location"].startswith("/sign-in")
        forged = {"X-Forwarded-Prefix": "/evil"}
        assert 'action="/intern/bus/sign-in"' in (await client.get("/intern/bus/sign-in", headers=forged)).text


async def test_the_gateway_stays_below_the_path(place: Place) -> None:
    headers = {"Authorization": f"Bearer {place.token}", "Prefer": "wait=5"}
    async with httpx.AsyncClient(base_url=place.url, headers=headers, trust_env=False) as client:
        answer = await client.post("/api/commands/Deposit", json={"account_id": "by-nginx", "amount": 7})
        assert (answer.status_code, answer.json()["reply"]) == (200, 7)
        assert (await client.get("/api/openapi.json")).json()["servers"] == [{"url": "/api"}]
