"""Unique keys in loads: what becomes of each row is decided once, in one step with its outcome, and the counts agree."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from command_bus import Command, CommandBus, CommandCancelled, EntityId, HandlerRegistry, Unique
from command_bus.messages.outgoing import Envelope
from command_bus.sending.envelope_builder import EnvelopeBuilder
from command_bus.serialization.envelope import IN_DISPATCH, KEEP_OUTCOME, WireEnvelope, pack_envelope
from command_bus.serialization.outcome import OutcomeRecord
from command_bus.serialization.reply import Cancelled, Completed
from command_bus.transport.ports.bulk import EntityOwner, LoadAnswer, LoadItem, Opening, Version
from command_bus.transport.unique_keys import LoadKey
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.test_dispatches import outcomes

KEPT = Opening(keep_ms=60_000, remember_ms=120_000)
FIRST, LATEST = Unique("k"), Unique("k", wins="latest")
registry = HandlerRegistry()
ran: list[int] = []
gates: list[asyncio.Event] = []


class Pull(Command[int], entity="shop"):
    shop: EntityId
    n: int


class Ask(Command[int], entity="shop", unique=LATEST):
    shop: EntityId


@registry.handles(Pull)
async def pull(command: Pull) -> int:
    ran.append(command.n)
    await gates[0].wait()
    return command.n


@pytest.fixture(autouse=True)
def _open() -> None:
    gates[:] = [asyncio.Event()]
    gates[0].set()
    ran.clear()


def row(
    bus: CommandBus, n: int, unique: Unique | None = FIRST, *, shop: str = "a", dispatch: str = "d", number: int = 0
) -> LoadItem:
    """Return a packed row of a dispatch that keeps outcomes."""
    builder = EnvelopeBuilder(bus.settings)
    out = builder.of_item(Envelope(Pull(shop=shop, n=n), command_id=f"{dispatch}-{n}", unique=unique))
    mailbox = builder.build(out).mailbox
    flags = IN_DISPATCH | KEEP_OUTCOME
    envelope = WireEnvelope(
        out.command_id, out.name, out.entity_type, out.entity_id, out.payload, flags, correlation_id=dispatch,
        options=out.options or None,
    )  # fmt: skip
    key = None if unique is None else LoadKey.of(unique, out.name, mailbox, shop)
    return mailbox, out.command_id, n.to_bytes(4, "big"), pack_envelope(envelope), shop, number, "", key


async def opened(bus: CommandBus, name: str = "d", opening: Opening = KEPT) -> Version:
    version = Version(name)
    await bus.session.transport.bulk.open(version, opening)
    return version


async def load(bus: CommandBus, version: Version, *items: LoadItem, **options: Any) -> LoadAnswer:
    shard = bus.session.redis.keys.shard_of(items[0][0])
    return await bus.session.transport.bulk.load(version, shard, items, **options)


def codes(loaded: LoadAnswer) -> str:
    return "".join(each.value for each in loaded.admissions)


async def kept(bus: CommandBus, dispatch: str = "d") -> dict[str, OutcomeRecord]:
    """Return the outcomes of a dispatch; each command has one."""
    found = await outcomes(bus, dispatch)
    assert len({command_id for command_id, _, _ in found}) == len(found)
    return {command_id: record for command_id, record, _ in found}


async def test_the_first_row_wins_and_the_others_are_folded_into_it(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        version = await opened(bus)
        rows = [row(bus, n) for n in range(4)]
        loaded = await load(bus, version, *rows, row(bus, 9, None), row(bus, 8, shop="b"))
        assert (codes(loaded), loaded.others) == ("+uuu++", ("d-0",) * 3)
        found = await outcomes(bus, "d")
        assert [(name, record.status, record.other) for name, record, _ in found] == [
            (f"d-{n}", "folded", "d-0") for n in (1, 2, 3)
        ]
        _, record, reply = found[0]
        assert (record.name, record.entity_type, record.entity_id, record.attempt, record.worker) == ("Pull", "shop", "a", 0, "")
        assert (record.accepted_ms, record.fence, record.message, type(reply)) == (0, 0, "", Completed)
        assert codes(await load(bus, version, *rows)) == "====", "a task that is retried"
        async with bus.worker(), asyncio.timeout(20):
            await bus.wait_idle()
        assert sorted(ran) == [0, 8, 9]
        assert codes(await load(bus, version, *rows)) == "====", "the key is free, and yet each row is decided"
        assert codes(await load(bus, version, row(bus, 4))) == "+"
        wrong = (*rows[1][:2], bytes(4), *rows[1][3:])
        assert codes(await load(bus, version, wrong)) == "!"
        await bus.session.transport.bulk.commit(version, "{}", 60_000)
        facts = await bus.session.transport.bulk.facts("d")
        assert facts is not None
        assert (facts.added, facts.folded, facts.replaced, facts.duplicates) == (4, 3, 0, 9)
        assert (await bus.stats()).folded == 3
        assert Counter(each.status for each in (await kept(bus)).values()) == {"completed": 3, "folded": 3}


async def test_the_latest_row_replaces_those_before_it_in_the_same_request(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        version = await opened(bus)
        rows = [row(bus, 1, LATEST), row(bus, 2, None), row(bus, 3, LATEST), row(bus, 4, LATEST)]
        loaded = await load(bus, version, *rows)
        assert (codes(loaded), loaded.others) == ("++rr", ("d-1", "d-3"))
        assert codes(await load(bus, version, *rows)) == "====", "its speculative twin"
        assert (await bus.stats()).depth == 2
        found = {name: (record, reply) for name, record, reply in await outcomes(bus, "d")}
        assert {name: (record.status, record.other) for name, (record, _) in found.items()} == {
            "d-1": ("superseded", "d-3"), "d-3": ("superseded", "d-4"),
        }  # fmt: skip
        record, reply = found["d-1"]
        assert isinstance(reply, Cancelled)
        assert (reply.code, record.name, record.entity_id, record.fence) == ("superseded", "Pull", "a", 0)
        assert record.accepted_ms == int(record.message.split("-")[0]) > 0
        async with bus.worker(), asyncio.timeout(20):
            await bus.wait_idle()
        assert ran == [2, 4], "the latest joins the end of the line"
        facts = await bus.session.transport.bulk.facts("d")
        assert facts is not None
        assert (facts.added, facts.folded, facts.replaced) == (4, 0, 2)


async def test_what_runs_is_not_touched(sandbox: Sandbox) -> None:
    gates[0].clear()
    async with sandbox.bus(registry=registry) as bus:
        version = await opened(bus)
        await load(bus, version, row(bus, 0, LATEST))
        async with bus.worker(), asyncio.timeout(20):
            await until(lambda: ran == [0])
            assert codes(await load(bus, version, row(bus, 1, FIRST))) == "u", "it is held until it is settled"
            loaded = await load(bus, version, row(bus, 2, LATEST), row(bus, 3, LATEST))
            assert (codes(loaded), loaded.others) == ("+r", ("d-2",))
            gates[0].set()
            await bus.wait_idle()
        assert ran == [0, 3]
        statuses = {name: each.status for name, each in (await kept(bus)).items()}
        assert statuses == {"d-0": "completed", "d-1": "folded", "d-2": "superseded", "d-3": "completed"}


async def test_a_caller_whose_command_a_row_replaces_is_told(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        version = await opened(bus)
        call = asyncio.create_task(bus.call(Ask(shop="a"), command_id="called", timeout=20))

        async def waits() -> bool:
            return (await bus.stats()).depth == 1

        await until(waits)
        loaded = await load(bus, version, row(bus, 1, LATEST), row(bus, 2, LATEST))
        assert (codes(loaded), loaded.others) == ("rr", ("called", "d-1"))
        with pytest.raises(CommandCancelled) as caught:
            await call
        assert caught.value.code == "superseded"
        again = await bus.dispatch(Ask(shop="a"), command_id="called")
        assert again.status == "duplicate", "its mark says that it is settled"


@pytest.mark.promise("Rows with a key")
async def test_the_dispatch_of_a_row_learns_that_another_sender_replaced_it(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        version, other = await opened(bus), await opened(bus, "e {}|1")
        await load(bus, version, row(bus, 1, LATEST))
        loaded = await load(bus, other, row(bus, 2, LATEST, dispatch="e {}|1"))
        assert (codes(loaded), loaded.others) == ("r", ("d-1",))
        receipt = await bus.dispatch(Pull(shop="a", n=3), unique=LATEST)
        assert (receipt.status, receipt.other) == ("replaced", "e {}|1-2")
        first, second = (await kept(bus))["d-1"], (await kept(bus, "e {}|1"))["e {}|1-2"]
        assert [(each.status, each.other) for each in (first, second)] == [
            ("superseded", "e {}|1-2"), ("superseded", receipt.command_id),
        ]  # fmt: skip
        assert (await bus.stats()).depth == 1


async def test_a_row_ends_the_command_that_it_replaces_in_its_history(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        version = await opened(bus)
        await bus.dispatch(Pull(shop="a", n=9), command_id="hours", unique=LATEST, history="1 h")
        assert codes(await load(bus, version, row(bus, 1, LATEST))) == "r"
        entry = await bus.history.get("hours")
        assert entry is not None
        assert (entry.status, entry.name, entry.entity_id, entry.attempts) == ("superseded", "Pull", "a", 0)
        assert isinstance(entry.error, CommandCancelled)


async def test_a_row_is_folded_into_the_command_of_another_sender(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        version = await opened(bus)
        receipt = await bus.dispatch(Pull(shop="a", n=0), unique=FIRST)
        loaded = await load(bus, version, row(bus, 1))
        assert (codes(loaded), loaded.others) == ("u", (receipt.command_id,))
        assert (await kept(bus))["d-1"].other == receipt.command_id
        folded = await bus.dispatch(Pull(shop="a", n=2), unique=FIRST)
        assert (folded.status, folded.other) == ("duplicate", receipt.command_id)


async def test_a_debounced_row_waits_for_quiet_and_its_longest_wait_bounds_that(sandbox: Sandbox) -> None:
    quiet = Unique("k", wins="latest", debounce=30, max_wait=60)
    async with sandbox.bus(registry=registry) as bus:
        version = await opened(bus)
        loaded = await load(bus, version, row(bus, 1, quiet), row(bus, 2, quiet))
        assert (codes(loaded), loaded.others) == ("+r", ("d-1",))
        page = await bus.entity("shop", "a").unique_keys()
        assert [(each.key, each.state, each.command_id) for each in page.keys] == [("k", "delayed", "d-2")]
        assert (await bus.stats()).delayed == 1
        loaded = await load(bus, version, row(bus, 3, Unique("k", wins="latest")))
        assert (codes(loaded), loaded.others) == ("r", ("d-2",))
        async with bus.worker(), asyncio.timeout(20):
            await bus.wait_idle()
        assert ran == [3]
        statuses = {name: each.status for name, each in (await kept(bus)).items()}
        assert statuses == {"d-1": "superseded", "d-2": "superseded", "d-3": "completed"}


async def test_a_window_folds_though_the_first_is_settled(sandbox: Sandbox) -> None:
    window = Unique("k", window=300)
    async with sandbox.bus(registry=registry) as bus:
        version = await opened(bus)
        await load(bus, version, row(bus, 1, window))
        async with bus.worker(), asyncio.timeout(20):
            await bus.wait_idle()
            loaded = await load(bus, version, row(bus, 2, window))
            assert (codes(loaded), loaded.others) == ("u", ("d-1",))
        assert ran == [1]


async def test_limits_and_sequences_count_what_is_put_in_line(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry, max_depth=2) as bus:
        version = await opened(bus)
        rows = [row(bus, 1), row(bus, 2), row(bus, 3, None), row(bus, 4, LATEST), row(bus, 5, None), row(bus, 6)]
        assert codes(await load(bus, version, *rows)) == "+u+rep", "a full mailbox takes one in place of another, and no more"
    async with sandbox.bus(registry=registry) as bus:
        other = await opened(bus, "e")
        rows = [row(bus, n, shop="s", dispatch="e", number=number) for n, number in enumerate((5, 6, 6, 7))]
        assert codes(await load(bus, other, *rows, sequenced=True)) == "+usu"
        owner = EntityOwner("run", 1, ["s"])
        assert codes(await load(bus, other, row(bus, 7, shop="s", dispatch="e"), entity_owner=owner)) == "u"
        rival = EntityOwner("run", 2, ["s"], strict=False)
        assert (await load(bus, other, row(bus, 8, shop="s", dispatch="e"), entity_owner=rival)).shared == 1


async def test_a_dispatch_without_outcomes_counts_what_it_folds(sandbox: Sandbox) -> None:
    async with sandbox.bus(registry=registry) as bus:
        version = await opened(bus, opening=Opening())
        assert codes(await load(bus, version, row(bus, 1, LATEST), row(bus, 2, LATEST), row(bus, 3))) == "+ru"
        assert await outcomes(bus, "d") == []
        facts = await bus.session.transport.bulk.facts("d")
        assert facts is not None
        assert (facts.added, facts.folded, facts.replaced) == (2, 1, 1)
        await bus.session.transport.bulk.commit(version, "{}", 60_000)
        assert (await load(bus, version, row(bus, 4))).done


@pytest.mark.promise("Rows with a key")
@pytest.mark.parametrize("seed", range(4))
async def test_each_row_has_one_outcome_whatever_is_loaded_again(sandbox: Sandbox, seed: int) -> None:
    chance = random.Random(seed)
    policies = [FIRST, LATEST, Unique("k", until="started"), Unique("k", wins="latest", debounce=0.02, max_wait=0.05), None]
    async with sandbox.bus(registry=registry) as bus:
        version = await opened(bus)
        rows = [row(bus, n, chance.choice(policies), shop=chance.choice("ab")) for n in range(120)]

        async def task() -> None:
            """Load all rows in order, in chunks, some of them twice."""
            at = 0
            while at < len(rows):
                size = chance.randint(1, 12)
                await load(bus, version, *rows[at : at + size])
                if chance.random() < 0.7:
                    at += size
                await asyncio.sleep(chance.choice((0, 0, 0.01)))

        async with bus.worker(), asyncio.timeout(40):
            await asyncio.gather(task(), task())
            await bus.wait_idle()
        await task()
        found = await kept(bus)
        facts = await bus.session.transport.bulk.facts("d")
        assert facts is not None
        counts = Counter(each.status for each in found.values())
        assert set(found) == {each[1] for each in rows}
        assert (counts["folded"], counts["superseded"]) == (facts.folded, facts.replaced)
        assert facts.added + facts.folded == len(rows) == counts.total()
        assert counts["completed"] == len(ran) == len(set(ran)) == facts.added - facts.replaced
        assert all((each.other in found) == (each.status in ("folded", "superseded")) for each in found.values())
        for shop in "ab":
            order = [n for n in ran if rows[n][4] == shop and rows[n][7] is None]
            assert order == sorted(order)
        assert (await bus.stats()).depth == 0
