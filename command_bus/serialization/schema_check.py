"""Checks of values against the JSON Schemas that pydantic writes; enough to find a wrong field before it is sent.

Keywords that are not supported are ignored, because the worker's model validates again. Any client may have announced the schema, so
the check is bounded: it stops after `_STEPS` comparisons, and patterns run in pydantic's own engine, whose time grows linearly with the
length of the text. A library was tried and lacks these bounds: fastjsonschema matches patterns with `re`, which some patterns block for
hours, and reports only that no choice of an `anyOf` fits.

A schema is compiled once, into one function per part, because Spark checks millions of rows against one schema.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from command_bus.serialization.limits import capped

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


Schema = Mapping[str, Any]
Problem = tuple[str, str]
"""The path of a value, and what is wrong with it."""

_STEPS: Final = 20_000
_LONGEST_TEXT: Final = 1_000
"""Bytes of a list of choices in a problem."""
_DEEPEST: Final = 100
_CHEAP_PER_STEP: Final = 32
"""Choices of an `enum`, or required names, that take as long as one other comparison."""

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
_NAMES: Final = {kind: name for name, kinds in reversed(_TYPES.items()) for kind in kinds}
_BOUNDS: Final[dict[str, tuple[str, Callable[[Any, Any], bool]]]] = {
    "minimum": ("at least", operator.ge),
    "maximum": ("at most", operator.le),
    "exclusiveMinimum": ("above", operator.gt),
    "exclusiveMaximum": ("below", operator.lt),
}
_LENGTHS: Final[dict[type, tuple[str, str]]] = {str: ("minLength", "maxLength"), list: ("minItems", "maxItems")}


class _Budget:
    """The comparisons that are left of one check, and how deep it is in references and containers."""

    __slots__ = ("depth", "left")

    def __init__(self) -> None:
        self.left = _STEPS
        self.depth = 0


_Check = Callable[[Any, _Budget], Sequence[Problem]]


def schema_problems(value: Any, schema: Schema) -> list[str]:
    """Return the problems of one value; `SchemaCheck` is for many values."""
    return SchemaCheck(schema).problems(value)


class SchemaCheck:
    """A JSON Schema, compiled for many values.

    Args:
        schema: What `sound_schema` has cleaned.
    """

    def __init__(self, schema: Schema) -> None:
        self._definitions: Mapping[str, Schema] = schema.get("$defs", {})
        self._compiled: dict[str, _Check] = {}
        self._patterns: set[str] = set()
        self._check = self._part(schema)

    def problems(self, value: Any) -> list[str]:
        """Return the problems of data from JSON, one sentence each; empty if there is none, or if the check takes too long."""
        return [f"{path or 'the value'} {problem}" for path, problem in self.located(value)]

    def located(self, value: Any) -> list[Problem]:
        """Return the same problems, each with the path of its value; the path of the whole value is empty."""
        budget = _Budget()
        found = self._check(value, budget)
        return list(found) if budget.left > 0 else []

    def _part(self, schema: Schema) -> _Check:
        """Return the check of a part of the schema."""
        if "$ref" in schema:
            return _bounded(self._reference(str(schema["$ref"]).rpartition("/")[2]))
        every = [self._part(each) for each in schema.get("allOf", ())]
        choices = schema.get("anyOf") or schema.get("oneOf")
        own = _any_of([self._part(each) for each in choices]) if choices else self._plain(schema)
        if schema.get("x-wire") == "decimal":
            own = _decimal(own, bounded=bool(choices))
        return _first_of([*every, own]) if every else own

    def _reference(self, name: str) -> _Check:
        if name not in self._definitions:
            return _accept

        def check(value: Any, budget: _Budget) -> Sequence[Problem]:
            if name not in self._compiled:  # only now: a definition may refer to itself
                self._compiled[name] = self._part(self._definitions[name])
            return self._compiled[name](value, budget)

        return check

    def _plain(self, schema: Schema) -> _Check:
        fixed: list[_Check] = []
        if "const" in schema:
            fixed.append(_constant(schema["const"]))
        if "enum" in schema:
            fixed.append(_one_of(schema["enum"]))
        numbers = _numbers(schema)
        by_type: dict[type, _Check | None] = {
            str: self._texts(schema),
            int: numbers,
            float: numbers,
            list: self._lists(schema),
            dict: self._objects(schema),
        }
        own = _typed(schema.get("type"), {kind: check for kind, check in by_type.items() if check is not None})
        return _first_of([*fixed, own]) if fixed else own

    def _texts(self, schema: Schema) -> _Check | None:
        checks = _lengths(schema, str)
        pattern, wanted = schema.get("pattern"), FORMATS.get(schema.get("format", ""))
        if pattern is not None and (pattern in self._patterns or len(self._patterns) < PATTERNS):
            self._patterns.add(pattern)
            checks.append(_matching(pattern))
        if wanted is not None:
            checks.append(_formatted(wanted, schema["format"]))
        return _all_of(checks)

    def _lists(self, schema: Schema) -> _Check | None:
        first = [self._part(each) for each in schema.get("prefixItems", ())]
        rest = self._part(schema["items"]) if isinstance(schema.get("items"), Mapping) else _accept
        checks = _lengths(schema, list)
        if first or rest is not _accept:
            checks.append(_items(first, rest))
        return _all_of(checks)

    def _objects(self, schema: Schema) -> _Check | None:
        known = {name: self._part(each) for name, each in schema.get("properties", {}).items()}
        required, more = tuple(schema.get("required", ())), schema.get("additionalProperties", True)
        rest: _Check = _accept
        if more is False:
            text = capped(f"is unknown; there are {', '.join(known)}", _LONGEST_TEXT)
            rest = _reject(text)
        elif isinstance(more, Mapping):
            rest = self._part(more)
        return _fields(known, required, rest) if known or required or rest is not _accept else None


def _accept(_value: Any, _budget: _Budget) -> Sequence[Problem]:
    return ()


def _reject(problem: str) -> _Check:
    return lambda _value, _budget: (("", problem),)


def _bounded(check: _Check) -> _Check:
    """Return a check that counts; after the last step, or too deep, it accepts everything."""

    def counted(value: Any, budget: _Budget) -> Sequence[Problem]:
        budget.left -= 1
        if budget.left <= 0 or budget.depth >= _DEEPEST:
            budget.left = 0
            return ()
        budget.depth += 1
        found = check(value, budget)
        budget.depth -= 1
        return found

    return counted


def _first_of(checks: list[_Check]) -> _Check:
    """Return the problems of the first check that finds any."""

    def check(value: Any, budget: _Budget) -> Sequence[Problem]:
        for each in checks:
            if found := each(value, budget):
                return found
        return ()

    return _bounded(check)


def _all_of(checks: list[_Check]) -> _Check | None:
    """Return the problems of all checks; None without checks."""
    if len(checks) < 2:
        return checks[0] if checks else None
    return lambda value, budget: [problem for each in checks for problem in each(value, budget)]


def _any_of(checks: list[_Check]) -> _Check:
    """Return the problems of the choice of which most fits, because it is the one that was meant; none if one fits."""

    def check(value: Any, budget: _Budget) -> Sequence[Problem]:
        tried: list[Sequence[Problem]] = []
        for each in checks:
            budget.left -= 1
            found = each(value, budget)
            if not found:
                return ()
            tried.append(found)
        return max(tried, key=_depth)

    return _bounded(check)


def _depth(found: Sequence[Problem]) -> int:
    return max(path.count(".") for path, _ in found)


def _typed(wanted: Any, by_type: dict[type, _Check]) -> _Check:
    """Return a check of the type, and then of what the schema says of values of that type."""
    kinds = _TYPES.get(wanted) if isinstance(wanted, str) else None
    if kinds is None:
        return _dispatched(by_type) if by_type else _accept
    inner = {kind: by_type[kind] for kind in kinds if kind in by_type}
    if len(kinds) == len(inner) == 1:
        return _of_type(kinds[0], wanted, inner[kinds[0]])

    def check(value: Any, budget: _Budget) -> Sequence[Problem]:
        kind = type(value)
        if kind not in kinds:
            return _mistyped(wanted, value)
        return inner[kind](value, budget) if inner else ()

    return check


def _of_type(kind: type, wanted: str, inner: _Check) -> _Check:
    return lambda value, budget: inner(value, budget) if type(value) is kind else _mistyped(wanted, value)


def _dispatched(by_type: dict[type, _Check]) -> _Check:
    return lambda value, budget: by_type.get(type(value), _accept)(value, budget)


def _mistyped(wanted: str, value: Any) -> Sequence[Problem]:
    return (("", f"is of type {wanted}, not {_NAMES.get(type(value), type(value).__name__)}"),)


def _constant(constant: Any) -> _Check:
    problem = (("", f"is {capped(repr(constant), _LONGEST_TEXT)}"),)
    return lambda value, _: () if value == constant else problem


def _one_of(choices: Sequence[Any]) -> _Check:
    problem = (("", f"is one of {capped(', '.join(map(repr, choices)), _LONGEST_TEXT)}"),)
    cost = len(choices) // _CHEAP_PER_STEP

    def check(value: Any, budget: _Budget) -> Sequence[Problem]:
        budget.left -= cost
        return () if budget.left <= 0 or value in choices else problem

    return check


def _numbers(schema: Schema) -> _Check | None:
    tests = [(holds, schema[key], f"is {word} {schema[key]}") for key, (word, holds) in _BOUNDS.items() if key in schema]
    if not tests:
        return None
    return lambda value, _: [("", problem) for holds, bound, problem in tests if not holds(value, bound)]


def _lengths(schema: Schema, kind: type) -> list[_Check]:
    least, most = (schema.get(key) for key in _LENGTHS[kind])
    checks: list[_Check] = []
    if least is not None:
        too_short = (("", f"has at least {least}"),)
        checks.append(lambda value, _: () if len(value) >= least else too_short)
    if most is not None:
        too_long = (("", f"has at most {most}"),)
        checks.append(lambda value, _: () if len(value) <= most else too_long)
    return checks


def _matching(pattern: str) -> _Check:
    problem = (("", f"matches {pattern}"),)

    def check(value: Any, _: _Budget) -> Sequence[Problem]:
        engine = pattern_validator(pattern)
        return () if engine is None or is_valid(engine, value) else problem  # None: the worker may support its dialect

    return check


def _formatted(wanted: SchemaValidator, name: str) -> _Check:
    problem = (("", f"is of format {name}"),)
    return lambda value, _: () if is_valid(wanted, value) else problem


def _decimal(check: _Check, *, bounded: bool) -> _Check:
    """Return a check of a decimal number, which is a text, or a number within the same bounds."""
    problem = (("", "is a decimal number"),)

    def checked(value: Any, budget: _Budget) -> Sequence[Problem]:
        if type(value) is not str:
            return check(value, budget)
        if not is_valid(DECIMAL, value):
            return problem
        return check(value, budget) or (check(float(value), budget) if bounded else ())

    return checked


def _items(first: list[_Check], rest: _Check) -> _Check:
    def check(value: Any, budget: _Budget) -> Sequence[Problem]:
        budget.left -= len(value)
        if budget.left <= 0:
            return ()
        found: list[Problem] = []
        for index, each in enumerate(value):
            inner = first[index] if index < len(first) else rest
            if problems := inner(each, budget):
                found += _below(str(index), problems)
        return found

    return _bounded(check)


def _fields(known: Mapping[str, _Check], required: Sequence[str], rest: _Check) -> _Check:
    cost = len(required) // _CHEAP_PER_STEP

    def check(value: Any, budget: _Budget) -> Sequence[Problem]:
        budget.left -= len(value) + cost
        if budget.left <= 0:
            return ()
        found = [(name, "is missing") for name in required if name not in value]
        for name, each in value.items():
            if problems := known.get(name, rest)(each, budget):
                found += _below(name, problems)
        return found

    return _bounded(check)


def _below(name: str, problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems of an item, with their paths in what holds it."""
    return [(f"{name}.{path}" if path else name, problem) for path, problem in problems]
