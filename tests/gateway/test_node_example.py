"""Producer and consumer in Node, `examples/node`: the golden vectors, and both sides against this library's."""

from __future__ import annotations

import asyncio
import json
from hashlib import blake2b
from pathlib import Path

import pytest

from command_bus import CommandBus, HandlerRegistry
from command_bus.embedded import EmbeddedServer
from tests.gateway.bank import Bank, Deposit
from tests.gateway.node import run_node

pytestmark = [pytest.mark.server]
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "node"
GOLDEN = ROOT / "tests" / "unit" / "serialization" / "golden"
LIMITED = {"int_largest", "int_smallest", "map_int_keys"}
"""Values that JavaScript's numbers and object keys do not keep."""

VECTORS = """
import {{ readFileSync }} from "node:fs";
import {{ digest }} from "{folder}/blake2b.mjs";
import {{ envelope, mailboxOf }} from "{folder}/bus.mjs";
import {{ pack, unpack }} from "{folder}/msgpack.mjs";
const given = JSON.parse(readFileSync(0, "utf8"));
const hex = (bytes) => bytes.toString("hex");
const hasExtension = (value) => value !== null && typeof value === "object" && !Buffer.isBuffer(value)
  && ("code" in value || Object.values(value).some(hasExtension));
const read = Object.fromEntries(Object.entries(given.vectors).map(([name, text]) => [name, unpack(Buffer.from(text, "hex"))]));
console.log(JSON.stringify({{
  again: Object.fromEntries(Object.entries(read).filter(([, value]) => !hasExtension(value)).map(([name, value]) => [name, hex(pack(value))])),
  digests: given.texts.map((text) => hex(digest(Buffer.from(text)))),
  mailboxes: given.ids.map((id) => mailboxOf("account", id)),
  dispatch: hex(envelope({{
    id: "c-1", name: "Deposit", type: "account", entity: "a-17", payload: pack({{ account_id: "a-17", amount: 5 }}),
  }})),
  call: hex(envelope({{ id: "c-5", name: "Deposit", type: "account", entity: "a-17", payload: Buffer.from([0x80]), ttl: 5000, inbox: "p-1" }})),
}}));
"""


def golden(name: str) -> dict[str, str]:
    return dict(line.split() for line in (GOLDEN / f"{name}.hex").read_text().splitlines())


def test_the_golden_vectors(tmp_path: Path) -> None:
    from command_bus.messages.policies import PerEntity
    from command_bus.transport.mailboxes import mailbox_name

    vectors = {
        name: data for group in ("values", "envelopes", "replies") for name, data in golden(group).items() if name not in LIMITED
    }
    texts = ["", "abc", "x" * 128, "x" * 129, "ä" * 500]
    ids = ["a-17", "a b/é", "}{", "x_.-@", "%"]
    program = tmp_path / "vectors.mjs"
    program.write_text(VECTORS.format(folder=EXAMPLE.as_uri()))
    said = json.loads(run_node(program, given=json.dumps({"vectors": vectors, "texts": texts, "ids": ids})))
    assert said["again"] == {name: vectors[name] for name in said["again"]}
    assert len(said["again"]) > 25
    assert said["digests"] == [blake2b(text.encode(), digest_size=8).hexdigest() for text in texts]
    assert said["mailboxes"] == [mailbox_name("account", each, PerEntity()) for each in ids]
    assert (said["dispatch"], said["call"]) == (golden("envelopes")["dispatch"], golden("envelopes")["call"])


async def test_a_producer_in_node_and_a_worker_in_python(bank_server: EmbeddedServer) -> None:
    bank = Bank()
    async with CommandBus(bank_server.url, namespace="node-sends", registry=bank.registry) as bus, bus.worker():
        said = json.loads(await asyncio.to_thread(run_node, EXAMPLE / "demo.mjs", "send", bus.url, "node-sends"))
        assert said == {"first": "+", "again": "=", "other": "!", "kind": 0, "reply": 12}
        assert await bus.result("node-1", Deposit, timeout=5) == 5
        again = await bus.dispatch(Deposit.model_construct(account_id="a-17 é/1", amount=5, note=""), command_id="node-2")
        assert again.status == "accepted"
        await bus.wait_idle(10)
        assert bank.balances == {"a-17 é/1": 17}


async def test_a_producer_in_python_and_a_consumer_in_node(bank_server: EmbeddedServer) -> None:
    async with CommandBus(bank_server.url, namespace="node-works", registry=HandlerRegistry()) as bus:
        for account in ("a-1", "a-2"):
            for amount in range(1, 4):
                await bus.dispatch(Deposit(account_id=account, amount=amount), command_id=f"{account}-{amount}")
        await bus.dispatch(Deposit(account_id="a-3", amount=9))
        working = asyncio.create_task(asyncio.to_thread(run_node, EXAMPLE / "demo.mjs", "work", bus.url, "node-works", "8"))
        assert await bus.call(Deposit(account_id="a-1", amount=10), timeout=20) == 16
        assert json.loads(await working) == {"a-1": 16, "a-2": 6, "a-3": 9}
        await bus.wait_idle(10)
        assert [await bus.result(f"a-1-{amount}", Deposit) for amount in range(1, 4)] == [1, 3, 6]
        assert (await bus.dispatch(Deposit(account_id="a-1", amount=1), command_id="a-1-1")).status == "duplicate"
        stats = await bus.stats()
        assert (stats.depth, stats.completed, stats.in_flight) == (0, 8, 0)
