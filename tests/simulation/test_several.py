"""The rules for commands of several entities: right histories and servers break none, and the load makes what they look at."""

from __future__ import annotations

import pytest

from tests.selection import quick
from tests.simulation.checker import check
from tests.simulation.history import Claim, History
from tests.simulation.several_breakages import HOME, SEVERAL_BREAKAGES, beside_the_other_line, lines_agree, moved_rightly
from tests.simulation.several_load import takes_part
from tests.simulation.simulation import Shape, run
from tests.simulation.test_checker import right

_SEEDS = [seed for seed in range(1, 200) if takes_part(seed)]


def test_what_is_right_breaks_no_rule() -> None:
    history = right()
    moved_rightly(history)
    lines_agree(history)
    assert check(history) == []


def test_a_lease_of_the_home_that_was_taken_over_excuses_two_at_a_time() -> None:
    history = right()
    beside_the_other_line(history)
    assert "several" in {name for name, _, _ in check(history)}
    history.claims.append(Claim(1001.05, "7-0", HOME, "aaaa", "bbbb", 9.0))
    assert "several" not in {name for name, _, _ in check(history)}


def test_each_breakage_is_told_in_words_of_its_own() -> None:
    """A breakage that only repeats what another one shows would prove nothing of its rule."""
    told = set[tuple[str, ...]]()
    for breakage in SEVERAL_BREAKAGES:
        history: History = right()
        breakage(history)
        told.add(tuple(f"{entity} {text}" for name, entity, text in check(history) if name == "several"))
    assert len(told) == len(SEVERAL_BREAKAGES) - 1  # the lease of another line excuses nothing


@pytest.mark.timeout(180)
@pytest.mark.parametrize("first", quick(range(0, 40, 10), [0]))
def test_commands_of_several_entities_keep_every_promise(first: int) -> None:
    started = over_several = 0
    for seed in _SEEDS[first : first + 10]:
        done = run(seed, Shape(commands=0))
        assert not done.broken, f"python -m tests.simulation --seed {seed} --seeds 1 --commands 0"
        assert done.history is not None
        standing = done.history.standing
        started += len(standing.runs)
        over_several += sum(len(standing.standers[each.tag].lines) > 1 for each in standing.runs)
    assert started > 150
    assert over_several > started / 4
