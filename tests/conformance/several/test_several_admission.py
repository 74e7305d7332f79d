"""Commands of several entities: accepted by all lines or by none. Over every server."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from command_bus import (
    BusSettings,
    CallCycle,
    Command,
    CommandContext,
    Draining,
    EntityId,
    EntityOf,
    EntityPolicy,
    Event,
    InvalidCommand,
    QueueFull,
    RegistrationError,
    Unique,
    every,
    per_entity,
)
from tests.conformance.conftest import Sandbox
from tests.conformance.put_service import until
from tests.conformance.several.commands import ONCE, Deposit, Log, Pay, Transfer, depth_of, has_letters, is_empty


async def test_it_is_accepted_in_all_lines_or_in_none(sandbox: Sandbox, log: Log) -> None:
    settings = BusSettings(entities={"account": EntityPolicy(max_depth=2)})
    async with sandbox.bus(settings=settings) as bus:
        await bus.dispatch_batch([Deposit(account="a-2", note="1"), Deposit(account="a-2", note="2")])
        with pytest.raises(QueueFull):
            await bus.dispatch(Transfer(source="a-1", target="a-2", note="full"))
        result = await bus.dispatch_batch(
            [
                Transfer(source="a-1", target="a-2", note="full"),
                Deposit(account="a-1", note="behind"),
                Deposit(account="a-3", note="5"),
            ]
        )
        assert [outcome.status for outcome in result.outcomes] == ["rejected", "rejected", "accepted"]
        assert await depth_of(bus) == 3
        await bus.entity("account", "a-3").drain("over")
        with pytest.raises(Draining):
            await bus.dispatch(Transfer(source="a-1", target="a-3", note="drained"))
        async with bus.worker():
            await until(lambda: is_empty(bus))
    assert log.ended == {"a-2": ["1", "2"], "a-3": ["5"]}


async def test_a_full_shard_takes_it_in_all_lines_or_in_none(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus(settings=BusSettings(max_total_depth=2)) as bus:
        await bus.dispatch(Deposit(account="a-1", note="1"))
        with pytest.raises(QueueFull):
            await bus.dispatch(Transfer(source="a-2", target="a-3", note="full"))
        assert await depth_of(bus) == 1


async def test_200_what_puts_commands_into_one_line_refuses_it(sandbox: Sandbox, log: Log) -> None:
    refused: list[str] = []

    class Sends(Command[None], entity="account"):
        account: EntityId

    @sandbox.registry.handles(Sends)
    async def sends(command: Sends, context: CommandContext) -> None:
        with pytest.raises(InvalidCommand, match="several entities") as raised:
            context.send(Transfer(source="a-1", target="a-2"))
        refused.append(raised.value.message)

    async with sandbox.bus() as bus, bus.worker():
        await bus.call(Sends(account="a-9"), timeout=5)
        assert len(refused) == 1
        with pytest.raises(InvalidCommand, match="several entities"):
            await bus.schedules.put("nightly", Transfer(source="a-1", target="a-2"), every(60))
        with pytest.raises(InvalidCommand, match="wins='first'"):
            await bus.dispatch(Transfer(source="a-1", target="a-2"), unique=Unique("k", wins="latest"))
        # Without its class it names one line only: then it never runs.
        await bus.dispatch_raw("account", "a-1", "Transfer", {"source": "a-1", "target": "a-2", "note": "raw"})
        await until(lambda: has_letters(bus, 1))
        (letter,) = [each async for each in bus.dead_letters.list()]
        assert letter.reason == "invalid"
    assert "raw" not in log.ended["a-1"]


async def test_199_entities_of_several_shards_are_refused_unless_shard_by_brings_them_together(
    sandbox: Sandbox, log: Log
) -> None:
    async with sandbox.bus(shards=8) as bus:
        pair = next(
            (f"c-0/{one}", f"c-0/{other}")
            for one in range(9)
            for other in range(9)
            if bus.transport.shard_of(f"account:c-0%2F{one}") != bus.transport.shard_of(f"account:c-0%2F{other}")
        )
        with pytest.raises(InvalidCommand, match="shard_by"):
            await bus.dispatch(Transfer(source=pair[0], target=pair[1]))
        batch = [
            Transfer(source=pair[0], target=pair[1]),
            Deposit(account=pair[1], note="behind"),
            Deposit(account="a-9", note="1"),
        ]
        result = await bus.dispatch_batch(batch)
        assert [outcome.status for outcome in result.outcomes] == ["rejected", "rejected", "accepted"]
        assert isinstance(result.outcomes[0].error, InvalidCommand)


async def test_shard_by_brings_entities_of_one_owner_into_one_shard(sandbox: Sandbox, log: Log) -> None:
    apart = EntityPolicy(mailbox=per_entity(shard_by="/"))
    settings = BusSettings(entities={"account": apart, "order": apart})
    async with sandbox.bus(shards=8, settings=settings) as bus, bus.worker():
        for owner in range(12):
            commands = [
                Transfer(source=f"c-{owner}/a", target=f"c-{owner}/b", note="1"),
                Pay(order=f"c-{owner}", account=f"c-{owner}/b"),
                Deposit(account=f"c-{owner}/a", note="3"),
            ]
            assert (await bus.dispatch_batch(commands)).accepted == 3
        await until(lambda: is_empty(bus))
    for owner in range(12):
        assert log.ended[f"c-{owner}/a"] == ["1", "3"]
        assert log.ended[f"c-{owner}/b"] == ["1", "pay"]


async def test_without_its_class_it_names_all_its_entities(sandbox: Sandbox, log: Log) -> None:
    async with sandbox.bus() as bus, bus.worker():
        fields = {"source": "a-1", "target": "a-2", "note": "raw"}
        await bus.dispatch_raw("account", "a-1", "Transfer", fields, others=[("account", "a-2")])
        assert await bus.call_raw("account", "a-1", "Transfer", fields, others=[("account", "a-2")], timeout=5) == "raw"
        wrong: list[Any] = [[("account", "a-3")], [("account", "a-2"), ("account", "a-3")], [("account", "a-1")]]
        for others in wrong:
            await bus.dispatch_raw("account", "a-1", "Transfer", fields, others=others)
        await until(lambda: has_letters(bus, 1))  # it parks, and the others wait behind it
        for others in (
            *[[each] for each in ("account", ("account",), ("a b", "c"), ("account", ""), ("account", 1.5))],
            [("account", "a")] * 9,
        ):
            with pytest.raises(InvalidCommand):
                await bus.dispatch_raw("account", "a-1", "Transfer", fields, others=others)  # type: ignore[arg-type]
        (info,) = [each for each in await bus.fleet.commands() if each.name == "Transfer"]
        assert info.others(fields) == (("account", "a-2"),)
    assert log.ended == {"a-1": ["raw", "raw"], "a-2": ["raw", "raw"]}


async def test_an_edited_replay_moves_it_to_no_other_entity(sandbox: Sandbox, log: Log) -> None:
    log.failing["2"] = 3
    async with sandbox.bus() as bus, bus.worker():
        await bus.dispatch(Transfer(source="a-1", target="a-2", note="2"))
        await until(lambda: has_letters(bus, 1))
        (letter,) = [each async for each in bus.dead_letters.list()]
        for payload in (Transfer(source="a-1", target="a-3", note="3"), {"source": "a-1", "target": "a-3", "note": "3"}):
            with pytest.raises(InvalidCommand, match="another entity"):
                await bus.dead_letters.replay(letter.id, payload=payload)
        await bus.dead_letters.replay(letter.id, payload={"source": "a-1", "target": "a-2", "note": "mended"})
        await until(lambda: is_empty(bus))
    assert log.ended == {"a-1": ["mended"], "a-2": ["mended"]}


async def test_a_call_to_one_of_its_own_entities_is_refused(sandbox: Sandbox, log: Log) -> None:
    class Audits(Command[None], entity="account", retry=ONCE):
        first: EntityId
        second: EntityId

    @sandbox.registry.handles(Audits)
    async def audits(command: Audits, context: CommandContext) -> None:
        for called in (Deposit(account="a-1"), Deposit(account="a-2"), Transfer(source="a-9", target="a-2")):
            with pytest.raises(CallCycle):
                await context.bus.call(called, timeout=1)
        log.ended["audits"].append("done")

    async with sandbox.bus() as bus, bus.worker():
        await bus.call(Audits(first="a-1", second="a-2"), timeout=5)
    assert log.ended["audits"] == ["done"]


def test_198_classes_that_name_several_entities_are_checked() -> None:
    with pytest.raises(RegistrationError, match="at most 8"):
        type(
            "Nine",
            (Command[None],),
            {"__annotations__": {f"e{number}": EntityId for number in range(9)}, "__module__": __name__},
            entity="account",
        )
    with pytest.raises(RegistrationError, match="wins='first'"):

        class Latest(Command[None], entity="account", unique=Unique("k", wins="latest")):
            source: EntityId
            target: EntityId

    with pytest.raises(RegistrationError, match="one entity"):

        class Happened(Event, entity="account"):
            source: EntityId
            target: EntityId

    with pytest.raises(RegistrationError, match="union or container"):

        class Listed(Command[None], entity="account"):
            source: EntityId
            targets: list[EntityId]

    with pytest.raises(RegistrationError, match="marks no field"):

        class Elsewhere(Command[None], entity="order"):
            account: Annotated[str, EntityOf("account")]
