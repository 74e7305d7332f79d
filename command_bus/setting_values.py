"""Types of settings, for type checkers: `settings` has the fields themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypedDict

from pydantic import SecretStr

from command_bus.messages.history import HistoryChoice
from command_bus.messages.limits import Limit
from command_bus.messages.policies import Delivery, EntityPolicy
from command_bus.messages.retry_policy import RetryPolicy

Durability = Literal["server", "memory", "aof", "always", "replicated"]
LogLevel = Literal["debug", "info", "warning", "error"]
# The server counts in milliseconds: less than one would be 0, which is at once, or for ever.


class SettingOverrides(TypedDict, total=False):
    """Settings as keyword arguments, so that type checkers find a misspelt one; `BusSettings` says what each is."""

    username: str | None
    password: str | SecretStr | None
    tls_ca: str | Path | None
    tls_cert: str | Path | None
    tls_key: str | Path | None
    shards: int
    entities: Mapping[str, EntityPolicy]
    services: Mapping[str, str | SecretStr]
    delivery: Delivery | None
    retry: RetryPolicy | None
    attempt_timeout: float | None
    history: HistoryChoice | None
    limits: Iterable[Limit]
    concurrency: int
    threads: int
    processes: int
    process_tasks: int
    max_waiting: int
    lease: float
    grace: float
    quantum: int
    quantum_time: float
    unknown_grace: float
    dispatch_timeout: float
    fail_fast: bool
    call_timeout: float
    max_pending: int
    dedup_window: float
    reply_ttl: float
    max_depth: int
    max_total_depth: int
    max_entities: int | None
    max_entity_types: int
    dead_letter_ttl: float | None
    max_dead_letters: int | None
    max_payload: int
    max_state: int
    max_hops: int
    max_nesting: int
    compress_above: int | None
    durability: Durability
    wait_replicas: int
    wait_timeout: float
    signing_keys: Mapping[str, str | SecretStr] | Iterable[str | SecretStr]
    require_signatures: bool
    allow_eviction: bool
    insecure: bool
    log_level: LogLevel


class SettingValues(SettingOverrides, total=False):
    """All of them, with those that `CommandBus` names itself."""

    url: str | SecretStr | None
    namespace: str
