"""The moments at which a worker looks at all of its shards."""

from __future__ import annotations

import pytest

from command_bus.transport.redis.maintenance import periodic
from command_bus.transport.redis.maintenance.periodic import Beat


def test_all_shards_have_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic, "mono", lambda: 100.0)
    beat = Beat(1.0)
    for at in (100.0, 101.5, 102.1, 107.0):
        moments = {round(now + beat.left(now), 6) for now in (at, at, at + 0.0001)}
        assert len(moments) == 1
        assert at < moments.pop() <= at + 1.2


def test_two_workers_do_not_look_together() -> None:
    assert len({Beat(1.0).left(0.0) for _ in range(20)}) > 15
