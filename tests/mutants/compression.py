"""Breakages of compression."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["COMPRESSION"]

_BYTES = "tests/unit/serialization/test_compression.py"
_BUS = "tests/conformance/test_compression.py"

COMPRESSION = (
    Mutant(
        "a bomb is expanded",
        "serialization/limits.py",
        "reader.decompress(data, most + 1)",
        "reader.decompress(data)",
        f"{_BYTES}::test_114_few_bytes_that_expand_to_a_gigabyte_take_no_memory",
    ),
    Mutant(
        "a limit of expansion is one byte off",
        "serialization/limits.py",
        "    if len(found) > most:\n",
        "    if len(found) > most + 1:\n",
        f"{_BYTES}::test_a_limit_is_kept_to_the_byte",
    ),
    Mutant(
        "a compressed payload that is cut short is taken",
        "serialization/limits.py",
        "    if not reader.eof or reader.unused_data:\n",
        "    if reader.unused_data:\n",
        f"{_BYTES}::test_damage_is_refused",
    ),
    Mutant(
        "ciphertext is compressed",
        "serialization/protection.py",
        "            envelope = shrunk(envelope)\n",
        "",
        f"{_BYTES}::test_any_payload_comes_through",
    ),
    Mutant(
        "what a template packs is not compressed",
        "sending/envelope_builder.py",
        "            self._settings.compress_above_of(spec),\n",
        "            None,\n",
        f"{_BYTES}::test_a_class_says_it_before_the_bus",
    ),
    Mutant(
        "replies are never compressed",
        "worker/decisions.py",
        "None if above is None else compressed(packed, above)",
        "None",
        f"{_BUS}::test_replies_of_a_class_travel_compressed",
    ),
)
