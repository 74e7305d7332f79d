"""The target of a write: a driver's settings travel to its tasks, and errors show no password."""

from __future__ import annotations

import pickle

import pytest

from command_bus import BusSettings, InvalidSettings

pytest.importorskip("pyarrow")

from command_bus.spark.options import ReadOptions, WriteOptions
from command_bus.spark.target import Target


def test_settings_travel_to_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "MAX_DEPTH": "100", "MAX_TOTAL_DEPTH": "1000", "MAX_PAYLOAD": "2000", "MAX_NESTING": "5", "DURABILITY": "replicated",
        "WAIT_REPLICAS": "2", "WAIT_TIMEOUT": "0.5", "ALLOW_EVICTION": "true",
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(f"COMMAND_BUS_{name}", value)
    target = pickle.loads(pickle.dumps(Target.resolve("redis://localhost", "t")))
    for name in given:
        monkeypatch.delenv(f"COMMAND_BUS_{name}")
    found = BusSettings(**dict(target.access))
    assert (found.max_depth, found.max_total_depth, found.max_payload, found.max_nesting) == (100, 1000, 2000, 5)
    assert (found.durability, found.wait_replicas, found.wait_timeout, found.allow_eviction) == ("replicated", 2, 0.5, True)
    assert Target.resolve("redis://localhost", "t").access == ()


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2#/x@host",
        "redis://:hun/hunter2@host:6379",
        "redis://:hunter2?@host",
        "rediss://:hunter2@[::1",
        ":hunter2@host",
        "redis:/:hunter2@host",
        "hunter2",
        "redis+cluster://:hunter2/x@host:7000",
        "redis+sentinel://u:hunter2#x@h:1/m",
    ],
)
def test_url_errors_show_no_password(url: str) -> None:
    with pytest.raises(InvalidSettings, match="url") as caught:
        Target.resolve(url, "t")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    "url",
    [
        "redis://:p%2Fw@host:6379/0", "redis://host", "unix:///run/redis@home.sock", "redis+sentinel://u:p@h1:1,h2:2/main",
        "rediss+cluster://h1:7000,h2:7001", "redis://[::1]:6379",
    ],
)  # fmt: skip
def test_valid_urls_pass(url: str) -> None:
    assert Target.resolve(url, "t").url == url


def test_options_show_no_url() -> None:
    for options in (WriteOptions(url="redis://:hunter2@host"), ReadOptions(url="redis://:hunter2@host")):
        assert "hunter2" not in repr(options)
