"""Follows what producers record while they run, so that a killed one can be replaced by one that knows what it had asked."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["Busy", "Follower", "Requests", "Up"]

_A_WHILE = 0.02


class Follower:
    """Reads a growing file of events, from where it stopped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def more(self, only: bytes = b"") -> list[dict[str, Any]]:
        """Return events added since the last call; with `only`, those whose line contains it."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._at += end
        return [json.loads(line) for line in data[:end].splitlines() if only in line]


class Up:
    """Finds processes that are up: on a crowded machine, faults could otherwise kill every process while it starts."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._followers = [Follower(path) for path in paths]
        self._names: set[str] = set()

    def now(self) -> set[str]:
        """Return the processes that came up, including dead ones."""
        for follower in self._followers:
            self._names |= {event["who"] for event in follower.more(b'"ev": "up"')}
        return self._names


class Busy:
    """Finds processes that run a command which another would run again, from the records of workers."""

    def __init__(self, path: Path) -> None:
        self._follower = Follower(path)
        self._running: dict[tuple[str, int], tuple[str, float]] = {}

    def now(self) -> set[str]:
        """Return the processes that have run a handler for a while."""
        for event in self._follower.more():
            if event["ev"] == "start" and not event["once"] and not event["entity"].startswith("late:"):
                self._running[event["id"], event["fence"]] = (event["who"], event["at"])
            elif event["ev"] == "ended":
                self._running.pop((event["id"], event["fence"]), None)
        since = time.monotonic() - _A_WHILE
        return {who for who, at in self._running.values() if at < since}


class Requests:
    """Open requests by producer, and the last number of each entity."""

    def __init__(self, path: Path) -> None:
        self._follower = Follower(path)
        self._open: dict[str, dict[str, Any]] = {}
        self._numbers: dict[str, int] = {}
        self.answers: Counter[str] = Counter()

    def follow(self) -> None:
        """Take in what was recorded since."""
        for event in self._follower.more():
            if event["ev"] == "ask":
                spec = event["spec"]
                self._open[spec["id"]] = spec
                for entity, number in [(spec["entity"], spec["number"]), *spec.get("also", ())]:
                    self._numbers[entity] = max(self._numbers.get(entity, 0), number + 1)
            elif event["ev"] == "tell":
                self._open[event["spec"]["id"]] = event["spec"]
            elif event["ev"] == "told":
                self._open.pop(f"{event['journey']}!{event['told']}", None)
            elif event["ev"] == "answer":
                self.answers[event["answer"]] += 1
                if event["answer"] not in ("unknown", "refused"):
                    self._open.pop(event["id"], None)

    def leave(self, path: Path) -> None:
        """Write what the next process of a producer has to know; it picks out its own entities."""
        path.write_text(json.dumps({"numbers": self._numbers, "open": self.open()}))

    def open(self) -> list[dict[str, Any]]:
        """Return what was asked, or is to be told, without an answer so far; of each entity in order."""
        self.follow()
        return sorted(self._open.values(), key=lambda spec: (spec["entity"], spec["number"]))
