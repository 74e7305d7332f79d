"""The page size of requests, adapted to the size of the last answers."""

from __future__ import annotations

from command_bus.transport.redis.connection.connections import PageSize

MEGABYTE = 1024 * 1024


def test_a_page_starts_small_and_grows_fast() -> None:
    size = PageSize(256)
    counts = [size.count]
    while size.count < 256:
        size.observe(100 * size.count, size.count)
        counts.append(size.count)
    assert counts[0] == 64
    assert len(counts) <= 4


def test_large_entries_are_believed_at_once() -> None:
    size = PageSize(256)
    size.observe(64 * MEGABYTE, 64)
    assert size.count == 1


def test_large_entries_are_forgotten_by_and_by() -> None:
    size = PageSize(256)
    size.observe(MEGABYTE, 1)
    counts = []
    while size.count < 256:
        size.observe(100, 1)
        counts.append(size.count)
    assert counts == [2, 4, 8, 16, 32, 64, 128, 256]


def test_an_empty_answer_says_nothing() -> None:
    size = PageSize(256)
    size.observe(0, 0)
    assert size.count == 64


def test_entries_without_content_do_not_divide_by_zero() -> None:
    size = PageSize(256)
    for _ in range(40):
        size.observe(0, 10)
    assert size.count == 256
