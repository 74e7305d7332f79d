"""Examples of the pages: they can be saved and run, or typed, as they are printed. How a page says which of the two: `examples.py`."""

from __future__ import annotations

import ast
import codeop
from collections.abc import Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

from command_bus.embedded import EmbeddedServer
from tests.docs.examples import PAGES, PROGRAM, ROOT, Block, blocks, files, in_session, printed, run, saved, session
from tests.selection import quick

ELSEWHERE = {
    "django.md": "test_django.py",
    "tutorial.md": "test_tutorial.py",
    "spark.md": "tests/spark/test_pages.py",
    "spark-quickstart.md": "tests/spark/test_quickstart.py",
    "salaries.py": "tests/spark/test_pages.py",
}
"""Pages, and files of pages, that need more than a server, and the tests that run them."""

NEEDS = {
    "export.md": ("pyarrow",),
    "exactly-once.md": ("sqlalchemy", "aiosqlite"),
    "fastapi.md": ("fastapi", "httpx"),
    "handlers.md": ("dependency_injector",),
    "structure.md": ("fastapi",),
    "observability.md": ("prometheus_client", "opentelemetry.sdk"),
}
UNINSTALLED = {"aes_gcm.py": "cryptography", "migrations/versions/0007_outbox.py": "alembic"}
"""Files that are only compiled where a package is missing that the set-up does not bring."""

_TEST_CLIENT = "ignore:Using `httpx` with `starlette.testclient` is deprecated"
"""What Starlette says of the httpx that the set-up has."""

COLUMNS = 88  # what fits beside the site's navigation
DEAR = ("durable-how-to.md", "fastapi.md", "following.md", "structure.md", "testing.md", "versions.md")
"""Pages of many programs, which `make test-all` runs."""
RUN = [page for page in PAGES if page.name not in ELSEWHERE and "```python" in page.read_text(encoding="utf-8")]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


every_page = pytest.mark.parametrize("page", PAGES, ids=named)


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    with EmbeddedServer.start() as server:
        yield {"COMMAND_BUS_URL": server.url}


def unrunnable(text: str) -> list[str]:
    """Return what is wrong with the blocks of a page, as far as that is seen without running them."""
    page, typed = blocks(text), in_session(text)
    wrong = [f"line {block.line}: its fence says {block.language}, not python" for block in page if block.language != "python"]
    known: set[str | None] = set()
    for block in page:
        if block.continued and block.name not in known:
            wrong.append(f"line {block.line}: there is no {block.name} that it could go on with")
        known.add(block.name)
        wrong += [
            f"line {block.line}: more than {COLUMNS} columns: {line}" for line in block.source.split("\n") if len(line) > COLUMNS
        ]
        if typed and block.name is None:
            wrong += [f"line {block.line}: it cannot be typed: {error}" for error in mistyped(block.source)]
        elif not compiles(block.source):
            wrong.append(f"line {block.line}: no program; name its file, complete it, or say on the page that it is a session")
    return wrong


def compiles(source: str) -> bool:
    try:
        compile(source, "page", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def mistyped(source: str) -> list[str]:
    """Return the lines at which the prompt of Python 3.11 or 3.12 stops: an empty line ends a statement there."""
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as `python -m asyncio` has it
    lines: list[str] = []
    for line in [*source.split("\n"), ""]:
        lines.append(line)
        try:
            if compiler("\n".join(lines), "page", "single") is not None:
                lines.clear()
        except SyntaxError as error:
            return [f"{error.msg} at {line!r}"]
    return [f"unfinished: {lines[0]!r}"] if "".join(lines).strip() else []


@every_page
def test_every_block_is_a_file_a_program_or_part_of_a_session(page: Path) -> None:
    assert unrunnable(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", quick(RUN, [page for page in RUN if page.name not in DEAR]), ids=named)
def test_what_is_shown_runs_and_prints_what_its_comments_say(page: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    for name in NEEDS.get(page.name, ()):
        pytest.importorskip(name)
    text = page.read_text(encoding="utf-8")
    shown = blocks(text)
    whole = saved(shown, tmp_path)
    for name, source in programs(shown, whole, typed=in_session(text)):
        if name in UNINSTALLED and find_spec(UNINSTALLED[name]) is None:
            continue
        (tmp_path / name).write_text(source, encoding="utf-8")
        done = run(["-W", "error::ResourceWarning", name], tmp_path, environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == printed(source), f"{page.name}, {name}"
    if in_session(text):
        unnamed = [block for block in shown if not block.name]
        said = session([block.source for block in unnamed], tmp_path, environment)
        assert said == [printed(block.source) for block in unnamed]
    if tests := [name for name in whole if name.startswith("test_")]:
        passes(tests, tmp_path, environment)


def programs(shown: list[Block], whole: dict[str, str], *, typed: bool) -> Iterator[tuple[str, str]]:
    """Return what a reader runs by itself, in the order of the page."""
    for block in shown:
        if block.name is None and not typed:
            yield PROGRAM, block.source
        elif block.name and not block.continued and not block.name.startswith("test_") and block.name not in ELSEWHERE:
            yield block.name, whole[block.name]


def passes(tests: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Run test files of a page by a pytest of its own, whose settings are pytest's own but for coroutines."""
    options = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function", "-p", "no:cacheprovider"]
    if not any(point.value == "command_bus.testing.plugin" for point in entry_points(group="pytest11")):
        options += ["-p", "command_bus.testing.plugin"]
    done = run(["-m", "pytest", "-q", "-W", "error", "-W", _TEST_CLIENT, *options, *tests], folder, environment)
    assert done.returncode == 0, done.stdout + done.stderr


FRAGMENT = "# A page\n\n```python\nawait bus.dispatch(command)\n```\n"
WORDS = "The examples of this page run one after another in\n`python -m asyncio` or in a notebook.\n\n"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (FRAGMENT, "no program"),
        (FRAGMENT.replace("```python", "```py"), "says py"),
        (FRAGMENT.replace("await", "# shop.py, continued\nawait"), "no shop.py"),
        (FRAGMENT.replace("await", "# shop.py\nawait"), "no program"),
        (FRAGMENT.replace("command", "command" * 12), "more than 88 columns"),
        (WORDS + FRAGMENT.replace("await", "async with bus:\n    pass\nawait"), "cannot be typed"),
        (WORDS + FRAGMENT.replace("await", "def one():\n    pass\n\n    pass\n\nawait"), "cannot be typed"),
    ],
)
def test_a_block_that_nobody_can_run_is_found(text: str, wrong: str) -> None:
    assert wrong in "; ".join(unrunnable(text))


def test_a_session_may_await_and_a_file_may_go_on() -> None:
    text = WORDS + FRAGMENT + "```python\n# shop.py\none = 1\n```\n\n```python\n# shop.py, continued\ntwo = one + 1\n```\n"
    assert unrunnable(text) == []
    assert files(blocks(text)) == {"shop.py": "# shop.py\none = 1\n\n\n# shop.py, continued\ntwo = one + 1\n"}


def test_a_fragment_that_compiles_is_found_when_it_runs(tmp_path: Path) -> None:
    (tmp_path / PROGRAM).write_text("bus.dispatch(command)\n", encoding="utf-8")
    assert "NameError" in run([PROGRAM], tmp_path, {}).stderr
    with pytest.raises(AssertionError, match="NameError"):
        session(["await bus.dispatch(command)"], tmp_path, {})


def test_what_is_left_to_other_tests_is_in_them() -> None:
    for name, test in ELSEWHERE.items():
        path = ROOT / test if "/" in test else Path(__file__).parent / test
        assert name in path.read_text(encoding="utf-8"), f"{test} does not run {name}"
