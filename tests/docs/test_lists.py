"""Lists in the docs and in docstrings: each has what the code knows, and nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args, get_type_hints

from command_bus.observer import Observer
from command_bus.serialization.envelope_options import KNOWN_OPTIONS
from command_bus.settings import BusSettings
from command_bus.transport.redis.connection.factory import CONNECT_TIMEOUT, SOCKET_TIMEOUT
from command_bus.transport.redis.keys import KEYS, ShardKeys, suffix
from command_bus.transport.steps import Done
from command_bus.worker import lifecycle
from command_bus.worker.lifecycle import SettledCommand

ROOT = Path(__file__).resolve().parents[2]


def quoted(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", text))


def test_the_wire_format_has_each_option() -> None:
    text = (ROOT / "docs/wire-format.md").read_text()
    options = text.partition("\n## Options\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(.)` \| (.*) \|$", options, re.MULTILINE))
    assert rows.keys() == KNOWN_OPTIONS.keys()
    for letter, option in KNOWN_OPTIONS.items():
        assert option.letter == letter
        assert option.name in re.sub(r"\[([^]]*)]\([^)]*\)", r"\1", rows[letter])


def test_the_wire_format_has_each_key_with_its_type() -> None:
    table = (ROOT / "docs/wire-format.md").read_text().partition("\n## Keys\n")[2].partition("\n## ")[0]
    described: dict[str, str] = {}
    for names, kinds in re.findall(r"^\| (`[^|]+) \| ([^|]+?) \|", table.replace("\\|", "/"), re.MULTILINE):
        listed = re.findall(r"`([^`]+)`", names)
        each = kinds.split(", ") if len(listed) > 1 else [kinds]
        described.update(zip(listed, each, strict=True))
    parts = {f"b:<dispatch id>:{part}" for part in ("ids", "home", "rows", "seq", "out", "bad")}
    stems = {re.sub(r":(<[^>]+>|E)$", ":", name): name for name in described.keys() - parts}
    assert stems.keys() == {suffix(name) for name in KEYS}
    assert [name for name, kind in KEYS.items() if not described[stems[suffix(name)]].startswith(kind)] == []
    assert KEYS.keys() == set(ShardKeys.__slots__) - {"prefix", "fair"}


def test_a_settled_command_names_each_status() -> None:
    line = re.search(r"status: (.*)", SettledCommand.__doc__ or "")
    assert line is not None
    assert quoted(line[1]) == {*get_args(get_type_hints(Done)["status"]), "dead_lettered", "parked"}


def test_an_observer_names_each_outcome_of_an_attempt() -> None:
    calls = [node for node in ast.walk(ast.parse(Path(lifecycle.__file__).read_text())) if isinstance(node, ast.Call)]
    reported = {
        each.value
        for call in calls
        if ast.unparse(call.func) in ("self._observer.handled", "self._reported")
        for each in call.args
        if isinstance(each, ast.Constant)
    }
    attempts = (Observer.handled.__doc__ or "").partition("\n")[0]
    assert quoted(attempts) == reported - {"expired"}
    assert quoted(Observer.handled.__doc__ or "") >= reported
    metrics = (ROOT / "docs/observability.md").read_text().partition("- Outcomes of attempts:")[2].partition("\n-")[0]
    assert quoted(metrics) == reported - {"expired"}


def test_within_how_long_a_silent_server_is_known_to_be_away() -> None:
    seconds = SOCKET_TIMEOUT + max(SOCKET_TIMEOUT, CONNECT_TIMEOUT)
    assert f"after {seconds:g} s" in str(BusSettings.model_fields["fail_fast"].description)
    assert f"within {seconds:g} seconds if it is silent" in (ROOT / "docs/operating.md").read_text()
