"""A run of two tallies in a made-up history, and what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.chaos.features import SUBSCRIPTIONS
from tests.chaos.history import Asked, Effect, Ended, History, Started
from tests.chaos.messages import Total, expected_value

__all__ = ["RUN_BREAKS", "with_run"]


def with_run(history: History) -> History:
    """Add two tallies that ran in one call, which was repeated with its halves, and the state that they left."""
    entity, total = "tally:y0", Total()
    for number in range(2):
        history.asked.append(Asked(f"y{number}", entity, number, "Tally", "dispatch", "p0.0", 1.0, "accepted", 1.1))
        total.add(number)
    for at, number in ((2.0, 0), (3.0, 1), (4.0, 0), (5.0, 1)):
        history.started.append(Started(f"y{number}", entity, number, "w0.0", 300, 1, at))
        history.ended.append(Ended(f"y{number}", "w0.0", 300, "end", at + 0.5, expected_value(number)))
        history.effects.append(Effect(f"y{number}", entity, number, 300))
    final, done = history.final, {"y0": expected_value(0), "y1": expected_value(1)}
    counters = final.counters | {"accepted": 7, "completed": 5}
    ends = (*final.ends, ("y0", "completed"), ("y1", "completed"))
    outcomes, totals = final.outcomes | dict.fromkeys(done, "completed"), {entity: (total.count, total.digest)}
    history.final = replace(final, outcomes=outcomes, values=final.values | done, counters=counters, ends=ends, totals=totals)
    return history


def counted_twice(history: History) -> None:
    history.final = replace(history.final, totals={"tally:y0": (3, 0)})


def counted_in_another_order(history: History) -> None:
    total = Total()
    total.add(1)
    total.add(0)
    history.final = replace(history.final, totals={"tally:y0": (total.count, total.digest)})


def state_lost(history: History) -> None:
    history.final = replace(history.final, totals={})


def run_by_another_meanwhile(history: History) -> None:
    history.started.append(Started("y1", "tally:y0", 1, "w1.0", 300, 1, 4.2))


def run_out_of_order(history: History) -> None:
    history.effects[-4:-2] = reversed(history.effects[-4:-2])


def with_mirrors(history: History) -> None:
    """Switch publication on: each `Apply` was mirrored, to each subscription, in its order."""
    history.features = (*history.features, "publication")
    for request in [
        each for each in history.asked if each.kind == "Apply" and history.final.outcomes.get(each.id) == "completed"
    ]:
        for name in SUBSCRIPTIONS:
            entity = f"line@{name}:{request.entity.partition(':')[2]}"
            command_id, number = f"~{request.id}@{name}", request.number
            history.asked.append(Asked(command_id, entity, number, "Applied", "handler", "w0.0", 1.0))
            history.started.append(Started(command_id, entity, number, "w0.0", 900 + number, 1, 50.0 + number))
            history.ended.append(Ended(command_id, "w0.0", 900 + number, "end", 50.1 + number))
            history.effects.append(Effect(command_id, entity, number, 900 + number))


def nothing_mirrored(history: History) -> None:
    history.features = (*history.features, "publication")


def mirrored_in_part(history: History) -> None:
    with_mirrors(history)
    history.effects.pop()


def mirrored_although_it_was_not_done(history: History) -> None:
    with_mirrors(history)
    history.effects.append(Effect("~more@mirror", history.effects[-1].entity, 77, 999))


def with_moves(history: History) -> None:
    """Let one command move between two vaults, each of which has it in its line."""
    history.features = (*history.features, "several")
    for entity, command_id, kind in (("vault:p0/v0", "move.0", "Move"), ("vault:p0/v1", "move.0~", "Place")):
        history.asked.append(Asked(command_id, entity, 0, kind, "handler", "w0.0", 1.0))
        history.started.append(Started(command_id, entity, 0, "w0.0", 900, 1, 50.0))
        history.ended.append(Ended(command_id, "w0.0", 900, "end", 50.1))
        history.effects.append(Effect(command_id, entity, 0, 900))


def moved_in_one_line(history: History) -> None:
    with_moves(history)
    history.effects.pop()


def started_in_one_line(history: History) -> None:
    with_moves(history)
    history.started.pop()


RUN_BREAKS: list[tuple[str, Callable[[History], None]]] = [
    ("state", counted_twice),
    ("state", counted_in_another_order),
    ("state", state_lost),
    ("overlap", run_by_another_meanwhile),
    ("order of effects", run_out_of_order),
    ("mirror", nothing_mirrored),
    ("mirror", mirrored_in_part),
    ("mirror", mirrored_although_it_was_not_done),
    ("both lines", moved_in_one_line),
    ("both lines", started_in_one_line),
]
