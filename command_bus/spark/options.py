"""The options of the data source: texts under camelCase names, checked when the query is planned.

Spark hands over option names in lower case, however the user wrote them, and all values as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Literal, cast, get_args

from command_bus.clock import LONGEST
from command_bus.errors import InvalidSettings
from command_bus.messages.policies import PRIORITIES, Priority

OnInvalid = Literal["quarantine", "raise", "drop"]
View = Literal["outcomes", "deadLetters", "rejects", "entities", "dispatches"]

_DURATION = re.compile(
    r"\s*(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)\s*", re.IGNORECASE
)
_UNITS = {"ms": 1, "mi": 60_000, "m": 60_000, "s": 1000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_NUMBER = 19  # digits, as Spark's own have at most
_SHOWN = 200  # characters of a value
# What Spark adds by itself.
_SPARKS_OWN = frozenset({"checkpointlocation", "path", "queryname"})


def duration_ms(text: str, option: str) -> int:
    """Return the milliseconds of a text such as `7 days`, `90s`, `1.5 h`.

    Raises:
        InvalidSettings: The text is no duration.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidSettings(f"option {option} = {text!r} is no duration: write it like '90 s', '15 minutes' or '7 days'")
    unit = match[2].lower()
    factor = 1 if unit.startswith(("ms", "milli")) else _UNITS.get(unit[:2]) or _UNITS[unit[0]]
    milliseconds = float(match[1]) * factor
    if milliseconds > LONGEST * 1000:
        raise InvalidSettings(f"option {option} = {text!r} is too long: it is at most {LONGEST:,.0f} s (31 years)")
    return int(milliseconds) or int(milliseconds > 0)


def instant_ms(moment: datetime) -> int:
    """Return the milliseconds since the epoch, rounded down; a time without a zone is UTC."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options that say how rows become commands.

    Attributes:
        command: `module:Class`, or a wire name that running workers know; several separated by commas, with a `command_column`.
        url: The server; default `COMMAND_BUS_URL`, `REDIS_URL`.
        namespace: Prefix of all keys.
        command_id_column: The column of command ids; see `command_id`.
        command_column: The column with the wire name of each row's command.
        entity_column: The column of entity ids; by default the one with the name of the command's `EntityId` field.
        sequence_column: The column of integers that increase within an entity; a row that is not above its entity's last one is refused.
        columns: The columns that feed fields, as `field=column,…` or a JSON object; all others have their fields' names.
        dispatch_id: The name of the whole dispatch. A streaming query has one by default.
        version: The version of the dispatch, for micro-batches: greater than the last committed one. None: there is only one.
        on_invalid: What to do with invalid rows: `quarantine` stores them with the reason, `raise` fails the write, `drop` ignores them.
        max_rejects: The number of such rows above which the dispatch fails; None allows any number.
        max_backlog: Commands that may wait in the namespace before tasks wait.
        max_wait: Seconds without any progress after which a task gives up.
        batch_size: Commands per request.
        outcomes_ms: How long outcomes are kept; 0 keeps none.
        max_outcomes: How many outcomes are kept per shard, approximately.
        remember_ms: How long the dispatch is remembered, so that a repeated write adds nothing.
        mapper: A function from a row to a command, as `module:function`.
        priority: The priority of all rows (`high`, `normal`, `low`), or else the column with that of each row. None: that of the class.
        keep_order: For an entity that has rows in two tasks: True fails the write, None logs a warning at its end, False ignores it.
        made_ids: Whether `dispatch_dataframe` has made the column of command ids: it then feeds no field, unless `columns` says so.
    """

    command: str = ""
    url: str | None = field(default=None, repr=False)
    namespace: str | None = None
    command_id_column: str = "command_id"
    command_column: str | None = None
    entity_column: str | None = None
    sequence_column: str | None = None
    columns: dict[str, str] = field(default_factory=dict[str, str])
    dispatch_id: str | None = None
    version: int | None = None
    on_invalid: OnInvalid = "quarantine"
    max_rejects: int | None = None
    max_backlog: int | None = None
    max_wait: float = 300.0
    batch_size: int = 500
    outcomes_ms: int = 0
    max_outcomes: int = 10_000_000
    remember_ms: int = 30 * 86_400_000
    mapper: str | None = None
    keep_order: bool | None = None
    priority: str | None = None
    made_ids: bool = False

    @property
    def priority_of_all(self) -> Priority | None:
        """The priority of all rows; None if a column or the class says it."""
        return self.priority if self.priority in PRIORITIES else None

    @property
    def priority_column(self) -> str | None:
        """The column with the priority of each row, or None."""
        return None if self.priority in PRIORITIES else self.priority

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Return the options of `df.write` or `df.writeStream`.

        Raises:
            InvalidSettings: An option is unknown, missing or not valid; the message names it.
        """
        read = _Reader(
            options,
            "url", "namespace", "command", "commandIdColumn", "commandColumn", "entityColumn", "sequenceColumn", "columns",
            "dispatchId", "dispatchVersion",
            "onInvalid", "maxRejects", "maxBacklog", "maxWait", "batchSize", "outcomes", "maxOutcomes", "rememberFor", "mapper", "keepOrder",
            "priority",
        )  # fmt: skip
        outcomes_ms = read.duration("outcomes", zero=True) or 0
        return cls(
            command=read.text("command") or ""
            if read.text("mapper")
            else read.required("command", "the class as module:Class, or a wire name"),
            url=read.text("url"),
            namespace=read.text("namespace"),
            command_id_column=read.text("commandIdColumn") or "command_id",
            command_column=read.text("commandColumn"),
            entity_column=read.text("entityColumn"),
            sequence_column=read.text("sequenceColumn"),
            columns=read.pairs("columns"),
            dispatch_id=read.text("dispatchId"),
            version=read.count("dispatchVersion", least=0, most=2**53 - 1),  # the server's scripts count in doubles
            on_invalid=cast("OnInvalid", read.choice("onInvalid", get_args(OnInvalid), "quarantine")),
            max_rejects=read.count("maxRejects", least=0),
            max_backlog=read.count("maxBacklog"),
            max_wait=(read.duration("maxWait", bare="s") or 300_000) / 1000,
            batch_size=min(read.count("batchSize") or 500, 1000),
            outcomes_ms=outcomes_ms,
            max_outcomes=read.count("maxOutcomes") or 10_000_000,
            remember_ms=max(read.duration("rememberFor") or 30 * 86_400_000, outcomes_ms),
            mapper=read.text("mapper"),
            keep_order=read.flag("keepOrder"),
            priority=read.text("priority"),
        )


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options that say what to read.

    Attributes:
        view: `outcomes`, `deadLetters`, `rejects`, `entities` or `dispatches`.
        url: The server; default `COMMAND_BUS_URL`, `REDIS_URL`.
        namespace: Prefix of all keys.
        dispatch_id: The dispatch to read; None reads all that are remembered.
        partitions: The least number of tasks that read, if there is enough to read.
        page: Entries per request.
        max_offsets: For streams: the most outcomes per micro-batch.
        since_ms: For outcomes and dead letters: the time from which on they are read.
        until_ms: For outcomes and dead letters: the time before which they are read.
        fail_on_data_loss: Whether outcomes that were trimmed before they were read are an error; by default only for streams.
        pushdown: Whether Spark may push filters down; this also needs `spark.sql.python.filterPushdown.enabled`. Filter such a
            DataFrame once and load another for the next query: PySpark (up to 4.3 at least) reuses the filters of one query for the next one on
            the same DataFrame, which then lacks rows. `dispatch_id`, `since_ms` and `until_ms` read as little, without that fault.
    """

    view: View = "outcomes"
    url: str | None = field(default=None, repr=False)
    namespace: str | None = None
    dispatch_id: str | None = None
    partitions: int | None = None
    page: int = 2_000
    max_offsets: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    fail_on_data_loss: bool | None = None
    pushdown: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Return the options of `spark.read` or `spark.readStream`.

        Raises:
            InvalidSettings: An option is unknown, not valid, or does not fit the view.
        """
        read = _Reader(
            options,
            "url", "namespace", "view", "dispatchId", "minPartitions", "pageSize", "maxOffsetsPerTrigger", "startingTimestamp", "endingTimestamp",
            "failOnDataLoss", "pushdown",
        )  # fmt: skip
        view = cast("View", read.choice("view", get_args(View), "outcomes"))
        for name, views in _ONLY_WITH.items():
            if view not in views and read.text(name) is not None:
                raise InvalidSettings(f"option {name} goes with the views {', '.join(views)}, not with {view}")
        since_ms, until_ms = read.instant("startingTimestamp"), read.instant("endingTimestamp")
        if since_ms is not None and until_ms is not None and until_ms < since_ms:
            raise InvalidSettings("option endingTimestamp is before startingTimestamp")
        return cls(
            view=view,
            url=read.text("url"),
            namespace=read.text("namespace"),
            dispatch_id=read.text("dispatchId"),
            partitions=read.count("minPartitions"),
            page=min(read.count("pageSize") or 2_000, 50_000),
            max_offsets=read.count("maxOffsetsPerTrigger"),
            since_ms=since_ms,
            until_ms=until_ms,
            fail_on_data_loss=read.flag("failOnDataLoss"),
            pushdown=read.flag("pushdown") or False,
        )


_ONLY_WITH: dict[str, tuple[View, ...]] = {
    "dispatchId": ("outcomes", "deadLetters", "rejects", "dispatches"),
    "startingTimestamp": ("outcomes", "deadLetters"),
    "endingTimestamp": ("outcomes", "deadLetters"),
    "maxOffsetsPerTrigger": ("outcomes",),
    "failOnDataLoss": ("outcomes",),
}


class _Reader:
    """Reads options by their documented names."""

    def __init__(self, options: Mapping[str, str], *known: str) -> None:
        names = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for given, value in options.items():
            name = names.get(given.lower())
            if name is not None:
                self._values[name] = str(value)
            elif given.lower() not in _SPARKS_OWN:
                near = get_close_matches(given.lower(), names, n=1, cutoff=0.6)
                hint = f"did you mean {names[near[0]]}?" if near else f"there are {', '.join(known)}"
                raise InvalidSettings(f"unknown option {given!r}: {hint}")

    def text(self, name: str) -> str | None:
        return self._values.get(name) or None

    def required(self, name: str, what: str) -> str:
        value = self.text(name)
        if value is None:
            raise InvalidSettings(f"option {name} is missing: give {what}")
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = self.text(name) or default
        for choice in choices:
            if choice.lower() == value.lower().replace("_", ""):
                return choice
        raise InvalidSettings(f"option {name} = {value!r}: there are {', '.join(choices)}")

    def count(self, name: str, *, least: int = 1, most: int = 2**63 - 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        number = _whole(value)
        if number is None or not least <= number <= most:
            raise InvalidSettings(f"option {name} = {value[:_SHOWN]!r} is a whole number, at least {least} and at most {most}")
        return number

    def flag(self, name: str) -> bool | None:
        value = self.text(name)
        if value is None:
            return None
        if value.lower() not in ("true", "false"):
            raise InvalidSettings(f"option {name} = {value!r} is true or false")
        return value.lower() == "true"

    def instant(self, name: str) -> int | None:
        """Return milliseconds since the epoch, given as such (as for Spark's other sources), or as an ISO text, which is UTC unless it has a zone."""
        value = self.text(name)
        if value is None:
            return None
        if (number := _whole(value)) is not None:
            return number
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            raise InvalidSettings(
                f"option {name} = {value[:_SHOWN]!r} is no time: write milliseconds since 1970, or a text like 2026-11-21T05:00:00Z"
            ) from None
        return instant_ms(moment)

    def duration(self, name: str, *, bare: str = "", zero: bool = False) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        found = duration_ms(value + bare if bare and value.replace(".", "", 1).isdecimal() else value, name)
        if not found and not zero:
            raise InvalidSettings(f"option {name} = {value!r} is no time at all: give more, or leave it out")
        return found

    def pairs(self, name: str) -> dict[str, str]:
        value = self.text(name) or ""
        try:
            given = _pairs_of_json(value) if value.lstrip().startswith("{") else _pairs_of_text(value)
        except (ValueError, RecursionError):
            raise InvalidSettings(
                f"option {name} = {value[:_SHOWN]!r}: write it like 'field=column, other=column2', or as a JSON object of texts"
            ) from None
        pairs = dict(given)
        if len(pairs) < len(given):
            raise InvalidSettings(f"option {name} = {value!r} names a field twice")
        return pairs


def _whole(text: str) -> int | None:
    """Return a whole number that is not negative; None if it is none, or longer than Spark's own."""
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) <= _LONGEST_NUMBER else None


def _pairs_of_json(text: str) -> list[tuple[str, str]]:
    """Return the pairs of a JSON object, in which names may have any character."""
    pairs: list[tuple[str, str]] = json.loads(text, object_pairs_hook=list)
    if not all(isinstance(each, str) for pair in pairs for each in pair):
        raise ValueError(text)
    return pairs


def _pairs_of_text(text: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for part in text.split(",") if text else ():
        left, equals, right = part.partition("=")
        if not equals or not left.strip() or not right.strip():
            raise ValueError(text)
        pairs.append((left.strip(), right.strip()))
    return pairs
