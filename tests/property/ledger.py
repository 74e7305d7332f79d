"""The oracle of the interleaving tests: what must be true of one shard, in plain Python.

It knows nothing of scripts, activations or states. It knows the promises: accepted commands stand in line per mailbox, the first of
the line is the only one that may be started, one lease at most may run it, and each command ends exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from command_bus.transport.steps import Lease, Started

__all__ = ["DEEP", "Ledger", "Line", "max_depth"]

DEEP = "box:b"
"""The mailbox that holds so many commands that they are read ahead."""


def max_depth(mailbox: str) -> int:
    """Return how many commands a mailbox may hold."""
    return 1_000 if mailbox == DEEP else 6


@dataclass
class Line:
    """One mailbox.

    Attributes:
        waiting: Accepted and not settled, in order; the first may be running.
        delayed: Accepted, not yet in line.
        attempts: How often the first was started, as far as that counted.
        held: The lease under which the first was started last, until that is settled or taken over.
        unstarted: Accepted and never started, in the order of their place in line.
    """

    waiting: list[str] = field(default_factory=list)
    delayed: list[str] = field(default_factory=list)
    attempts: int = 0
    held: Lease | None = None
    started: Started | None = None
    paused: bool = False
    parked: bool = False
    unstarted: list[str] = field(default_factory=list)

    @property
    def depth(self) -> int:
        return len(self.waiting) + len(self.delayed)

    def join(self, command: str) -> None:
        """Take the last place in line."""
        self.waiting.append(command)
        self.unstarted.append(command)

    def leave(self, command: str) -> None:
        """Be settled, or taken out."""
        if self.waiting and self.waiting[0] == command:
            self.attempts = 0
            self.held = self.started = None
            self.parked = False
        for places in (self.waiting, self.delayed, self.unstarted):
            if command in places:
                places.remove(command)

    def let_go(self, *, counts: bool) -> None:
        """Record that the first was started and is not settled: it will be started again."""
        self.held = self.started = None
        if not counts:
            self.attempts -= 1


class Ledger:
    """All mailboxes, and what became of every command."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}
        self.outcomes: dict[str, str | None] = {}
        self.home: dict[str, str] = {}
        self.ended = 0
        self.fence = 0

    def line(self, mailbox: str) -> Line:
        return self.lines.setdefault(mailbox, Line())

    @property
    def depth(self) -> int:
        return sum(line.depth for line in self.lines.values())

    def expected_admissions(self, batch: list[tuple[str, str, bool]]) -> str:
        """Enter a batch of (mailbox, command, delayed); return the answers, as the characters of `Admission`."""
        refused: set[str] = set()
        answers = ""
        for mailbox, command, delayed in batch:
            line = self.line(mailbox)
            if command in self.outcomes:
                answers += "="
            elif mailbox in refused:
                answers += "p"
            elif line.depth >= max_depth(mailbox):
                refused.add(mailbox)
                answers += "e"
            else:
                answers += "+"
                self.outcomes[command], self.home[command] = None, mailbox
                if delayed:
                    line.delayed.append(command)
                else:
                    line.join(command)
        return answers

    def promoted(self, command: str) -> None:
        line = self.lines[self.home[command]]
        line.delayed.remove(command)
        line.join(command)

    def has_started(self, lease: Lease, started: Started) -> None:
        """Check that a lease may run the command that it was given."""
        line = self.lines[lease.mailbox]
        assert started.envelope is not None
        command = started.envelope.decode()
        assert line.waiting, f"{command} was started, and nothing waits"
        assert command == line.waiting[0], f"{command} overtook {line.waiting[0]}"
        assert line.held is None, f"{command} was started for {lease.holder}, and {line.held.holder} holds it"
        assert not line.paused, f"{command} was started in a paused mailbox"
        assert not line.parked, f"{command} was started in a parked mailbox"
        assert int(started.fence) > self.fence, "the fence fell"
        self.fence = int(started.fence)
        if command in line.unstarted:
            assert line.unstarted[0] == command, f"{command} was first started before {line.unstarted[0]}"
            line.unstarted.remove(command)
        line.attempts += 1
        assert started.attempt == line.attempts
        line.held, line.started = lease, started

    def end(self, command: str, how: str) -> None:
        """Record that a command is settled."""
        assert self.outcomes[command] is None, f"{command} was {self.outcomes[command]}, now {how}"
        self.outcomes[command] = how
        self.lines[self.home[command]].leave(command)

    def buried(self, command: str) -> None:
        self.end(command, "buried")

    def replayed(self, command: str) -> None:
        """Record the replay of a dead letter whose command had left its line: it becomes the last."""
        assert self.outcomes[command] == "buried"
        self.outcomes[command] = None
        self.lines[self.home[command]].join(command)
