"""The quickstart, followed to the letter: its files, its commands, in two processes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command_bus.embedded import EmbeddedServer

ROOT = Path(__file__).parents[2]
_FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_quickstart_ends_reconciled(tmp_path: Path, server: EmbeddedServer) -> None:
    text = (ROOT / "docs" / "spark-quickstart.md").read_text()
    for name, content in _FILE.findall(text):
        (tmp_path / name).write_text(content)
    environment = {
        **os.environ,
        "COMMAND_BUS_URL": server.url,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)]),
        # No environment is activated: the first python3 on PATH has nothing of this.
        "PATH": os.pathsep.join([os.defpath, *(str(Path(java).parent) for java in [shutil.which("java")] if java)]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.pop("PYSPARK_PYTHON", None)
    worker = subprocess.Popen(
        [sys.executable, "-m", "command_bus", "worker", "shop:bus"], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL
    )
    try:
        runs = [
            subprocess.run(
                [sys.executable, "pipeline.py"],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=150,
                check=False,
            )
            for _ in range(2)
        ]
    finally:
        worker.terminate()
        worker.wait(30)
    for run in runs:
        assert run.returncode == 0, run.stdout + run.stderr
        assert "1,000 rows, 800 commands for 16 entities, 200 rows rejected" in run.stdout
        assert "Input should be greater than 0" in run.stdout
        assert "sold_out" in run.stdout
        assert re.search(r"missing\W+0\b", run.stdout), run.stdout
        assert re.search(r"out_of_order\W+0\b", run.stdout), run.stdout
    assert "already committed" in runs[1].stdout
    assert list((tmp_path / "reconciliation").glob("*.html"))
