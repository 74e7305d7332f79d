"""A choice of the breakages, quick ones of every kind; `make mutants` hunts all."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.mutants import pure
from tests.mutants.breakages import MUTANTS
from tests.mutants.hunt import ROOT, broken_texts, hunt
from tests.selection import quick

CHOSEN = (
    "settle for every holder of a lease",
    "a take of what is gone starts it again",
    "a fence that is not kept",
    "first in, last out",
    "acknowledge before handling",
    "no reply with the settling",
    "a retry lets others overtake",
    "a dead letter is dropped",
    "the depth is not counted down",
    "no deduplication",
    "a settled id is forgotten",
    "mailboxes are trimmed",
    "a live lease is stolen",
    "what was interrupted runs again, whatever its contract",
    "leases are not renewed",
    "scripts are not loaded again",
    "delayed commands come too soon",
    "the next activation is forgotten",
    "an interrupted attempt is not counted",
    "a hot entity asks only who waits in its own shard",
    "a handler that waits for a reply keeps its slot",
)


@pytest.mark.timeout(600)  # a bus that repeats a command for ever is simulated to the end of its time
@pytest.mark.parametrize("name", quick(CHOSEN, ()))
def test_a_broken_bus_is_found_out(name: str) -> None:
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == name]
    verdict = hunt(mutant, 150)
    assert verdict.dead, verdict.output[-2000:]


def test_every_mutant_finds_the_text_that_it_replaces() -> None:
    lost = []
    for mutant in MUTANTS:
        try:
            broken_texts(mutant)
        except LookupError as error:
            lost.append(str(error))
    assert not lost


def test_every_test_that_is_to_see_a_mutant_exists() -> None:
    lost = []
    for mutant in MUTANTS:
        path, _, test = mutant.seen_by.partition("::")
        if test and f"def {test.rpartition('::')[2].partition('[')[0]}(" not in (ROOT / path).read_text(encoding="utf-8"):
            lost.append(f"{mutant.name}: {mutant.seen_by}")
    assert not lost


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_the_modules_and_tests_that_mutmut_is_given_exist() -> None:
    given = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    named = [*given["only_mutate"], *given["pytest_add_cli_args_test_selection"], *given["also_copy"]]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_survivors_are_counted_by_module_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = {
        "command_bus.spelling.x_nearest__mutmut_1": "killed",
        "command_bus.spelling.x_nearest__mutmut_2": "survived",
        "command_bus.transport.slots.xǁSlotsǁask__mutmut_1": "no tests",
    }
    pure.report(verdicts, tmp_path / "survivors.txt")
    said = capsys.readouterr().out
    assert "command_bus.spelling: 1 of 2 mutants are dead; 1 survived" in said
    assert "command_bus.transport.slots: 0 of 1 mutants are dead; 1 no tests" in said
    assert (tmp_path / "survivors.txt").read_text(encoding="utf-8").splitlines() == [
        "command_bus.spelling.x_nearest__mutmut_2: survived",
        "command_bus.transport.slots.xǁSlotsǁask__mutmut_1: no tests",
    ]
