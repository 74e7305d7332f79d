"""Formats and patterns of texts, as JSON Schema names them, in pydantic's engine."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

PATTERNS: Final = 64
"""Patterns of one schema that are compiled; a compiled one may take megabytes."""
_LONGEST_PATTERN: Final = 2_000

FORMATS: Final = {
    "date-time": SchemaValidator(core_schema.datetime_schema()),
    "date": SchemaValidator(core_schema.date_schema()),
    "time": SchemaValidator(core_schema.time_schema()),
    "duration": SchemaValidator(core_schema.timedelta_schema()),
    "uuid": SchemaValidator(core_schema.uuid_schema()),
}
DECIMAL: Final = SchemaValidator(core_schema.decimal_schema())


def is_valid(engine: SchemaValidator, value: Any) -> bool:
    """Return whether a value passes."""
    try:
        engine.validate_python(value)
    except ValidationError:
        return False
    return True


@lru_cache(maxsize=PATTERNS)
def pattern_validator(pattern: str) -> SchemaValidator | None:
    """Return pydantic's validator of a pattern, which no pattern can block as it can `re`; None if it is too long or of another dialect."""
    if len(pattern) > _LONGEST_PATTERN:
        return None
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None
