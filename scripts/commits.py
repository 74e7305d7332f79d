"""Checks messages of commits: `python3 scripts/commits.py` those of the history, `… FILE` the one in a file, for the hook scripts/hooks/commit-msg.

A subject has at most 72 characters. A commit that changes the package says why, in a body.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["FIRST", "faults", "faults_since", "main"]

ROOT = Path(__file__).resolve().parent.parent
FIRST = "8e9cc14bb9432d83ef8167d126ad9be5a746b4eb"
"""The commits behind this one are checked."""
MOST = 72
_SCISSORS = "# ------------------------ >8 ------------------------"
_FORMAT = "%x01%h%x00%s%x00%b%x00%(trailers)%x00"


def faults(subject: str, body: str, changes_package: bool) -> list[str]:
    """Return what is wrong with a message."""
    found = []
    if len(subject) > MOST:
        found.append(f"the subject has {len(subject)} characters, {MOST} are allowed: {subject}")
    if changes_package and not body.strip():
        found.append(f"the package changed, and no body says why: {subject}")
    return found


def faults_since(first: str, root: Path = ROOT) -> list[str]:
    """Return what is wrong with the messages of the commits behind this one; of those that are there, in a shallow clone.

    Nothing is wrong where there is no git, or another history.
    """
    if _git(root, "rev-parse", "--show-toplevel").strip() != str(root):
        return []
    checked = f"{first}..HEAD"
    cut = set()
    if not _git(root, "rev-parse", "--verify", "--quiet", f"{first}^{{commit}}"):
        cut = set(_git(root, "rev-list", "--max-parents=0", "HEAD").split())  # their changes cannot be seen
        if _git(root, "rev-parse", "--is-shallow-repository").strip() != "true":
            return []
        checked = "HEAD"
    found = []
    for entry in _git(root, "log", "--no-merges", "--abbrev=40", f"--format={_FORMAT}", "--name-only", checked).split("\x01")[1:]:
        commit, subject, body, trailers, files = entry.split("\x00")
        if commit not in cut:
            changes_package = any(file.startswith("command_bus/") for file in files.split())
            found += [f"{commit[:10]}: {fault}" for fault in faults(subject, body.replace(trailers, ""), changes_package)]
    return found


def main(arguments: list[str]) -> int:
    if arguments:
        text = Path(arguments[0]).read_text(encoding="utf-8").partition(_SCISSORS)[0]
        subject, _, body = "\n".join(line for line in text.splitlines() if not line.startswith("#")).strip().partition("\n")
        found = faults(subject, body, bool(_git(ROOT, "diff", "--cached", "--name-only", "--", "command_bus")))
    else:
        found = faults_since(FIRST)
    print("".join(f"commits: {fault}\n" for fault in found), end="")
    return 1 if found and (arguments or "CI" not in os.environ) else 0  # what is on its way to main is not written again


def _git(root: Path, *arguments: str) -> str:
    """Return what git says, nothing where it fails or is missing."""
    try:
        return subprocess.run(["git", "-C", str(root), *arguments], check=False, text=True, capture_output=True).stdout
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
