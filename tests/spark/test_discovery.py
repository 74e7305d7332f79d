"""Spark's own lookup finds the data source through `pyspark_command_bus`, whatever other sources are installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import io, json
from pyspark.serializers import CPickleSerializer, read_int
from pyspark.sql.worker.lookup_data_sources import _main
answer = io.BytesIO()
_main(io.BytesIO(), answer)  # asks for nothing; the JVM reads the answer
answer.seek(0)
found = {}
for _ in range(read_int(answer)):
    name = answer.read(read_int(answer)).decode()
    source = CPickleSerializer().loads(answer.read(read_int(answer)))
    found[name] = f"{source.__module__}.{source.__qualname__}"
print(json.dumps(found))
"""


def test_the_source_is_found(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "integrations" / "pyspark_command_bus")])
    run = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["command_bus"] == "command_bus.spark.source.CommandBusSource"
