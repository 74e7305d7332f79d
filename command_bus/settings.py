"""The one place where configuration is read: arguments, then environment, then defaults.

`BusSettings()` reads `COMMAND_BUS_LEASE=3`, `COMMAND_BUS_URL=…` and so on; `REDIS_URL` is taken where `COMMAND_BUS_URL` is absent.
Durations are seconds as floats.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from command_bus.errors import InvalidSettings
from command_bus.policies import EntityPolicy

__all__ = ["BusSettings", "redacted"]

_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_PASSWORD_IN_URL = re.compile(r"(?<=//)([^/:@\s]*):(\S*)@")

Durability = Literal["server", "memory", "aof", "always", "replicated"]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


def redacted(url: str) -> str:
    """The URL without its password, fit for logs and errors."""
    return _PASSWORD_IN_URL.sub(r"\1:***@", url)


class BusSettings(BaseSettings):
    """Everything that can be set on a bus. Every field can come from the environment as `COMMAND_BUS_<FIELD>`.

    Raises:
        InvalidSettings: A value is out of range or of the wrong type; the message names the field.
    """

    model_config = SettingsConfigDict(
        env_prefix="COMMAND_BUS_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        populate_by_name=True,
    )

    url: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("url", "COMMAND_BUS_URL", "REDIS_URL"),
        description="Server URL (redis://, rediss://, unix://, redis+sentinel://, redis+cluster://). None: the embedded development server.",
    )
    namespace: str = Field(default="command_bus", description="Prefix of all keys; one namespace is one fleet of workers.")
    shards: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=1, description="Hash tags that the entities are spread over; fixed once recorded."
    )
    entities: dict[str, EntityPolicy] = Field(default_factory=dict, description="Policies per entity type.")

    concurrency: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=100, description="Entities that one worker runs at a time."
    )
    threads: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=32, description="Threads for synchronous handlers per worker."
    )
    lease: Annotated[float, Field(ge=0.2, le=86_400, allow_inf_nan=False)] = Field(
        default=30.0, description="Seconds after which a silent worker loses its entities; renewed every third of it."
    )
    grace: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=30.0, description="Seconds that running handlers get at shutdown."
    )
    quantum: Count = Field(default=64, description="Commands that an entity runs in a row while others wait.")
    quantum_time: Seconds = Field(default=0.25, description="Seconds that an entity keeps its slot while others wait.")
    unknown_grace: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=60.0, description="Seconds that an unknown command waits for a newer worker; 0 answers at once."
    )

    dispatch_timeout: Seconds = Field(default=10.0, description="Seconds within which a dispatch is accepted, refused or fails.")
    call_timeout: Seconds = Field(default=30.0, description="Seconds that a call waits if it names no timeout.")
    max_pending: Count = Field(default=20_000, description="Commands of one process that may wait for the server at a time.")
    dedup_window: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=600.0, description="Seconds after settling for which a given command id is remembered."
    )
    reply_ttl: Seconds = Field(default=600.0, description="Seconds for which a reply can be read again.")
    max_depth: Count = Field(default=10_000, description="Commands that one entity may hold.")
    max_total_depth: Count = Field(default=1_000_000, description="Commands that the namespace may hold.")
    max_payload: Annotated[int, Field(ge=64, le=256 * 1024 * 1024)] = Field(
        default=1024 * 1024, description="Bytes of one encoded payload."
    )
    max_nesting: Annotated[int, Field(ge=1, le=512)] = Field(default=64, description="Levels of nesting in a payload.")

    durability: Durability = Field(
        default="server",
        description="What an accepted command survives: `server` takes the server as it is; `memory` asks for nothing; `aof` and `always` refuse a "
        "server without (fsynced) append-only files; `replicated` waits for replicas before `dispatch` returns and an at-most-once handler starts.",
    )
    wait_replicas: Count = Field(
        default=1, description="Replicas that confirm with `durability = replicated`; better all there are."
    )
    wait_timeout: Annotated[float, Field(gt=0, le=4, allow_inf_nan=False)] = Field(
        default=1.0, description="Seconds that replicas get to confirm before it is tried again."
    )

    allow_eviction: bool = Field(default=False, description="Start on a server whose eviction policy may drop queued commands.")
    insecure: bool = Field(default=False, description="Allow TLS without verification of the server's certificate.")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidSettings(_advice(error)) from None

    @field_validator("namespace")
    @classmethod
    def _namespace_is_a_key(cls, value: str) -> str:
        if not _NAMESPACE.fullmatch(value):
            raise ValueError("1 to 100 of letters, digits, '_', '.' and '-'")
        return value

    @model_validator(mode="after")
    def _url_is_safe(self) -> Self:
        url = self.server_url
        if url is not None and "ssl_cert_reqs=none" in url.lower() and not self.insecure:
            raise ValueError(
                "url: ssl_cert_reqs=none turns off the check of the server's identity; pass insecure=True if you mean it"
            )
        return self

    @property
    def server_url(self) -> str | None:
        """The URL in the clear, for the client only."""
        return None if self.url is None else self.url.get_secret_value()

    def entity(self, entity_type: str | None) -> EntityPolicy:
        """The policy of an entity type; the default one where none is given."""
        return self.entities.get(entity_type, _DEFAULT_POLICY) if entity_type is not None else _DEFAULT_POLICY


_DEFAULT_POLICY = EntityPolicy()


def _advice(error: ValidationError) -> str:
    parts = [
        f"{'.'.join(str(part) for part in item['loc']) or 'settings'}: {item['msg'].removeprefix('Value error, ')}"
        for item in error.errors(include_url=False, include_input=False)
    ]
    return "; ".join(parts)
