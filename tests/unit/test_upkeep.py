"""How fast the workers visit the mailboxes: by the cursors of HSCAN, a round takes the same time for any number of them."""

from __future__ import annotations

import pytest

from command_bus.transport.redis.worker.upkeep import part_between


def following(cursor: int, bits: int, steps: int) -> int:
    """Return the next cursor as the server counts: the highest bit first, carried to the right."""
    turned = int(f"{cursor % 2**bits:0{bits}b}"[::-1], 2) + steps
    return 0 if turned >= 2**bits else int(f"{turned:0{bits}b}"[::-1], 2)


@pytest.mark.parametrize("bits", [4, 10, 20])
def test_the_parts_of_a_round_are_one(bits: int) -> None:
    cursor = 0
    parts: list[float] = []
    while not parts or cursor:
        before, cursor = cursor, following(cursor, bits, 2**bits // 16)
        parts.append(part_between(before, cursor))
    assert len(parts) == 16
    assert parts == pytest.approx([1 / 16] * 16)


@pytest.mark.parametrize("start", [1, 12345, 2**32 - 2])
def test_one_may_begin_anywhere(start: int) -> None:
    after = following(start, 10, 8)
    assert part_between(start, after) == pytest.approx(8 / 1024, abs=1 / 1024)
    assert 0 < part_between(start, 0) < 1


def test_a_small_table_is_one_page() -> None:
    assert part_between(0, 0) == 1.0
