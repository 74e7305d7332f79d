"""`unread`: the values that fit one schema and not another, found by looking at the schemas alone.

The two are of the forms that `json_schemas` writes. Titles, descriptions, defaults and names of models say nothing of values, and are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from command_bus.serialization.schema_check import FORMATS, SchemaCheck
from command_bus.spelling import shown

Schema = Mapping[str, Any]


class Gap(NamedTuple):
    """Values that may be sent and are not read.

    Attributes:
        path: The place, with `*` for each item; empty for the whole.
        text: Why.
        is_certain: Whether that is sure; else the schemas cannot be compared there.
    """

    path: str
    text: str
    is_certain: bool = True


_KNOWN: Final = frozenset({
    "$defs", "$ref", "additionalProperties", "allOf", "anyOf", "const", "contentEncoding", "default", "deprecated", "description",
    "discriminator", "enum", "examples", "exclusiveMaximum", "exclusiveMinimum", "format", "items", "maxItems", "maxLength",
    "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "oneOf", "prefixItems", "properties",
    "propertyNames", "readOnly", "required", "title", "type", "uniqueItems", "writeOnly", "x-keys", "x-packed", "x-wire",
})  # fmt: skip
_SIZES: Final = {"imum": "", "Length": " characters", "Items": " items", "Properties": " fields"}
"""The bounds that have a least and a most, and what they count."""
_OWN_WIRE: Final = frozenset({*FORMATS, "binary", "base64url"})
"""Formats whose values are no text on the wire."""
_SHOWN: Final = 5
_STEPS: Final = 20_000
_READS: Final = {"number": ("number", "integer"), "decimal": ("decimal", "number", "integer")}
"""The types that are read as another one."""


def unread(sent: Schema, read: Schema) -> list[Gap]:
    """Return what may be sent by one schema and is not read by the other; of each place the first."""
    found: dict[str, Gap] = {}
    for gap in _Comparison(sent, read).part(sent, read, ""):
        found.setdefault(gap.path, gap)
    return [*found.values()]


class _Comparison:
    def __init__(self, sent: Schema, read: Schema) -> None:
        self._sent: Mapping[str, Schema] = sent.get("$defs", {})
        self._read: Mapping[str, Schema] = read.get("$defs", {})
        self._open: set[tuple[int, int]] = set()
        self._left = _STEPS

    def part(self, sent: Schema, read: Schema, path: str) -> Iterator[Gap]:
        """Yield the gaps of one place."""
        sent, read = _plain(sent, self._sent), _plain(read, self._read)
        pair = (id(sent), id(read))
        self._left -= 1
        if pair in self._open:  # a model that refers to itself, perhaps through a union: it is being compared
            return
        if self._left < 0:
            yield Gap(path, "the schemas are too large to be compared", is_certain=False)
            return
        self._open.add(pair)
        yield from self._plain_part(sent, read, path)
        self._open.discard(pair)

    def _plain_part(self, sent: Schema, read: Schema, path: str) -> Iterator[Gap]:
        alike = sent.get("type") == read.get("type")
        strange = [word for word in read if word not in _KNOWN and read[word] != sent.get(word) and (alike or word != "pattern")]
        if "allOf" in read or "allOf" in sent:
            strange += ["allOf"] * (_values(sent) != _values(read) or self._sent != self._read)
            if not strange:
                return
        if strange:
            yield Gap(path, f"{', '.join(strange)} of a schema cannot be compared", is_certain=False)
        elif choices := sent.get("anyOf") or sent.get("oneOf"):
            for each in choices if _values(read) else ():
                yield from self.part(each, read, path)
        elif "anyOf" in read or "oneOf" in read:
            yield from self._among(sent, read, path)
        elif _values(read):
            yield from self._simple(sent, read, path)

    def _among(self, sent: Schema, read: Schema, path: str) -> Iterator[Gap]:
        """Yield the gaps to the choice that reads most; none if one reads all of it, or each member of an enum is read by one."""
        choices = read.get("anyOf") or read["oneOf"]
        members = _members(sent)
        if members is not None and len(members) > 1 and "x-packed" not in sent:
            for member in members:
                yield from self._among({**sent, "enum": [member]}, read, path)
            return
        tag = read.get("discriminator", {}).get("propertyName")
        tags = [_tags(_plain(each, self._read), tag) for each in choices]
        meant = [each for each, its in zip(choices, tags, strict=True) if _tags(sent, tag) & its]
        tried = [[*self.part(sent, each, path)] for each in meant or choices]
        if all(tried) and all(gap.path == path for gaps in tried for gap in gaps):
            names = ", ".join(_named(_plain(each, self._read)) for each in choices)
            yield Gap(path, f"{_named(sent)} is none of {names}", all(any(gap.is_certain for gap in gaps) for gaps in tried))
        else:
            yield from min(tried, key=_distance)

    def _simple(self, sent: Schema, read: Schema, path: str) -> Iterator[Gap]:
        members, wanted = _members(sent), _members(read)
        if members is not None:
            yield from _listed(sent, read, members, path)
            return
        if wanted is not None:
            yield Gap(path, f"only {_some(wanted)} are read")
            return
        kind = read.get("type")
        is_other = kind is not None and sent.get("type") not in _READS.get(kind, (kind,))
        form, wanted_form = ((each.get("format"), each.get("x-wire")) for each in (sent, read))
        if is_other or (
            form != wanted_form and (any(wanted_form) or form[0] in _OWN_WIRE or form[1])
        ):  # a text of a format is any text
            yield Gap(path, f"{_named(sent)} is no {_named(read)}")
            return
        yield from _bounds(sent, read, path)
        yield from self._items(sent, read, path)
        if kind == "object":
            yield from self._properties(sent, read, path)

    def _items(self, sent: Schema, read: Schema, path: str) -> Iterator[Gap]:
        if sent.get("uniqueItems") and not read.get("uniqueItems") and read.get("type") == "array":
            yield Gap(path, "a set may not be read as a list", is_certain=False)
        if read.get("uniqueItems") and not sent.get("uniqueItems"):
            yield Gap(path, "a list that is read as a set loses its order and what is in it twice", is_certain=False)
        first, wanted = sent.get("prefixItems", []), read.get("prefixItems", [])
        rest, more = sent.get("items", {}), read.get("items", {})
        most = sent.get("maxItems", math.inf)
        for number, (each, of_read) in enumerate(zip_longest(first, wanted)):
            if number < most:
                yield from self.part(
                    rest if each is None else each, more if of_read is None else of_read, _below(path, str(number))
                )
        if isinstance(more, Mapping) and isinstance(rest, Mapping) and most > max(len(first), len(wanted)):
            yield from self.part(rest, more, _below(path, "*"))

    def _properties(self, sent: Schema, read: Schema, path: str) -> Iterator[Gap]:
        known, wanted, more = sent.get("properties", {}), read.get("properties", {}), read.get("additionalProperties")
        rest = sent.get("additionalProperties", "properties" not in sent)  # a model sends its own fields only
        other: Schema | None = rest if isinstance(rest, Mapping) else {} if rest else None
        for name in dict.fromkeys((*read.get("required", ()), *known, *wanted)):
            place, each, of_read = _below(path, name), known.get(name, other), wanted.get(name, more)
            if (
                name in read.get("required", ())
                and name not in sent.get("required", ())
                and "default" not in wanted.get(name, ())
            ):
                yield Gap(place, f"it {'may be missing' if name in known else 'is new'}, and has no default")
            elif each is not None and of_read is False:
                yield Gap(place, "it is gone, and unknown fields are refused")
            if each is not None and isinstance(of_read, Mapping):  # a reply's fields have defaults and are required
                yield from self.part(each, of_read, place)
        if other is not None and more is False:
            yield Gap(path, "fields of any name are refused")
        elif other is not None and isinstance(more, Mapping):
            yield from self.part(other, more, _below(path, "*"))
        keys = _keys(sent) if other is not None else {"enum": [name for name in known if name not in wanted]}
        for gap in self.part(keys, _keys(read), path):
            yield Gap(path, f"its keys: {gap.text}", gap.is_certain)


def _plain(schema: Schema, known: Mapping[str, Schema]) -> Schema:
    """Return a schema without references at its top and without a list of one choice; that of a decimal number as of a type."""
    while True:
        if "$ref" in schema:
            schema = known[str(schema["$ref"]).rpartition("/")[2]]
        elif schema.get("x-wire") == "decimal" and "anyOf" in schema:
            return {**{word: bound for each in schema["anyOf"] for word, bound in each.items()}, "type": "decimal"}
        elif len(alone := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf") or []) == 1:
            schema = alone[0]
        else:
            return schema


def _keys(schema: Schema) -> Schema:
    """Return the schema of the keys of a map."""
    found: Schema = schema.get("x-keys", {"type": "string", **schema.get("propertyNames", {})})
    return found


def _values(schema: Schema) -> dict[str, Any]:
    """Return what a schema says of values."""
    return {
        word: each
        for word, each in schema.items()
        if word not in ("title", "description", "default", "deprecated", "examples", "$defs")
    }


def _members(schema: Schema) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _listed(sent: Schema, read: Schema, members: list[Any], path: str) -> Iterator[Gap]:
    """Yield a gap if one of a list of values is not read."""
    wanted = _members(read)
    packed = [each["x-packed"] for each in (sent, read) if "x-packed" in each]
    if packed:
        is_same = sent.get("x-packed", members) == read.get("x-packed", wanted)
        if not is_same and (wanted is None or not {*sent.get("x-packed", ())} <= {*read.get("x-packed", ())}):
            yield Gap(path, "values that JSON does not have are listed, and not as before", is_certain=len(packed) == 2)
        return
    if wanted is not None:
        known = [(type(each) is bool, each) for each in wanted]  # True is 1
        missing = [each for each in members if (type(each) is bool, each) not in known]
    else:
        check = SchemaCheck({**read, "type": "number"} if read.get("type") == "decimal" else read)
        missing = [each for each in members if check.located(each) or (isinstance(each, str) and read.get("format") in _OWN_WIRE)]
    if missing:
        yield Gap(path, f"{_some(missing)} {'is' if len(missing) == 1 else 'are'} not read")


def _bounds(sent: Schema, read: Schema, path: str) -> Iterator[Gap]:
    for name, unit in _SIZES.items():
        for word, sign in (("least", 1), ("most", -1)):
            low, was = (_bound(each, f"{'min' if sign == 1 else 'max'}{name}", sign) for each in (read, sent))
            if low > was and (not unit or low[0]):
                may_be = "any" if was[0] == -math.inf else _figure(was, sign)
                yield Gap(path, f"at {word} {_figure(low, sign)}{unit} is read, and {may_be} may be sent")
    step = read.get("multipleOf")
    if step is not None and ("multipleOf" not in sent or sent["multipleOf"] % step):
        yield Gap(path, f"only multiples of {step} are read")


def _bound(schema: Schema, word: str, sign: int) -> tuple[float, bool]:
    """Return a lower bound, or an upper one with its sign turned, and whether it is excluded: the greater, the narrower."""
    words = [key for key in (word, f"exclusive{word.title()}") if key in schema]
    found = max(((sign * schema[key], key != word) for key in words), default=(-math.inf, False))
    return (math.floor(found[0]) + 1, False) if found[1] and schema.get("type") == "integer" else found


def _figure(bound: tuple[float, bool], sign: int) -> str:
    return f"{sign * bound[0]:g}{' (excluded)' if bound[1] else ''}"


def _named(schema: Schema) -> str:
    if (members := _members(schema)) is not None:
        return _some(members)
    kind = schema.get("title" if schema.get("type") == "object" else "type")
    return str(schema.get("format") or kind or schema.get("x-wire") or "any value")


def _some(members: Sequence[Any]) -> str:
    return ", ".join(map(shown, members[:_SHOWN])) + (" …" if len(members) > _SHOWN else "")


def _tags(schema: Schema, tag: Any) -> set[str]:
    """Return the values by which a union with a discriminator chooses a model."""
    return {str(each) for each in _members(schema.get("properties", {}).get(tag, {})) or ()}


def _distance(gaps: list[Gap]) -> tuple[bool, int, int]:
    """Return how far a choice is from reading what is sent."""
    return bool(gaps), -min((gap.path.count(".") for gap in gaps), default=0), len(gaps)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
