"""Tables of the pages against the code that they tell of."""

from __future__ import annotations

import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from command_bus import RetryPolicy
from scripts import promises

DOCS = Path(__file__).parents[2] / "docs"


def shown(value: object) -> str:
    """Return a default as the table has it."""
    if isinstance(value, tuple):
        return f"({', '.join(kind.__name__ for kind in value)}{',' if len(value) == 1 else ''})"
    return f'"{value}"' if isinstance(value, str) else str(value)


def test_the_defaults_of_a_retry_policy() -> None:
    text = (DOCS / "retries.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| `?(.*?)`? \|", text, re.MULTILINE))
    assert rows == {each.name: shown(each.default) for each in fields(RetryPolicy) if each.default is not MISSING}
    assert len(rows) == len(fields(RetryPolicy))


def test_the_extras_of_the_installation_page() -> None:
    text = (DOCS / "installation.md").read_text(encoding="utf-8")
    rows = {extra: names.strip() for extra, names in re.findall(r"^\| `(\w+)` \|.*\|(.*)\|$", text, re.MULTILINE)}
    extras = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    ours = {"demo", "demo-spark", "dev"}  # for this repository
    assert rows == {
        extra: ", ".join(sorted({re.split(r"[\[><=;]", name)[0] for name in names} - {"command-bus"}))
        for extra, names in extras.items()
        if extra not in ours
    }
    assert "Python 3.11 or newer" in text


def test_spark_s_views_and_options() -> None:
    pytest.importorskip("pyspark")
    from tests.docs.spark_page import PAGE, rendered

    assert PAGE.read_text(encoding="utf-8") == rendered(), "run `python -m tests.docs.spark_page`"


def test_the_guide_to_spark_has_every_option() -> None:
    from command_bus.spark.options import ReadOptions, WriteOptions
    from tests.docs.spark_page import known

    text = (DOCS / "spark.md").read_text(encoding="utf-8")
    write, read = text.index("| write option |"), text.index("| read option |")
    for options, table in ((WriteOptions, text[write:read]), (ReadOptions, text[read:].partition("\n\n")[0])):
        named = {name for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)}
        assert named | {"url", "namespace"} == set(known(options))


def test_the_tests_that_security_names_exist() -> None:
    text = (DOCS / "security.md").read_text(encoding="utf-8")
    files = dict(re.findall(r"^\[([^\]]+)\]: (\S+)", text, re.MULTILINE))
    proofs = [
        (name, files[label])
        for names, label in re.findall(r"((?:`test_\w+`(?:, )?)+) in \[([^\]]+)\]", text)
        for name in re.findall(r"test_\w+", names)
    ]
    assert len(proofs) == len(re.findall(r"`test_\w+`", text)), "each stands before the file that has it"
    sources = {file: (DOCS / file).read_text(encoding="utf-8") for _, file in proofs}
    assert [
        (name, file) for name, file in proofs if not re.search(rf"^ *(?:async )?def {name}\(", sources[file], re.MULTILINE)
    ] == []


def test_every_promise_and_every_fault_has_a_test_and_each_mark_a_promise() -> None:
    titles = promises.titles()
    marked = [title for title, _, _ in promises.proofs()]
    assert len(titles) == len(set(titles)) >= 100
    assert sorted(set(titles) - set(marked)) == []
    assert sorted(set(marked) - set(titles)) == []
    assert promises.index().count("\n    - `test_") == len(marked)
