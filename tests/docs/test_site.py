"""The site: every page has a place in it, and links become what they must be there. Whether it builds: `make docs`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import command_bus
from scripts.docs import LOCK, ROOT_PAGES, for_the_site

ROOT = Path(__file__).parents[2]
yaml = pytest.importorskip("yaml")
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages_of(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for item in nav for page in pages_of(next(iter(item.values())) if isinstance(item, dict) else item)]


def test_every_page_is_in_the_navigation_once() -> None:
    docs = ROOT / "docs"
    sources = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} | set(ROOT_PAGES.values()) | {"cli.md"}
    listed = pages_of(CONFIG["nav"])
    assert len(listed) == len(set(listed))
    assert set(listed) == sources


def test_nothing_is_loaded_from_elsewhere() -> None:
    assert CONFIG["theme"]["font"] is False
    assert not CONFIG.keys() & {"extra_css", "extra_javascript", "repo_url"}


def test_every_module_of_the_reference_exists() -> None:
    for page in (ROOT / "docs/api").glob("*.md"):
        for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            path = ROOT / name.replace(".", "/")
            owner = path.with_suffix(".py") if path.with_suffix(".py").exists() else path.parent.with_suffix(".py")
            assert path.is_dir() or owner.exists(), name


def test_the_lock_names_no_host() -> None:
    text = LOCK.read_text(encoding="utf-8")
    assert "http" not in text
    assert "--hash=sha256:" in text


@pytest.mark.parametrize(
    ("source", "text", "wanted"),
    [
        ("docs/a.md", "[x](b.md#c)", "[x](b.md#c)"),
        ("docs/a.md", "[x](#c)", "[x](#c)"),
        ("docs/a.md", "[x](https://example.org/y)", "[x](https://example.org/y)"),
        ("docs/a.md", "[x](../SECURITY.md)", "[x](security-policy.md)"),
        ("docs/api/a.md", "[x](../b.md)", "[x](../b.md)"),
        ("SECURITY.md", "[x](docs/security.md)", "[x](security.md)"),
        ("CONTRIBUTING.md", "[x](tests/a.py)", "x (`tests/a.py`)"),
        ("docs/a.md", "[x](../tests/a.py)", "x (`tests/a.py`)"),
        ("docs/a.md", "see [t], [u]\n\n[t]: ../tests/a.py\n[u]: b.md\n", "see t, [u](b.md)\n\n"),
        ("docs/a.md", "```\n[x](../tests/a.py)\n```\n", "```\n[x](../tests/a.py)\n```\n"),
        ("docs/a.md", "![x](y.svg)", "![x](y.svg)"),
    ],
)
def test_links_lead_somewhere_on_the_site(source: str, text: str, wanted: str) -> None:
    assert for_the_site(text, source) == wanted


def slug(heading: str) -> str:
    """Return the anchor of a heading, where people read the sources and on the site alike."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]), ids=lambda page: page.name)
def test_every_anchor_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path, anchor in re.findall(r"\]\(([\w./-]*)#([^)\s]+)\)", text):
        target = (page.parent / path).read_text(encoding="utf-8") if path else text
        assert anchor in {slug(heading) for heading in re.findall(r"^#+ (.+)$", target, re.MULTILINE)}, f"{path}#{anchor}"


def test_the_version_is_that_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert CONFIG["copyright"] == f"command_bus {version}"
    assert f"documentation of version {version}." in (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")


def test_the_reference_has_every_public_name() -> None:
    shown = {
        name
        for page in (ROOT / "docs" / "api").glob("*.md")
        for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    for name in command_bus.__all__:
        module = f"command_bus.{command_bus._HOME.get(name, 'errors')}"
        assert shown & {module, f"{module}.{name}"}, f"docs/api: no `::: {module}.{name}`"


def test_the_reader_chooses_light_or_dark() -> None:
    palette = CONFIG["theme"]["palette"]
    assert [scheme.get("scheme") for scheme in palette] == [None, "default", "slate"]
    assert all(scheme["toggle"]["name"] for scheme in palette)
