"""The page of all crash certificates of a test run, as Markdown or HTML, and their annotations for GitHub."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Data = dict[str, Any]
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em}table{border-collapse:collapse;width:100%}"
    "td,th{border:1px solid #ccc;padding:.3em .6em;text-align:left;vertical-align:top}.bad{color:#a00}.good{color:#070}"
)
_KINDS = (("findings", "Found"), ("contract", "By the contract of at_most_once"), ("allowed", "Allowed by the test"))


def page(verdicts: Sequence[Data], suffix: str) -> str:
    """Return the page for a file of this suffix: `.html`, else Markdown."""
    return _html(verdicts) if suffix == ".html" else "\n".join(_markdown(verdicts)) + "\n"


def github_lines(verdicts: Sequence[Data]) -> Iterator[str]:
    """Yield what GitHub shows beside the lines."""
    for verdict in verdicts:
        for finding in verdict["findings"]:
            where = finding["where"]
            place = f"file={_relative(where[0])},line={where[1]}," if where else ""
            text = _text(finding).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
            yield f"::error {place}title=crash certificate::{text}"


def _markdown(verdicts: Sequence[Data]) -> Iterator[str]:
    yield "# Crash certificate"
    for verdict in verdicts:
        yield f"\n## {verdict['summary']}\n"
        yield "| command | handler | crashes | |\n| --- | --- | --- | --- |"
        for row in verdict["handlers"]:
            yield f"| {row['command']} | {row['handler']} | {row['places']} | {row['note']} |"
        yield f"\n{_counts(verdict)}"
        for key, title in _KINDS:
            if verdict[key]:
                yield f"\n{title}:\n"
            for finding in verdict[key]:
                yield f"- {_text(finding)}"


def _html(verdicts: Sequence[Data]) -> str:
    parts = [
        f'<!doctype html><meta charset="utf-8"><title>Crash certificate</title><style>{_STYLE}</style><h1>Crash certificate</h1>'
    ]
    for verdict in verdicts:
        parts.append(f'<h2 class="{"good" if verdict["clean"] else "bad"}">{html.escape(verdict["summary"])}</h2><table>')
        parts.append("<tr><th>command<th>handler<th>crashes<th></tr>")
        for row in verdict["handlers"]:
            cells = (row["command"], row["handler"], row["places"], row["note"])
            parts.append(f"<tr>{''.join(f'<td>{html.escape(str(cell))}' for cell in cells)}</tr>")
        parts.append(f"</table><p>{_counts(verdict)}</p>")
        for key, title in _KINDS:
            if verdict[key]:
                items = "".join(f"<li>{html.escape(_text(finding))}" for finding in verdict[key])
                parts.append(f"<h3>{title}</h3><ul>{items}</ul>")
    return "\n".join(parts) + "\n"


def _counts(verdict: Data) -> str:
    found = verdict["places"]
    texts = {
        "lines": "before lines",
        "requests": "at requests of the worker",
        "missed": "places were not reached again",
        "left": "left out of the sample",
    }
    return ", ".join(f"{found[key]} {text}" for key, text in texts.items() if found.get(key)) + "."


def _text(finding: Data) -> str:
    where = finding["where"]
    line = f" {_relative(where[0])}:{where[1]} `{where[3]}`" if where else ""
    return f"{finding['command']}: {finding['kind']} {finding['what']}.{line} ({finding['first']}; places: {finding['places']}.) {finding['mend']}"


def _relative(file: str) -> str:
    here = Path(file)
    return os.path.relpath(here) if here.is_relative_to(Path.cwd()) else file
