"""The choice of a Java, of several that are there in several ways."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import java

SAYS = """\
#!/bin/sh
echo '    java.home = {home}
    java.specification.version = {version}
openjdk version "{version}"' >&2
exit {code}
"""
Install = Callable[..., Path]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a Java of a version into a folder of its own; the machine's are out of sight."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(java, "FOLDERS", (f"{tmp_path}/jvm/*",))

    def install(name: str, version: str, code: int = 0) -> Path:
        home = tmp_path / "jvm" / name
        (home / "bin").mkdir(parents=True)
        program = home / "bin" / "java"
        program.write_text(SAYS.format(home=home, version=version, code=code))
        program.chmod(0o755)
        return home

    return install


def test_none(installed: Install) -> None:
    assert java.find() is None


def test_one_that_is_in_no_path_is_found(installed: Install) -> None:
    home = installed("new", "21")
    assert java.find() == home


def test_one_that_is_too_old_or_broken_is_passed_over(installed: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(installed("a-eight", "1.8")))
    monkeypatch.setenv("PATH", str(installed("b-eleven", "11") / "bin"))
    installed("c-broken", "25", code=1)
    assert java.find() is None
    home = installed("d-new", "17")
    assert java.find() == home


def test_java_home_comes_first_then_path(installed: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("a-other", "17")
    on_path, named = installed("b-on-path", "21"), installed("c-named", "25")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert java.find() == on_path
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert java.find() == named


def test_a_java_home_that_is_gone_does_not_matter(installed: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/gone")
    home = installed("new", "17")
    assert java.find() == home


def test_a_link_on_path_leads_to_the_home(installed: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = installed("new", "17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setattr(java, "FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert java.find() == home


APT_GET = """\
#!/bin/sh
echo "$@" >> {log}
case "$*" in
    *{package}) /bin/ln -s {hidden} {shown} ;;
    *install*) echo 'E: Unable to locate package' >&2; exit 100 ;;
esac
"""


@pytest.mark.parametrize("package", java.PACKAGES)
def test_the_package_that_there_is_gets_installed(
    installed: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    shown = installed("new", "17")
    hidden = shown.rename(tmp_path / "hidden")
    apt_get, log = tmp_path / "apt-get", tmp_path / "log"
    apt_get.write_text(APT_GET.format(log=log, package=package, hidden=hidden, shown=shown))
    apt_get.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java.find() is None
    assert java.install() == shown
    calls = log.read_text().splitlines()
    assert [call.split()[-1] for call in calls] == ["update", *java.PACKAGES[: java.PACKAGES.index(package) + 1]]
    assert all("-y" in call.split() for call in calls[1:])


def test_a_package_that_cannot_be_installed_is_told(
    installed: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    apt_get = tmp_path / "apt-get"
    apt_get.write_text("#!/bin/sh\necho 'E: Could not resolve' >&2\nexit 100\n")
    apt_get.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java.install() is None
    assert "openjdk-17-jre-headless: E: Could not resolve" in capsys.readouterr().err


def test_as_a_program_it_prints_the_home(installed: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    home = installed("named", "17")
    monkeypatch.setenv("JAVA_HOME", str(home))
    run = subprocess.run([sys.executable, java.__file__], capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stdout.strip()) == (0, str(home)), run.stderr
