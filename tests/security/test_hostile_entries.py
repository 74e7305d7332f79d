"""Foreign entries in a namespace neither control an operator's terminal nor end an operator's command.

Each entry here could be of a stolen password of some role: names and ids with terminal escapes, times that no calendar has, announcements
that are none, records that cannot be read. Every command is run against all of it, in a pipe, as JSON, and on a terminal.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from command_bus import Command, EntityId, SyncCommandBus
from command_bus.embedded import EmbeddedServer, find_server_binary
from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.serialization.envelope import WireEnvelope, pack_envelope
from command_bus.serialization.msgpack import pack
from command_bus.transport.redis.keys import ShardKeys
from tests.program import run_program
from tests.selection import quick

pytest.importorskip("typer")
pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
EVIL = "\x1b]0;owned\x07\x1b[2J\u009b2J\u202e\u2066\rroot\n0-1-1: replayed \u200b"
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]")
STYLES = re.compile(r"\x1b\[[01]m")
FOREVER = 2**62
KEYS = ShardKeys("shop", 0)


class Deposit(Command[int], entity="account"):
    account: EntityId
    amount: int


def record(**changes: Any) -> bytes:
    """Return an announcement."""
    facts: dict[str, Any] = {
        "entity": "account", "key": "account", "delivery": "at_least_once", "kind": "command", "policy": {"attempts": 3},
        "schema": {"type": "object", "properties": {"account": {"type": "string"}, "amount": {"type": "integer"}}, "required": ["account"]},
    }  # fmt: skip
    return json.dumps({**facts, **changes}).encode()


LOOP = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}}
WIDE = {
    "type": "object",
    "properties": {"account": {"$ref": "#/$defs/A"}},
    "$defs": {"A": {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/A"}]}},
}
DEEP = b"[" * 3000 + b"]" * 3000
ANNOUNCED: dict[str, bytes] = {
    "Deposit": record(),
    f"Evil{EVIL}": record(
        entity=EVIL, key=EVIL, kind=EVIL, delivery=EVIL, schema={"properties": {EVIL: {"description": EVIL}}, "title": EVIL}
    ),
    "Terms": record(schema={"type": "object", "description": EVIL, "properties": {"account": {"type": "string"}, EVIL: {}}}),
    "NoObject": record(schema=[1]),
    "NoMap": b"[1]",
    "NoJson": b"{",
    "Deep": b'{"entity":null,"key":null,"delivery":"at_least_once","schema":' + DEEP + b"}",
    "DeepWithin": b'{"entity":null,"key":null,"delivery":"at_least_once","schema":{"default":' + DEEP[2600:-2600] + b"}}",
    "Loop": record(schema=LOOP, reply=LOOP),
    "Wide": record(schema=WIDE),
    "Odd": record(
        schema={
            "properties": 5,
            "required": 7,
            "anyOf": {"a": 1},
            "$defs": [1],
            "items": 3,
            "enum": 9,
            "minimum": "x",
            "pattern": 4,
        }
    ),
    "OddPolicy": record(policy={"attempt_timeout": "soon", "attempts": {}, "on_poison": [1]}),
    "NoPolicy": record(policy=[1]),
    "Lost": record(schema={"type": "object", "properties": {"account": {"$ref": "#/$defs/Nowhere"}}}),
    "Numbers": b'{"entity":null,"key":null,"delivery":"at_least_once","schema":{"properties":{"a":{"maximum":1e999,"default":NaN}}}}',
    "Slow": record(schema={"type": "object", "properties": {"account": {"type": "string", "pattern": "^(a+)+$"}}}),
}


def envelope(command_id: str, name: str = "Deposit", entity_id: str = "a") -> bytes:
    return pack_envelope(WireEnvelope(command_id, name, "account", entity_id, pack({"account": entity_id, "amount": 1})))


def spoil(client: Redis) -> None:
    """Write all of it."""
    for name, value in ANNOUNCED.items():
        client.hset(KEYS.commands, name.encode("utf-8", "surrogatepass"), value)
    client.hset(KEYS.commands, b"\xff\xfe", record())
    for number, times in enumerate((FOREVER, -5, 0, 1_700_000_000_000)):
        letter = DeadLetterRecord(
            reason=f"failed{EVIL}", command_id=f"c-{number}{EVIL}", name=f"Deposit{EVIL}", entity_type=f"account{EVIL}", entity_id=EVIL,
            error_type=EVIL, error_message=EVIL, traceback=f"a\nb{EVIL}", accepted_ms=times, first_started_ms=times, failed_ms=times,
            worker=EVIL, headers={EVIL: EVIL},
        )  # fmt: skip
        client.xadd(KEYS.dead, {"r": letter.pack(), "e": envelope(f"c-{number}{EVIL}", f"D{EVIL}"), "m": "account:a", "p": "0"})
    client.xadd(KEYS.dead, {"r": b"\x01", "e": b"\xc1", "m": b"\xff", "p": "0"})
    client.xadd(KEYS.mailbox("account:late"), {"e": envelope(f"late{EVIL}", f"D{EVIL}")}, id=f"{FOREVER}-1")
    client.xadd(KEYS.mailbox("account:none"), {"e": b"\xc1"}, id=f"{FOREVER}-1")
    client.hset(KEYS.active, mapping={
        "account:late": "r|1-1|||0|0|", "account:none": "h|x|no|y|z|w|\x1b[2J", f"account:{EVIL}": "r|1-1|||0|0|", EVIL: "?", b"\xff\xfe": "r",
        "account:retry": "w|1-1|||1|0|",
    })  # fmt: skip
    client.hset(
        KEYS.paused,
        mapping={f"account:{EVIL}": f"p|{FOREVER}|{EVIL}", "account:*": f"p|{FOREVER}|{EVIL}", EVIL: "no", b"\xff:*": b"\xff"},
    )
    client.hset(KEYS.parked, mapping={"account:none": EVIL, "account:late": b"\xff"})
    client.hset(KEYS.delayed_counts, mapping={"account:retry": "many", "account:late": "-3"})
    client.hset(KEYS.delayed, mapping={"late": b"account:late\n" + envelope("late"), "odd": b"\xff\n\xc1"})
    due: dict[Any, float] = {"r:account:retry": float("inf"), "d:late": float("-inf"), "d:odd": 1e300, b"\xff": 5.0}
    client.zadd(KEYS.due, due)
    client.hset(KEYS.stats, mapping={"settled": "many", b"\xff": "1", "accepted": "9" * 18})
    client.hset(KEYS.watched, mapping={EVIL: "9", "account": "5", b"\xff": "x"})
    client.xadd(KEYS.events, {"f": EVIL, "n": EVIL, "m": EVIL}, id=f"{FOREVER}-1")
    worker = {
        "name": f"w{EVIL}", "host": EVIL, "pid": 1, "started_ms": FOREVER, "seen_ms": FOREVER, "concurrency": 1, "running": 1,
        "commands": [EVIL, "Deposit"],
    }  # fmt: skip
    client.hset(KEYS.workers, mapping={
        "a": pack(worker), "b": pack({**worker, "seen_ms": "soon"}), "c": pack({**worker, "commands": [1]}), "d": pack({**worker, "host": 5}),
        "e": pack([1]), "f": b"\xc1", "g": pack({**worker, "lease": float("nan"), "name": "g"}),
    })  # fmt: skip
    client.hset(KEYS.meta, mapping={
        f"mailbox:{EVIL}": EVIL, b"mailbox:\xff": b"\xff", "mailbox:newer": "spread:7", "mailbox:wide": "lanes:99999999", "mailbox:lane": "lanes:7",
        f"held:{EVIL}": "1", b"\xff": b"\xff",
    })  # fmt: skip


@dataclass
class Shop:
    """A namespace that many have written to."""

    url: str
    client: Redis

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "command_bus", *words, "--url", self.url, "--namespace", "shop"]

    def run(self, *words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        wide = {**os.environ, "COLUMNS": "5000"}  # nothing is folded: a line that begins with a forged word was forged
        return run_program(*self.command(*words)[3:], env=wide, given=given or "")

    def on_a_terminal(self, *words: str, typed: bytes = b"") -> str:
        """Run a command; return what a terminal shows of both streams. `typed` is the operator's input."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(self.command(*words), cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
        os.close(theirs)
        seen = b""
        if typed:
            os.write(ours, typed)
        while True:
            try:
                chunk = os.read(ours, 65_536)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            seen += chunk
        process.wait(timeout=60)
        os.close(ours)
        return seen.decode()


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with EmbeddedServer.start(binary=find_server_binary()) as server:
        with SyncCommandBus(server.url, namespace="shop") as bus:
            bus.dispatch(Deposit(account="a", amount=1))
        client = Redis.from_url(server.url)
        spoil(client)
        yield Shop(server.url, client)
        client.close()


LETTER = "the first letter"
ASKED: list[tuple[str, ...]] = [
    ("stats",), ("top", "--once"), ("entities",), ("entities", "account"), ("entities", "--sort", "age"), ("entity", "account:late"),
    ("entity", "account:none"), ("entity", "account:retry"), ("entity", f"account:{EVIL[:9]}"), ("workers",), ("introspect",),
    ("introspect", "Deposit"),
    ("introspect", "Terms"), ("introspect", "NoSuchCommand"), ("dlq", "list"), ("dlq", "list", "--since", "2h"), ("dlq", "list", "--count"),
    ("dlq", "list", "--until", "99999999999d"), ("dlq", "show", LETTER), ("dlq", "replay", "--all", "--dry-run"),
    ("dlq", "purge", "--all", "--dry-run"),
    ("dlq", "replay", LETTER, "--dry-run"), ("dlq", "discard", LETTER), ("dlq", "purge", "--all"), ("events", "list"), ("events", "list", "account"),
    ("doctor",), ("types", "list"), ("types", "forget", "nothing"), ("purge", "account", "--dry-run"), ("generate",), ("generate", "--json-schema"),
    ("generate", "Odd"), ("send", "NoSuchCommand", "{}"), ("send", "Deposit", '{"account": 5}'), ("send", "Odd", '{"account": 5}'),
    ("send", "Wide", '{"account": "x"}'), ("send", "Slow", '{"account": "%s!"}' % ("a" * 50)),
    ("send", "Loop", '{"account": 5}'), ("send", "Lost", "{}"),
    ("pause", "acount"), ("resume", "acount"), ("cancel", "c-0"),
]  # fmt: skip
WITH_JSON = {
    "stats",
    "top",
    "entities",
    "entity",
    "workers",
    "introspect",
    "dlq list",
    "dlq show",
    "events list",
    "doctor",
    "types list",
}


def _words(shop: Shop, words: tuple[str, ...]) -> list[str]:
    (first, _), *_ = shop.client.xrange(KEYS.dead, count=1)  # type: ignore[misc, union-attr]
    return [f"0-{first.decode()}" if word is LETTER else word for word in words]


@pytest.mark.promise("Operators' commands survive any entry")
@pytest.mark.parametrize("words", ASKED, ids=lambda words: " ".join(words).encode("unicode_escape").decode())
def test_no_command_obeys_or_ends_with_a_traceback(shop: Shop, words: tuple[str, ...]) -> None:
    done = shop.run(*_words(shop, words))
    told = done.stdout + done.stderr
    assert "Traceback" not in told, told
    assert done.returncode in (0, 1, 2), told
    assert "unknown mailbox policy" not in told  # of one type, which does not affect others
    assert not OBEYED.search(told), told
    if words[:2] != ("dlq", "show"):  # which shows a traceback line by line
        assert not re.search(r"^(root|0-1-1: replayed)", told, re.MULTILINE), told
    if " ".join(words[:2]) in WITH_JSON or words[0] in WITH_JSON:
        as_json = shop.run(*_words(shop, words), *(() if words[:1] == ("introspect",) and len(words) > 1 else ("--json",)))
        assert not OBEYED.search(as_json.stdout + as_json.stderr)
        if as_json.stdout:
            assert json.loads(as_json.stdout)
        assert "Traceback" not in as_json.stderr


@pytest.mark.parametrize(
    "words",
    quick(
        [ASKED[0], ASKED[1], ("dlq", "list"), ("dlq", "show", LETTER), ("introspect", "Evil"), ("types", "list")],
        [ASKED[1], ("dlq", "show", LETTER), ("introspect", "Evil")],
    ),
)
def test_nor_does_a_terminal_get_anything_to_obey(shop: Shop, words: tuple[str, ...]) -> None:
    seen = STYLES.sub("", shop.on_a_terminal(*_words(shop, words)).replace("\r\n", "\n"))
    assert not OBEYED.search(seen), seen
    assert len(seen) > 20


@pytest.mark.parametrize("words", [("dlq", "purge", "--all"), ("dlq", "discard", LETTER), ("types", "forget", EVIL)])
def test_what_is_asked_is_no_forged_prompt(shop: Shop, words: tuple[str, ...]) -> None:
    if words[0] == "types":
        words = (*words[:2], EVIL.encode("unicode_escape").decode())
    seen = shop.on_a_terminal(*_words(shop, words), typed=b"n\n")
    assert "[y/N]" in seen
    assert not OBEYED.search(STYLES.sub("", seen.replace("\r\n", "\n"))), seen


def test_a_replayed_letter_is_shown_escaped(shop: Shop) -> None:
    """Replays a copy, so that the letters stay as they are."""
    (_, letter), *_ = shop.client.xrange(KEYS.dead, count=1)  # type: ignore[misc, union-attr]
    copy = shop.client.xadd(KEYS.dead, letter).decode()  # type: ignore[arg-type, union-attr]
    seen = shop.on_a_terminal("dlq", "replay", f"0-{copy}").replace("\r\n", "\n")
    assert f"0-{copy}: replayed c-0\\x1b]0;owned" in seen
    assert not OBEYED.search(seen), seen


def test_what_fits_is_shown_beside_what_does_not(shop: Shop) -> None:
    commands = {each["name"]: each for each in json.loads(shop.run("introspect", "--json").stdout)["commands"]}
    assert {"Deposit", "Odd", "Loop", "OddPolicy", "\\xff\\xfe"} <= set(commands)
    assert not {"NoObject", "NoMap", "NoJson", "Deep"} & set(commands)
    assert commands["Odd"]["schema"] == {}
    assert commands["OddPolicy"]["policy"] == {}
    letters = json.loads(shop.run("dlq", "list", "--json").stdout)["letters"]
    assert [each["failed_at"] for each in letters] == [None, None, None, "2023-11-14T22:13:20.000Z", None]
    assert letters[0]["name"] == f"Deposit{EVIL}"  # JSON is the same as before, written otherwise
    assert f"{FOREVER:,} ms, which is no time" in shop.run("dlq", "list").stdout
    assert [each["name"] for each in json.loads(shop.run("workers", "--json").stdout)["workers"]] == [f"w{EVIL}"]


def test_generate_writes_what_fits_and_names_what_does_not(shop: Shop, tmp_path: Path) -> None:
    done = shop.run("generate", "--out", str(tmp_path / "clients.py"))
    assert done.returncode == 0
    assert "class Deposit(Command[Any], entity='account'):" in (tmp_path / "clients.py").read_text()
    assert "Terms is left out" in done.stderr
    assert shop.run("generate", "Terms").returncode == 1


def test_completion_gives_shells_plain_names_only(shop: Shop) -> None:
    environment = {
        **os.environ, "_COMMAND_BUS_COMPLETE": "complete_bash", "COMP_WORDS": f"command-bus --url {shop.url} -n shop introspect ", "COMP_CWORD": "6",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", "from command_bus.cli import main; main()"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    for name in done.stdout.split():
        assert re.fullmatch(r"[\w.:@%+=,/~-]+", name)
