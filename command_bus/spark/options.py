"""The options of the data source and of `dispatch_dataframe`, checked alike when the query is planned.

Spark hands over option names in lower case, however the user wrote them, and all values as text; Python hands over its own values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal, get_args

from command_bus.clock import LONGEST
from command_bus.errors import InvalidSettings
from command_bus.export.views import View
from command_bus.messages.policies import PRIORITIES, Priority

OnInvalid = Literal["quarantine", "raise", "drop"]

_DURATION = re.compile(
    r"\s*(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)\s*", re.IGNORECASE
)
_UNITS = {"ms": 1, "mi": 60_000, "m": 60_000, "s": 1000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_Check = Callable[[Any, str], Any]
"""Returns the value that an option has for us; an error names the option."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_NUMBER = 19  # digits, as Spark's own have at most
_SHOWN = 200  # characters of a value
# What Spark adds by itself.
_KEPT: tuple[View, ...] = ("outcomes", "history", "steps", "events", "audit")  # in streams that grow at one end
_SPARKS_OWN = frozenset({"checkpointlocation", "path", "queryname"})


def duration_ms(value: object, option: str) -> int:
    """Return the milliseconds of a `timedelta`, or of a text such as `7 days`, `90s`, `1.5 h`.

    Raises:
        InvalidSettings: The value is no duration.
    """
    if isinstance(value, timedelta):
        milliseconds = value / timedelta(milliseconds=1)
    elif not isinstance(value, str):
        raise _wrong(option, value, ": give how long, as a timedelta or a text such as '7 days'")
    elif match := _DURATION.fullmatch(value):
        unit = match[2].lower()
        factor = 1 if unit.startswith(("ms", "milli")) else _UNITS.get(unit[:2]) or _UNITS[unit[0]]
        milliseconds = float(match[1]) * factor
    else:
        raise _wrong(option, value, " is no duration: write it like '90 s', '15 minutes' or '7 days'")
    if milliseconds > LONGEST * 1000:
        raise _wrong(option, value, f" is too long: it is at most {LONGEST:,.0f} s (31 years)")
    return int(milliseconds) or int(milliseconds > 0)


def instant_ms(moment: datetime) -> int:
    """Return the milliseconds since the epoch, rounded down; a time without a zone is UTC."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


def _wrong(option: str, value: object, why: str) -> InvalidSettings:
    return InvalidSettings(f"option {option} = {value[:_SHOWN] if isinstance(value, str) else value!r}{why}")


def _column(value: object, option: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(option, value, ": give the name of a column")
    return value


def _choice(*choices: str) -> _Check:
    def check(value: object, option: str) -> str:
        found = next((each for each in choices if each.lower() == str(value).lower().replace("_", "")), None)
        if found is None:
            raise _wrong(option, value, f": there are {', '.join(choices)}")
        return found

    return check


def _count(least: int = 1, most: int = 2**63 - 1) -> _Check:
    def check(value: object, option: str) -> int:
        number = value if type(value) is int else _whole(value)
        if number is None or not least <= number <= most:
            raise _wrong(option, value, f" is a whole number, at least {least} and at most {most}")
        return number

    return check


def _flag(value: object, option: str) -> bool:
    word = str(value).lower()
    if word not in ("true", "false"):
        raise _wrong(option, value, " is true or false")
    return word == "true"


def _instant(value: object, option: str) -> int:
    """Return milliseconds since the epoch, given as such (as for Spark's other sources), or as an ISO text, which is UTC unless it has a zone."""
    if (number := _whole(value)) is not None:
        return number
    try:
        return instant_ms(datetime.fromisoformat(str(value).strip()))
    except ValueError:
        why = " is no time: write milliseconds since 1970, or a text like 2026-11-21T05:00:00Z"
        raise _wrong(option, value, why) from None


def _duration(least: int = 1) -> _Check:
    def check(value: object, option: str) -> int:
        found = duration_ms(value, option)
        if found < least:
            raise _wrong(option, value, " is no time at all: give more, or leave it out")
        return found

    return check


def _seconds(value: object, option: str) -> float:
    is_bare = isinstance(value, int | float) or str(value).replace(".", "", 1).isdecimal()
    found: int = _duration()(f"{value} s" if is_bare else value, option)
    return found / 1000


def _pairs(value: object, option: str) -> dict[str, str]:
    if isinstance(value, str):
        try:
            given = _pairs_of_json(value) if value.lstrip().startswith("{") else _pairs_of_text(value)
        except (ValueError, RecursionError):
            raise _wrong(option, value, ": write it like 'field=column, other=column2', or as a JSON object of texts") from None
        pairs = dict(given)
        if len(pairs) < len(given):
            raise _wrong(option, value, " names a field twice")
        return pairs
    if not (isinstance(value, Mapping) and all(isinstance(each, str) for pair in value.items() for each in pair)):
        raise _wrong(option, value, ": give the name of a column for each field, as a dict")
    return dict(value)


def _whole(value: object) -> int | None:
    """Return the whole number of a text; None if it is none, negative, or longer than Spark's own."""
    text = value.strip() if isinstance(value, str) else ""
    return int(text) if text.isdecimal() and len(text) <= _LONGEST_NUMBER else None


def _pairs_of_json(text: str) -> list[tuple[str, str]]:
    """Return the pairs of a JSON object, in which names may have any character."""
    pairs: list[tuple[str, str]] = json.loads(text, object_pairs_hook=list)
    if not all(isinstance(each, str) for pair in pairs for each in pair):
        raise ValueError(text)
    return pairs


def _pairs_of_text(text: str) -> list[tuple[str, str]]:
    pairs = [(left.strip(), right.strip()) for left, _, right in (part.partition("=") for part in text.split(",") if text)]
    if not all(left and right for left, right in pairs):
        raise ValueError(text)
    return pairs


def _as_it_is(value: object, _option: str) -> object:
    return value


def _option(
    name: str, check: _Check = _as_it_is, default: Any = None, *, views: Sequence[str] = get_args(View), **how: Any
) -> Any:
    """Return the field of an option, with its check and the views that it goes with."""
    made: Any = field
    return made(default=default, metadata={"option": name, "check": check, "views": views}, **how)


def _checked(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of fields, checked where they are not the default."""
    facts = {each.name: (each.default, each.metadata) for each in fields(kind)}
    return {
        name: value if value is facts[name][0] else facts[name][1]["check"](value, facts[name][1]["option"])
        for name, value in values.items()
    }


def _by_field(kind: type[Any], options: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of Spark's options by field.

    Raises:
        InvalidSettings: An option is unknown.
    """
    known = {each.metadata["option"]: each.name for each in fields(kind) if each.metadata}
    names = {option.lower(): option for option in known}
    values: dict[str, str] = {}
    for given, value in options.items():
        option = names.get(given.lower())
        if option is None and given.lower() not in _SPARKS_OWN:
            near = get_close_matches(given.lower(), names, n=1, cutoff=0.6)
            hint = f"did you mean {names[near[0]]}?" if near else f"there are {', '.join(known)}"
            raise InvalidSettings(f"unknown option {given!r}: {hint}")
        if option is not None and value:
            values[known[option]] = value
    return values


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options that say how rows become commands.

    Attributes:
        url: The server; default `COMMAND_BUS_URL`, `REDIS_URL`.
        namespace: Prefix of all keys.
        command: `module:Class`, or a wire name that running workers know; several separated by commas, with a `command_column`.
        command_id_column: The column of command ids; see `command_id`.
        command_column: The column with the wire name of each row's command.
        entity_column: The column of entity ids; by default the one with the name of the command's `EntityId` field.
        sequence_column: The column of integers that increase within an entity; a row that is not above its entity's last one is refused.
        columns: Those that feed fields, as `field=column,…` or a JSON object; all others have their fields' names.
        dispatch_id: The name of the whole dispatch. A streaming query has one by default.
        version: Number of the micro-batch: greater than the last committed one. None: there is only one.
        on_invalid: What to do with invalid rows: `quarantine` stores them with the reason, `raise` fails the write, `drop` ignores them.
        max_rejects: The number of such rows above which the dispatch fails; None allows any number.
        max_backlog: Commands that may wait in the namespace before tasks wait.
        max_wait: Seconds without any progress after which a task gives up.
        batch_size: Commands per request.
        outcomes_ms: How long outcomes are kept; 0 keeps none.
        max_outcomes: How many outcomes are kept per shard, approximately.
        remember_ms: How long the dispatch is remembered, so that a repeated write adds nothing.
        mapper: A function from a row to a command, as `module:function`.
        priority: What all rows have (`high`, `normal`, `low`), or else the column with that of each row. None: that of the class.
        keep_order: For an entity that has rows in two tasks: True fails the write, None logs a warning at its end, False ignores it.
        repairs: The load whose rejected rows these are; empty for a load of its own.
        made_ids: Whether `dispatch_dataframe` has made the column of command ids: it then feeds no field, unless `columns` says so.
    """

    url: str | None = _option("url", repr=False)
    namespace: str | None = _option("namespace")
    command: str = _option("command", default="")
    command_id_column: str = _option("commandIdColumn", _column, "command_id")
    command_column: str | None = _option("commandColumn", _column)
    entity_column: str | None = _option("entityColumn", _column)
    sequence_column: str | None = _option("sequenceColumn", _column)
    columns: dict[str, str] = _option("columns", _pairs, MISSING, default_factory=dict[str, str])  # noqa: RUF009 - it makes a field
    dispatch_id: str | None = _option("dispatchId")
    version: int | None = _option("dispatchVersion", _count(0, 2**53 - 1))  # the server's scripts count in doubles
    on_invalid: OnInvalid = _option("onInvalid", _choice(*get_args(OnInvalid)), "quarantine")  # noqa: RUF009 - it makes a field
    max_rejects: int | None = _option("maxRejects", _count(0))
    max_backlog: int | None = _option("maxBacklog", _count())
    max_wait: float = _option("maxWait", _seconds, 300.0)
    batch_size: int = _option("batchSize", _count(), 500)
    outcomes_ms: int = _option("outcomes", _duration(0), 0)
    max_outcomes: int = _option("maxOutcomes", _count(), 10_000_000)
    remember_ms: int = _option("rememberFor", _duration(), 30 * 86_400_000)
    mapper: str | None = _option("mapper")
    keep_order: bool | None = _option("keepOrder", _flag)
    priority: str | None = _option("priority")
    repairs: str = ""
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
    def of(cls, **values: Any) -> WriteOptions:
        """Return the options with these values, which may be texts as well.

        Raises:
            InvalidSettings: An option is missing or not valid; the message names it.
        """
        options = cls(**_checked(cls, values))
        if not options.command and options.mapper is None:
            raise InvalidSettings("option command is missing: give the class as module:Class, or a wire name")
        remember_ms = max(options.remember_ms, options.outcomes_ms)
        return replace(options, batch_size=min(options.batch_size, 1000), remember_ms=remember_ms)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Return the options of `df.write` or `df.writeStream`.

        Raises:
            InvalidSettings: An option is unknown, missing or not valid; the message names it.
        """
        return cls.of(**_by_field(cls, options))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options that say what to read.

    Attributes:
        url: The server; default `COMMAND_BUS_URL`, `REDIS_URL`.
        namespace: Prefix of all keys.
        view: `outcomes`, `deadLetters`, `rejects`, `entities`, `dispatches`, `states`, `history`, `steps`, `events` or `audit`.
        command: For the history: only ends of this command, `module:Class` or a wire name that workers have announced, with its `payload` and
            `result` as structs.
        dispatch_id: The dispatch to read; None reads all that are remembered.
        entity_type: For states: those of one type; None: all.
        partitions: The least number of tasks that read, if there is enough to read.
        page: Entries per request.
        max_offsets: For streams: the most outcomes per micro-batch.
        since_ms: For what has happened: the time from which on they are read.
        until_ms: For what has happened: the time before which they are read.
        fail_on_data_loss: Whether what was trimmed before it was read is an error; by default only for streams.
        pushdown: Whether Spark may push filters down; this also needs `spark.sql.python.filterPushdown.enabled`. Filter such a
            DataFrame once and load another for the next query: PySpark (up to 4.3 at least) reuses the filters of one query for the next one on
            the same DataFrame, which then lacks rows. `dispatch_id`, `since_ms` and `until_ms` read as little, without that fault.
    """

    url: str | None = _option("url", repr=False)
    namespace: str | None = _option("namespace")
    view: View = _option("view", _choice(*get_args(View)), "outcomes")  # noqa: RUF009 - it makes a field
    command: str | None = _option("command", views=("history",))
    dispatch_id: str | None = _option("dispatchId", views=("outcomes", "deadLetters", "rejects", "dispatches"))
    entity_type: str | None = _option("entityType", views=("states",))
    partitions: int | None = _option("minPartitions", _count())
    page: int = _option("pageSize", _count(), 2_000)
    max_offsets: int | None = _option("maxOffsetsPerTrigger", _count(), views=_KEPT)
    since_ms: int | None = _option("startingTimestamp", _instant, views=(*_KEPT, "deadLetters"))
    until_ms: int | None = _option("endingTimestamp", _instant, views=(*_KEPT, "deadLetters"))
    fail_on_data_loss: bool | None = _option("failOnDataLoss", _flag, views=_KEPT)
    pushdown: bool = _option("pushdown", _flag, False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Return the options of `spark.read` or `spark.readStream`.

        Raises:
            InvalidSettings: An option is unknown, not valid, or does not fit the view.
        """
        given = _by_field(cls, options)
        read = cls(**_checked(cls, given))
        for each in fields(cls):
            if each.name in given and read.view not in (views := each.metadata["views"]):
                raise InvalidSettings(
                    f"option {each.metadata['option']} goes with the views {', '.join(views)}, not with {read.view}"
                )
        if read.since_ms is not None and read.until_ms is not None and read.until_ms < read.since_ms:
            raise InvalidSettings("option endingTimestamp is before startingTimestamp")
        return replace(read, page=min(read.page, 50_000))
