"""The queue of commands to send: order is kept per mailbox, and a full mailbox blocks no other."""

from __future__ import annotations

import random

from command_bus.spark.writing.send_queue import MAX_CHUNK_BYTES, WARN_AFTER, WARN_EVERY, SendQueue, StallTimer
from command_bus.transport.ports.bulk import LoadItem


def item(mailbox: str, number: int, size: int = 10) -> LoadItem:
    return mailbox, f"{mailbox}-{number}", b"", b"x" * size, mailbox, number, "", None


def test_a_full_mailbox_is_blocked_alone() -> None:
    queue = SendQueue()
    queue.extend(item("full", number) for number in range(700))
    queue.extend(item(f"m{number % 50}", number) for number in range(1000))
    chunk = queue.take(500)
    queue.block(chunk)
    sent = []
    while taken := queue.take(500):
        sent += taken
    assert [each[0] for each in sent] == [f"m{number % 50}" for number in range(1000)]
    assert [each[5] for each in queue.blocked["full"]] == list(range(700))
    assert (len(queue), queue.blocked_rows) == (0, 700)
    assert queue.blocked_bytes > 0
    while queue.blocked:
        queue.take_blocked(500)
        queue.unblock()
    assert queue.blocked_bytes == 0


def test_refusals_keep_the_order_of_a_mailbox() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        queue, sent, numbers = SendQueue(), list[LoadItem](), dict[str, int]()
        full = {mailbox for mailbox in "abcdef" if chance.random() < 0.5}
        for step in range(60):
            for _ in range(chance.randint(0, 12)):
                mailbox = chance.choice("abcdef")
                numbers[mailbox] = numbers.get(mailbox, 0) + 1
                size = MAX_CHUNK_BYTES // 2 if chance.random() < 0.05 else 10
                queue.extend([item(mailbox, numbers[mailbox], size)])
            if chance.random() < 0.3 or step > 40:
                full = set() if step > 40 else {mailbox for mailbox in "abcdef" if chance.random() < 0.5}
            common = chance.random() < 0.2 and step < 40
            if chance.random() < 0.5 and queue.blocked:
                chunk = queue.take_blocked(chance.randint(1, 9))
                queue.block(chunk if common else [each for each in chunk if each[0] in full])
                queue.unblock()
            else:
                chunk = queue.take(chance.randint(1, 9))
                queue.block([each for each in chunk if each[0] in full])
                queue.put_back([each for each in chunk if common and each[0] not in full])
            assert sum(len(each[3]) for each in chunk) <= MAX_CHUNK_BYTES or len(chunk) == 1
            sent += [each for each in chunk if each[0] not in full and not common]
        while queue.blocked or len(queue):
            sent += queue.take_blocked(5) if queue.blocked else queue.take(5)
            queue.unblock()
        for mailbox, count in numbers.items():
            assert [each[5] for each in sent if each[0] == mailbox] == list(range(1, count + 1)), seed
        assert queue.blocked_bytes == 0


def test_a_stall_warns_and_gives_up_in_time() -> None:
    stall, said = StallTimer(max_wait=100), list[tuple[float, str]]()
    for tick in range(2000):
        now = 50 + tick / 10
        what = stall.refused(now)
        if what != "wait":
            said.append((now - 50, what))
        if what == "give up":
            break
    assert [what for _, what in said] == ["warn"] * 4 + ["give up"]
    assert said[0][0] < 10
    assert [round(said[number + 1][0] - said[number][0]) for number in range(3)] == [WARN_EVERY] * 3
    assert said[-1][0] > 100
    stall.progressed()
    assert stall.refused(1000) == "wait"
    assert stall.refused(1000 + WARN_AFTER) == "warn"
    assert stall.remaining(1000 + WARN_AFTER) == 100 - WARN_AFTER
