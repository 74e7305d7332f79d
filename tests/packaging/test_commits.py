"""Messages of commits: what `make check` and the hook refuse, and where there is nothing to check."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import commits

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")

LONG = "x" * 73
HOOK = commits.ROOT / "scripts" / "hooks" / "commit-msg"


def git(root: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null"]
    run = subprocess.run(["git", "-C", str(root), *settings, *arguments], check=True, capture_output=True, text=True)
    return run.stdout.strip()


def commit(root: Path, file: str, message: str) -> str:
    path = root / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(message, encoding="utf-8")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", message)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path.resolve() / "made"
    made.mkdir()
    git(made, "init", "-q")
    return made


def test_long_subjects_and_missing_bodies_are_named(root: Path) -> None:
    first = commit(root, "command_bus/a.py", LONG)
    assert commits.faults_since(first, root) == []
    commit(root, "docs/a.md", "A page")
    commit(root, "command_bus/b.py", "Code\n\nIt says why.")
    assert commits.faults_since(first, root) == []
    commit(root, "docs/b.md", LONG)
    commit(root, "command_bus/c.py", "Code without a reason")
    commit(root, "command_bus/d.py", "Code of two\n\nCo-authored-by: A <a@b.c>")
    found = commits.faults_since(first, root)
    assert [fault.partition(": ")[2] for fault in found] == [
        "the package changed, and no body says why: Code of two",
        "the package changed, and no body says why: Code without a reason",
        f"the subject has 73 characters, 72 are allowed: {LONG}",
    ]


def test_a_shallow_clone_is_checked_as_far_as_it_reaches(root: Path, tmp_path: Path) -> None:
    first = commit(root, "command_bus/a.py", "The beginning")
    commit(root, "docs/a.md", "A page, whose clone begins with all files of the package")
    shallow = tmp_path.resolve() / "shallow"
    git(tmp_path, "clone", "-q", "--depth", "1", root.as_uri(), str(shallow))
    assert commits.faults_since(first, shallow) == []
    commit(shallow, "docs/b.md", LONG)
    assert len(commits.faults_since(first, shallow)) == 1


def test_without_git_or_in_another_history_there_is_nothing_to_check(root: Path, tmp_path: Path) -> None:
    unpacked = tmp_path.resolve() / "unpacked"
    unpacked.mkdir()
    assert commits.faults_since(commits.FIRST, unpacked) == []
    commit(root, "command_bus/a.py", LONG)
    assert commits.faults_since(commits.FIRST, root) == []
    (root / "unpacked").mkdir()
    assert commits.faults_since(commits.FIRST, root / "unpacked") == []


def test_a_machine_without_git_has_nothing_to_check(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commits.faults_since(commits.FIRST, root) == []


def test_the_hook_refuses_what_the_check_would(root: Path, tmp_path: Path) -> None:
    scripts = root / "scripts" / "hooks"
    scripts.mkdir(parents=True)
    shutil.copy(HOOK, scripts)
    shutil.copy(commits.__file__, scripts.parent)
    message = tmp_path / "message"

    def refused(text: str) -> bool:
        message.write_text(text, encoding="utf-8")
        return subprocess.run([str(scripts / HOOK.name), str(message)], check=False, capture_output=True).returncode == 1

    assert not refused("A page\n# Please enter the commit message, whose lines may be long: " + LONG)
    assert refused(LONG)
    commit(root, "command_bus/a.py", "Code")
    (root / "command_bus" / "a.py").write_text("changed", encoding="utf-8")
    git(root, "add", ".")
    assert refused("Code\n\n# the reason is missing")
    assert not refused("Code\n\nIt says why.\n")
