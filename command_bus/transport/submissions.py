"""Commands on their way to a mailbox, and the answers to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from command_bus.errors import CommandBusError
from command_bus.transport.mailboxes import pack_entry
from command_bus.transport.unique_keys import UniqueSubmission

NO_DIGEST = bytes(8)
"""The digest of a command whose id was generated: it cannot conflict."""


@dataclass(slots=True)
class Submission:
    """One command on its way into a mailbox.

    Attributes:
        mailbox: Its name.
        command_id: Unique per command.
        envelope: Opaque bytes.
        digest: Eight bytes that differ between different commands; equal ids with unequal digests conflict.
        max_depth: Commands that the mailbox may hold.
        delay_ms: Milliseconds until the command takes its place in the mailbox; below zero the moment itself, by the server's clock.
        marked: Whether a mark remembers the command id, because a client may send it again or ask for its reply. Only then is a repeat
            answered `DUPLICATE` or `CONFLICT`.
        name: The command's wire name, for who observes.
        renewed: Gives the envelope packed again with the time to live that is left, or None: it never changes. For a producer that sends
            it late or again.
        flow: What it waits in: the digit of its class, then its encoded tenant (see `transport.flows`); empty for the normal class without
            a tenant.
        unique: Its unique key, or None.
        others: Further mailboxes in which it stands, each with the commands that it may hold.
    """

    mailbox: str
    command_id: str
    envelope: bytes
    digest: bytes
    max_depth: int
    delay_ms: int = 0
    marked: bool = True
    name: str = ""
    renewed: Callable[[], bytes] | None = None
    flow: str = ""
    unique: UniqueSubmission | None = None
    others: tuple[tuple[str, int], ...] = ()

    @property
    def entry(self) -> bytes:
        """Its envelope, as a follow-up has it: with the names of its further mailboxes, if it has any (see `lua/shared/entry_text.lua`)."""
        if not self.others:
            return self.envelope
        return pack_entry([b"e", self.envelope, b"w", "".join(f"{mailbox}= " for mailbox, _ in self.others).encode()])

    @property
    def lines(self) -> tuple[str, ...]:
        """The mailboxes in which it stands."""
        return (self.mailbox, *(mailbox for mailbox, _ in self.others)) if self.others else (self.mailbox,)


class Admission(Enum):
    """The answer to a submission; the values are those of the Redis scripts; `OUT_OF_SEQUENCE` answers bulk loads only."""

    ACCEPTED = "+"
    DUPLICATE = "="
    CONFLICT = "!"
    ENTITY_FULL = "e"
    TOTAL_FULL = "t"
    TOO_MANY_ENTITIES = "n"
    PREDECESSOR_REFUSED = "p"
    WRONG_TYPE = "w"
    OUT_OF_SEQUENCE = "s"
    DRAINING = "d"
    FOLDED = "u"
    """Dropped: another command holds its unique key."""
    REPLACED = "r"
    """Accepted, and another command of its unique key taken out."""
    MAY_NOT_REPLACE = "x"


UnavailableShards = dict[int, CommandBusError]
"""Shards that were unavailable, each with how it showed."""
