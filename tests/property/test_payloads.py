"""Any payload comes to its handler as it was sent, and its reply to the caller: compressed or not, delayed, as a dead letter, replayed."""

from __future__ import annotations

import asyncio
from operator import mul
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from command_bus import Command, CommandBus, EntityId, HandlerRegistry, RetryPolicy
from command_bus.transport.redis.memory import MemoryClients
from tests.conformance.put_service import until

VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.builds(mul, st.text(max_size=8), st.integers(0, 200))
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
WAYS = st.lists(st.tuples(VALUES, st.sampled_from(["now", "delayed", "letter", "call"])), min_size=1, max_size=6)
THRESHOLDS = st.none() | st.integers(1, 300)


class Keep(Command[Any], entity="box", retry=RetryPolicy(attempts=1)):
    box: EntityId
    number: int
    value: Any
    fails: bool = False


class Box:
    """Keeps what it gets; a command that fails does so the first time."""

    def __init__(self) -> None:
        self.registry = HandlerRegistry()
        self.kept: dict[int, Any] = {}
        self._failed: set[int] = set()

        async def keep(command: Keep) -> Any:
            if command.fails and command.number not in self._failed:
                self._failed.add(command.number)
                raise RuntimeError("the first time")
            self.kept[command.number] = command.value
            return command.value

        self.registry.handles(Keep)(keep)


async def _sent(bus: CommandBus, ways: list[tuple[Any, str]]) -> None:
    for number, (value, way) in enumerate(ways):
        keep = Keep(box=f"b-{number % 2}", number=number, value=value, fails=way == "letter")
        if way == "call":
            assert await bus.call(keep, timeout=10) == value
        else:
            await bus.dispatch(keep, delay=0.01 if way == "delayed" else 0.0)


async def _history(ways: list[tuple[Any, str]], sender: int | None, worker: int | None) -> None:
    box, clients = Box(), MemoryClients()
    arguments: Any = {"clients": clients, "namespace": "payloads", "registry": box.registry}
    sending = CommandBus("redis://memory", compress_above=sender, **arguments)
    working = CommandBus("redis://memory", compress_above=worker, **arguments)
    letters = sum(way == "letter" for _, way in ways)
    async with sending, working, working.worker():
        await _sent(sending, ways)

        async def buried() -> bool:
            return sum((await working.dead_letters.count()).values()) == letters

        await until(buried)
        async for letter in sending.dead_letters.list():
            assert letter.payload is not None
            assert letter.payload["value"] == ways[letter.payload["number"]][0]
        assert await working.dead_letters.replay_all() == letters

        async def kept() -> bool:
            return len(box.kept) == len(ways)

        await until(kept)
    assert [box.kept[number] for number in range(len(ways))] == [value for value, _ in ways]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(WAYS, THRESHOLDS, THRESHOLDS)
def test_any_payload_comes_through_every_way(ways: list[tuple[Any, str]], sender: int | None, worker: int | None) -> None:
    asyncio.run(_history(ways, sender, worker))
