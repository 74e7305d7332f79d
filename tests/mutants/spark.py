"""Deliberate breakages of what rows from Spark wait in, and of what is refused there."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["SPARK"]

_WRITING = "spark/writing"

SPARK = (
    Mutant(
        "a column that an option names is not looked for",
        f"{_WRITING}/command_mapping.py",
        "if column is not None and column not in columns:",
        "if False:",
        "tests/tables/test_spark_names.py::test_191_a_wrong_name_is_refused_before_anything_is_sent",
    ),
    Mutant(
        "a column in another case than its field is passed over",
        f"{_WRITING}/command_mapping.py",
        "if near != name:",
        "if False:",
        "tests/tables/test_spark_names.py::test_a_column_that_differs_from_a_field_in_its_case_is_refused",
    ),
    Mutant(
        "the ids that we make feed a field of their name",
        f"{_WRITING}/command_mapping.py",
        "options.command_id_column if options.made_ids else None",
        "None",
        "tests/tables/test_spark_names.py::test_ids_that_we_make_feed_a_field_only_if_an_option_says_so",
    ),
    Mutant(
        "the class of a row counts more than what the option says",
        f"{_WRITING}/command_encoder.py",
        "priority = priority or spec.priority or ",
        "priority = spec.priority or priority or ",
        "tests/unit/spark/test_row_flows.py::test_an_option_counts_more_than_the_class_and_that_more_than_the_type",
    ),
    Mutant(
        "an announced unique key is passed over",
        f"{_WRITING}/command_lookup.py",
        "unique=_unique(info),",
        "unique=None,",
        "tests/unit/spark/test_announced.py::test_an_announced_unique_key_is_that_of_the_class",
    ),
    Mutant(
        "a row has the unique key of its class in its envelope alone",
        f"{_WRITING}/command_encoder.py",
        "None if spec.unique is None else LoadKey.of(spec.unique, spec.name, mailbox, text)",
        "None",
        "tests/unit/spark/test_row_flows.py::test_the_unique_key_of_a_row_is_what_dispatch_makes_of_it",
    ),
    Mutant(
        "a row has its unique key beside its envelope alone",
        f"{_WRITING}/command_encoder.py",
        "return options if spec.unique is None else",
        "return options if True else",
        "tests/unit/spark/test_row_flows.py::test_the_unique_key_of_a_row_is_what_dispatch_makes_of_it",
    ),
    Mutant(
        "folded rows count as lost",
        "spark/reconciliation/verdict.py",
        "before.facts.added + before.facts.folded - tally.traced",
        "before.facts.added - tally.traced",
        "tests/unit/spark/test_reconciliation_verdict.py::test_folded_rows_are_no_commands_that_were_lost",
    ),
    Mutant(
        "a tenant that is none is loaded",
        f"{_WRITING}/packed_columns.py",
        "index not in faults and _is_tenant(value) for",
        "index not in faults for",
        "tests/unit/spark/test_row_flows.py::test_75_a_tenant_that_is_none_is_rejected_alone",
    ),
    Mutant(
        "bytes that begin as the form of bytes are read as others",
        "spark/reading/outcome_batches.py",
        "json_text(value) if BASE64 in text else text",
        "text",
        "tests/unit/spark/test_views.py::TestOutcomes::test_results_are_json",
    ),
)
