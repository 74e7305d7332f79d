"""The gateway in deploy/: its files are valid, and fit each other and the program."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("starlette")

import typer

from command_bus.cli.app import app
from tests.deploy.test_dashboard import CADDYFILE, COMPOSE, DEPLOY, options

yaml = pytest.importorskip("yaml")

DOCUMENTS = [*yaml.safe_load_all((DEPLOY / "kubernetes/gateway.yaml").read_text(encoding="utf-8"))]
DEPLOYMENT, SERVICE, INGRESS, POLICY = DOCUMENTS
POD = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
COMPOSED = COMPOSE["services"]["gateway"]
HERE, THERE = options(COMPOSED["command"]), options(CONTAINER["args"])


@pytest.mark.parametrize("given", [HERE, THERE], ids=["compose", "kubernetes"])
def test_the_program_has_these_options(given: dict[str, str]) -> None:
    found: Any = typer.main.get_command(app)
    assert found.commands["serve"].make_context("serve", [f"--{name}={value}" for name, value in given.items()])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each["kind"])
def test_kubernetes_knows_it(document: dict[str, Any]) -> None:
    pytest.importorskip("kubernetes_validate").validate(document, "1.33", strict=True)


def test_compose_has_it_behind_the_proxy_and_only_if_it_is_asked_for() -> None:
    proxy = COMPOSE["services"]["proxy"]
    assert COMPOSED["profiles"] == ["gateway"]
    assert "gateway" not in proxy["depends_on"]
    assert "ports" not in COMPOSED
    assert set(COMPOSED["networks"]) & set(proxy["networks"]) == {"front"}
    assert f"{{$GATEWAY:gateway:{HERE['port']}}}" in CADDYFILE.read_text(encoding="utf-8")
    assert proxy["environment"]["GATEWAY_NAME"] == HERE["name"]
    assert HERE["tokens"] == f"/run/secrets/{COMPOSED['secrets'][0]}"
    assert COMPOSE["secrets"].keys() >= {*COMPOSED["secrets"]}
    assert f"http://127.0.0.1:{HERE['port']}/healthz" in COMPOSED["healthcheck"]["test"][-1]


def test_the_parts_fit_together() -> None:
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert labels == DEPLOYMENT["spec"]["selector"]["matchLabels"]
    assert labels == SERVICE["spec"]["selector"] == POLICY["spec"]["podSelector"]["matchLabels"]
    (port,) = CONTAINER["ports"]
    assert (THERE["host"], THERE["port"]) == ("0.0.0.0", str(port["containerPort"]))
    assert [port["name"]] == [each["targetPort"] for each in SERVICE["spec"]["ports"]]
    assert POLICY["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": port["name"]}]
    for probe in ("livenessProbe", "readinessProbe"):
        assert CONTAINER[probe]["httpGet"] == {"path": "/healthz", "port": port["name"]}
    (rule,) = INGRESS["spec"]["rules"]
    assert [THERE["name"]] == INGRESS["spec"]["tls"][0]["hosts"] == [rule["host"]]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert (backend["name"], backend["port"]["name"]) == (SERVICE["metadata"]["name"], SERVICE["spec"]["ports"][0]["name"])
    (mounted,), (volume,) = CONTAINER["volumeMounts"], POD["volumes"]
    assert (mounted["name"], THERE["tokens"]) == (volume["name"], f"{mounted['mountPath']}/tokens.toml")


def test_it_has_no_more_rights_than_it_needs_and_no_secret_in_a_file() -> None:
    assert POD["automountServiceAccountToken"] is False
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all("secretKeyRef" in each["valueFrom"] for each in CONTAINER["env"])
    assert "secret" in POD["volumes"][0]
    assert COMPOSED["read_only"] is True


def test_its_image_has_the_extra() -> None:
    extras = re.search(r"command-bus\[([a-z,]+)\]", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    assert extras is not None
    assert "gateway" in extras[1].split(",")
