"""Command ids made of natural columns: a row has the same id on every machine, in every run.

An id must not depend on a partition, an attempt, a clock, a session's time zone or chance. All of these are the same for a retried
task and differ for a repeated job, which is why such a fault shows so late.

An id is the `uuid.uuid5` of the key columns' texts, joined so that different keys give different names:

* Text and binary are taken as their bytes; numbers, dates, booleans and times without a zone as Spark writes them.
* Decimals have all digits of their scale and no exponent, whatever `spark.sql.ansi.enabled` is.
* Timestamps are instants: their text is their JSON in UTC, with microseconds, whatever zone the session has.
* Arrays and structs are their JSON, with all NULLs.
* U+001F separates two columns, and NULL is U+0000. A text that holds one of these has it escaped; no other text is escaped.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from hashlib import sha1
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "command-bus.spark")
"""The default namespace of ids."""

Key = str | bytes | bool | int | Decimal | date | datetime | None
"""The types that `command_id_of` accepts as a column's value."""

_SEPARATOR = "\x1f"
_NULL = "\x00"
_ESCAPES = ((_NULL, "\x00\x01"), (_SEPARATOR, "\x00\x02"))  # in this order
_ESCAPED = r"^(string|varchar|char|binary)"
_DECIMAL = r"^decimal\(\d+,(\d+)\)"
_AS_JSON = r"^(timestamp$|timestamp_ltz|array<|struct<)"
_VARIANTS = bytes(ord("89ab"[int(chr(code), 16) % 4]) if chr(code) in "0123456789abcdef" else 0 for code in range(103))
"""By the code of a hexadecimal digit, the digit that tells the variant of a UUID: its two highest bits are 10."""
_UNSUPPORTED = r"(^|[<:,])(map<|variant($|[,>]))"
_JSON_OPTIONS = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
    "ignoreNullFields": "false",
}
UNSUPPORTED_KEY = (
    "a command id cannot be made of a map or a variant, which have no one text: name those of its parts that identify the row"
)
"""The error for keys of an unsupported type."""


def command_id(*columns: str | Column, namespace: uuid.UUID = NAMESPACE) -> Column:
    """Return a column of command ids, computed where Spark runs: the `uuid.uuid5` that `command_id_of` returns for the same values.

    Ids of texts and whole numbers are the same as in every earlier version.

    Args:
        columns: Natural columns that together identify a row, by name (with a dot in it: in backquotes) or as columns; NULL differs
            from every text. A map or a variant is an error of the query.
        namespace: Keeps ids of different sources apart that have the same keys.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    return typed_command_id([(F.col(c) if isinstance(c, str) else c, None) for c in columns], namespace)


def typed_command_id(columns: Sequence[tuple[Column, str | None]], namespace: uuid.UUID) -> Column:
    """Return what `command_id` does, for columns with their types as far as they are known.

    Spark takes 0.1 s to plan the branches for all types, which is as long as it takes for 100,000 rows.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if not columns:
        raise ValueError("a command id needs at least one column that identifies the row")
    texts = [F.coalesce(_text(column, kind), F.lit(_NULL)) for column, kind in columns]
    name = F.concat_ws(_SEPARATOR, *texts).cast("binary")
    # As bytes, in which Spark finds a place at once; in texts it counts characters.
    digest = F.sha1(F.concat(F.unhex(F.lit(namespace.hex)), name)).cast("binary")
    variant = F.substring(F.lit(_VARIANTS), F.ascii(F.substring(digest, 17, 1).cast("string")) + F.lit(1), F.lit(1))
    dash = F.lit(b"-")
    parts = (
        F.substring(digest, 1, 8), dash, F.substring(digest, 9, 4), F.lit(b"-5"), F.substring(digest, 14, 3), dash,
        variant, F.substring(digest, 18, 3), dash, F.substring(digest, 21, 12),
    )  # fmt: skip
    return F.concat(*parts).cast("string")


def unsupported_key_type(kind: str) -> bool:
    """Return whether no id can be made of this type, given as Spark writes it."""
    return re.search(_UNSUPPORTED, kind) is not None


def _text(column: Column, kind: str | None) -> Column:
    """Return the text of a key column of a type. If it is unknown, Spark chooses when it plans the query."""
    from pyspark.sql import functions as F  # noqa: N812

    if kind is None:
        name = F.typeof(column)
        return (
            F.when(name.rlike(_UNSUPPORTED), F.raise_error(F.lit(UNSUPPORTED_KEY)).cast("string"))
            .when(name.rlike(_ESCAPED), _escaped(column))
            .when(name.rlike(_AS_JSON) & column.isNotNull(), _json(column))
            .when(name.rlike(_DECIMAL), _plain(column, F.regexp_extract(name, _DECIMAL, 1).try_cast("int")))
            .otherwise(column.cast("string"))
        )
    if re.search(_ESCAPED, kind):
        return _escaped(column)
    if scale := re.search(_DECIMAL, kind):
        return _plain(column, F.lit(int(scale[1])))
    return F.when(column.isNotNull(), _json(column)) if re.search(_AS_JSON, kind) else column.cast("string")


def _escaped(column: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    text = column.cast("string")
    for mark, escape in _ESCAPES:
        text = F.replace(text, F.lit(mark), F.lit(escape))
    return text


def _plain(column: Column, scale: Column) -> Column:
    """Return a decimal without an exponent. Spark writes one below 0.000001, but not in a cast by ANSI's rules; `try_cast` always does."""
    from pyspark.sql import functions as F  # noqa: N812

    text = column.try_cast("string")
    digits = F.regexp_replace(F.substring_index(text, "E", 1), "[-.]", "")
    whole = F.concat(F.when(text.startswith("-"), "-0.").otherwise("0."), F.lpad(digits, scale, F.lit("0")))
    return F.when(text.contains("E"), whole).otherwise(text)


def _json(column: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    whole = F.to_json(F.struct(column.alias("v")), _JSON_OPTIONS)  # {"v":…}
    return F.substr(whole, F.lit(6), F.length(whole) - 6)


def command_id_of(values: Sequence[Key], *, namespace: uuid.UUID = NAMESPACE) -> str:
    """Return the id that `command_id` gives a row with these values in its key columns, without Spark.

    Args:
        values: In the order of the columns. A `datetime` with a zone is an instant, one without a zone a `timestamp_ntz`; a `Decimal`
            has the scale of its column. Floats, arrays and structs are not supported: their texts in the JVM differ.
        namespace: As for `command_id`.

    Raises:
        TypeError: A value is of another type.
    """
    name = _SEPARATOR.encode().join(_NULL.encode() if value is None else _bytes_of(value) for value in values)
    return str(uuid.UUID(bytes=sha1(namespace.bytes + name, usedforsecurity=False).digest()[:16], version=5))


def _bytes_of(value: Any) -> bytes:
    """Return the bytes that Spark writes for a value that is not NULL."""
    if isinstance(value, str | bytes):
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        for mark, escape in _ESCAPES:
            data = data.replace(mark.encode(), escape.encode())
        return data
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, datetime):
        if value.tzinfo is None:  # as a cast to text writes it: without zeros at the end
            whole, dot, fraction = value.isoformat(" ").partition(".")
            return (whole + dot + fraction.rstrip("0")).encode()
        return f'"{value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")}Z"'.encode()
    if isinstance(value, int | date):
        return str(value).encode()
    if isinstance(value, Decimal):
        return f"{value:f}".encode()
    raise TypeError(
        f"a command id is made of text, bytes, whole numbers, decimals, dates and times, not of {type(value).__name__}"
    )
