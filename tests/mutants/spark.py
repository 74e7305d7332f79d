"""Deliberate breakages of what rows from Spark wait in, and of what is refused there."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["SPARK"]

_WRITING = "spark/writing"

SPARK = (
    Mutant(
        "the class of a row counts more than what the option says",
        f"{_WRITING}/command_encoder.py",
        "priority = priority or spec.priority or ",
        "priority = spec.priority or priority or ",
        "tests/unit/spark/test_row_flows.py::test_an_option_counts_more_than_the_class_and_that_more_than_the_type",
    ),
    Mutant(
        "an announced unique key is passed over",
        f"{_WRITING}/announced.py",
        'if info.policy.get("unique") is not None:',
        "if False:",
        "tests/unit/spark/test_announced.py::test_an_announced_command_with_a_unique_key_is_refused",
    ),
    Mutant(
        "a tenant that is none is loaded",
        f"{_WRITING}/row_flows.py",
        "index not in faults and _is_tenant(value) for",
        "index not in faults for",
        "tests/unit/spark/test_row_flows.py::test_75_a_tenant_that_is_none_is_rejected_alone",
    ),
)
