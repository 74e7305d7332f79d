"""`command-bus generate --ts`: what it writes compiles strictly, works against a gateway, and is never what somebody announced as code."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from command_bus.cli.codegen.typescript_types import typescript_source
from command_bus.embedded import EmbeddedServer
from command_bus.serialization.announcements import CommandInfo, read_description
from command_bus.settings import BusSettings
from command_bus.worker.worker_bus import describe_commands
from tests.gateway.bank import TOKENS, Bank
from tests.gateway.node import compiled, run_node
from tests.gateway.serving import serving_bank
from tests.program import run_program

pytestmark = pytest.mark.server
MARK = "command-bus-was-here"  # no name in a program

USE = """
import { Client, Problem, type DepositReply } from "./bus.js";
const client = new Client({ url: "http://bus.example", token: "t" });
export async function right(): Promise<DepositReply> {
  await client.send("Deposit", { account_id: "a-1", amount: 5 }, { key: "k", delay: 5, at: new Date(), headers: { tenant: "acme" } });
  await client.send("Deposit", { account_id: 7, amount: 5, note: "x" });
  await client.batch([{ name: "Deposit", fields: { account_id: "a", amount: 1 }, id: "k" }, { name: "Burn", fields: { account_id: "a" } }]);
  const balance: number = await client.call("GetBalance", { account_id: "a-1" }, { wait: 3 });
  const ratio: number | null | undefined = (await client.call("Audit", { account_id: "a" }))["ratio"];
  const status = await client.status<number>("k", 5);
  return balance + (status.reply ?? 0) + (ratio ?? 0) + new Problem(400, {}, null).status;
}
export async function wrong(): Promise<void> {
  // @ts-expect-error - a field that is missing
  await client.send("Deposit", { account_id: "a-1" });
  // @ts-expect-error - a type that is wrong
  await client.send("Deposit", { account_id: "a-1", amount: "5" });
  // @ts-expect-error - a field that is not known
  await client.send("Deposit", { account_id: "a-1", amount: 5, nota: "" });
  // @ts-expect-error - a command that is not known
  await client.send("Depozit", {});
  // @ts-expect-error - a query is called
  await client.send("GetBalance", { account_id: "a-1" });
  // @ts-expect-error - a reply of another type
  const reply: string = await client.call("Deposit", { account_id: "a-1", amount: 5 });
  // @ts-expect-error - fields of another command
  await client.batch([{ name: "GetBalance", fields: { amount: 1 } }]);
  console.log(reply);
}
"""

PROGRAM = """
import { Client, Problem } from "./bus.js";
const [url, token] = process.argv.slice(2);
const client = new Client({ url: url + "/", token });
const problem = async (work) => {
  try { await work(); return null; }
  catch (error) { return [error instanceof Problem, error.status, error.code, error.retryAfter]; }
};
const said = {};
const before = [];
said.sent = await client.send("Deposit", { account_id: "ts-1", amount: 5 }, { key: "ts/1 ?", headers: { tenant: "acme" } });
said.again = (await client.send("Deposit", { account_id: "ts-1", amount: 5 }, { key: "ts/1 ?" })).status;
said.status = await client.status(said.sent.command_id, 5);
said.called = await client.call("GetBalance", { account_id: "ts-1" });
said.batch = await client.batch([
  { name: "Deposit", fields: { account_id: "ts-1", amount: 1 } }, { name: "Withdraw", fields: { account_id: "ts-1", amount: 6 } }]);
said.wrong = await problem(() => client.send("Deposit", { account_id: "ts-1", amount: 0 }));
said.rejected = await problem(() => client.call("Withdraw", { account_id: "ts-1", amount: 99 }));
said.away = await problem(() => new Client({ url: "http://127.0.0.1:1", token }).send("Burn", { account_id: "a" }));
const stopped = new AbortController();
stopped.abort();
said.stopped = await problem(() => client.status("ts/1 ?", 5, stopped.signal));
said.unauthorized = await problem(() => new Client({ url, token: "no" }).send("Burn", { account_id: "a" }));
await client.send("Held", { hold_id: "ts" }, { key: "ts-held", delay: 600 });
await client.cancel("ops:ts-held", { reason: "a test" });
said.cancelled = (await client.status("ops:ts-held")).outcome;
await client.send("Audit", { account_id: "ts-2", pages: 2 }, { key: "ts-audit" });
for await (const each of client.progress("ops:ts-audit")) before.push(each.outcome);
said.progress = before.at(-1);
for await (const event of client.events({ types: ["account"], kinds: ["completed"], after: "" })) {
  if (event.entity_id === "ts-1") { said.event = [event.kind, event.command_id, event.id.length > 3]; break; }
}
console.log(JSON.stringify(said));
"""


def described() -> list[CommandInfo]:
    records = describe_commands(Bank().registry, BusSettings())
    return [info for name, record in records.items() if (info := read_description(name, record, ())) is not None]


def info(name: str, schema: Any, reply: Any = None) -> CommandInfo:
    record = {"entity": None, "key": None, "delivery": "at_least_once", "schema": schema, "reply": reply}
    found = read_description(name, json.dumps(record).encode(), ())
    assert found is not None
    return found


def test_it_compiles_and_checks_what_is_sent(tmp_path: Path) -> None:
    done = compiled(tmp_path, bus=typescript_source(described(), "bank"), use=USE)
    assert done.returncode == 0, done.stdout


def test_the_same_commands_give_the_same_text() -> None:
    assert typescript_source(described(), "bank") == typescript_source(described()[::-1], "bank")


@pytest.fixture(scope="module")
def served(bank_server: EmbeddedServer) -> Generator[str]:
    with serving_bank(bank_server.url, "typescript") as url:
        yield url


def test_the_client_works(served: str, tmp_path: Path, bank_server: EmbeddedServer) -> None:
    done = run_program("generate", "--ts", "--out", str(tmp_path / "bus.ts"), "--url", bank_server.url, "-n", "typescript")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/bus.ts: 7 commands\n"), done.stderr
    assert (
        run_program(
            "generate", "--ts", "--check", "--out", str(tmp_path / "bus.ts"), "--url", bank_server.url, "-n", "typescript"
        ).returncode
        == 0
    )
    assert compiled(tmp_path, bus=(tmp_path / "bus.ts").read_text()).returncode == 0
    (tmp_path / "out" / "program.js").write_text(PROGRAM)
    said = json.loads(run_node(tmp_path / "out" / "program.js", served, TOKENS["ops"]))
    assert said["sent"] == {"command_id": "ops:ts/1 ?", "status": "accepted", "other": None}
    assert (said["again"], said["status"]["outcome"], said["status"]["reply"], said["called"]) == ("duplicate", "completed", 5, 5)
    assert [each["status"] for each in said["batch"]["outcomes"]] == ["accepted", "accepted"]
    assert said["wrong"] == [True, 422, "invalid_command", None]
    assert said["rejected"] == [True, 409, "insufficient_funds", None]
    assert said["away"] == [True, 0, "unreachable", None]
    assert said["stopped"][0] is False
    assert said["unauthorized"] == [True, 401, "unauthorized", None]
    assert (said["cancelled"], said["progress"], said["event"]) == ("cancelled", "completed", ["completed", "ops:ts/1 ?", True])


def test_one_form_at_a_time() -> None:
    assert run_program("generate", "--ts", "--json-schema", "--url", "redis://127.0.0.1:1").returncode == 2


CODE = f'"; }} export const x = "{MARK}"; /*'
TEXT = {"type": "string"}
LIST_OF_A = {"type": "array", "items": {"$ref": "#/$defs/A"}}
SCHEMAS: dict[str, Any] = {
    "names": {"type": "object", "properties": dict.fromkeys((CODE, "*/ x", "__proto__", "constructor", "a-b", "\u2028"), TEXT)},
    "comments": {"type": "object", "description": f"*/ export const x = '{MARK}'; /*\n more", "properties": {}},
    "a comment's last line": {"type": "object", "description": f"\u2028*/{MARK}\r*/{MARK}"},
    "choices": {"enum": [CODE, "`${x}`", 1, None, True, "\u2028"]},
    "constant": {"const": CODE},
    "object as constant": {"const": {"a": 1}},
    "definitions": {"$ref": f"#/$defs/{CODE}", "$defs": {CODE: TEXT, "a b": TEXT, "a_b": {"$ref": "#/$defs/a b"}}},
    "circle of choices": {
        "$ref": "#/$defs/A",
        "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/B"}, TEXT]}, "B": {"oneOf": [{"$ref": "#/$defs/A"}]}},
    },
    "tree": {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"children": LIST_OF_A}}}},
    "json": {
        "$ref": "#/$defs/A",
        "$defs": {"A": {"anyOf": [TEXT, LIST_OF_A, {"type": "object", "additionalProperties": {"$ref": "#/$defs/A"}}]}},
    },
    "tuple": {"type": "array", "prefixItems": [TEXT, {"type": "integer"}], "items": {"type": "number"}},
    "types": {"type": ["string", "null", "array"]},
    "closed": {"type": "object", "additionalProperties": False},
    "open": {"type": "object", "properties": {"a": TEXT}, "additionalProperties": {"type": "integer"}},
    "both": {"allOf": [{"type": "object", "properties": {"a": TEXT}}, {"type": "object", "properties": {"b": TEXT}}]},
    "nothing": {},
    "empty choices": {"anyOf": [], "enum": []},
}
NAMES = (
    "Client",
    "Commands",
    "Array",
    "a/b",
    "a:b",
    "a.b",
    "a_b",
    "A-B",
    "7up",
    "class",
    "Reply",
    "Order",
    "OrderReply",
    "Promise",
    "_",
)


def test_what_is_announced_is_never_code(tmp_path: Path) -> None:
    infos: list[CommandInfo] = []
    for number, schema in enumerate(SCHEMAS.values()):
        definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
        infos.append(info(f"Shape.{number}", {"type": "object", "properties": {"x": schema}, **definitions}, schema))
    infos += [info(name, {"type": "object", "properties": {"a": TEXT}}, TEXT) for name in NAMES]
    source = typescript_source(infos, f"bank\n{CODE}")
    done = compiled(tmp_path, bus=source)
    assert done.returncode == 0, done.stdout
    assert MARK in source  # as a text
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', source)
    bare = re.sub(r"^//.*$|/\*\*.*?\*/", "", bare, flags=re.MULTILINE)
    assert MARK not in bare
    assert MARK not in re.sub(
        r'"(?:[^"\\]|\\.)*"|/\*.*?\*/|^//.*$', "", (tmp_path / "out" / "bus.js").read_text(), flags=re.MULTILINE
    )
    for name in NAMES:
        assert f"  {json.dumps(name)}: {{" in source
