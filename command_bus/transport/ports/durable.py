"""The protocols of a transport for durable commands: what they store while they run, and what reaches them.

A durable command has a side record, a map of names to bytes, from the first thing that is stored to its settlement. `lua/shared/arrive.lua`
says what is in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from command_bus.transport.records import SuspensionInfo
from command_bus.transport.steps import FollowUp, Lease

CIRCLE = "call_cycle"
"""The code of the outcome of a call that would wait for ever."""
NO_ROOM = b"!"
"""The first byte of what is stored of the outcome of a call that had no room in its caller's side record; the outcome's first bytes follow."""
SMALL_OUTCOME = 4096
"""Bytes of an outcome that always has room."""
MOST_SIGNALS = 10_000
"""Most signals of one name that a command has waited for. Each name that it waits for has as many, which others cannot use up."""
MOST_SIGNAL_BYTES = 16 * 1024 * 1024
"""Most bytes of their values."""
MOST_OTHER_SIGNALS = 1_000
"""Most signals of all other names, or that come before the command waits for them."""
MOST_OTHER_SIGNAL_BYTES = 4 * 1024 * 1024
"""Most bytes of their values."""
Stored = bytes | None
"""The answer for a field: None if it is stored now, else the value that was there already and stays; of a time the milliseconds."""


class Note(NamedTuple):
    """A field that a command stores, if it is not there yet.

    Attributes:
        name: What the field is called.
        value: Its bytes; of a time the milliseconds from now.
        is_time: Whether it is a time.
        child: The command that is sent in the same step, if the field is stored now; or None.
        report: `p` of what takes the place of the last one, the progress say; `l` of an entry of the log, whose name is fence and number in its run;
            empty for others.
    """

    name: str
    value: bytes | int
    is_time: bool = False
    child: FollowUp | None = None
    report: str = ""


class SideRecords(Protocol):
    """The side records of the commands that one worker runs."""

    async def read(self, lease: Lease, command_id: str) -> Mapping[str, bytes]:
        """Return a side record; it is empty if there is none."""
        ...

    async def fields(self, lease: Lease, command_id: str, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return those of some fields of a side record that are there."""
        ...

    def store(
        self, lease: Lease, command_id: str, notes: Sequence[Note], *, progressed: bool, keeps: bool = True
    ) -> asyncio.Future[list[Stored] | None]:
        """Store fields in one step; repeat what is ambiguous until there is an answer. To store them again changes nothing.

        Args:
            lease: Under which the command runs.
            command_id: Id of the command.
            notes: The fields.
            progressed: Whether this is progress: the count of the command's attempts begins again.
            keeps: Whether the record stays until the command is settled; else it lives for a day.

        Returns:
            What each field has; None if the lease is lost: then nothing was stored.
        """
        ...

    def raise_fence(self, mailbox: str, fence: int) -> asyncio.Future[int]:
        """See to it that the next starts in the shard of this mailbox have fences above this one; repeat it until there is an answer.

        Returns:
            A fence above which theirs are.
        """
        ...


class SignalToBring(NamedTuple):
    """A signal for a durable command.

    Attributes:
        name: What the command waits for.
        signal_id: One id of a name is taken once.
        value: Its bytes.
        is_parked: Whether a dead letter of the command parks its mailbox.
    """

    name: str
    signal_id: str
    value: bytes
    is_parked: bool = False


class CalledCommand(NamedTuple):
    """A command that a durable one called, whose outcome is awaited.

    Attributes:
        call: Name of the call in the side record of the caller.
        command_id: Id of the command that was called.
        mailbox: Name of that command's mailbox.
    """

    call: str
    command_id: str
    mailbox: str


Told = Literal["taken", "repeated", "ending", "gone", "full"]
"""`repeated` if it came before; `ending` if it is decided how the command ends: what it waits for ends all the same; `gone` if the command does not
wait in its mailbox any more; `full` if it takes no further signal of this name."""


class DurableCommands(Protocol):
    """Brings signals and wishes to durable commands, and reads what they have stored, from any process."""

    async def signal(self, mailbox: str, command_id: str, signal: SignalToBring) -> Told:
        """Bring a signal; it is kept until its command asks for it."""
        ...

    async def cancel(self, mailbox: str, command_id: str, wish: bytes) -> Told:
        """Bring the wish that a command ends."""
        ...

    async def look_up(self, mailbox: str, command_id: str, called: CalledCommand) -> bool:
        """Bring a command the outcome of a call that has ended, if that was lost on its way; return whether it was.

        Raises:
            CommandBusError: The server cannot be asked.
        """
        ...

    async def has_begun(self, mailbox: str, command_id: str) -> bool:
        """Return whether a command that runs or waits in this mailbox has stored something."""
        ...

    async def record(self, mailbox: str, command_id: str) -> Mapping[str, bytes]:
        """Return a side record; it is empty if there is none."""
        ...

    async def fields(self, mailbox: str, command_id: str, names: Sequence[str]) -> list[bytes | None]:
        """Return fields of a side record."""
        ...

    async def suspended(self, mailboxes: Sequence[str]) -> dict[str, SuspensionInfo]:
        """Return the suspended commands of these mailboxes, where one is."""
        ...

    async def orphans(self, most: int) -> list[str]:
        """Return ids of commands that have a side record, and no mark: they are not known. About so many keys of a shard are looked at."""
        ...
