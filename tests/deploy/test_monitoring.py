"""Alerts, dashboard and scaling by Prometheus: they ask for metrics that there are, by labels that these have, and name commands that exist."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")
pytest.importorskip("typer")

import typer
from prometheus_client.parser import text_string_to_metric_families

from command_bus import Command, CommandBus, HandlerRegistry
from command_bus.cli.app import app
from command_bus.notifications import NotificationFigures
from command_bus.observer import ExportFigures, RelayFigures
from command_bus.serialization.odd_values import pass_over
from command_bus.telemetry.metrics import PrometheusMetrics

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/alerts.yaml"
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text(encoding="utf-8"))
SCALED = yaml.safe_load((ROOT / "deploy/kubernetes/scaledobject-prometheus.yaml").read_text(encoding="utf-8"))

PROMETHEUS_OWN = {"job", "instance"}  # labels that it puts on whatever it scrapes
_METRIC = re.compile(r"\bcommand_bus_\w+")
_SELECTED = re.compile(r"(command_bus_\w+)\{([^}]*)\}")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"([^\"]*)\"")
_GROUPED = re.compile(r"\bby \(([^)]*)\)")
_COMMAND = re.compile(r"`command-bus ([^`]+)`")


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Return every expression, by what it is for."""
    for alert in ALERTS:
        yield alert["alert"], alert["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield f"${variable['name']}", variable["definition"]
    for trigger in SCALED["spec"]["triggers"]:
        yield "keda", trigger["metadata"]["query"]


every_expression = pytest.mark.parametrize(
    "expression", [expression for _, expression in expressions()], ids=[name for name, _ in expressions()]
)


BY_PRIORITY = {"command_bus_namespace_line_entities", "command_bus_namespace_starts_total"}
"""There once priorities are used: for autoscalers, and panels of one's own."""


class Work(Command[None]):
    number: int


@pytest.fixture(scope="module")
def exposed() -> dict[str, set[str]]:
    """Return the labels of each metric, from an exposition in which everything has happened once."""
    metrics = PrometheusMetrics()
    metrics.dispatched("Work", "accepted")
    metrics.called("Work", "replied", 0.1)
    metrics.handled("Work", "completed")
    metrics.ran("Work", 0.1)
    metrics.waited("Work", 0.1)
    metrics.retried("Work", "OSError")
    metrics.dead_lettered("Work", "failed")
    metrics.outward.notifies(NotificationFigures)
    metrics.outward.relays(lambda: RelayFigures(1, 0, 0, 1, 0, 0.1, working=True))
    metrics.outward.exports(lambda: ExportFigures(1, 1, 0, 0.1))
    metrics.outward.posted("crm", "delivered")
    metrics.outward.lost_events("crm")
    pass_over("due", "x", "is odd")

    async def ask() -> None:
        async with CommandBus.in_memory(registry=HandlerRegistry()) as bus:
            await bus.dispatch(Work(number=1), priority="high")
            await metrics.refresh(bus)

    asyncio.run(ask())
    return {
        sample.name: {*sample.labels}
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
    }


@every_expression
def test_there_are_these_metrics_with_these_labels(expression: str, exposed: dict[str, set[str]]) -> None:
    used = _METRIC.findall(expression)
    assert used
    assert {*used} <= exposed.keys()
    for metric, matchers in _SELECTED.findall(expression):
        assert {label for label, _ in _MATCHER.findall(matchers)} <= exposed[metric] | PROMETHEUS_OWN
    common = set.intersection(*(exposed[metric] for metric in used)) | PROMETHEUS_OWN
    for labels in _GROUPED.findall(expression):
        assert {label.strip() for label in labels.split(",")} <= common


@every_expression
def test_it_matches_values_that_there_are(expression: str) -> None:
    page = (ROOT / "docs/observability.md").read_text(encoding="utf-8")
    for _, value in _MATCHER.findall(expression):
        if not value.startswith("$") and value != "command_bus":
            assert all(f"`{each}`" in page for each in value.split("|")), value


@every_expression
def test_what_every_process_shows_alike_is_never_summed(expression: str) -> None:
    assert not re.search(r"\b(sum|avg|count)\b[^(]*(\([^)]*\)\s*)?\(command_bus_namespace_", expression)
    assert expression.count("command_bus_namespace_") == len(
        re.findall(r"(?:max(?: by \(namespace\))? |max|absent|label_values)\(command_bus_namespace_", expression)
    )


@every_expression
def test_it_is_promql(expression: str) -> None:
    parser = pytest.importorskip("promql_parser")
    if not expression.startswith("label_values"):
        parser.parse(expression.replace("$__rate_interval", "5m"))


def test_the_rules_are_rules() -> None:
    names = [alert["alert"] for alert in ALERTS]
    assert len({*names}) == len(names)
    for alert in ALERTS:
        assert alert.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[mh]", alert.get("for", "0m"))
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert {*alert["annotations"]} == {"summary", "description", "runbook_url"}


def test_promtool_has_nothing_to_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on PATH")
    done = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_what_to_run_next(alert: dict[str, Any]) -> None:
    text = " ".join(alert["annotations"].values())
    given = {label for labels in _GROUPED.findall(alert["expr"]) for label in labels.replace(" ", "").split(",")}
    assert {*re.findall(r"\$labels\.(\w+)", text)} <= given
    commands = _COMMAND.findall(alert["annotations"]["description"])
    assert commands
    for line in commands:
        check(shlex.split(re.sub(r"\{\{.*?\}\}", "X", line)))


def test_every_alert_leads_to_its_section_of_the_runbook() -> None:
    page = (ROOT / "docs/runbook.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (CommandBus\w+)$", page, re.MULTILINE)
    assert sorted(sections) == sorted(alert["alert"] for alert in ALERTS)
    for alert in ALERTS:
        address, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert (address.endswith("/runbook/"), anchor) == (True, alert["alert"].lower()), alert["alert"]


def check(words: list[str]) -> None:
    """Check that the program has this command with these options and as many arguments; their values may be any."""
    found: Any = typer.main.get_command(app)
    while words and (below := getattr(found, "commands", {}).get(words[0])) is not None:
        found, words = below, words[1:]
    assert not hasattr(found, "commands"), words
    found.make_context(found.name, list(words), resilient_parsing=False)


def test_the_check_of_commands_can_fail() -> None:
    for line in ("stat", "entities --stat parked", "entities --state parkd", "dlq lists", "entity"):
        with pytest.raises((AssertionError, Exception)):
            check(line.split())


def test_the_dashboard_fits_together() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    for name, expression in expressions():
        assert {*re.findall(r"\$\{?(\w+)", expression)} <= names, name
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells
    for panel in panels():
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        for target in panel["targets"]:
            shown = {*re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])}
            assert shown <= {each for labels in _GROUPED.findall(target["expr"]) for each in labels.replace(" ", "").split(",")}


def test_every_metric_is_on_the_dashboard(exposed: dict[str, set[str]]) -> None:
    shown = {metric for panel in panels() for target in panel["targets"] for metric in _METRIC.findall(target["expr"])}
    families = {re.sub(r"_(count|sum)$", "_bucket", name) for name in exposed if not name.endswith("_created")}
    assert families - BY_PRIORITY == shown


def test_every_documented_metric_has_happened(exposed: dict[str, set[str]]) -> None:
    """Else the dashboard need not have it."""
    page = (ROOT / "docs/observability.md").read_text(encoding="utf-8")
    documented = {*re.findall(r"^\| `(command_bus_\w+)`", page, re.MULTILINE)}
    assert len(documented) > 15
    assert documented <= {re.sub(r"_(count|sum|bucket)$", "", name) for name in exposed}
