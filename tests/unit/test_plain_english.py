"""The prose is plain: words that readers halt at are not used."""

from __future__ import annotations

import ast
import re

from tests.unit.syntax import PACKAGE, ROOT, trees

TEXTS = sorted(
    [
        *(ROOT / PACKAGE).rglob("*.py"),
        *(ROOT / PACKAGE).rglob("*.lua"),
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
ODD = re.compile(r"\b(whoever|nobody|anew|likewise|for want of|from near|by and by|what becomes of)\b", re.IGNORECASE)
OLD = ("CHANGELOG.md",)  # it keeps the words of its time


def test_no_odd_words() -> None:
    lines = {path: path.read_text(encoding="utf-8").splitlines() for path in TEXTS if path.name not in OLD}
    found = [(path, number, ODD.search(line)) for path, text in lines.items() for number, line in enumerate(text, 1)]
    assert not [f"{path.relative_to(ROOT)}, line {number}: {odd[0]}" for path, number, odd in found if odd]


WITHOUT_NOUN = re.compile(r"^\s+\*{0,2}\w+: (Of|Which|Where|Whose|How often|As given)\b", re.MULTILINE)


def test_descriptions_of_arguments_have_a_noun() -> None:
    found = {path.name: WITHOUT_NOUN.findall(path.read_text(encoding="utf-8")) for path in (ROOT / PACKAGE).rglob("*.py")}
    assert not {name: words for name, words in found.items() if words}
    assert WITHOUT_NOUN.search("    session: Of the bus.")


def test_descriptions_of_arguments_do_not_repeat_the_name() -> None:
    """`entity_id: The entity id of its entity` says nothing that the name does not."""
    texts = [(name, node.value) for name, tree in trees().items() for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    lines = ((name, line) for name, text in texts if isinstance(text, str) for line in text.splitlines())
    assert not [f"{name}: {line.strip()}" for name, line in lines if repeats_its_name(line)]


DESCRIBED = re.compile(r"\s+\*{0,2}(\w+): (?:The |A |An )?(.+)", re.IGNORECASE)


def repeats_its_name(line: str) -> bool:
    """Return whether the description of an argument or attribute begins with its name."""
    if (found := DESCRIBED.match(line)) is None:
        return False
    return re.match(found[1].strip("_").replace("_", " ") + r"\b", found[2], re.IGNORECASE) is not None


def test_a_description_that_repeats_the_name_is_found() -> None:
    for line in ("entity_id: The entity id of its entity.", "rows: Rows that were read.", "**fields: The fields of it."):
        assert repeats_its_name(f"    {line}")
    for line in ("kinds: The kind of each.", "command_id: Its id.", "at: A date."):
        assert not repeats_its_name(f"    {line}")


def test_an_odd_word_is_found() -> None:
    assert ODD.search("Nobody reads this.")
