"""The one place where configuration is read: arguments, then environment, then defaults.

`BusSettings()` reads `COMMAND_BUS_LEASE=3`, `COMMAND_BUS_URL=…` and so on; `REDIS_URL` is taken where `COMMAND_BUS_URL` is absent.
Durations are seconds as floats.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, Unpack

from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from command_bus.clock import LONGEST
from command_bus.errors import InvalidSettings, UnknownService
from command_bus.messages.handling_policy import HandlingPolicy, handling_policy
from command_bus.messages.history import History, HistoryChoice, checked_history, history_of
from command_bus.messages.limits import Limit, checked_bus_limits
from command_bus.messages.message import MessageSpec
from command_bus.messages.policies import Delivery, EntityPolicy
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.server_urls import split_service, unverified, url_fault, weakened
from command_bus.setting_values import Durability, LogLevel, SettingValues
from command_bus.spelling import did_you_mean, nearest

_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_KEY_ID = re.compile(r"[A-Za-z0-9_.-]{1,32}")
_SHORTEST_KEY = 16
MAX_SHARDS: Final = 1024
"""Shards that a namespace may have."""

Seconds = Annotated[float, Field(ge=0.001, le=LONGEST, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


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
    username: str | None = Field(default=None, description="ACL user, where the URL names none.")
    password: SecretStr | None = Field(default=None, description="Its password, where the URL has none.")
    tls_ca: Path | None = Field(
        default=None, description="Certificates (PEM) that a rediss:// server is verified against; none takes the system's."
    )
    tls_cert: Path | None = Field(default=None, description="This client's certificate (PEM), where the server wants one.")
    tls_key: Path | None = Field(default=None, description="Its private key (PEM).")
    namespace: str = Field(default="command_bus", description="Prefix of all keys; one namespace is one fleet of workers.")
    shards: Annotated[int, Field(ge=1, le=MAX_SHARDS)] = Field(
        default=1,
        description="Hash tags that the entities are spread over. It counts when the namespace is made; later clients follow what is recorded.",
    )
    entities: dict[str, EntityPolicy] = Field(default_factory=dict, description="Policies per entity type.")
    services: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="URLs of other services by name, for `bus.services.get(name)`; behind the `?` may stand `namespace`, by default the name, "
        "and `shards`. Without an address, as in `?namespace=stock`: on this server.",
    )
    delivery: Delivery | None = Field(
        default=None,
        description="What an interruption means to commands whose class and entity type do not say: `at_least_once` (the default) or `at_most_once`.",
    )
    retry: RetryPolicy | None = Field(
        default=None,
        description="How failures of commands are retried whose class and entity type do not say; none: three attempts, or one for `at_most_once`.",
    )
    attempt_timeout: Seconds | None = Field(
        default=None, description="Seconds that one attempt may take of commands whose class and entity type do not say."
    )
    history: HistoryChoice | None = Field(
        default=None,
        description="What is kept of the ends of commands whose class and entity type do not say: as `30 days`, or a `History`; none: nothing.",
    )
    limits: tuple[Limit, ...] = Field(default=(), description="Limits of the whole bus (`scope = bus`), and named ones.")

    concurrency: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=100, description="Entities that one worker runs at a time."
    )
    threads: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=32, description="Threads for synchronous handlers per worker."
    )
    processes: Annotated[int, Field(ge=1, le=1_000)] = Field(
        default=4, description="Processes for handlers with `runs_in = process` per worker; started as they are needed."
    )
    process_tasks: Annotated[int, Field(ge=1, le=1_000_000_000)] = Field(
        default=1000, description="Calls after which such a process is replaced."
    )
    max_waiting: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=1000,
        description="Handlers of one worker that may wait for replies of the bus at a time without counting against `concurrency`; 0: each counts.",
    )
    lease: Annotated[float, Field(ge=0.2, le=86_400, allow_inf_nan=False)] = Field(
        default=30.0, description="Seconds after which a silent worker loses its entities; renewed every third of it."
    )
    grace: Annotated[float, Field(ge=0, le=LONGEST, allow_inf_nan=False)] = Field(
        default=30.0, description="Seconds that running handlers get at shutdown."
    )
    quantum: Count = Field(default=64, description="Commands that an entity runs in a row while others wait.")
    quantum_time: Annotated[float, Field(gt=0, le=LONGEST, allow_inf_nan=False)] = Field(
        default=0.25, description="Seconds that an entity keeps its slot while others wait."
    )
    unknown_grace: Annotated[float, Field(ge=0, le=LONGEST, allow_inf_nan=False)] = Field(
        default=60.0, description="Seconds that an unknown command waits for a newer worker; 0 answers at once."
    )

    dispatch_timeout: Seconds = Field(default=10.0, description="Seconds within which a dispatch is accepted, refused or fails.")
    fail_fast: bool = Field(
        default=False,
        description="Refuse dispatches and calls at once while the server is known to be away (of one that is silent: after 10 s); "
        "otherwise each waits for it up to `dispatch_timeout`.",
    )
    call_timeout: Seconds = Field(
        default=60.0,
        description="Seconds that a call waits if it names no timeout; longer than a lease, so that it outlives the loss of a worker.",
    )
    max_pending: Count = Field(default=20_000, description="Commands of one process that may wait for the server at a time.")
    dedup_window: Annotated[float, Field(ge=0, le=LONGEST, allow_inf_nan=False)] = Field(
        default=600.0, description="Seconds after settling for which a given command id is remembered."
    )
    reply_ttl: Seconds = Field(default=600.0, description="Seconds for which a reply can be read again.")
    max_depth: Count = Field(default=10_000, description="Commands that one entity may hold.")
    max_total_depth: Count = Field(default=1_000_000, description="Commands that the namespace may hold; each shard its part.")
    max_entities: Count | None = Field(
        default=None,
        description="Entities that may have work at a time, parked, paused and suspended ones included; none: any number.",
    )
    max_entity_types: Count = Field(
        default=1000, description="Entity types that the namespace may have; a sender whose type would be one more is refused."
    )
    dead_letter_ttl: Seconds | None = Field(
        default=None, description="Seconds after which workers delete a dead letter that parks no entity; none: never."
    )
    max_dead_letters: Count | None = Field(
        default=None,
        description="Dead letters that are kept; workers delete the oldest beyond that, but none that parks an entity.",
    )
    max_payload: Annotated[int, Field(ge=64, le=256 * 1024 * 1024)] = Field(
        default=1024 * 1024, description="Bytes of one encoded payload."
    )
    max_state: Annotated[int, Field(ge=64, le=16 * 1024 * 1024)] = Field(
        default=64 * 1024, description="Bytes of the packed state of an entity."
    )
    max_hops: Count = Field(
        default=1000,
        description="Commands that may lead to one, each sent by the handler of the one before, without a delay; one more is refused (`CallCycle`).",
    )
    max_nesting: Annotated[int, Field(ge=1, le=512)] = Field(default=64, description="Levels of nesting in a payload.")
    compress_above: Count | None = Field(
        default=None, description="Bytes above which payloads and replies travel compressed; none: they never do."
    )

    durability: Durability = Field(
        default="server",
        description="What accepted commands survive: the end of the server (`aof`), a power loss (`always`), "
        "the loss of the primary (`replicated`); `server` and `memory` require nothing.",
    )
    wait_replicas: Count = Field(
        default=1, description="Replicas that confirm with `durability = replicated`; better all there are."
    )
    wait_timeout: Annotated[float, Field(ge=0.001, le=4, allow_inf_nan=False)] = Field(
        default=1.0, description="Seconds that replicas get to confirm before it is tried again."
    )

    signing_keys: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Keys that sign envelopes, secret by id, or a list of `id:secret`; the first signs, all verify.",
    )
    require_signatures: bool = Field(default=False, description="Dead-letter commands without a signature.")

    allow_eviction: bool = Field(default=False, description="Start on a server whose eviction policy may drop queued commands.")
    insecure: bool = Field(
        default=False,
        description="Allow TLS without verification of the server's certificate, and a URL that chooses ciphers or a version below 1.2.",
    )
    log_level: Annotated[LogLevel, BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)] = Field(
        default="info",
        description="Lowest level that `command-bus worker` logs (`debug`, `info`, `warning`, `error`); its `--log-level` counts more. "
        "A program of your own configures logging itself.",
    )

    def __init__(self, **values: Unpack[SettingValues]) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidSettings(_advice(error)) from None
        except SettingsError as error:  # its cause holds the variable's value
            raise InvalidSettings(f"{error}: it is JSON, as in '[\"…\"]' or '{{\"…\": …}}'") from None

    @field_validator("url")
    @classmethod
    def _url_without_blanks_around(cls, value: SecretStr | None) -> SecretStr | None:
        """Take off what a file with the URL in it ends with."""
        return None if value is None else SecretStr(value.get_secret_value().strip())

    @field_validator("namespace")
    @classmethod
    def _namespace_is_a_key(cls, value: str) -> str:
        if not _NAMESPACE.fullmatch(value):
            raise ValueError("1 to 100 of letters, digits, '_', '.' and '-'")
        return value

    @field_validator("services")
    @classmethod
    def _services_have_urls(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, url in value.items():
            place, _ = split_service(url.get_secret_value().strip())
            if place and (fault := url_fault(place)) is not None:
                raise ValueError(f"{name}: {fault}")
        return value

    @field_validator("history")
    @classmethod
    def _history_has_bounds(cls, value: HistoryChoice | None) -> History | Literal[False] | None:
        return checked_history("history", value)

    @field_validator("limits")
    @classmethod
    def _limits_are_of_the_bus(cls, value: tuple[Limit, ...]) -> tuple[Limit, ...]:
        return checked_bus_limits(value)

    @field_validator("signing_keys", mode="before")
    @classmethod
    def _keys_by_id(cls, value: Any) -> Any:
        """Take `id:secret` texts too, as an environment can hold them."""
        if isinstance(value, Mapping) or not isinstance(value, Iterable) or isinstance(value, str | bytes):
            return value
        texts = [item.get_secret_value() if isinstance(item, SecretStr) else item for item in value]
        if not all(isinstance(text, str) and ":" in text for text in texts):
            raise ValueError("a list of 'id:secret'")
        if len({text.partition(":")[0] for text in texts}) < len(texts):
            raise ValueError("two keys have one id")
        return {text.partition(":")[0]: text.partition(":")[2] for text in texts}

    @field_validator("signing_keys")
    @classmethod
    def _keys_are_strong(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for key_id, secret in value.items():
            if not _KEY_ID.fullmatch(key_id):
                raise ValueError("a key's id has 1 to 32 of letters, digits, '_', '.' and '-'")
            if len(secret.get_secret_value().encode(errors="replace")) < _SHORTEST_KEY:
                raise ValueError(
                    f"the secret of key {key_id!r} is shorter than {_SHORTEST_KEY} bytes: take secrets.token_urlsafe(32)"
                )
        return value

    @model_validator(mode="after")
    def _url_is_safe(self) -> Self:
        url = self.server_url
        if url is None:
            return self
        if (fault := url_fault(url)) is not None:
            raise ValueError(f"url: {fault}")
        if not self.insecure and (fault := unverified(url)) is not None:
            raise ValueError(f"url: {fault} turns off the check of the server's identity; pass insecure=True if you mean it")
        if not self.insecure and (fault := weakened(url)) is not None:
            raise ValueError(f"url: {fault} may make the encryption weaker than TLS 1.2; pass insecure=True if you mean it")
        if not url.startswith("rediss") and (self.tls_ca or self.tls_cert or self.tls_key):
            raise ValueError("url: tls_ca, tls_cert and tls_key are for rediss:// URLs, this one is not encrypted")
        return self

    @model_validator(mode="after")
    def _secrets_are_whole(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together: give both or neither")
        if self.require_signatures and not self.signing_keys:
            raise ValueError("require_signatures: without signing_keys no signature can be verified")
        return self

    @property
    def server_url(self) -> str | None:
        """The URL in the clear, for the client only."""
        return None if self.url is None else self.url.get_secret_value()

    @property
    def home(self) -> tuple[str | None, str]:
        """The server and the namespace: mailboxes of one home and another are not the same, whatever they are called."""
        return self.server_url, self.namespace

    def service(self, name: str) -> Self:
        """Return the settings of a bus of another service: its server, its namespace, and all else as here.

        Raises:
            InvalidSettings: Its namespace or its number of shards is none, or its URL does not go with the other settings.
            UnknownService: It is not configured.
        """
        if name not in self.services:
            known = ", ".join(sorted(self.services)) or "none"
            raise UnknownService(
                f"no service {name!r} is configured in services; there are: {known}{did_you_mean(name, self.services)}"
            )
        url, own = split_service(self.services[name].get_secret_value().strip())
        values: dict[str, Any] = {field: getattr(self, field) for field in type(self).model_fields}
        values |= {"namespace": name, "shards": 1, **own, "url": url or self.url}
        if url and not url.startswith("rediss"):
            values |= {"tls_ca": None, "tls_cert": None, "tls_key": None}
        settings = type(self)(**values)
        if "shards" not in own:
            settings.model_fields_set.discard("shards")  # it was not said
        return settings

    def entity(self, entity_type: str | None) -> EntityPolicy:
        """Return the policy of an entity type, by default the default policy."""
        return self.entities.get(entity_type, _DEFAULT_POLICY) if entity_type is not None else _DEFAULT_POLICY

    def depth_of(self, entity_type: str | None) -> int:
        """Return how many commands one entity of a type may hold."""
        return self.entity(entity_type).max_depth or self.max_depth

    def handling(self, spec: MessageSpec) -> HandlingPolicy:
        """Return what applies to commands of a class: what it says, else its entity type, else these settings."""
        return handling_policy(spec, self.entity(spec.entity), self)

    def compress_above_of(self, spec: MessageSpec) -> int | None:
        """Return the bytes above which payloads and replies of a class travel compressed; None: they never do."""
        return self.compress_above if spec.compress_above is None else spec.compress_above

    def history_of(self, spec: MessageSpec | None, entity_type: str | None) -> History | None:
        """Return what is kept of the ends of a class's commands, or (None) of commands made without their class; None: nothing."""
        return history_of(None if spec is None else spec.history, self.entity(entity_type).history, self.history)

    def call_timeout_of(self, entity_type: str | None) -> float:
        """Return the seconds that a call waits which names no timeout."""
        return self.entity(entity_type).call_timeout or self.call_timeout


_DEFAULT_POLICY = EntityPolicy()
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")  # pydantic's names, of models and of dataclasses


def _advice(error: ValidationError) -> str:
    parts: list[str] = []
    for item in error.errors(include_url=False, include_input=False):
        place = ".".join(str(part) for part in item["loc"]) or "settings"
        if item["type"] in _UNKNOWN:
            known = _fields_at(item["loc"])
            parts.append(f"{place}: there is no such setting{did_you_mean(str(item['loc'][-1]), known)}")
        else:
            parts.append(f"{place}: {item['msg'].removeprefix('Value error, ')}")
    return "; ".join(parts)


def _fields_at(place: tuple[int | str, ...]) -> Iterable[str]:
    """Return the names of the settings beside the one that does not exist at this place."""
    if len(place) == 1:
        return BusSettings.model_fields
    return RetryPolicy.__slots__ if place[-2] == "retry" else EntityPolicy.__slots__


def resolved(settings: BusSettings | None, url: str | None, namespace: str | None, overrides: Mapping[str, Any]) -> BusSettings:
    """Return the settings of a bus: the given ones, else those of the environment; single overrides come first.

    Raises:
        InvalidSettings: One is out of range.
    """
    named = {name: value for name, value in (("url", url), ("namespace", namespace)) if value is not None}
    given: dict[str, Any] = {**named, **overrides}
    if settings is None:
        return BusSettings(**given)
    if not given:
        return settings
    return BusSettings(**{name: getattr(settings, name) for name in BusSettings.model_fields} | given)


_PREFIX = "COMMAND_BUS_"
_OTHERS = ("EMBEDDED_", "SPARK_", "TEST_")
_PROGRAMS = frozenset({"DASHBOARD_SECRET", "DATABASE"})
"""The variables that our programs read, and that are no settings of a bus."""
_SERVICE = re.compile(r"(.+_)?(SERVICE_(HOST|PORT(_.+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")
"""What Kubernetes sets for services."""


class UnknownVariable(NamedTuple):
    """A variable that no setting is read from.

    Attributes:
        name: Its name.
        meant: The variable that it may be a misspelling of, or None.
    """

    name: str
    meant: str | None

    def __str__(self) -> str:
        return f"{self.name} is no setting and is not read{'' if self.meant is None else f'; did you mean {self.meant}?'}"


def unknown_variables(names: Iterable[str]) -> list[UnknownVariable]:
    """Return the variables that have the prefix of settings and are none, by name."""
    known = {field.upper() for field in BusSettings.model_fields} | _PROGRAMS
    found: list[UnknownVariable] = []
    for name in sorted(names):
        word = name.upper().removeprefix(_PREFIX)  # settings are read in any case, upper or lower
        if word == name.upper() or word.startswith(_OTHERS) or _SERVICE.fullmatch(word):
            continue
        head, nested, rest = word.partition("__")
        if head not in known:
            meant = nearest(head, known)
            found.append(UnknownVariable(name, None if meant is None else f"{_PREFIX}{meant}{nested}{rest}"))
    return found
