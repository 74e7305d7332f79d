"""The header of a Lua script is its contract: keys, arguments and shared parts are those that the body uses."""

from __future__ import annotations

import re
from hashlib import sha1
from importlib.resources import files

import pytest

from command_bus.transport.redis.scripts import SCRIPTS, Script, with_letters
from command_bus.transport.submissions import Admission
from tests.unit.syntax import PACKAGE, ROOT

_LUA = files("command_bus.transport.redis").joinpath("lua")
_SHARED = {
    path.name.removesuffix(".lua"): with_letters(path.read_text(encoding="utf-8")) for path in _LUA.joinpath("shared").iterdir()
}

_USED = re.compile(r"\b(KEYS|ARGV)\[(\d+)\]")
_DECLARED = re.compile(r"^-- (KEYS|ARGV)\[(\d*)(…?)\] +(\w+)", re.MULTILINE)
_BOUND = re.compile(r"^local ([\w, ]+) =\s+((?:(?:KEYS|ARGV)\[\d+\](?:, )?)+)$", re.MULTILINE)
_FUNCTION = re.compile(r"^local function (\w+)", re.MULTILINE)
_COMMENT = re.compile(r"--.*")
_USES = re.compile(r"^-- uses: .*", re.MULTILINE)
_OPENED = re.compile(r"\b(\w+)\(([^)]+)\)")
_SHORT = {"box": "mailbox", "boxes": "count", "delayed_counts": "later", "id": "letter"}

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)


def _files(script: Script) -> list[str]:
    folder = _LUA.joinpath(script.name)
    if not folder.is_dir():
        return [with_letters(_LUA.joinpath(f"{script.name}.lua").read_text(encoding="utf-8"))]
    kept = [file for file in folder.iterdir() if file.name != script.without]
    return [with_letters(file.read_text(encoding="utf-8")) for file in sorted(kept, key=lambda file: file.name)]


def _body(script: Script) -> str:
    return "\n".join(_files(script))


def _header(script: Script) -> str:
    return "\n".join(line for line in _files(script)[0].splitlines() if line.startswith("--"))


def _calls(text: str, part: str) -> bool:
    """Return whether a text calls a function of a shared part."""
    code = _COMMENT.sub("", text)
    return any(re.search(rf"\b{name}\(", code) for name in _FUNCTION.findall(_SHARED[part]))


@every_script
def test_the_header_declares_the_keys_and_arguments_that_the_body_uses(script: Script) -> None:
    header = _header(script)
    body = "\n".join(line for line in _body(script).splitlines() if not line.startswith("--"))
    body += _SHARED["enqueue_all"] if "enqueue_all" in script.shared else ""  # the body of two scripts
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


@every_script
def test_the_header_lists_the_shared_parts_that_are_called(script: Script) -> None:
    texts = [_body(script), *(_SHARED[part] for part in script.shared)]
    called = {part for part in _SHARED if any(_calls(text, part) for text in texts if text != _SHARED[part])}
    assert called == set(script.shared)


@every_script
def test_a_shared_part_comes_after_the_parts_that_it_calls(script: Script) -> None:
    for place, part in enumerate(script.shared):
        missing = {*script.shared[place + 1 :]} - {*script.shared[: place + 1]}
        assert not [later for later in missing if _calls(_SHARED[part], later)]


@every_script
def test_the_text_has_the_shared_parts_in_their_order_and_the_digest_covers_it(script: Script) -> None:
    at = 0
    for part in script.shared:
        at = script.text.index(_SHARED[part], at) + len(_SHARED[part])
    assert script.text.endswith(_body(script))
    assert script.sha == sha1(script.text.encode(), usedforsecurity=False).hexdigest()


@every_script
def test_parts_that_few_requests_need_are_one_function_of_the_script(script: Script) -> None:
    for opened, parts in _OPENED.findall("".join(_USES.findall(_body(script)))):
        texts = "".join(_SHARED[part] for part in parts.split(", "))
        before, defined, after = f"\n{script.text}".partition(
            f"\nlocal function {opened}(...)\n{texts}return {opened}(...)\nend\n"
        )
        assert defined
        inside = {name for part in parts.split(", ") for name in _FUNCTION.findall(_SHARED[part])}
        code = _COMMENT.sub("", before + after)
        inside -= {*_FUNCTION.findall(code)}  # line_flow is a part of its own in some
        assert {name for name in inside if re.search(rf"\b{name}\(", code)} == {opened}, "nothing else of them is known outside"


def test_shared_parts_define_each_name_once_and_no_script_defines_it_again() -> None:
    names = [name for text in _SHARED.values() for name in _FUNCTION.findall(text)]
    assert len(names) == len(set(names))
    for script in SCRIPTS:
        assert not set(names) & set(_FUNCTION.findall(_body(script)))


def test_every_file_is_loaded() -> None:
    assert {path.name.removesuffix(".lua") for path in _LUA.iterdir()} == {
        *(script.name for script in SCRIPTS),
        "shared",
        "letters",
    }
    assert set(_SHARED) == {part for script in SCRIPTS for part in script.shared}


@every_script
def test_no_file_is_longer_than_200_lines(script: Script) -> None:
    assert max(text.count("\n") for text in [*_files(script), *_SHARED.values()]) <= 200


def test_letters_that_are_compared_have_names() -> None:
    bare = [
        path.name for path in (ROOT / PACKAGE).rglob("*.lua") if re.search(r"[=~]= '[A-Za-z]'", path.read_text(encoding="utf-8"))
    ]
    assert bare == ["record_steps.lua"], "but for the name of a field"


def test_admissions_have_the_names_of_python() -> None:
    letters = _LUA.joinpath("letters.lua").read_text(encoding="utf-8")
    named = dict(re.findall(r"^ADMISSION\.(\w+) = '(\w)'$", letters, re.MULTILINE))
    assert named == {each.name: each.value for each in Admission if each.value.isalpha()}, "signs are spelled"


def test_records_are_written_and_compared_by_the_names_of_their_states() -> None:
    bare = [
        path.name for path in (ROOT / PACKAGE).rglob("*.lua") if re.search(r"'[A-Za-z]\|+'", path.read_text(encoding="utf-8"))
    ]
    assert bare == ["holds.lua"], "but for the mode of a pause"


def test_a_letter_without_a_name_is_an_error() -> None:
    assert with_letters("state == STATE.HELD") == "state == 'h'"
    with pytest.raises(KeyError, match=r"STATE\.UNHEARD_OF"):
        with_letters("state == STATE.UNHEARD_OF")


def test_no_line_of_a_script_is_wider_than_110_columns() -> None:
    assert not [
        (path.name, line)
        for path in (ROOT / PACKAGE).rglob("*.lua")
        for line in path.read_text(encoding="utf-8").splitlines()
        if len(line) > 110
    ]
