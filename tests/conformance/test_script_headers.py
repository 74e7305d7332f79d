"""The header of each Lua script is its contract: it names the keys and arguments that the body uses."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest

from command_bus.transport.redis.scripts import SCRIPTS, TELLING

_USED = re.compile(r"\b(KEYS|ARGV)\[(\d+)\]")


_DECLARED = re.compile(r"^-- (KEYS|ARGV)\[(\d*)(…?)\] +(\w+)", re.MULTILINE)


_BOUND = re.compile(r"^local ([\w, ]+) = ((?:(?:KEYS|ARGV)\[\d+\](?:, )?)+)$", re.MULTILINE)


_SHORT = {"box": "mailbox", "boxes": "count", "id": "letter"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_header_of_a_script_matches_its_body(script: Any) -> None:
    lines = script.text.removeprefix(TELLING).splitlines()
    header = "\n".join(line for line in lines if line.startswith("--"))
    body = "\n".join(line for line in lines if not line.startswith("--"))
    assert header.startswith(f"-- {script.name}: ")
    assert "\n-- returns " in header
    for kind in ("KEYS", "ARGV"):
        declared = [found[1:] for found in _DECLARED.findall(header) if found[0] == kind]
        fixed = {int(number): word for number, more, word in declared if not more}
        assert sorted(fixed) == list(range(1, len(fixed) + 1)), "numbered without a gap"
        used = {int(number) for found, number in _USED.findall(body) if found == kind}
        assert set(fixed) <= used, f"{kind} declared and not used"
        is_open = any(more for _, more, _ in declared)
        assert is_open or used <= set(fixed), f"{kind} used and not declared"
        assert is_open == bool(re.search(rf"\b{kind}\[(?!\d+\])", body)), f"whether {kind} goes on is said if the body goes on"
        for names, values in _BOUND.findall(body):
            for name, (found, number) in zip(names.split(", "), _USED.findall(values), strict=True):
                if found == kind and int(number) in fixed:
                    assert fixed[int(number)] == _SHORT.get(name, name.partition("_")[0]), "declared under another name"


def test_every_script_file_is_loaded() -> None:
    found = {path.name.removesuffix(".lua") for path in files("command_bus.transport.redis").joinpath("lua").iterdir()}
    assert found == {script.name for script in SCRIPTS} | {"telling"}  # a part of several
    for script in SCRIPTS:
        assert ("local function teller(" in script.text) == ("teller(KEYS[" in script.text)
