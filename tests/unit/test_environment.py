"""Unknown variables with the prefix of settings: reported with a suggestion, and never refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from command_bus import CommandBus, HandlerRegistry
from command_bus.embedded import URL_VARIABLE
from command_bus.settings import UnknownVariable, unknown_variables

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (".md", ".py", ".yaml", ".yml", ".sh", ".toml", ".service", ".env", ".conf")
WRONG_ON_PURPOSE: list[tuple[str, str | None]] = []


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("COMMAND_BUS_CONCURENCY", "COMMAND_BUS_CONCURENCY is no setting and is not read; did you mean COMMAND_BUS_CONCURRENCY?"),
        ("command_bus_leese", "command_bus_leese is no setting and is not read; did you mean COMMAND_BUS_LEASE?"),
        (
            "COMMAND_BUS_ENTITYS__ORDER__MAX_DEPTH",
            "COMMAND_BUS_ENTITYS__ORDER__MAX_DEPTH is no setting and is not read; did you mean COMMAND_BUS_ENTITIES__ORDER__MAX_DEPTH?",
        ),
        ("COMMAND_BUS_WORKERS", "COMMAND_BUS_WORKERS is no setting and is not read"),
    ],
)
def test_a_misspelt_variable_is_reported(variable: str, told: str) -> None:
    assert [str(each) for each in unknown_variables(["PATH", variable])] == [told]


@pytest.mark.parametrize(
    "variable",
    [
        "COMMAND_BUS_LEASE", "command_bus_lease", "COMMAND_BUS_ENTITIES__ORDER__MAX_DEPTH", "COMMAND_BUS_SIGNING_KEYS__K1", "LEESE",
        "COMMANDBUS_LEESE", URL_VARIABLE, "COMMAND_BUS_EMBEDDED_DIR", "COMMAND_BUS_TEST_SERVER", "COMMAND_BUS_PORT",
        "COMMAND_BUS_SERVICE_HOST", "COMMAND_BUS_SERVICE_PORT_REDIS", "COMMAND_BUS_PORT_6379_TCP", "COMMAND_BUS_REDIS_PORT_6379_TCP_ADDR",
    ],
)  # fmt: skip
def test_variables_of_other_programs_are_ignored(variable: str) -> None:
    assert unknown_variables([variable]) == []


def test_every_variable_that_our_programs_read_is_known() -> None:
    texts = [path.read_text() for path in (ROOT / "command_bus").rglob("*.py")] + [
        path.read_text()
        for folder in ("deploy", "docs", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SOURCES
    ]
    named = {name for text in texts for name in re.findall(r"COMMAND_BUS_[A-Z][A-Z_]*[A-Z]", text)}
    assert len(named) > 15
    assert [str(each) for each in unknown_variables(named)] == [str(UnknownVariable(*each)) for each in WRONG_ON_PURPOSE]


async def test_a_worker_warns_of_a_misspelt_variable(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("fakeredis")
    monkeypatch.setenv("COMMAND_BUS_CONCURENCY", "5")
    async with CommandBus.in_memory(registry=HandlerRegistry()) as bus, bus.worker():
        pass
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "COMMAND_BUS_CONCURENCY is no setting and is not read; did you mean COMMAND_BUS_CONCURRENCY?"
    ]
