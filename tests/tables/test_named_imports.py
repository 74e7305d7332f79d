"""Carries out the table of `named_imports.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from command_bus.errors import InvalidSettings
from command_bus.spark.writing.named_imports import checked_mapper, import_named, may_import
from tests.tables.named_imports import HERE, NAMES, TOLD

ODD = (InvalidSettings, ImportError, AttributeError, ValueError)


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("name", NAMES)
def test_187_only_what_was_allowed_is_a_mapper(name: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in TOLD[told].items():
        monkeypatch.setenv(variable, value)
    module, _, attribute = name.partition(":")
    try:
        found = checked_mapper(name, import_named(module, attribute))
    except ODD:
        found = None
    assert (found is not None) is (told in NAMES[name])


def test_a_module_that_is_not_allowed_does_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not for the command, nor for the message that says why there is none."""
    pytest.importorskip("pyarrow")
    from command_bus.spark.options import WriteOptions
    from command_bus.spark.writing.command_lookup import command_mappings, mapper_of

    (tmp_path / "hostile.py").write_text(f"open({str(tmp_path / 'it-ran')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COMMAND_BUS_SPARK_PICKLE", "no")
    monkeypatch.setenv("COMMAND_BUS_SPARK_PACKAGES", HERE)
    options = WriteOptions.parse({"url": "redis://x", "namespace": "shop", "dispatchId": "d", "command": "hostile:Deposit"})
    with pytest.raises(InvalidSettings, match="COMMAND_BUS_SPARK_PACKAGES"):
        command_mappings(options, ["account"])
    with pytest.raises(InvalidSettings, match="COMMAND_BUS_SPARK_PACKAGES"):
        mapper_of("hostile:deposit")
    assert "hostile" not in sys.modules
    assert not (tmp_path / "it-ran").exists()
    options = WriteOptions.parse({"url": "redis://x", "namespace": "shop", "dispatchId": "d", "command": f"{HERE}:Deposit"})
    assert set(command_mappings(options, ["account"])) == {"Deposit"}
    assert mapper_of(f"{HERE}:deposit")({"account": "a"}).spec().name == "Deposit"


def test_a_package_is_told_by_its_whole_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMAND_BUS_SPARK_PICKLE", "no")
    monkeypatch.setenv("COMMAND_BUS_SPARK_PACKAGES", "shop,,a.b")
    assert [each for each in ("shop", "shop.x", "shopping", "a", "a.b", "a.b.c", "a.bc", "") if may_import(each)] == [
        "shop",
        "shop.x",
        "a.b",
        "a.b.c",
    ]
