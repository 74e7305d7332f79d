"""Builds the documentation site in build/site: `make docs`, or `python3 scripts/docs.py`.

    docs/ and the root's own pages → build/pages (links as the site needs them) → Zensical, warnings as errors → build/site

Zensical lives in an environment of its own, `.venv-docs`, with exactly the versions and hashes of constraints-docs.txt: nothing of it is needed
to run the project. Docstrings are read, not imported; the help of the command line and the tests of each
promise are printed by the project's own environment.

On the site there is no repository around the pages. So a link to a page of the root leads to its copy, and a link to a file (a test, say)
becomes its path. The sources stay as they are: their links work where people read them.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["LOCK", "REQUIREMENTS", "ROOT_PAGES", "assemble", "for_the_site", "main"]

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "pages"
VENV = ROOT / ".venv-docs"
PYTHON = ROOT / ".venv" / "bin" / "python"  # has the command line, whose help is printed
LOCK = ROOT / "constraints-docs.txt"
REQUIREMENTS = (
    "zensical<0.1",
    "mkdocstrings-python>=2",
    "ruff",  # lays out the reference's signatures
)  # 0.1 could not be installed when this was written: its own pin was not to be had
ROOT_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "README.md": "index.md",
}
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
_DEFINITION = re.compile(r"^\[([^\]]+)\]: (\S+)\n", re.MULTILINE)
_FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)


def assemble(pages: Path = PAGES) -> None:
    """Gather the pages, and delete those of a former build."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns(".*"))
    for path in pages.rglob("*.md"):
        source = "docs/" + path.relative_to(pages).as_posix()
        path.write_text(for_the_site(path.read_text(encoding="utf-8"), source), encoding="utf-8")
    for name, page in ROOT_PAGES.items():
        if name != "README.md":
            (pages / page).write_text(for_the_site((ROOT / name).read_text(encoding="utf-8"), name), encoding="utf-8")
    for module, page in (("cli_help", "cli.md"), ("promises", ROOT_PAGES["CONTRIBUTING.md"])):
        printed = subprocess.run([str(PYTHON), "-m", f"scripts.{module}"], cwd=ROOT, check=True, capture_output=True, text=True)
        with (pages / page).open("a", encoding="utf-8") as end:
            end.write(f"\n{printed.stdout}")


def for_the_site(text: str, source: str) -> str:
    """Return a page with links as the site needs them; code stays as it is.

    Args:
        text: The page.
        source: Its path from the repository's root.
    """
    parts = _FENCE.split(text)
    for at in range(0, len(parts), 2):
        parts[at] = _linked(parts[at], source)
    return "".join(parts)


def _linked(text: str, source: str) -> str:
    names: dict[str, str | None] = {name: moved(target, source) for name, target in _DEFINITION.findall(text)}
    text = _DEFINITION.sub("", text)
    for name, target in names.items():
        text = text.replace(f"[{name}]", name if target is None else f"[{name}]({target})")

    def link(match: re.Match[str]) -> str:
        target = moved(match[2], source)
        return f"{match[1]} (`{_path(match[2], source)}`)" if target is None else f"[{match[1]}]({target})"

    return _LINK.sub(link, text)


def moved(target: str, source: str) -> str | None:
    """Return where a link of a page leads on the site; None if nowhere."""
    if re.match(r"[a-z]+:|#", target):
        return target
    path, mark, anchor = target.partition("#")
    there = _path(path, source)
    if there in ROOT_PAGES:
        there = f"docs/{ROOT_PAGES[there]}"
    if not there.startswith("docs/"):
        return None
    here = posixpath.dirname(source) if source.startswith("docs/") else "docs"
    return posixpath.relpath(there, here) + mark + anchor


def _path(target: str, source: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def set_up() -> Path:
    """Make the environment what the lock says, unless it is; return the builder."""
    stamp, print_of_lock = VENV / ".set-up", hashlib.sha256(LOCK.read_bytes() + str(VENV).encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != print_of_lock:
        uv, python = shutil.which("uv"), str(VENV / "bin" / "python")
        print("docs: installing Zensical in .venv-docs, once", flush=True)
        if uv:
            subprocess.run([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(VENV)], check=True)
            install = [uv, "pip", "install", "--quiet", "--python", python]
        else:
            subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
            install = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*install, "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(LOCK)], check=True)
        stamp.write_text(print_of_lock)
    return VENV / "bin" / "zensical"


def main() -> int:
    """Build the site; return the builder's exit code."""
    zensical = set_up()
    assemble()
    command = [str(zensical), "build", "--clean", "--strict", "-f", str(ROOT / "mkdocs.yml")]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_COLOR": "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
