"""The owner of a namespace may delete it, and an operator may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.exceptions import NoPermissionError

from command_bus import CommandBusError, Snooze
from command_bus.transport.redis.acl import acl_lines
from command_bus.transport.redis.keys import KEYS, ShardKeys
from tests.conformance.conftest import Starter
from tests.security.acl_users import NAMESPACE, Work, made


@pytest.mark.parametrize("selectors", [True, False])
async def test_an_owner_deletes_the_namespace_and_no_other_role_can(binary: Path, start: Starter, selectors: bool) -> None:
    async with made(start(tcp=True, binary=binary), selectors=selectors) as place:
        async with place.bus("producer") as producer, place.bus("worker") as workers:
            async with workers.worker():  # it loads the scripts
                await producer.dispatch_batch([Work(line=f"l-{number % 7}", number=number) for number in range(30)])
                await producer.dispatch(Work(line="l-1", number=1), command_id="given")
                await workers.wait_idle(10)
            await producer.dispatch_batch([Work(line=f"l-{number % 7}", number=number) for number in range(30)])
        assert await place.denied() == []
        async with place.bus("operator") as operator:
            with pytest.raises(CommandBusError, match=r"(?i)permission"):
                await operator.entities.obliterate(confirm=NAMESPACE)
            await operator.entities.resume()
            assert (await operator.stats()).depth == 30
        await place.admin.acl_log_reset()
        async with place.bus("owner") as owner:
            await owner.entities.obliterate(confirm=NAMESPACE)
        assert await place.denied() == []
        assert await place.admin.keys(f"{{{NAMESPACE}:*") == []
        client = place.client("owner")
        with pytest.raises(NoPermissionError):
            await client.unlink("{other:0}:meta")
        await client.aclose()


def test_an_owner_may_unlink_every_key_that_there_is() -> None:
    (line,) = acl_lines("owner", NAMESPACE)
    keys = ShardKeys(NAMESPACE, "*")
    (rule,) = [part for part in line.split("(") if "+unlink" in part]
    for name in KEYS:
        if name not in ("prefix", "fair"):
            assert f"~{getattr(keys, name)}" in rule, name


async def test_a_worker_puts_off_with_its_rights(binary: Path, start: Starter) -> None:
    async with made(start(tcp=True, binary=binary), selectors=True) as place:
        workers = place.bus("worker")
        asked: list[int] = []

        async def work(command: Work) -> int:
            asked.append(command.number)
            if len(asked) < 3:
                raise Snooze(0.01)
            return command.number

        workers.registry = type(workers.registry)()
        workers.registry.handles(Work)(work)
        async with place.bus("producer") as producer, workers, workers.worker():
            assert await producer.call(Work(line="l-1", number=7), timeout=10) == 7
        assert asked == [7, 7, 7]
        assert await place.denied() == []
