"""The example in deploy/example: its files fit each other, and its programs run as processes: requests in, metrics out."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from command_bus.embedded import EmbeddedServer

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "deploy" / "example"


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


COMPOSE = loaded(EXAMPLE / "compose.yaml")
SERVICES = COMPOSE["services"]
PROMETHEUS = loaded(EXAMPLE / "prometheus.yaml")


def test_compose_knows_it() -> None:
    schemas = pytest.importorskip("jsonschema")
    pytest.importorskip("check_jsonschema")
    schema = files("check_jsonschema").joinpath("builtin_schemas", "vendor", "compose-spec.json").read_text(encoding="utf-8")
    schemas.validate(COMPOSE, json.loads(schema))


def test_what_it_refers_to_is_there() -> None:
    for service in SERVICES.values():
        if "extends" in service:
            base = loaded(EXAMPLE / service["extends"]["file"])
            assert service["extends"]["service"] in base["services"]
        if "build" in service:
            assert (EXAMPLE / service["build"]["context"]).resolve() == ROOT
            assert (ROOT / service["build"]["dockerfile"]).exists()
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (EXAMPLE / source).exists(), volume


def test_prometheus_asks_the_workers_and_has_the_alerts_and_grafana_asks_it() -> None:
    [job] = PROMETHEUS["scrape_configs"]
    [targets] = job["dns_sd_configs"]
    words = SERVICES["worker"]["command"]
    assert targets["names"] == ["worker"]
    assert str(targets["port"]) == words[words.index("--health-port") + 1]
    mounted = {each.split(":")[1]: each.split(":")[0] for each in SERVICES["prometheus"]["volumes"]}
    assert [mounted[rules] for rules in PROMETHEUS["rule_files"]] == ["../prometheus/alerts.yaml"]
    [source] = loaded(EXAMPLE / "grafana" / "datasource.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    [provider] = loaded(EXAMPLE / "grafana" / "dashboards.yaml")["providers"]
    shown = {Path(each.split(":")[1]).parent.as_posix(): each.split(":")[0] for each in SERVICES["grafana"]["volumes"]}
    assert shown[provider["options"]["path"]] == "../grafana/dashboard.json"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def asked(url: str, body: Any = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data=data, headers={"content-type": "application/json"})
    with urlopen(request, timeout=15) as answer:
        text: str = answer.read().decode()
    return text


def eventually(ask: Callable[[], str | None], what: str) -> str:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if found := ask():
                return found
        except OSError:  # not up yet
            pass
        time.sleep(0.05)
    raise AssertionError(what)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Start a program of the example on a server of this test's, which keeps its data; return its log."""
    server = EmbeddedServer.start(persistence=tmp_path / "data")
    processes: list[subprocess.Popen[bytes]] = []
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "COMMAND_BUS_URL": server.url, "ACCOUNTS_DB": str(tmp_path / "accounts.db"),
    }  # fmt: skip

    def started(name: str, *words: str) -> Path:
        log = tmp_path / f"{name}.log"
        with log.open("wb") as out:
            processes.append(subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT, env=environment, stdout=out, stderr=out))
        return log

    yield started
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(30)
    server.stop()


@pytest.mark.server
def test_web_and_worker_do_what_the_first_lines_promise_and_metrics_tell_of_it(start: Callable[..., Path]) -> None:
    for needed in ("uvicorn", "fastapi", "prometheus_client", "typer"):
        pytest.importorskip(needed)
    port, account = free_port(), f"a-{secrets.token_hex(4)}"
    command = [*SERVICES["worker"]["command"]]
    command[command.index("--health-port") + 1] = "0"
    log = start("worker", "command_bus", *command)
    start("web", "uvicorn", SERVICES["web"]["command"][0], "--port", str(port))
    health = eventually(lambda: (re.findall(r"health on port (\d+)", log.read_text()) or [None])[0], "the worker has no port")
    eventually(lambda: asked(f"http://127.0.0.1:{health}/readyz"), "the worker is not ready")
    web = f"http://127.0.0.1:{port}/accounts/{account}"
    accepted = json.loads(eventually(lambda: asked(f"{web}/deposits", {"amount": 5}), "the web does not answer"))
    assert accepted["status"] == "accepted"
    assert json.loads(asked(web)) == {"balance": 5}
    told = asked(f"http://127.0.0.1:{health}/metrics")
    assert re.search(
        r'^command_bus_commands_handled_total\{[^}]*command="Deposit"[^}]*outcome="completed"[^}]*\} [1-9]', told, re.MULTILINE
    )
    assert "command_bus_namespace_depth" in told
