"""Runs the program for the tests of an operator's commands, and checks how it ended."""

from __future__ import annotations

import json
from typing import Any

from tests.docs.trouble import Trouble

__all__ = ["one_line", "run", "run_json"]


def run_json(troubled_shop: Trouble, *arguments: str, code: int = 0, **options: Any) -> Any:
    """Run a command with `--json` and return what it printed."""
    done = troubled_shop.run(*arguments, "--json", **options)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def run(troubled_shop: Trouble, *arguments: str, code: int = 0, **options: Any) -> str:
    """Run a command and return what it printed to both streams."""
    done = troubled_shop.run(*arguments, **options)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def one_line(text: str) -> str:
    """Check that a text is one line, and return it."""
    assert text.count("\n") == 1, text
    return text.strip()
