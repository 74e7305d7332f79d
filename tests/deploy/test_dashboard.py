"""The dashboard in deploy/: its files are valid, fit each other and the program, and its proxy is what stands before it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("httpx")
pytest.importorskip("jinja2")
pytest.importorskip("starlette")

import httpx
import typer

from command_bus import CommandBus
from command_bus.cli.app import app
from command_bus.dashboard.passwords import read_roles
from command_bus.embedded import EmbeddedServer
from tests.dashboard.test_users import HASHED

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BASE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((DEPLOY / "compose-dashboard.yaml").read_text(encoding="utf-8"))
CADDYFILE = DEPLOY / "caddy/Caddyfile"
DOCUMENTS = [*yaml.safe_load_all((DEPLOY / "kubernetes/dashboard.yaml").read_text(encoding="utf-8"))]
ROLES, DEPLOYMENT, SERVICE, INGRESS, POLICY = DOCUMENTS
POD = DEPLOYMENT["spec"]["template"]["spec"]
DASHBOARD, SIGN_IN = POD["containers"]
CADDY = shutil.which("caddy")


def options(arguments: list[str]) -> dict[str, str]:
    return dict(each.removeprefix("--").split("=", 1) for each in arguments if each.startswith("--"))


HERE, THERE, PROXY = options(COMPOSE["services"]["dashboard"]["command"]), options(DASHBOARD["args"]), options(SIGN_IN["args"])


@pytest.mark.parametrize("given", [HERE, THERE], ids=["compose", "kubernetes"])
def test_the_program_has_these_options(given: dict[str, str]) -> None:
    found: Any = typer.main.get_command(app)
    command = found.commands["dashboard"]
    assert command.make_context("dashboard", [f"--{name}={value}" for name, value in given.items()])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each["kind"])
def test_kubernetes_knows_it(document: dict[str, Any]) -> None:
    pytest.importorskip("kubernetes_validate").validate(document, "1.33", strict=True)


def test_compose_knows_it_together_with_the_other_file() -> None:
    schemas = pytest.importorskip("jsonschema")
    pytest.importorskip("check_jsonschema")
    schema = files("check_jsonschema").joinpath("builtin_schemas", "vendor", "compose-spec.json").read_text(encoding="utf-8")
    schemas.validate(COMPOSE, json.loads(schema))
    assert not COMPOSE["services"].keys() & BASE["services"].keys()
    assert COMPOSE["services"]["dashboard"]["depends_on"].keys() <= BASE["services"].keys()


def test_the_proxy_alone_reaches_the_dashboard() -> None:
    here, proxy = COMPOSE["services"]["dashboard"], COMPOSE["services"]["proxy"]
    assert "ports" not in here
    assert [port.split(":")[0] for port in proxy["ports"]] == ["127.0.0.1"]
    assert set(here["networks"]) & set(proxy["networks"]) == {"front"}
    assert [each["subnet"] for each in COMPOSE["networks"]["front"]["ipam"]["config"]] == [HERE["proxy"]]
    assert f"dashboard:{HERE['port']}" in CADDYFILE.read_text(encoding="utf-8")
    assert THERE["host"] == "127.0.0.1"
    assert PROXY["upstream"] == f"http://127.0.0.1:{THERE['port']}"
    assert "ports" not in DASHBOARD


def test_the_parts_fit_together() -> None:
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert (
        labels
        == DEPLOYMENT["spec"]["selector"]["matchLabels"]
        == SERVICE["spec"]["selector"]
        == POLICY["spec"]["podSelector"]["matchLabels"]
    )
    (port,) = SIGN_IN["ports"]
    assert PROXY["http-address"] == f"0.0.0.0:{port['containerPort']}"
    assert [port["name"]] == [each["targetPort"] for each in SERVICE["spec"]["ports"]]
    assert POLICY["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": port["name"]}]
    (rule,) = INGRESS["spec"]["rules"]
    assert [THERE["name"]] == INGRESS["spec"]["tls"][0]["hosts"] == [rule["host"]]
    assert PROXY["redirect-url"] == f"https://{rule['host']}/oauth2/callback"
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert (backend["name"], backend["port"]["name"]) == (SERVICE["metadata"]["name"], SERVICE["spec"]["ports"][0]["name"])
    for probe in (DASHBOARD["livenessProbe"]["exec"]["command"], COMPOSE["services"]["dashboard"]["healthcheck"]["test"]):
        assert f"http://127.0.0.1:{THERE['port']}/healthz" in probe[-1]
    board = json.loads((DEPLOY / "grafana/dashboard.json").read_text(encoding="utf-8"))
    assert THERE["grafana"].endswith(f"/d/{board['uid']}")


def test_the_roles_are_a_file_that_the_program_reads(tmp_path: Path) -> None:
    (name, text) = next(iter(ROLES["data"].items()))
    (tmp_path / name).write_text(text, encoding="utf-8")
    domain = PROXY["email-domain"]
    assert {email.partition("@")[2] for email in read_roles(tmp_path / name)} == {domain}
    assert THERE["role"] == "viewer"
    assert PROXY["pass-user-headers"] == PROXY["skip-auth-strip-headers"] == "true"
    assert THERE["proxy-header"] == "X-Forwarded-Email"
    (volume,) = DASHBOARD["volumeMounts"]
    assert THERE["users"] == f"{volume['mountPath']}/{name}"


def test_containers_have_no_more_rights_than_they_need() -> None:
    assert POD["automountServiceAccountToken"] is False
    assert POD["securityContext"]["runAsNonRoot"] is True
    for container in POD["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    for name, service in COMPOSE["services"].items():
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"]), name


def test_no_secret_is_in_a_file() -> None:
    for container in POD["containers"]:
        assert all("secretKeyRef" in each["valueFrom"] for each in container["env"])
    assert COMPOSE["services"]["dashboard"]["environment"]["COMMAND_BUS_DASHBOARD_SECRET"].startswith("${")


def test_its_image_has_the_extra() -> None:
    extras = re.search(r"command-bus\[([a-z,]+)\]", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    assert extras is not None
    assert "dashboard" in extras[1].split(",")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def running(command: list[str], log: Path, **environment: str) -> Iterator[None]:
    """Run a program; show what it said if the test fails."""
    with log.open("wb") as said, subprocess.Popen(command, stderr=said, cwd=ROOT, env={**os.environ, **environment}) as program:
        try:
            yield
        except BaseException:
            print(log.read_text(encoding="utf-8", errors="replace"))
            raise
        finally:
            program.send_signal(signal.SIGTERM)


class Local(httpx.AsyncHTTPTransport):
    """Finds every name on this machine."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions["sni_hostname"] = request.url.host
        request.url = request.url.copy_with(host="127.0.0.1")
        return await super().handle_async_request(request)


async def until_it_answers(client: httpx.AsyncClient) -> httpx.Response:
    async with asyncio.timeout(20):
        while True:
            try:
                answer = await client.get("/sign-in")
            except httpx.TransportError:
                answer = httpx.Response(502)
            if answer.status_code != 502:
                return answer
            await asyncio.sleep(0.1)


@contextmanager
def served(url: str, folder: Path) -> Iterator[str]:
    """Serve the dashboard of a bus behind Caddy as its file configures it; yield the address."""
    users, caddyfile = folder / "users.toml", folder / "Caddyfile"
    users.write_text(f'[ann]\npassword = "{HASHED}"\nrole = "operator"\n')
    port, secure = free_port(), free_port()
    ports = f"{{\n\tadmin off\n\thttps_port {secure}\n\thttp_port {free_port()}"
    caddyfile.write_text(CADDYFILE.read_text(encoding="utf-8").replace("\n{\n", f"\n{ports}\n", 1))
    program = [
        sys.executable,
        "-m",
        "command_bus",
        "dashboard",
        "--port",
        str(port),
        "--users",
        str(users),
        "--proxy",
        "127.0.0.1",
    ]
    proxy = [str(CADDY), "run", "--config", str(caddyfile), "--adapter", "caddyfile"]
    home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (
        running([*program, "--name", "ops.localhost", "--url", url, "-n", "caddy"], folder / "dashboard.log"),
        running(proxy, folder / "caddy.log", DASHBOARD=f"127.0.0.1:{port}", **home),
    ):
        yield f"https://ops.localhost:{secure}"


@pytest.mark.server
@pytest.mark.skipif(CADDY is None, reason="there is no caddy: apt-get install caddy")
async def test_people_sign_in_through_caddy(tmp_path: Path) -> None:
    with EmbeddedServer.start() as server:
        async with CommandBus(server.url, namespace="caddy"):
            pass  # the program serves no bus that never was
        with served(server.url, tmp_path) as origin:
            async with httpx.AsyncClient(base_url=origin, transport=Local(verify=False)) as client:
                assert "max-age" in (await until_it_answers(client)).headers["strict-transport-security"]
                fields = {"name": "ann", "password": "correct horse"}
                right = await client.post("/sign-in", data=fields, headers={"Origin": origin})
                assert (right.status_code, right.headers["location"]) == (303, "/")
                assert "Secure" in right.headers["set-cookie"]
                wrong = {"name": "ann", "password": "wrong password"}
                spoofed = [{"Origin": origin, "X-Forwarded-For": f"9.9.9.{number}"} for number in range(6)]
                answers = [(await client.post("/sign-in", data=wrong, headers=each)).status_code for each in spoofed]
                assert answers == [403] * 5 + [429], "what a client says of its address is not believed"
