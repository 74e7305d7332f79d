"""Settings come from arguments, then the environment; what is wrong is named; a password is never shown."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from command_bus import CommandBus
from command_bus.errors import InvalidSettings
from command_bus.messages.policies import EntityPolicy, lanes
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.server_urls import redacted
from command_bus.setting_values import SettingOverrides, SettingValues
from command_bus.settings import BusSettings


def test_the_defaults_are_those_of_the_design() -> None:
    settings = BusSettings()
    assert settings.url is None
    assert settings.server_url is None
    assert (settings.namespace, settings.shards, settings.concurrency, settings.lease) == ("command_bus", 1, 100, 30.0)
    assert (settings.dedup_window, settings.reply_ttl, settings.grace, settings.unknown_grace) == (600.0, 600.0, 30.0, 60.0)
    assert (settings.max_depth, settings.max_total_depth) == (10_000, 1_000_000)
    assert (settings.max_payload, settings.max_nesting) == (1024 * 1024, 64)
    assert not settings.allow_eviction


def test_arguments_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMAND_BUS_LEASE", "3")
    monkeypatch.setenv("COMMAND_BUS_NAMESPACE", "shop")
    assert BusSettings().lease == 3.0
    assert BusSettings(lease=5.0).lease == 5.0
    assert BusSettings().namespace == "shop"


def test_the_url_comes_from_either_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://plain")
    assert BusSettings().server_url == "redis://plain"
    monkeypatch.setenv("COMMAND_BUS_URL", "redis://own")
    assert BusSettings().server_url == "redis://own"
    assert BusSettings(url="unix:///run/r.sock").server_url == "unix:///run/r.sock"


def test_entity_policies_are_found_by_type() -> None:
    policy = EntityPolicy(mailbox=lanes(4), on_poison="park")
    settings = BusSettings(entities={"account": policy})
    assert settings.entity("account") == policy
    assert settings.entity("order") == EntityPolicy()
    assert settings.entity(None) == EntityPolicy()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lease", 0.1),
        ("lease", float("inf")),
        ("lease", float("nan")),
        ("lease", "soon"),
        ("concurrency", 0),
        ("concurrency", -5),
        ("concurrency", 1_000_000),
        ("threads", 0),
        ("shards", 0),
        ("shards", 2_000),
        ("grace", -1),
        ("quantum", 0),
        ("call_timeout", 0),
        ("dispatch_timeout", float("inf")),
        ("dedup_window", -1),
        ("max_depth", 0),
        ("max_payload", 1),
        ("max_nesting", 0),
        ("namespace", ""),
        ("namespace", "a b"),
        ("namespace", "a{b}"),
        ("namespace", "a\nb"),
        ("namespace", "x" * 101),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidSettings, match=f"^{field}: "):
        BusSettings(**{field: value})


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"^leese: there is no such setting; did you mean 'lease'\?$"):
        BusSettings(leese=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue] - the checkers find it, too
    with pytest.raises(InvalidSettings, match=r"^workers: there is no such setting$"):
        CommandBus(workers=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue] - as above
    for wrong, advice in (("max_dept", r"^entities\.a\.max_dept: .*'max_depth'\?$"), ("mailbocks", r"did you mean 'mailbox'\?$")):
        entities: Any = {"a": {wrong: 3}}
        with pytest.raises(InvalidSettings, match=advice):
            BusSettings(entities=entities)


def test_each_setting_can_be_given_by_name() -> None:
    """Type checkers read `SettingOverrides`: add a new setting there, too."""
    assert set(SettingValues.__annotations__) == set(BusSettings.model_fields)
    assert set(BusSettings.model_fields) - set(SettingOverrides.__annotations__) == {"url", "namespace"}


def test_a_wrong_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMAND_BUS_SHARDS", "many")
    with pytest.raises(InvalidSettings, match="shards"):
        BusSettings()


def test_unverified_tls_must_be_meant() -> None:
    url = "rediss://server:6380/0?ssl_cert_reqs=none"
    with pytest.raises(InvalidSettings, match="insecure=True"):
        BusSettings(url=url)
    assert BusSettings(url=url, insecure=True).server_url == url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:s3cret@host:1/0", "redis://:***@host:1/0"),
        ("redis://user:s3cret@host", "redis://user:***@host"),
        ("rediss://user:s3:cr@et@host", "rediss://user:***@host"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_neither_settings_nor_errors_show_the_password() -> None:
    settings = BusSettings(url="redis://:s3cret@host")
    assert "s3cret" not in repr(settings) + str(settings) + settings.model_dump_json()
    with pytest.raises(InvalidSettings) as caught:
        BusSettings(url="rediss://:s3cret@host?ssl_cert_reqs=none", lease=-1)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_settings_are_frozen_and_travel() -> None:
    settings = BusSettings(url="redis://:s3cret@host", entities={"account": EntityPolicy(max_depth=5)})
    with pytest.raises(ValueError, match="frozen"):
        settings.lease = 5.0
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert RetryPolicy() == pickle.loads(pickle.dumps(RetryPolicy()))


def test_a_field_of_a_field_has_a_variable_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMAND_BUS_RETRY__ATTEMPTS", "5")
    monkeypatch.setenv("COMMAND_BUS_RETRY__MAX_DELAY", "7")
    assert BusSettings().retry == RetryPolicy(attempts=5, max_delay=7)


@pytest.mark.parametrize("word", ["debug", "WARNING"])
def test_the_level_of_logs_is_a_setting(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("COMMAND_BUS_LOG_LEVEL", word)
    assert BusSettings().log_level == word.lower()
    monkeypatch.setenv("COMMAND_BUS_LOG_LEVEL", "loud")
    with pytest.raises(InvalidSettings, match="log_level"):
        BusSettings()
