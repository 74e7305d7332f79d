"""The files of the page on Django, in a project: its views through Django's test client, its worker as the management command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from redis import Redis

from command_bus.embedded import EmbeddedServer
from tests.selection import quick

pytest.importorskip("django")

ROOT = Path(__file__).parents[2]
_FILE = re.compile(r'^```python title="([^"]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
_VISIT = """
import django
django.setup()
from django.apps import apps
from django.test import Client
client = Client()
print(client.get("/restock/lamp?pieces=5").json())
answers = [client.get("/order/lamp", headers={"Idempotency-Key": "o-1"}) for _ in range(2)]
print([answer.status_code for answer in answers])
import time
from command_bus.sql.django.models import CommandOutbox
while CommandOutbox.objects.exists():
    time.sleep(0.05)
print(client.get("/restock/lamp?pieces=1").json())
print(client.get("/count/lamp").json())
refused = client.get("/restock/lamp?pieces=101")
print(refused.status_code, refused.json())
bus = apps.get_app_config("shop").bus
bus.dispatch_raw("article", "sofa", "Restock", {"article": "sofa"})
bus.wait_idle(20)
from django.core.management import call_command
call_command("dead_letters")
bus.close()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    page = (ROOT / "docs" / "django.md").read_text(encoding="utf-8")
    for name, text in _FILE.findall(page):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for folder in ("shop", "shop/management", "shop/management/commands"):
        (tmp_path / folder / "__init__.py").touch()
    return tmp_path


@pytest.fixture
def environment(project: Path) -> Iterator[dict[str, str]]:
    with EmbeddedServer.start() as server:
        yield {
            **os.environ,
            "PYTHONPATH": f"{project}{os.pathsep}{ROOT}",
            "COMMAND_BUS_URL": server.url,
            "DJANGO_SETTINGS_MODULE": "site_settings",
        }


def test_django_finds_nothing_wrong(project: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "django", "check", "--fail-level", "WARNING"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.server
@pytest.mark.parametrize(
    "worker",
    quick([("django", "run_worker"), ("command_bus", "worker", "shop.bus:make_bus")], [("django", "run_worker")]),
    ids=lambda words: words[0],
)
def test_views_and_worker(project: Path, environment: dict[str, str], worker: tuple[str, ...]) -> None:
    run([sys.executable, "-m", "django", "migrate", "--verbosity", "0"], project, environment)
    relaying = [sys.executable, "-m", "command_bus", "outbox", "relay", "--namespace", "shop", "--keep", "0.1"]
    relay = subprocess.Popen(relaying, cwd=project, env={**environment, "COMMAND_BUS_DATABASE": "sqlite:///shop.sqlite3"})
    running = subprocess.Popen([sys.executable, "-m", *worker], cwd=project, env=environment)
    try:
        visit = [sys.executable, "-c", _VISIT]
        done = subprocess.run(visit, cwd=project, env=environment, capture_output=True, text=True, timeout=50, check=False)
    finally:
        relay.send_signal(signal.SIGTERM)
        running.send_signal(signal.SIGTERM)
        code, relayed = running.wait(20), relay.wait(20)
    *visits, letter = done.stdout.splitlines() or [""]
    assert visits == ["{'stock': 5}", "[202, 202]", "{'stock': 7}", "{'stock': 7}", "409 {'code': 'too_many'}"], done.stderr
    assert letter.endswith(": Restock of article:sofa, invalid"), letter
    assert (code, relayed) == (0, 0)


def run(command: list[str], project: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_test_that_is_shown(project: Path, environment: dict[str, str]) -> None:
    installed = any(point.value == "command_bus.testing.plugin" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "command_bus.testing.plugin"]
    run([sys.executable, "-m", "django", "migrate", "--verbosity", "0"], project, environment)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, "test_shop.py"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    with Redis.from_url(environment["COMMAND_BUS_URL"]) as client:
        assert client.keys("*") == []
