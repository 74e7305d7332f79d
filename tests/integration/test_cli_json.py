"""`--json` of all commands compared with docs/cli.md: keys, objects and units."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("sqlalchemy")

from sqlalchemy import create_engine, text
from typer.main import get_command

from command_bus import Command, EntityId, EntityState, Rate
from command_bus.cli.app import app
from command_bus.sending.publishing import SubscriptionRecord
from command_bus.sql import metadata
from tests.docs.trouble import Trouble

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("cli_json")]  # one stage for all

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
_ROW = re.compile(r"^\| (`?)([a-zA-Z -]+)\1 \| (.+) \|$", re.MULTILINE)
_KEY = re.compile(r"`(\w+)`(?: \((list of )?(\w+)\))?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
AS_WRITTEN = {"payload", "headers", "schema", "reply", "policy", "rate", "tokens", "share", "facts", "value"}

Shape = dict[str, tuple[bool, str]]
"""By key, whether it is a list, and of what object; an empty name is a plain value."""


def shapes() -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Return the keys of commands and of objects, as the page lists them."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## JSON\n")[2].partition("\n## ")[0]
    rows = [
        (code, name, {key: (bool(many), of) for key, many, of in _KEY.findall(keys)})
        for code, name, keys in _ROW.findall(section)
    ]
    commands = {name: shape for code, name, shape in rows if code}
    objects = {name: shape for code, name, shape in rows if not code and shape}
    objects["figures"] = {name: shape for name, shape in commands["stats"].items() if name != "holds"}
    same = {
        "dlq show": "letter",
        "history show": "record",
        "state show": "state",
        "events follow": "event",
        "introspect COMMAND": "command",
        "schedules show": "schedule",
        "schedules put": "schedule",
        "subscriptions show": "subscription",
    }
    return {**commands, **{name: objects[of] for name, of in same.items()}}, objects


COMMANDS, OBJECTS = shapes()
WORDS = {
    "send": ("send", "Deposit", '{"account_id": "j-1", "amount": 1}', "--json"),
    "publish": ("publish", "account.noted", "{}", "--entity", "account:j-1", "--json"),
    "subscriptions show": ("subscriptions", "show", "ledger", "--json"),
    "subscriptions pause": ("subscriptions", "pause", "ledger", "--json"),
    "subscriptions resume": ("subscriptions", "resume", "ledger", "--json"),
    "subscriptions remove": ("subscriptions", "remove", "ledger", "--yes", "--json"),
    "top": ("top", "--once", "--json"),
    "entity": ("entity", "order:o-7", "--json"),
    "entity ID abort": ("entity", "order:o-7", "abort", "--yes", "--json"),
    "entity ID prioritize": ("entity", "order:o-7", "prioritize", "low", "--json"),
    "entity ID keys": ("entity", "order:o-7", "keys", "--json"),
    "entity ID forget": ("entity", "order:o-7", "forget", "--key", "Ship", "--json"),
    "dlq show": ("dlq", "show", "LETTER", "--json"),
    "introspect COMMAND": ("introspect", "Deposit"),
    "schedules show": ("schedules", "show", "nightly", "--json"),
    "schedules put": ("schedules", "put", "hourly", "Deposit", '{"account_id": "j-3", "amount": 1}', "--every", "1h", "--json"),
    "schedules import": ("schedules", "import", "/dev/null", "--json"),
    "schedules next": ("schedules", "next", "nightly", "--json"),
    "schedules trigger": ("schedules", "trigger", "nightly", "--json"),
    "schedules pause": ("schedules", "pause", "nightly", "--json"),
    "schedules resume": ("schedules", "resume", "nightly", "--json"),
    "schedules remove": ("schedules", "remove", "weekly", "--yes", "--json"),
    "limits put": ("limits", "put", "type:order", "--rate", "50/s", "--json"),
    "limits remove": ("limits", "remove", "type:order", "--json"),
    "limits release": ("limits", "release", "type:order", "--json"),
    "shares put": ("shares", "put", "acme", "3", "--json"),
    "shares remove": ("shares", "remove", "acme", "--json"),
    "command": ("command", "later-3", "--json"),
    "command --tree": ("command", "later-3", "--tree", "--json"),
    "commands cancel": ("commands", "cancel", "--all", "--dry-run", "--json"),
    "commands prioritize": ("commands", "prioritize", "low", "--all", "--dry-run", "--json"),
    "commands promote": ("commands", "promote", "--dry-run", "--json"),
    "state show": ("state", "show", "account:s-1", "--json"),
    "state list": ("state", "list", "account", "--json"),
    "state delete": ("state", "delete", "account:s-2", "--json"),
    "signal": ("signal", "later-4", "ok", "true", "--json"),
    "cancel": ("cancel", "no-such", "--json"),
    "webhooks deliveries": ("webhooks", "deliveries", "crm", "--json"),
    "history show": ("history", "show", "ended-1", "--json"),
    "history search": ("history", "search", "--json"),
    "export": ("export", "history", "--to", "FOLDER", "--json"),
    "outbox status": ("outbox", "status", "--database", "DATABASE", "--json"),
    "outbox list": ("outbox", "list", "--database", "DATABASE", "--json"),
    "schema check": ("schema", "check", "--live", "--against", "SCHEMAS", "--json"),
    "delayed promote": ("delayed", "promote", "later-1", "--json"),
}


class Approve(Command[None], entity="approval", durable=True):
    approval: EntityId


class Account(EntityState, entity="account"):
    balance: int = 0


async def send_durable(stage: Trouble) -> None:
    async with stage.bus() as bus:
        await bus.dispatch(Approve(approval="a-1"), delay=3600, command_id="later-4")
        await bus.limits.put("type:order", Rate(50))
        for number in (1, 2):
            await bus.states.put(f"s-{number}", Account(balance=number))
        await bus.fairness.put("acme", weight=2)
        await bus.sender.subscriptions.put("ledger", SubscriptionRecord(("account.*",), False, 1, 1_785_000_000_000))
        begun = await bus.audit.write("ann", "Pause", "account:a-17", "a dispute", details="0 held")
        await bus.audit.write("ann", "Pause", "account:a-17", "a dispute", outcome="account:a-17 is paused", ref=begun)


@pytest.fixture(scope="module")
def troubled_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trouble]:
    stage = Trouble(tmp_path_factory.mktemp("json"))
    asyncio.run(stage.__aenter__())
    stage.run("events", "watch")
    stage.run("pause", "parcel")
    stage.run("call", "Deposit", '{"account_id": "j-2", "amount": 1}')
    stage.run("schedules", "put", "nightly", "Deposit", '{"account_id": "j-3", "amount": 1}', "--cron", "0 2 * * *")
    stage.run("schedules", "put", "weekly", "Deposit", '{"account_id": "j-3", "amount": 1}', "--cron", "0 2 * * MON")
    stage.run("send", "Deposit", '{"account_id": "j-4", "amount": 1}', "--delay", "3600", "--id", "later-1")
    stage.run("send", "Ship", '{"order_id": "o-7"}', "--unique", "later", "--delay", "3600", "--command-id", "later-2")
    stage.run("send", "Deposit", '{"account_id": "j-5", "amount": 1}', "--delay", "3600", "--command-id", "later-3")
    stage.run(
        "send", "Deposit", '{"account_id": "j-5", "amount": 1}', "--delay", "60", "--command-id", "ended-1", "--history", "1 h"
    )
    stage.run("cancel", "ended-1")
    asyncio.run(send_durable(stage))
    stage.run("limits", "put", "bus", "--rate", "10000/s")
    stage.run("webhooks", "put", "crm", "https://crm.example", "--kind", "completed", "--secret-env", "CRM")
    yield stage
    asyncio.run(stage.__aexit__())


def compared(found: Any, shape: Shape, at: str) -> Iterator[tuple[str, Any]]:
    """Hold an object against its shape; the plain values in it, each under its path."""
    assert isinstance(found, dict), at
    assert set(found) == set(shape), at
    for key, value in found.items():
        many, of = shape[key]
        if not of:
            yield f"{at}.{key}", value
            continue
        for each in value or () if many else [] if value is None else [value]:
            yield from compared(each, OBJECTS[of], f"{at}.{key}")


def check_unit(path: str, value: Any) -> None:
    """Check durations and times, by their names; nothing else is a fraction or looks like a time."""
    name = path.rpartition(".")[2]
    if name in AS_WRITTEN or value is None:
        return
    if name.endswith("_seconds"):
        assert isinstance(value, int | float), path
    elif name in ("at", "since") or name.endswith("_at"):
        assert _TIME.fullmatch(value), (path, value)
        assert datetime.fromisoformat(value).year >= 2020
    elif name != "weight":  # a ratio, without a unit
        assert not name.endswith("_ms"), path
        assert not isinstance(value, float | dict), (path, value)
        assert not (isinstance(value, str) and _TIME.fullmatch(value)), (path, value)


def test_the_page_has_every_command_that_prints_json() -> None:
    top: Any = get_command(app)
    able: set[str] = set()
    for name in top.commands:
        command = top.commands[name]
        inner = {f"{name} {each}": command.commands[each] for each in getattr(command, "commands", {})} or {name: command}
        able |= {each for each, found in inner.items() if any("--json" in parameter.opts for parameter in found.params)}
    variants = {
        "introspect COMMAND",
        "command --tree",
        "entity ID abort",
        "entity ID forget",
        "entity ID keys",
        "entity ID prioritize",
        "entities --keys",
    }
    assert able == {*COMMANDS} - variants


ELSEWHERE = {"events follow", "obliterate"}  # the latter would leave nothing to look at: see test_cli_policies.py


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ELSEWHERE])
def test_keys_and_units_are_those_of_the_page(troubled_shop: Trouble, name: str) -> None:
    words = list(WORDS.get(name, (*name.split(" "), "--json")))
    if "LETTER" in words:
        words[words.index("LETTER")] = json.loads(troubled_shop.run("dlq", "list", "--json").stdout)["letters"][0]["id"]
    if "FOLDER" in words:
        pytest.importorskip("pyarrow")
        words[words.index("FOLDER")] = str(troubled_shop.folder / "ledger")
    if "SCHEMAS" in words:
        words[words.index("SCHEMAS")] = str(troubled_shop.folder / "none.json")
        (troubled_shop.folder / "none.json").write_text('{"format": 1, "commands": {}}', encoding="utf-8")
    if "DATABASE" in words:
        words[words.index("DATABASE")] = outbox_database(troubled_shop.folder)
    done = troubled_shop.run(*words)
    values = list(compared(json.loads(done.stdout), COMMANDS[name], name))
    assert values
    for path, value in values:
        check_unit(path, value)


def outbox_database(folder: Path) -> str:
    """Return the URL of a database with an outbox, in which a row is set aside."""
    url = f"sqlite:///{folder / 'outbox.db'}"
    engine = create_engine(url)
    metadata.create_all(engine)
    columns = "mailbox, command_id, envelope, flow, due_ms, added_ms, error"
    with engine.begin() as connection:
        connection.execute(
            text(f"INSERT INTO command_outbox ({columns}) VALUES ('order:o-1', 'c-1', '', '', 0, 1785000000000, 'why')")
        )
    engine.dispose()
    return url


def test_events_that_are_followed_are_one_object_a_line(troubled_shop: Trouble) -> None:
    following = subprocess.Popen(
        [sys.executable, "-m", "command_bus", "events", "follow", "--json"],
        env=troubled_shop.environment, cwd=troubled_shop.folder, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert following.stdout is not None
        line: Future[str] = Future()
        threading.Thread(target=lambda: line.set_result(following.stdout.readline())).start()  # type: ignore[union-attr]
        while not line.done():
            troubled_shop.run("call", "GetBalance", '{"account_id": "j-2"}')
        for path, value in compared(json.loads(line.result()), OBJECTS["event"], "event"):
            check_unit(path, value)
    finally:
        following.kill()
        following.communicate()
