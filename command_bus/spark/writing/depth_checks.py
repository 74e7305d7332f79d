"""Mailboxes whose depth the server checks with a chunk: new ones, and those that have received much since their last check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import itemgetter

from command_bus.transport.bulk import LoadItem

_PER_MAILBOX = 16
"""After each sixteenth of the depth limit that a partition has put into a mailbox, the server checks the limit: it is exceeded by no more."""


class DepthChecks:
    """The number of commands that a partition has sent to each mailbox.

    Args:
        max_depth: Limit of a mailbox.
    """

    def __init__(self, max_depth: int) -> None:
        self._every = max(max_depth // _PER_MAILBOX, 1)
        self._sent: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of mailboxes."""
        return len(self._sent)

    def due(self, chunk: list[LoadItem]) -> tuple[set[str], list[str]]:
        """Return the mailboxes of a chunk that may be full, and of these the new ones."""
        sent, every = self._sent, self._every
        to_check: set[str] = set()
        new: list[str] = []
        for mailbox, more in Counter(map(itemgetter(0), chunk)).items():
            count = sent.get(mailbox, 0)
            if -(-count // every) * every < count + more:  # reaches the next multiple of it
                to_check.add(mailbox)
                if mailbox not in sent:
                    new.append(mailbox)
            sent[mailbox] = count + more
        return to_check, new

    def check_next_time(self, items: Iterable[LoadItem]) -> None:
        """Have the server check these mailboxes with the next chunk."""
        for item in items:
            self._sent[item[0]] = 0
