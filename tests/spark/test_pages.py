"""The code of the page on Spark, and of the README's lines on it, runs as it stands: one session, one worker, one server."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from command_bus import Command, EntityId, HandlerRegistry
from command_bus.embedded import EmbeddedServer
from command_bus.registry import default_registry
from command_bus.spark import register
from tests.spark.conftest import ROOT
from tests.spark.scene import Place, working

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BLOCK = re.compile(r"^```(python|sql)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_README = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHOP = re.compile(r"^```python\n# shop\.py\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"print\(.*\)  # (.+)")
_URL, _FOLDER = "redis://localhost:6379", "/data/orders"

registry = HandlerRegistry()


class Ship(Command[None], entity="order"):
    """What the README dispatches."""

    order_id: EntityId
    seq: int


@registry.handles(Ship)
async def ship(_: Ship) -> None:
    """Done."""


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[HandlerRegistry]:
    """The quickstart's `shop.py`, where this process and executors can import it; the handlers in it."""
    (source,) = _SHOP.findall((ROOT / "docs" / "spark-quickstart.md").read_text(encoding="utf-8"))
    (tmp_path / "shop.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    spark.sparkContext.addPyFile(str(tmp_path / "shop.py"))
    register(spark)  # the format's own processes find what was there when it was made known
    import_module("shop")
    assert default_registry.names() == ("shop.take",)
    yield default_registry
    default_registry.clear()


@pytest.mark.timeout(300)
def test_the_page_on_spark(
    spark: SparkSession, shop: HandlerRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}  # what is defined there is sent along, as from a notebook
    with EmbeddedServer.start(tcp=True) as server, working(Place(server.url, "shop"), shop):
        for block in _BLOCK.finditer(text):
            line = text[: block.start()].count("\n") + 1
            source = block[2].replace(_URL, server.url).replace(_FOLDER, str(tmp_path / "orders"))
            if block[1] == "sql":
                names["rows"].createOrReplaceTempView("rows")
                for statement in filter(str.strip, source.split(";")):
                    spark.sql(statement)
                continue
            exec(compile("\n" * line + source, "docs/spark.md", "exec", dont_inherit=True), names)
            said = [
                each
                for each in capsys.readouterr().out.splitlines()
                if each and each[0] not in "+|" and not each.startswith("only ")
            ]
            assert said == _PRINTED.findall(block[2]), f"line {line}"
        sent = {name: names["dispatch_report"](names["rows"], name, **names["place"]).added for name in ("orders-2", "orders-3")}
    assert sent == {"orders-2": 80, "orders-3": 80}


def test_the_lines_of_the_readme(
    spark: SparkSession, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from command_bus.spark import dispatch_dataframe, reconcile

    place = Place(server.url)
    monkeypatch.setenv("COMMAND_BUS_URL", place.url)
    monkeypatch.setenv("COMMAND_BUS_NAMESPACE", place.namespace)
    (source,) = _README.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    orders = spark.range(20).selectExpr("concat('o-', id) as order_id", "id as seq")
    names = {"orders": orders, "Ship": Ship, "dispatch_dataframe": dispatch_dataframe, "reconcile": reconcile}
    with working(place, registry):
        exec(compile(source, "README.md", "exec", dont_inherit=True), names)
    assert re.search(r"completed\W+20\b", capsys.readouterr().out)
