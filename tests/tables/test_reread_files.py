"""Carries out the table of `reread_files.py`; and SIGHUP, which reads them whatever they look like."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from starlette.requests import HTTPConnection

from command_bus.dashboard.passwords import SESSION_COOKIE, Passwords, hash_password, read_roles, read_users
from command_bus.dashboard.users import behind_proxy
from command_bus.gateway import hash_token, new_token
from command_bus.gateway.tokens import read_tokens
from command_bus.integrations import web
from command_bus.integrations.web import reread_on_hangup
from tests.tables.reread_files import CHANGES, FILES

SECRETS = [hash_password("a long password"), hash_password("another password")]
GIVEN = [new_token(), new_token()]
HASHES = [hash_token(each) for each in GIVEN]
Known = Callable[[], Any]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_FRESH", 0.0)


def text(kind: str, name: str = "ann", secret: int = 0, *, less: bool = False) -> str:
    lines = {
        "users": f'password = "{SECRETS[secret]}"\nrole = "{"viewer" if less else "admin"}"',
        "roles": f'role = "{"viewer" if less else "admin"}"',
        "tokens": f'token = "{HASHES[secret]}"\nrights = ["{"look" if less else "*"}"]',
    }
    return f"[{name}]\n{lines[kind]}\n"


def connection(**headers: str) -> HTTPConnection:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection({"type": "http", "headers": raw, "client": ("127.0.0.1", 1)})


def opened(kind: str, file: Path) -> Known:
    """Return what says what ann may do: nothing, less or all."""
    if kind == "tokens":
        tokens = read_tokens(file)

        def held() -> str:
            holder = tokens.holder(b"Bearer " + GIVEN[0].encode())
            return "" if holder is None else "all" if holder.rights.may("inspect") else "less"

        return held
    if kind == "roles":
        users: Any = behind_proxy("x-user", roles=read_roles(file))
        request = connection(**{"x-user": "ann"})
    else:
        users = read_users(file)
        assert isinstance(users, Passwords)
        request = connection(cookie=f"{SESSION_COOKIE}={users.session('ann')}")

    def seen() -> str:
        user = asyncio.run(users.user(request))
        return "" if user is None else "all" if user.may("admin") else "less"

    return seen


def change(kind: str, what: str, file: Path) -> None:
    if what == "deleted":
        file.unlink()
    elif what == "replaced":
        other = file.with_name("other")
        other.write_text(text(kind, "bob", 1))
        os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
        other.replace(file)
    else:
        file.write_text(
            {
                "taken out": text(kind, "bob", 1),
                "another secret": text(kind, "ann", 1) if kind != "roles" else text(kind, "bob"),
                "fewer rights": text(kind, less=True),
                "put in": text(kind) + text(kind, "bob", 1),
                "no TOML": text(kind) + "[",
                "of no form": text(kind).replace('"admin"', '"king"').replace('"*"', '"rule"'),
                "empty": "",
            }[what]
        )


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("what", CHANGES)
def test_what_the_file_says_holds(kind: str, what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "file.toml"
    file.write_text(text(kind))
    known = opened(kind, file)
    assert known() == "all"
    change(kind, what, file)
    is_in = CHANGES[what][0] and (what, kind) != ("empty", "roles")  # a proxy's users need not be named
    assert known() == ("" if not is_in else "less" if what == "fewer rights" else "all")
    has_fault = what in ("no TOML", "of no form", "empty", "deleted") and (what, kind) != ("empty", "roles")
    assert any("holds on" in each.getMessage() for each in caplog.records) is has_fault
    assert not any("sha256$" in each.getMessage() or "scrypt$" in each.getMessage() for each in caplog.records)
    said = len(caplog.records)
    known()
    assert len(caplog.records) == said, "it says so once"
    file.write_text(text(kind) + "# mended\n")
    assert known() == "all"


async def test_a_hangup_reads_what_looks_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "command_bus")
    file = tmp_path / "file.toml"
    file.write_text(text("tokens"))
    before = file.stat()
    tokens = read_tokens(file)
    file.write_text(text("tokens", "bob"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    loop = asyncio.get_running_loop()
    reread_on_hangup(loop)
    try:
        assert repr(tokens) == "<Tokens of ann>"
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.01)
        assert repr(tokens) == "<Tokens of bob>"
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
