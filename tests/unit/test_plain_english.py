"""The prose is plain: words that readers halt at are not used."""

from __future__ import annotations

import re

from tests.unit.syntax import PACKAGE, ROOT

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
    found = [
        f"{path.name}: {line.strip()}"
        for path in (ROOT / PACKAGE).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if repeats_its_name(line)
    ]
    assert found == []
    assert repeats_its_name("    entity_id: The entity id of its entity.")


def repeats_its_name(line: str) -> bool:
    """Return whether a description begins with its name of several words."""
    name, colon, text = line.strip().partition(": ")
    return bool(colon) and "_" in name and text.lower().startswith(f"the {name.replace('_', ' ')} of ")


def test_an_odd_word_is_found() -> None:
    assert ODD.search("Nobody reads this.")
