"""The code of the page on Spark, and of the README's lines on it, runs as it is: one session, one worker, one server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from command_bus import HandlerRegistry
from command_bus.embedded import EmbeddedServer
from command_bus.handlers.registry import default_registry
from command_bus.spark import register
from tests.docs.examples import blocks, files, printed
from tests.spark.conftest import ROOT
from tests.spark.trucks import Namespace, working

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BLOCK = re.compile(r"^```(python|sql)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHOP = re.compile(r"^```python\n# shop\.py\n(.*?)^```", re.MULTILINE | re.DOTALL)
_URL, _FOLDER = "redis://localhost:6379", "/data/orders"


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[HandlerRegistry]:
    """Write the quickstart's `shop.py` where this process and executors can import it, and return its handlers."""
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


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page_on_spark(
    spark: SparkSession, shop: HandlerRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}  # what is defined there is sent along, as from a notebook
    with EmbeddedServer.start(tcp=True) as server, working(Namespace(server.url, "shop"), shop):
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
            assert said == printed(block[2]), f"line {line}"
        sent = {name: names["dispatch_report"](names["rows"], name, **names["place"]).added for name in ("orders-2", "orders-3")}
    assert sent == {"orders-2": 80, "orders-3": 80}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_readme_s_salaries(tmp_path: Path, server: EmbeddedServer) -> None:
    """Two programs, `salaries.py` beside `bank.py`, as a reader has saved them by then."""
    shown = files(blocks((ROOT / "README.md").read_text(encoding="utf-8")))
    for name in ("bank.py", "salaries.py"):
        (tmp_path / name).write_text(shown[name], encoding="utf-8")
    environment = {
        **os.environ,
        "COMMAND_BUS_URL": server.url,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    worker = subprocess.Popen([sys.executable, "-m", "command_bus", "worker", "bank:bus"], cwd=tmp_path, env=environment)
    try:
        command = [sys.executable, "salaries.py"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False)
    finally:
        worker.terminate()
        worker.wait(30)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"completed\W+2\b", done.stdout), done.stdout
