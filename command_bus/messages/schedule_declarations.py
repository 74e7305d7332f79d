"""Schedules as code declares them: `registry.schedule("close-books", CloseBooks(ledger="main"), cron("0 2 * * *"))`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict, cast

from command_bus.errors import InvalidSettings
from command_bus.messages.message import Message
from command_bus.messages.options import DispatchOptions
from command_bus.messages.schedule_specs import Cron, Every, Missed, Overlap, SchedulePolicy, shortest_gap
from command_bus.spelling import shown

_LONGEST_NAME = 200


class ScheduleOptions(TypedDict, total=False):
    """Options of a schedule; see `SchedulePolicy`."""

    missed: Missed
    catch_up: float | None
    overlap: Overlap
    jitter: float
    start: datetime | None
    end: datetime | None
    max_runs: int | None
    immediately: bool


class PutOptions(ScheduleOptions, total=False):
    """Options of a schedule that is put: also of the command that each tick dispatches.

    Attributes:
        headers: Text that travels with each command.
        expires: Seconds behind its acceptance after which a command is not started any more.
    """

    headers: Mapping[str, str] | None
    expires: float | None


def split_options(options: PutOptions) -> tuple[SchedulePolicy, DispatchOptions]:
    """Return the rules of a schedule, and what concerns its command.

    Raises:
        InvalidSettings: A rule is not what it may be.
    """
    sending = DispatchOptions(headers=options.get("headers"), expires=options.get("expires"))
    rules = cast("ScheduleOptions", {name: value for name, value in options.items() if name not in sending})
    return SchedulePolicy(**rules), sending


@dataclass(frozen=True, slots=True)
class DeclaredSchedule:
    """A schedule that code declares, or that is being put.

    Attributes:
        name: Its name.
        command: What each tick dispatches; None: it has no class here.
        spec: Its times.
        policy: Its rules.
        revision: A higher one replaces what is stored; 0: put by hand.
    """

    name: str
    command: Message[Any] | None
    spec: Cron | Every
    policy: SchedulePolicy
    revision: int

    def __post_init__(self) -> None:
        checked_name(self.name)
        if self.command is not None and not isinstance(self.command, Message):
            raise InvalidSettings(
                f"command: an instance of a command's class, not {shown(self.command)}, for the schedule {self.name!r}"
            )
        if not isinstance(self.spec, Cron | Every):
            raise InvalidSettings(f'spec: cron("0 2 * * *") or every(30), not {shown(self.spec)}, for the schedule {self.name!r}')
        if self.policy.jitter and self.policy.jitter * 1000 >= (gap := shortest_gap(self.spec)):
            raise InvalidSettings(
                f"jitter: less than the {gap / 1000:g} s between two ticks, not {self.policy.jitter:g}, "
                f"for the schedule {self.name!r}: else ticks overtake each other"
            )
        if isinstance(self.revision, bool) or not isinstance(self.revision, int) or self.revision < 0:
            raise InvalidSettings(f"revision must be a whole number of at least 1, not {shown(self.revision)}")

    @property
    def kind(self) -> type[Message[Any]] | None:
        """The class of its command; None if it has none here."""
        return None if self.command is None else type(self.command)


def checked_name(name: object) -> str:
    """Return the name of a schedule.

    Raises:
        InvalidSettings: It is no text of 1 to 200 bytes without control characters.
    """
    if not isinstance(name, str) or not name or not name.isprintable():
        raise InvalidSettings(f'name: printable text, for example "close-books", not {shown(name)}')
    if len(name.encode()) > _LONGEST_NAME:
        raise InvalidSettings(f"name: at most {_LONGEST_NAME} bytes, this one has {len(name.encode())}")
    return name
