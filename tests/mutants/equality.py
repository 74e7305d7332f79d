"""Breakages of the comparison of values."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["EQUALITY"]

_EQUALITY = "serialization/equality.py"
_FORMS = "tests/unit/serialization/test_equality.py"
_TABLE = "tests/tables/test_equality.py::test_the_table"
_LUA = "transport/redis/lua"

EQUALITY = (
    Mutant(
        "maps have an order",
        _EQUALITY,
        "dict(sorted(pairs, key=itemgetter(0)))",
        "dict(pairs)",
        f"{_FORMS}::test_equal_values_have_one_form",
    ),
    Mutant(
        "a set's members come as they are hashed",
        _EQUALITY,
        'b"".join(sorted(_packed(walk.form(member)) for member in value))',
        'b"".join(_packed(walk.form(member)) for member in value)',
        "tests/tables/test_equality.py::test_a_form_is_the_same_in_every_process",
    ),
    Mutant("zeros of a decimal count", _EQUALITY, '.rstrip("0")', '.rstrip("_")', f"{_FORMS}::test_equal_values_have_one_form"),
    Mutant("an offset counts", _EQUALITY, "data[:8])", "data)", f"{_FORMS}::test_equal_values_have_one_form"),
    Mutant(
        "a default counts",
        _EQUALITY,
        "            if part is default or part is MISSING:\n",
        "            if part is default is MISSING:\n",
        f"{_TABLE}[a_call]",
        more=((_EQUALITY, "            if type(part) is not type(form) or", "            if True or"),),
    ),
    Mutant(
        "True is the default of 1",
        _EQUALITY,
        "            if type(part) is not type(form) or (_packed(part) != packed if packed else part != form):\n                found",
        "            if part != form:\n                found",
        f"{_TABLE}[an_id_that_waits]",
    ),
    Mutant(
        "a tag that is a default does not count",
        "serialization/fields.py",
        "    return get_origin(hint) is Literal and len(get_args(hint)) == 1\n",
        "    return False\n",
        f"{_TABLE}[an_argument_of_a_step]",
    ),
    Mutant(
        "a factory is called for its default, whatever it makes",
        "serialization/fields.py",
        "        if _is_constant(factory):\n",
        "        if factory is not None:\n",
        f"{_FORMS}::test_a_factory_makes_a_default_if_it_can_make_only_one_value",
    ),
    Mutant(
        "calls of another version are compared",
        _EQUALITY,
        "(known[1] != given[1] or _UNKNOWN in",
        "(_UNKNOWN in",
        f"{_TABLE}[a_call]",
    ),
    Mutant(
        "ids of another version are compared",
        f"{_LUA}/shared/known.lua",
        "return (version ~= own_version or ",
        "return (",
        f"{_TABLE}[an_id_that_waits]",
    ),
    Mutant(
        "ids are not compared",
        f"{_LUA}/shared/known.lua",
        "string.sub(digest, 5) == unknown) and '=' or '!'",
        "string.sub(digest, 5) == unknown) and '=' or '='",
        f"{_TABLE}[an_id_that_waits]",
    ),
    Mutant(
        "another entity of another version is the same",
        f"{_LUA}/shared/known.lua",
        "  if string.sub(before, 3, 4) ~= string.sub(digest, 3, 4) then return '!' end\n",
        "",
        "tests/conformance/steps/test_known_ids.py::test_what_marks_tell",
    ),
    Mutant(
        "a settled command is not compared",
        f"{_LUA}/advance/3b_verbs.lua",
        "  local value = keep_digest(left.mark, left.value)\n",
        "  local value = left.value\n",
        f"{_TABLE}[an_id_that_is_settled]",
    ),
    Mutant(
        "a cancelled command is not compared",
        f"{_LUA}/remove.lua",
        "keep_digest(KEYS[key + 1], mark)",
        "mark",
        f"{_TABLE}[an_id_that_was_cancelled]",
        more=((f"{_LUA}/remove.lua", "entry_text, keep_digest, outcomes", "entry_text, outcomes"),),
    ),
    Mutant(
        "a replayed command is not compared",
        f"{_LUA}/settle_dead_letter.lua",
        "keep_digest(mark, ARGV[6])) end\nif ARGV[9]",
        "ARGV[6]) end\nif ARGV[9]",
        "tests/conformance/steps/test_known_ids.py::test_a_dead_letter_is_compared_by_what_was_sent",
    ),
    Mutant(
        "a schedule's command is compared by its bytes",
        "scheduling/puts.py",
        "stored.payload == given.payload or self._fields(stored, kind) == self._fields(given, kind)",
        "stored.payload == given.payload",
        f"{_TABLE}[a_schedule]",
    ),
)
