"""`Act`: something that an operator may do. It is planned to be asked for, and planned again before it is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from command_bus.dashboard.users import Role
from command_bus.dashboard.visit import Fields, Visit

T = TypeVar("T")
_LONGEST = 500


class Input(NamedTuple):
    """A field that an act asks for besides the reason.

    Attributes:
        name: What the field is called.
        label: For people.
        kind: Its form: `text`, `number`, `choice` or `json`.
        value: What stands in it at first.
        choices: Values and labels of a choice.
        hint: What may be written.
    """

    name: str
    label: str
    kind: str = "text"
    value: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of an act: what it would do now.

    Attributes:
        target: To what, for people and the audit log.
        says: What will happen, in sentences.
        back: The address of the page to go to afterwards.
        keeps: Fields of the form that name what it is done to.
        inputs: Further fields.
        typed: What has to be typed to confirm it; empty: nothing.
        counts: How much of what, for a table.
        details: For the audit log.
        nothing: Why there is nothing to do; empty: there is.
        total: The number of things, of an act on many.
        further: The address of the same page for what was not looked at; empty: all was.
    """

    target: str
    says: str
    back: str
    keeps: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[Input, ...] = ()
    typed: str = ""
    counts: tuple[tuple[str, int], ...] = ()
    details: str = ""
    nothing: str = ""
    total: int = 0
    further: str = ""


class Part(NamedTuple):
    """A part of an act on many things that is done. The rest follows, unless somebody stops.

    Attributes:
        text: What came of it.
        done: How many were changed, by this part and those before.
        keeps: Fields of the form that goes on.
    """

    text: str
    done: int
    keeps: Mapping[str, str]


Planning = Callable[[Visit, Fields], Awaitable[Plan]]
"""Says what an act would do, given the fields of the address or form."""
Performing = Callable[[Visit, Fields], Awaitable[str | Part]]
"""Does it, given the fields; says what came of it, or of its first part."""


class Act(NamedTuple):
    """Something that may be done.

    Attributes:
        title: On its button, and as the audit log has it.
        role: Who may do it.
        plan: Says what it would do.
        perform: Does it.
        is_grave: Whether something is lost by it.
    """

    title: str
    role: Role
    plan: Planning
    perform: Performing
    is_grave: bool = False


def reason_of(fields: Fields) -> str:
    """Return the reason that a form gives, in one line."""
    return " ".join(fields["why"].split())[:_LONGEST]


PART = ("done", "total", "said")
"""Fields of the part before. Only the dashboard can have written them: the form has them signed."""


def number_in(fields: Fields, name: str) -> int:
    """Return a number of the part before; 0 if there was none."""
    return int(fields[name] or 0)


def signed(visit: Visit, fields: Fields) -> str:
    """Return the reason with the name of who gives it."""
    return f"{reason_of(fields)} ({visit.user.name})"


def changing(
    named: Callable[[Visit, Fields], tuple[T, str]],
    change: Callable[[T, Visit, Fields], Awaitable[bool]],
    done: str,
    otherwise: str,
) -> Performing:
    """Return what performs an act that may find nothing to change.

    Args:
        named: Returns what the fields name, and its name for people.
        change: Changes it; returns whether that was needed.
        done: What stands behind the name if it was.
        otherwise: What stands there if it was not.
    """

    async def perform(visit: Visit, fields: Fields) -> str:
        target, label = named(visit, fields)
        return label + (done if await change(target, visit, fields) else otherwise)

    return perform
