"""The dashboard as a program: `command-bus dashboard`, and `command-bus password`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from command_bus import CommandBus
from command_bus.dashboard.passwords import is_password
from tests.dashboard.test_users import HASHED
from tests.dashboard.troubled_shop import Shop
from tests.program import run_program

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]
ROOT = Path(__file__).parents[2]


async def test_it_is_served_to_this_machine_and_ends_by_ctrl_c(troubled: tuple[CommandBus, Shop]) -> None:
    bus, _ = troubled
    command = [sys.executable, "-m", "command_bus", "dashboard", "--port", "0", "--url", bus.url, "-n", bus.settings.namespace]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as program:
        try:
            assert program.stderr is not None
            found = re.search(r"http://\S+", program.stderr.readline())
            assert found is not None
            async with httpx.AsyncClient(base_url=found[0], trust_env=False) as client:
                page = await client.get("/")
                assert (page.status_code, "order:o-1001" in page.text, "/act?" in page.text) == (200, True, False)
                other = await client.get("/", headers={"Host": "evil.example"})
                assert other.status_code == 403
                assert "server" not in page.headers
        finally:
            program.send_signal(signal.SIGINT)
        assert program.wait(10) == 0


async def test_users_of_a_file_sign_in(troubled: tuple[CommandBus, Shop], tmp_path: Path) -> None:
    bus, _ = troubled
    users = tmp_path / "users.toml"
    users.write_text(f'[ann]\npassword = "{HASHED}"\nrole = "operator"\n')
    command = [sys.executable, "-m", "command_bus", "dashboard", "--port", "0", "--users", str(users), "--url", bus.url]
    command += ["--proxy", "127.0.0.1", "--grafana", "https://grafana.example/d/bus", "--traces", "/traces/{trace_id}"]
    with subprocess.Popen([*command, "-n", bus.settings.namespace], stderr=subprocess.PIPE, text=True, cwd=ROOT) as program:
        try:
            assert program.stderr is not None
            found = re.search(r"http://\S+", program.stderr.readline())
            assert found is not None
            async with httpx.AsyncClient(base_url=found[0], trust_env=False, follow_redirects=True) as client:
                fields = {"name": "ann", "password": "correct horse", "next": "/letters"}
                page = await client.post("/sign-in", data=fields, headers={"Origin": found[0]})
                assert (page.status_code, page.url.path) == (200, "/letters")
                assert "/act?act=letters.replay" in page.text
                assert "https://grafana.example/d/bus" in (await client.get("/throughput")).text
                client.cookies.clear()
                assert await tries(client, found[0], "9.9.9.1") == [403] * 5 + [429]
                assert await tries(client, found[0], "9.9.9.2", 1) == [403], "the proxy told of somebody else"
        finally:
            program.send_signal(signal.SIGTERM)
        assert program.wait(10) in (0, -signal.SIGTERM)


async def test_a_proxy_signs_in_and_a_file_has_the_roles(troubled: tuple[CommandBus, Shop], tmp_path: Path) -> None:
    bus, _ = troubled
    roles = tmp_path / "roles.toml"
    roles.write_text('["ann@shop.example"]\nrole = "operator"\n')
    command = [sys.executable, "-m", "command_bus", "dashboard", "--port", "0", "--users", str(roles), "--url", bus.url]
    command += ["--proxy-header", "X-Forwarded-Email", "--name", "ops.example", "-n", bus.settings.namespace]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as program:
        try:
            assert program.stderr is not None
            found = re.search(r"http://\S+", program.stderr.readline())
            assert found is not None
            async with httpx.AsyncClient(base_url=found[0], trust_env=False) as client:
                assert (await client.get("/healthz")).text == "live\n"
                assert (await client.get("/")).status_code == 421
                named = {"Host": "ops.example"}
                assert (await client.get("/", headers=named)).status_code == 403
                for email, may in (("ann@shop.example", True), ("bob@shop.example", False)):
                    page = await client.get(
                        "/letters", headers={**named, "X-Forwarded-Email": email, "X-Forwarded-For": "9.9.9.9"}
                    )
                    assert (page.status_code, "/act?act=letters.replay" in page.text) == (200, may)
        finally:
            program.send_signal(signal.SIGTERM)
        assert program.wait(10) in (0, -signal.SIGTERM)


async def tries(client: httpx.AsyncClient, origin: str, source: str, times: int = 6) -> list[int]:
    """Return the answers to wrong passwords that a proxy passes on from an address."""
    headers = {"Origin": origin, "X-Forwarded-For": f"6.6.6.6, {source}"}
    wrong = {"name": "ann", "password": "wrong password"}
    return [(await client.post("/sign-in", data=wrong, headers=headers)).status_code for _ in range(times)]


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("--host", "0.0.0.0"), "give --users FILE or --proxy-header NAME"),
        (("--users", "none.toml"), "cannot be read"),
        (("--users", "none.toml", "--proxy-header", "X-User"), "cannot be read"),
        (("--proxy-header", "X-User", "--proxy", "my-proxy"), "addresses or networks"),
        (("--users", "a.toml", "--proxy", "my-proxy"), "addresses or networks"),
        (("--grafana", "javascript:alert(1)"), "an address as https"),
        (("--traces", "https://jaeger.example/"), "with {trace_id} in it"),
    ],
)
async def test_160_it_starts_for_nobody_without_users(tmp_path: Path, arguments: tuple[str, ...], advice: str) -> None:
    done = run_program("dashboard", *arguments, "--url", "redis://127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 2
    assert advice in done.stderr
    assert "Traceback" not in done.stderr


async def test_a_taken_port_is_told_of(troubled: tuple[CommandBus, Shop]) -> None:
    import socket

    bus, _ = troubled
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run_program("dashboard", "--port", port, "--url", bus.url, "-n", bus.settings.namespace)
    assert (done.returncode, f"port {port}" in done.stderr) == (2, True)


async def test_a_password_becomes_a_hash() -> None:
    done = run_program("password", given="correct horse\n")
    assert is_password("correct horse", done.stdout.strip())
    short = run_program("password", given="short\n")
    assert (short.returncode, "at least 10" in short.stderr) == (2, True)


async def test_the_audit_log_is_told_on_the_command_line(troubled: tuple[CommandBus, Shop]) -> None:
    bus, _ = troubled
    where = ("--url", bus.url, "-n", bus.settings.namespace)
    assert "nothing was done yet" in run_program("audit", *where).stdout
    for number in range(3):
        begun = await bus.audit.write("ann", "Pause", f"account:a-{number}", "a dispute", details="2 held, for an hour")
        await bus.audit.write("ann", "Pause", f"account:a-{number}", "a dispute", outcome=f"done \x1b {number}", ref=begun)
    await bus.audit.write("bob", "Purge", "account:a-9", "a mistake")
    printed = run_program("audit", "--limit", "2", *where)
    assert printed.returncode == 0
    assert "begun" in printed.stdout
    assert "done" in printed.stdout
    assert "\x1b" not in printed.stdout
    assert "account:a-0" not in printed.stdout
    assert "the last 2; there are more" in printed.stdout
    every = run_program("audit", *where).stdout
    assert every.count("ann") == 3
    assert "there are more" not in every
