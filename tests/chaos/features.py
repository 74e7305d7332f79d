"""The features that a run may switch on beside plain commands, as in `--with limits,schedules,unique,several`; `FEATURES` has all.

Limits: a rate for starts of accounts, places for lines. Schedules: some tickers, declared by every worker. Unique keys: some commands of
lines replace the one of their key that still waits. Priorities: commands that are sent alone have one by chance; no rule of their own, since
order and delivery are to be as without. History: the end of every command is kept. Durable: journeys, whose handlers take steps, call other
entities, wait and compensate; with limits, only some run at a time. State: tallies count in the state of their entity. Batches: neighbours of
a tally run in one call. Publication: each `Apply` of a line publishes an event, which two subscriptions put into the ledger. Workflows: chains,
groups and chords of errands. Several: moves between vaults stand in the lines of both. Across: these are in two shards.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from command_bus import EntityPolicy, HandlerRegistry, History, Limit, Rate, Unique, every, per_entity
from command_bus.transport.mailboxes import mailbox_name, shard_of
from tests.chaos.messages import Tick

__all__ = [
    "FEATURES",
    "JOURNEYS",
    "LATEST",
    "PLACES",
    "RATE",
    "SUBSCRIPTIONS",
    "declare",
    "is_firing",
    "kept",
    "policies",
    "tallies",
    "tick_number",
    "tickers",
    "vaults",
]

FEATURES: Final = (
    "limits",
    "schedules",
    "unique",
    "priorities",
    "history",
    "durable",
    "state",
    "batches",
    "publication",
    "workflows",
    "several",
    "across",
)
SUBSCRIPTIONS: Final = ("mirror", "second")
RATE: Final = Rate(60, per=1.0, burst=10)
"""Of starts of accounts."""
PLACES: Final = 12
"""Lines that run at a time: fewer than there are slots, and two more than a scripted load lets hang, since others must start meanwhile."""
JOURNEYS: Final = 6
"""Journeys that run at a time; those that wait do not run."""
LATEST: Final = Unique("latest", wins="latest")
_PERIOD = 0.5
_TICKERS, _TALLIES, _VAULTS = 3, 6, 4
_PREFIX = "tick-"


def policies(features: tuple[str, ...]) -> dict[str, EntityPolicy]:
    """Return the policies of entity types."""
    vault = (
        {"vault": EntityPolicy(mailbox=per_entity(shard_by="/"))} if "several" in features and "across" not in features else {}
    )
    if "limits" not in features:
        return vault
    return vault | {
        "account": EntityPolicy(limits=(Limit(rate=RATE, scope="type"),)),
        "line": EntityPolicy(limits=(Limit(concurrency=PLACES, scope="type"),)),
        "journey": EntityPolicy(limits=(Limit(concurrency=JOURNEYS, scope="type"),)),
    }


def kept(features: tuple[str, ...]) -> History | None:
    """Return the history of all commands; None without one. It outlives the run."""
    return History("30 days", 10_000_000) if "history" in features else None


def tickers(features: tuple[str, ...]) -> list[str]:
    """Return the names of the schedules."""
    return [f"{_PREFIX}{number}" for number in range(_TICKERS)] if "schedules" in features else []


def tallies(features: tuple[str, ...]) -> list[str]:
    """Return the names of the tallies."""
    return [f"y{number}" for number in range(_TALLIES)] if {"state", "batches"} & {*features} else []


def vaults(features: tuple[str, ...], producer: int, shards: int) -> list[str]:
    """Return the names of the vaults between which a producer moves: all in one shard. With `across` those of a pair are in two, the lower first."""
    if "across" in features:
        names = [f"p{producer}/v{number}" for number in range(100)]
        last = [name for name in names if shard_of(mailbox_name("vault", name, per_entity()), shards) == shards - 1]
        pairs = zip((name for name in names if name not in last), last, strict=False)
        return [name for pair in pairs for name in pair][:_VAULTS]
    return [f"p{producer}/v{number}" for number in range(_VAULTS)] if "several" in features else []


def declare(registry: HandlerRegistry, features: tuple[str, ...]) -> None:
    """Declare the schedules of a worker."""
    for name in tickers(features):
        registry.schedule(name, Tick(ticker=name), every(_PERIOD), missed="all")


def is_firing(command_id: str) -> bool:
    """Return whether a schedule sent this command."""
    return command_id.startswith(_PREFIX)


def tick_number(command_id: str) -> int:
    """Return the number of a firing: ticks that follow each other have numbers that do."""
    return round(datetime.fromisoformat(command_id.rpartition("@")[2]).timestamp() / _PERIOD)
