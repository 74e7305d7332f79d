"""The command line writes to any stream: what its encoding lacks is escaped, and JSON stays the same JSON."""

from __future__ import annotations

import io
import json
import sys

import pytest

from command_bus.cli import main
from command_bus.cli.streams import take_any_text
from command_bus.cli.terminal import echo, escape_json, print_error

TEXT = "a é → 日 😀 \\ \" '"


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp1252", "cp437", "shift_jis"])
def test_any_encoding_takes_any_text(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    take_any_text()
    echo(escape_json(json.dumps({"entity": TEXT}, ensure_ascii=False)))
    print_error(TEXT)
    for stream in (out, err):
        stream.flush()
    written = [stream.buffer.getvalue().decode(encoding) for stream in (out, err)]
    assert json.loads(written[0]) == {"entity": TEXT}
    assert written[1].startswith("command-bus: a ")


def test_the_program_does_so(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", out)
    with pytest.raises(SystemExit):
        main(["--version"])
    echo(TEXT)
