"""Users: passwords and their sessions, a proxy's header, the application's own check, and the person who sits at the machine."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx
import pytest

from command_bus import CommandBus, HandlerRegistry, InvalidSettings
from command_bus.dashboard import (
    Dashboard,
    User,
    behind_proxy,
    dashboard,
    hash_password,
    host_check,
    loopback,
    passwords,
)
from command_bus.dashboard.app import safe_path
from command_bus.dashboard.passwords import (
    SESSION_COOKIE,
    Attempts,
    Passwords,
    Signer,
    _pin,
    is_password,
    read_roles,
    read_users,
    source_of,
)
from command_bus.dashboard.visit import safe_link, trace_link_of
from tests.dashboard.conftest import Browser, page_text

HASHED = "scrypt$14$8$1$uUSkfLJ2kCIGOPNKzvTeOQ$LolpGu0JFjfTMGHKRdxtID1k-DrW27vGrEd8MxBDz6w"  # of "correct horse", quick to check
SECRET = "s" * 32


class Closed(CommandBus):
    """A bus that answers nothing: nobody gets that far."""

    async def open(self) -> None:
        raise AssertionError("somebody got in")


def made(users: Any, **options: Any) -> Dashboard:
    return dashboard(Closed("redis://nowhere.invalid", registry=HandlerRegistry()), users=users, secret=SECRET, **options)


def door() -> tuple[Dashboard, Passwords]:
    users = passwords({"ann": (HASHED, "operator")})
    return made(users), users


async def sign_in(app: Dashboard, password: str = "correct horse", **fields: str) -> Any:
    return await Browser(app).post("/sign-in", {"name": "ann", "password": password, **fields})


async def sign_in_with(app: Dashboard, **headers: str) -> Any:
    return await Browser(app).post("/sign-in", {"name": "ann", "password": "correct horse"}, **headers)


async def test_who_is_not_known_is_led_to_the_sign_in() -> None:
    app, _ = door()
    answer = await Browser(app).get("/entity?type=order&id=o-1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=%2Fentity%3Ftype%3Dorder%26id%3Do-1")
    assert (await Browser(app).get("/live")).status_code == 401
    assert (await Browser(app).post("/act", {"act": "entity.pause"})).status_code == 303
    assert 'type="password"' in (await Browser(app).page("/sign-in"))


async def test_a_password_gives_a_session_that_scripts_cannot_read() -> None:
    app, _ = door()
    answer = await sign_in(app, next="/letters")
    assert (answer.status_code, answer.headers["location"]) == (303, "/letters")
    cookie = answer.headers["set-cookie"]
    assert all(each in cookie for each in ("HttpOnly", "SameSite=lax", "Path=/", "Max-Age=43200"))
    assert "Secure" not in cookie
    secure = await Browser(app, base="https://ops.example").post("/sign-in", {"name": "ann", "password": "correct horse"})
    assert "Secure" in secure.headers["set-cookie"]
    passed_on = await sign_in_with(app, **{"X-Forwarded-Proto": "https"})
    assert "Secure" in passed_on.headers["set-cookie"]
    connection = Browser(app).client().build_request("GET", "/", cookies=dict(answer.cookies))
    assert SESSION_COOKIE in connection.headers["cookie"]


async def test_a_wrong_password_says_no_more_than_that() -> None:
    app, _ = door()
    wrong = await sign_in(app, "wrong password")
    unknown = await Browser(app).post("/sign-in", {"name": "nobody", "password": "correct horse"})
    assert (wrong.status_code, unknown.status_code) == (403, 403)
    assert page_text(wrong.text) == page_text(unknown.text)
    assert "set-cookie" not in wrong.headers


async def test_161_after_five_wrong_passwords_an_address_waits() -> None:
    app, users = door()
    for _ in range(5):
        users.attempts.begin("10.1.1.1")
    refused = await sign_in(app)
    assert (refused.status_code, int(refused.headers["retry-after"]) > 0) == (429, True)
    users.attempts.succeeded("10.1.1.1")
    assert (await sign_in(app)).status_code == 303


async def test_161_many_tries_at_a_time_are_no_way_around() -> None:
    app, _ = door()
    answers = await asyncio.gather(*(sign_in(app, f"wrong password {number}") for number in range(20)))
    assert sorted(each.status_code for each in answers) == [403] * 5 + [429] * 15


async def test_of_very_many_sign_ins_at_a_time_some_are_sent_away() -> None:
    app, users = door()
    users._waiting = 38  # others
    answers = await asyncio.gather(*(sign_in(app) for _ in range(4)))
    assert sorted(each.status_code for each in answers) == [303, 303, 503, 503]
    assert {each.headers.get("retry-after") for each in answers if each.status_code == 503} == {"5"}
    assert (await sign_in(app)).status_code == 303


async def test_161_a_password_of_one_s_own_makes_no_room_for_more_guesses() -> None:
    app, users = door()
    for _ in range(4):
        users.attempts.begin("10.1.1.1")
    assert (await sign_in(app)).status_code == 303
    assert (await sign_in(app, "wrong password")).status_code == 403
    assert (await sign_in(app)).status_code == 429


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("10.1.1.1", "10.1.1.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.1.1.1", "10.1.1.1"),
        ("testclient", "testclient"),
    ],
)
async def test_tries_are_counted_by_household(host: str, source: str) -> None:
    from starlette.requests import HTTPConnection

    assert source_of(HTTPConnection({"type": "http", "headers": [], "client": (host, 1)})) == source
    assert source_of(HTTPConnection({"type": "http", "headers": []})) == ""


async def test_failures_are_forgotten_and_bounded() -> None:
    attempts = Attempts(most=2, seconds=60)
    for number in range(10_050):
        attempts.begin(f"a-{number}")
    assert len(attempts._failed) == 10_000
    attempts.begin("b")
    assert attempts.wait("b") == 0.0
    attempts.begin("b")
    assert 0 < attempts.wait("b") <= 60


async def user_with(app: Dashboard, users: Any, **headers: str) -> User | None:
    from starlette.requests import HTTPConnection

    scope = {
        "type": "http",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("10.1.1.1", 1),
    }
    found: User | None = await users.user(HTTPConnection(scope))
    return found


async def test_162_sessions_end_and_are_not_forged(monkeypatch: pytest.MonkeyPatch) -> None:
    app, users = door()
    session = users.session("ann")
    assert await user_with(app, users, cookie=f"{SESSION_COOKIE}={session}") == User("ann", "operator")
    body, _, signature = session.partition(".")
    other = Signer("other" * 8).sign("session", {"name": "ann", "pin": _pin(users._now()["ann"])}, 60)
    csrf = users.signer.sign("csrf", {"name": "ann", "pin": _pin(users._now()["ann"])}, 60)
    for wrong in ("", "x", f"{body}.", f"{body}x.{signature}", f"{body}.{signature}x", other, csrf, "é.é", "a." + "x" * 5000):
        assert await user_with(app, users, cookie=f"{SESSION_COOKIE}={wrong}") is None, wrong
    late = users.signer.sign("session", {"name": "ann", "pin": _pin(users._now()["ann"])}, -1)
    assert await user_with(app, users, cookie=f"{SESSION_COOKIE}={late}") is None
    changed = passwords({"ann": (hash_password("another horse"), "operator")})
    changed.signer = users.signer
    assert await user_with(app, changed, cookie=f"{SESSION_COOKIE}={session}") is None
    assert await user_with(app, Passwords({"bob": (HASHED, "viewer")}), cookie=f"{SESSION_COOKIE}={session}") is None


async def test_signing_in_from_another_site_is_refused() -> None:
    app, _ = door()
    answer = await Browser(app).post("/sign-in", {"name": "ann", "password": "correct horse"}, Origin="http://evil.example")
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "javascript:alert(1)",
        "/a\r\nSet-Cookie: x=1",
        "/a\\b",
        "",
        "/sign-out",
        "letters",
    ],
)
async def test_164_nothing_leads_elsewhere(path: str) -> None:
    app, _ = door()
    assert safe_path(path) == "/"
    assert 'name="next" value="/"' in await Browser(app).page(str(httpx.URL("/sign-in", params={"next": path})))
    assert safe_path("/entity?type=a&id=//x") == "/entity?type=a&id=//x"


async def test_after_the_sign_in_nothing_leads_elsewhere() -> None:
    app, _ = door()
    answer = await sign_in(app, next="//evil.example\r\nSet-Cookie: x=1")
    assert (answer.headers["location"], "x=1" in answer.headers["set-cookie"]) == ("/", False)


async def test_180_a_proxy_is_believed_and_no_other() -> None:
    users = behind_proxy("X-Who", roles={"ann": "admin"}, everyone="viewer", proxies=["10.0.0.0/8"])
    app = made(users)
    assert await user_with(app, users, **{"x-who": "ann"}) == User("ann", "admin")
    assert await user_with(app, users, **{"x-who": "bob"}) == User("bob", "viewer")
    assert await user_with(app, users) is None
    for name in ("", " ", "a" * 201, "a\x00b"):
        assert await user_with(app, users, **{"x-who": name}) is None
    assert await user_with(app, users, **{"x-who": "ann", "X-Who": "bob"}) is None, "twice"
    assert await user_with(app, behind_proxy("X-Who", roles={"ann": "admin"}), **{"x-who": "ann"}) is None, "another address"
    assert await user_with(app, behind_proxy("X-Who", roles={}, proxies=["10.1.1.1"]), **{"x-who": "ann"}) is None
    assert (await Browser(made(behind_proxy("X-Who", roles={}))).get("/")).status_code == 403


async def test_the_application_s_own_check_may_be_a_coroutine() -> None:
    async def check(connection: Any) -> User | None:
        return User("ann", "operator") if connection.headers.get("x-token") == "1" else None

    assert await user_with(made(host_check(check)), host_check(check), **{"x-token": "1"}) == User("ann", "operator")
    assert (await Browser(made(host_check(check))).get("/")).status_code == 403


OF_PROXIES = (
    "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "x-forwarded-proto", "x-original-forwarded-for",
    "x-original-host", "x-proxyuser-ip", "proxy-connection", "cf-connecting-ip", "cf-ray", "cdn-loop", "fastly-client-ip",
    "x-envoy-external-address", "x-amzn-trace-id", "x-amz-cf-id", "x-azure-clientip", "x-arr-log-id", "x-appengine-user-ip",
    "x-cloud-trace-context", "x-vercel-forwarded-for", "fly-client-ip", "x-auth-request-user", "x-request-id", "x-scheme",
)  # fmt: skip
OF_BROWSERS = (
    "user-agent", "accept", "accept-language", "accept-encoding", "cookie", "referer", "origin", "sec-fetch-site", "sec-ch-ua", "dnt",
    "upgrade-insecure-requests", "connection", "cache-control", "pragma", "priority", "te", "if-none-match", "content-type", "sec-gpc",
    "x-requested-with",
)  # fmt: skip


@pytest.mark.parametrize(
    ("client", "host", "header", "may"),
    [
        ("127.0.0.1", "localhost:8089", "", True),
        ("127.0.0.1", "127.0.0.1:8089", "", True),
        ("::1", "[::1]:8089", "", True),
        ("127.0.0.1", "evil.example", "", False),
        ("127.0.0.1", "localhost.evil.example:8089", "", False),
        ("127.0.0.1", "", "", False),
        ("10.0.0.7", "localhost:8089", "", False),
        ("127.0.0.1", "localhost:8089", "x-forwarded-for", False),
        ("127.0.0.1", "localhost:8089", "forwarded", False),
        *[("127.0.0.1", "localhost:8089", header, False) for header in OF_PROXIES],
        *[("127.0.0.1", "localhost:8089", header, True) for header in OF_BROWSERS],
    ],
)
async def test_without_users_only_this_machine_may_look(client: str, host: str, header: str, may: bool) -> None:
    from starlette.requests import HTTPConnection

    headers = [(b"host", host.encode()), *([(header.encode(), b"x")] if header else [])]
    found = await loopback("operator").user(HTTPConnection({"type": "http", "headers": headers, "client": (client, 1)}))
    assert found == (User("local", "operator") if may else None)


@pytest.mark.parametrize("address", ["", "/grafana/d/command-bus", "https://grafana.example/d/x?a=1", "http://localhost:3000"])
def test_a_link_leads_to_the_web_or_to_this_host(address: str) -> None:
    assert safe_link("board_link", address) == address


async def test_another_name_than_those_given_is_refused() -> None:
    app = made(passwords({"ann": (HASHED, "viewer")}), hosts=["ops.example"])
    assert (await Browser(app).get("/sign-in")).status_code == 200
    assert (await Browser(app, base="http://evil.example").get("/sign-in")).status_code == 421


@pytest.fixture(autouse=True)
def _cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of a hundredth of a second: what they cost is not tested."""
    monkeypatch.setattr(sys.modules[hash_password.__module__], "_LOG_N", 14)
    monkeypatch.setattr(sys.modules[hash_password.__module__], "_P", 1)


def test_a_hash_is_the_password_s_and_no_other_s() -> None:
    assert is_password("correct horse", HASHED)
    assert not is_password("correct horsf", HASHED)
    assert not is_password("x" * 2000, HASHED)
    assert hash_password("correct horse") != HASHED


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: hash_password("short"), "at least 10"),
        (lambda: passwords({}), "there are none"),
        (lambda: passwords({"ann": ("correct horse", "viewer")}), "is not a hash"),
        (lambda: passwords({"ann": (HASHED, "root")}), "one of viewer, operator, admin"),  # type: ignore[dict-item]
        (lambda: passwords({"ann": (HASHED, "viewer")}, hours=0), "how long a session lasts"),
        (lambda: Signer("short"), "at least 32"),
        (lambda: behind_proxy(roles={"ann": "boss"}), "one of viewer, operator, admin"),  # type: ignore[dict-item]
        (lambda: behind_proxy(roles={}, proxies=["proxy.local"]), "addresses or networks"),
        (lambda: behind_proxy(roles={}, proxies=[]), "name the addresses"),
        (lambda: loopback("boss"), "one of viewer"),  # type: ignore[arg-type]
        (lambda: made(None), "who may look"),
        (lambda: made(loopback(), board_link="javascript:alert(1)"), "an address as https"),
        (lambda: made(loopback(), board_link="//evil.example"), "an address as https"),
        (lambda: made(loopback(), board_link="https://["), "an address as https"),
        (lambda: trace_link_of("https://jaeger.example/"), "with {trace_id} in it"),
        (lambda: trace_link_of("data:text/html,{trace_id}"), "an address as https"),
    ],
)
def test_160_users_that_make_no_sense_are_refused(make: Any, advice: str) -> None:
    with pytest.raises(InvalidSettings, match=advice):
        make()


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("[ann]\npassword = 'plain text'\n", "is not a hash"),
        ("ann = 'x'\n", "has password = "),
        ("[ann]\nrole = 'viewer'\n", "has password = "),
        ("[ann]\npassword = 'x'\nroll = 'viewer'\n", "has password = "),
        ("[ann\n", "is no TOML"),
        ("", "there are none"),
    ],
)
def test_a_file_of_users_says_what_is_wrong(tmp_path: Any, text: str, advice: str) -> None:
    file = tmp_path / "users.toml"
    file.write_text(text)
    with pytest.raises(InvalidSettings, match=advice):
        read_users(file)
    with pytest.raises(InvalidSettings, match="cannot be read"):
        read_users(tmp_path / "none.toml")


def test_a_file_of_users_is_read(tmp_path: Any) -> None:
    file = tmp_path / "users.toml"
    file.write_text(f'[ann]\npassword = "{HASHED}"\nrole = "admin"\n\n[bob]\npassword = "{HASHED}"\n')
    assert {name: role for name, (_, role) in read_users(file)._now().items()} == {"ann": "admin", "bob": "viewer"}


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (f'[ann]\npassword = "{HASHED}"\nrole = "admin"\n', "a proxy signs in"),
        ("ann = 'admin'\n", "a proxy signs in"),
        ("[ann]\n", "a proxy signs in"),
        ("[ann]\nrole = 'boss'\n", "one of viewer, operator, admin"),
    ],
)
def test_160_a_file_of_roles_has_roles_alone(tmp_path: Any, text: str, advice: str) -> None:
    file = tmp_path / "roles.toml"
    file.write_text(text)
    with pytest.raises(InvalidSettings, match=advice):
        read_roles(file)


def test_a_file_of_roles_is_read(tmp_path: Any) -> None:
    file = tmp_path / "roles.toml"
    file.write_text("[ann]\nrole = 'admin'\n[\"bob@shop.example\"]\nrole = 'viewer'\n")
    assert read_roles(file) == {"ann": "admin", "bob@shop.example": "viewer"}


async def test_a_probe_needs_no_user_and_no_name() -> None:
    app = made(passwords({"ann": (HASHED, "viewer")}), hosts=["ops.example"])
    probe = await Browser(app, base="http://10.0.0.9:8089").get("/healthz")
    assert (probe.status_code, probe.text) == (200, "live\n")
    assert (await Browser(app, base="http://10.0.0.9:8089").get("/healthz/")).status_code == 421
