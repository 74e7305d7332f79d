"""Breakages of what keeps values the same on their way."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["VALUES"]

_CERTAIN = "tests/unit/serialization/test_certainty.py"
_TABLE = "tests/tables/test_values.py"
_CLASSES = "tests/unit/test_unreadable.py"

VALUES = (
    Mutant(
        "a command is not compared with what is read of it",
        "serialization/models.py",
        "            found = difference(message, self.decode(data, limits))\n",
        "            found = None\n",
        f"{_TABLE}::test_182_a_value_arrives_as_it_was_sent_or_is_refused[dispatch]",
    ),
    Mutant(
        "a reply is not compared with what is read of it",
        "serialization/models.py",
        "            found = difference(value, self.decode(data, limits))\n",
        "            found = None\n",
        f"{_TABLE}::test_182_a_value_arrives_as_it_was_sent_or_is_refused[reply]",
    ),
    Mutant(
        "a derived class passes for its base",
        "serialization/certainty.py",
        "        return bool(self.classes) and any(kind.__subclasses__() for kind in self.classes)\n",
        "        return False\n",
        _CERTAIN,
    ),
    Mutant(
        "any union is certain",
        "serialization/certainty.py",
        "        return len(kinds) == len(set(kinds)) and",
        "        return",
        _CERTAIN,
    ),
    Mutant(
        "tags of a union may be equal as they travel",
        "serialization/certainty.py",
        " and len({*tags}) == len(tags)\n",
        "\n",
        f"{_TABLE}::test_182_a_value_arrives_as_it_was_sent_or_is_refused[dispatch]",
    ),
    Mutant(
        "a derived datetime is sent without what it has more",
        "serialization/msgpack.py",
        "difference(value, DECODERS[found.code](found.data))",
        "False",
        f"{_TABLE}::test_182_a_value_arrives_as_it_was_sent_or_is_refused[dispatch]",
    ),
    Mutant(
        "defaults are not looked at",
        "serialization/certainty.py",
        'self.valid &= kind == "nullable" or',
        'self.valid &= kind == "default" or',
        _CERTAIN,
    ),
    Mutant(
        "what was put into a collection later is sent",
        "serialization/models.py",
        "                self._strict.validate_python(fields, strict=True)\n",
        "                pass\n",
        _CERTAIN,
    ),
    Mutant(
        "a copy with other fields passes as validated",
        "messages/message.py",
        "        if update:\n            vars(copied)[_UNCHECKED] = True\n",
        "",
        _CERTAIN,
    ),
    Mutant(
        "models with the same fields may stand in a union",
        "messages/unreadable.py",
        "and _taken(other) == _taken(node)",
        "and _taken(other) is _taken(node)",
        _CLASSES,
    ),
    Mutant(
        "what was in the future is held to that by the worker",
        "serialization/schemas.py",
        '    copy.pop("now_op", None)  # what was',
        "    # what was",
        f"{_TABLE}::test_182_a_value_arrives_as_it_was_sent_or_is_refused[dispatch]",
    ),
)
