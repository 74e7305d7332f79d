"""Runs `python -m command_bus …` quickly: in processes that are forked from one that has imported it.

Each has an environment, a folder, streams and an exit code of its own, as if it had been started. What starting itself does is tried by
`tests/integration/test_cli.py`.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from select import select
from typing import Any, NoReturn

__all__ = ["run_program"]

ROOT = Path(__file__).resolve().parents[1]
_IMPORTED = ("command_bus.bus", "command_bus.transport.redis.namespace", "command_bus.cli.app")
_origin: subprocess.Popen[str] | None = None


def run_program(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path = ROOT, given: str = "", timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run it to its end. Its standard input is `given`, and no terminal.

    Raises:
        subprocess.TimeoutExpired: It took longer.
    """
    with tempfile.TemporaryDirectory(prefix="command-bus-run-") as folder:
        streams = [Path(folder) / name for name in ("in", "out", "err")]
        streams[0].write_text(given, encoding="utf-8")
        asked = {
            "arguments": arguments, "environment": dict(os.environ if env is None else env), "folder": str(cwd), "streams": list(map(str, streams)),
        }  # fmt: skip
        code = _ask(asked, timeout)
        return subprocess.CompletedProcess(arguments, code, streams[1].read_text("utf-8"), streams[2].read_text("utf-8"))


def _ask(asked: dict[str, Any], timeout: float) -> int:
    global _origin  # noqa: PLW0603 - one for all tests of this process
    if _origin is None or _origin.poll() is not None:
        _origin = subprocess.Popen(
            [sys.executable, "-m", "tests.program"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(_end)
    assert _origin.stdin is not None
    assert _origin.stdout is not None
    _origin.stdin.write(json.dumps(asked) + "\n")
    _origin.stdin.flush()
    if not select([_origin.stdout], [], [], timeout)[0]:
        _end()
        raise subprocess.TimeoutExpired(asked["arguments"], timeout)
    return int(_origin.stdout.readline())


def _end() -> None:
    if _origin is not None:
        _origin.kill()
        _origin.communicate()


def _serve() -> None:
    """Fork for each line of standard input, and answer with the exit code."""
    commands = import_module("command_bus.cli.commands")
    for name in (*_IMPORTED, *(each.name for each in iter_modules(commands.__path__, "command_bus.cli.commands."))):
        import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(**json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(arguments: list[str], environment: dict[str, str], folder: str, streams: list[str]) -> NoReturn:
    """Be the program, in a fork."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        for number, path in enumerate(streams):
            os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT), number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, "r" if number == 0 else "w", closefd=False) for number in range(3))
        sys.path[:0] = [folder, *environment.get("PYTHONPATH", "").split(os.pathsep)]
        sys.modules.pop("sitecustomize", None)
        if any(Path(place, "sitecustomize.py").exists() for place in sys.path[1:]):
            import_module("sitecustomize")
        code = _code_of(arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _code_of(arguments: list[str]) -> int:
    import traceback

    from command_bus.cli import main

    try:
        main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _serve()
