"""Breakages of versions of commands."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["VERSIONS"]

_STEPS = "tests/unit/test_upcasting.py"
_BUS = "tests/conformance/test_versions.py"

VERSIONS = (
    Mutant(
        "an older worker runs a newer command",
        "serialization/models.py",
        "    if version <= spec.version:\n",
        "    if True:\n",
        f"{_BUS}::test_an_older_worker_leaves_a_newer_command_to_a_newer_worker",
    ),
    Mutant(
        "an upcaster is left out",
        "messages/upcasting.py",
        "    for number in range(version, spec.version):\n",
        "    for number in range(version + 1, spec.version):\n",
        f"{_STEPS}::test_steps_are_applied_from_the_version_that_was_sent",
    ),
    Mutant(
        "a worker starts with a gap in its upcasters",
        "messages/upcasting.py",
        "    if missing:\n",
        "    if False:\n",
        f"{_BUS}::test_111_a_worker_whose_upcasters_have_a_gap_does_not_start",
    ),
    Mutant(
        "an edited payload keeps the version of the letter",
        "admin/letter_pages.py",
        "    options = with_version(envelope.options, version)\n",
        "    options = envelope.options\n",
        f"{_BUS}::test_a_letter_of_an_older_version_is_replayed_and_edited_by_its_class",
    ),
    Mutant(
        "limits are asked by the old fields",
        "worker/limits.py",
        "decoded(handler.message_type, payload, envelope.options, self._limits)",
        "decoded(handler.message_type, payload, {'v': handler.spec.version}, self._limits)",
        f"{_BUS}::test_limits_are_asked_by_the_new_fields",
    ),
    Mutant(
        "the lone commands of a class lose their version",
        "sending/envelope_builder.py",
        "options=with_version(options_of(priority, history), spec.version)",
        "options=options_of(priority, history)",
        f"{_BUS}::test_what_waits_from_earlier_versions_runs_in_order_in_the_new_shape",
    ),
    Mutant(
        "an older worker ends by its own policy what a newer one began",
        "worker/decisions.py",
        "        if bound is not None and newer_version(bound.handler.spec, envelope.options):\n            bound = None\n",
        "",
        "tests/unit/test_decisions.py::test_an_older_worker_leaves_what_a_newer_one_began",
    ),
)
