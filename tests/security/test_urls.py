"""An invalid URL shows nothing of its password; options in a URL that weaken TLS are found in any spelling."""

from __future__ import annotations

import logging
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_bus import BusSettings, CommandBus, CommandBusError, InvalidSettings
from command_bus.cli.options import Target
from command_bus.cli.process.application import Application
from command_bus.cli.process.worker_options import WorkerOptions
from command_bus.server_urls import redacted, unverified, url_fault, weakened
from command_bus.transport.redis.connection.clients import clients_of

ROOT = Path(__file__).parents[2]
SECRET = "hunter2secret"
CUTTERS = [
    f"{SECRET[:7]}{cut}{SECRET[7:]}"
    for cut in ("/", "?", "#", "/0?", "[", " ", "\n", "\u2028", "\uff0f", "\u2100", "%zz@/", "@/", "?a=b&")
]
PREFIXES = ["redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"]
MISTAKES = [
    *(f"{scheme}://{user}:{password}@host:6379/main" for scheme in PREFIXES for user in ("", "jo") for password in CUTTERS),
    *(f"{scheme}://jo:123{cut}{SECRET}@host:1,other:2/main" for scheme in PREFIXES for cut in "/?#"),
    f":{SECRET}@host",
    f"jo:{SECRET}@host:6379/0",
    f"{SECRET}@host",
    f"redis:/jo:{SECRET}@host",
    f"redis:jo:{SECRET}@host",
    f"http://jo:{SECRET}@host",
    f"REDIS://jo:{SECRET}@host",
    f"redis://jo:{SECRET}",
    f"redis+sentinel://jo:{SECRET}/main",
    f"redis+cluster://jo:{SECRET},b:1",
    f"redis://jo:{SECRET}@host:port",
    f"redis://jo:{SECRET}@host:99999",
    f"redis://jo:{SECRET}@host:6379/0?db=no",
    f"redis://jo:{SECRET}@host:6379/0?no_such_option=1",
    f"redis://jo:{SECRET}@host:6379/0?protocol=9",
    f"redis+sentinel://jo:{SECRET}@host:6379",
    f"redis+cluster://jo:{SECRET}@host:6379/3",
    f"redis://host:6379/0?password={SECRET}&password=x",
    f"redis://host:6379/0?pass%77ord={SECRET}&db=no",
    f"redis://host:6379/0?{SECRET}",
]  # fmt: skip


def _leaks(text: str) -> bool:
    return any(part in text for part in (SECRET, SECRET[:7], SECRET[7:]))


def _attempt(build: Callable[[], Any]) -> tuple[Any, InvalidSettings | None]:
    """Return the made object, or the error."""
    try:
        return build(), None
    except InvalidSettings as error:
        return None, error


def _all_told(error: BaseException) -> str:
    return "".join([str(error), repr(error), *traceback.format_exception(error)])


@pytest.mark.parametrize("url", MISTAKES)
def test_an_invalid_url_is_refused_without_showing_its_password(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    ways: tuple[Callable[[], Any], ...] = (
        lambda: CommandBus(url, insecure=True),
        lambda: BusSettings(url=url, insecure=True),
        lambda: clients_of(url),
    )
    for build in ways:
        made, error = _attempt(build)
        assert not _leaks(repr(made) if error is None else _all_told(error))
    with pytest.raises(InvalidSettings):
        clients_of(url)
    assert not _leaks(redacted(url))
    assert not _leaks(caplog.text)


@pytest.mark.parametrize("url", MISTAKES[::7])
async def test_a_bus_that_is_opened_with_one_tells_nothing(url: str) -> None:
    with pytest.raises(CommandBusError) as error:
        async with CommandBus(url, dispatch_timeout=0.2, insecure=True):
            pass
    assert not _leaks(_all_told(error.value))


@given(
    st.text(st.sampled_from("/?#@:%[] &=\n\u2100\uff0fab1"), min_size=1, max_size=12),
    st.sampled_from(PREFIXES),
    st.sampled_from(["", "jo"]),
)
def test_a_password_with_unquoted_characters_is_not_shown(junk: str, scheme: str, user: str) -> None:
    url = f"{scheme}://{user}:{SECRET[:7]}{junk}{SECRET[7:]}@host:6379/main"
    assert not _leaks(redacted(url))
    clients, error = _attempt(lambda: clients_of(url))
    assert not _leaks(clients.label if error is None else _all_told(error))


@pytest.mark.parametrize(
    "url",
    [
        "redis://:p%2Fw%3Fx%23y%40z@host:6379/0",
        "redis://jo:a@b@host",
        "redis://host",
        "redis://host:6379/0?password=p@ss&username=jo@home",
        "rediss://host?ssl_min_version=771&ssl_cert_reqs=required",
        "unix:///run/a@b.sock?db=2",
        "unix://jo:pw@/run/r.sock",
        "redis+sentinel://:pw@a:1,b:2/main/3?sentinel_password=x",
        "redis+cluster://a:1,[::1]:2",
        "redis://[::1]:6379/0?socket_timeout=3",
    ],
)
def test_a_valid_url_is_accepted(url: str) -> None:
    assert url_fault(url) is None
    assert clients_of(BusSettings(url=f" {url}\n").server_url or "").label


@pytest.mark.parametrize("address", ["a[::1]:2", "[::1]x:2", "[zz]:2", "[::1:2", "a]:2", "a:1,b[::1]:2", "a:1,[zz]:2"])
@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_an_address_with_other_brackets_is_refused_by_every_python(scheme: str, address: str) -> None:
    assert url_fault(f"{scheme}://:{SECRET}@{address}") is not None


def test_nothing_on_the_way_through_the_program_shows_it() -> None:
    url = f"redis://jo:{SECRET}@host"
    application = Application("shop:bus", "shop", url, "host", ("A",), 1, 1.0)
    for each in (application, WorkerOptions("shop:bus", url=url), Target(url=url), BusSettings(url=url), CommandBus(url)):
        assert not _leaks(repr(each))


@pytest.mark.parametrize(
    "url", [f"redis://:{SECRET[:7]}/{SECRET[7:]}@host", f":{SECRET}@host", f"redis+sentinel://u:{SECRET}/x@h:1/m"]
)
@pytest.mark.parametrize(
    ("words", "by_environment"),
    [
        (("stats",), False),
        pytest.param(("stats",), True, marks=pytest.mark.slow),
        pytest.param(("worker", "nowhere:bus"), False, marks=pytest.mark.slow),
        (("worker", "nowhere:bus"), True),
    ],
)
def test_the_program_tells_nothing_of_it(url: str, words: tuple[str, ...], by_environment: bool) -> None:
    given_ = [] if by_environment else ["--url", url]
    environment = {"PATH": "/usr/bin", "PYTHONPATH": str(ROOT), **({"COMMAND_BUS_URL": url} if by_environment else {})}
    command = [sys.executable, "-m", "command_bus", *words, *given_]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (1, 2)
    assert not _leaks(done.stdout + done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("url", [f"redis://:{SECRET}@127.0.0.1:1", f"redis://127.0.0.1:1?username=jo&password={SECRET}"])
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_takes_no_password_among_its_arguments(url: str, processes: str) -> None:
    command = [sys.executable, "-m", "command_bus", "worker", "nowhere:bus", "--url", url, "--processes", processes]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "COMMAND_BUS_PASSWORD" in done.stderr
    assert not _leaks(done.stderr)


@pytest.mark.parametrize(
    "query",
    [
        "ssl_cert_reqs=required&ssl_cert_reqs=none",
        "ssl_cert_reqs=none&ssl_cert_reqs=required",
        "ssl_check_hostname=true&ssl_check_hostname=false",
        "ssl_cert_reqs=required&ssl%5Fcert%5Freqs=none",
        "ssl_cert_reqs=&ssl_cert_reqs=none",
        "db=1&db=2",
    ],
)
@pytest.mark.parametrize("insecure", [False, True])
@pytest.mark.parametrize("address", ["rediss://h", "rediss+cluster://h:1", "rediss+sentinel://h:1/m"])
def test_an_option_that_stands_twice_is_refused(address: str, query: str, insecure: bool) -> None:
    with pytest.raises(InvalidSettings, match="each option once"):
        BusSettings(url=f"{address}?{query}", insecure=insecure)


@pytest.mark.parametrize(
    "query",
    ["ssl_min_version=769", "ssl_min_version=-2", "ssl_min_version=0x303", "ssl_ciphers=NULL", "sentinel_ssl_ciphers=ALL"],
)
def test_weaker_encryption_is_asked_for_twice(query: str) -> None:
    url = f"rediss+sentinel://h:1/m?{query}"
    with pytest.raises(InvalidSettings, match="insecure=True"):
        BusSettings(url=url)
    assert weakened(BusSettings(url=url, insecure=True).server_url or "")
    assert unverified(url) is None  # who chooses ciphers still means the server's name to be checked


def test_what_is_not_weaker_needs_nothing() -> None:
    for version in ("771", "772"):
        assert BusSettings(url=f"rediss://h?ssl_min_version={version}").server_url
