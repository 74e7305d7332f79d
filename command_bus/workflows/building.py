"""`chain`, `group`, `node`: make a command of several. They need no bus: what a class says of its commands is packed here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, Union, cast, overload

from command_bus.errors import CommandBusError, InvalidCommand
from command_bus.messages.history import HistoryChoice, history_of
from command_bus.messages.limits import check_costs
from command_bus.messages.message import REPLY_TYPE, Command, Event, Message, Query, reply_of
from command_bus.messages.options import DispatchOptions
from command_bus.messages.policies import Priority
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.sending.envelope_builder import encoded_message
from command_bus.sending.options import give
from command_bus.serialization.envelope_options import HISTORY
from command_bus.serialization.limits import PayloadLimits
from command_bus.serialization.models import codec_for
from command_bus.spelling import shown
from command_bus.workflows.nodes import Failures, GroupCounts, NodeFailed, PackedNode

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
MOST_NODES: Final = 4_000
_LIMITS: Final = PayloadLimits()


@dataclass(frozen=True, slots=True)
class Node(Generic[R_co]):
    """A command of a chain or group with options of its own; see `node`."""

    command: Message[R_co]
    undo: Message[Any] | None = None
    takes: str | None = None
    options: DispatchOptions | None = None


def node(
    command: Message[R],
    *,
    undo: Message[Any] | None = None,
    takes: str | None = None,
    retry: RetryPolicy | None = None,
    attempt_timeout: float | None = None,
    priority: Priority | None = None,
    headers: Mapping[str, str] | None = None,
    history: HistoryChoice | None = None,
) -> Node[R]:
    """Return a node of a chain or group with options.

    Args:
        command: What is called.
        undo: A command that is sent if the workflow fails, and this one completed or failed after a start; in reverse order.
        takes: In a chain: the field that gets the result of the node before.
        retry: As for `CommandBus.dispatch`.
        attempt_timeout: As for `CommandBus.dispatch`.
        priority: As for `CommandBus.dispatch`.
        headers: As for `CommandBus.dispatch`.
        history: As for `CommandBus.dispatch`.
    """
    options: DispatchOptions = {
        "retry": retry, "attempt_timeout": attempt_timeout, "priority": priority, "headers": headers, "history": history
    }  # fmt: skip
    return Node(command, undo, takes, options)


class Chain(Command[Any], name="command_bus.Chain", durable=True):
    """The command of `chain`: its nodes, one after the other."""

    __slots__ = (REPLY_TYPE,)
    nodes: list[PackedNode]


if TYPE_CHECKING:

    class Group(Command[list[R]], Generic[R]):
        """The command of `group`. Its attributes are for the handler."""

        nodes: list[PackedNode]
        failures: Failures
        results: bool
        chord: PackedNode | None

        def then(self, command: Message[T] | Node[T], *, takes: str | None = None) -> Command[T]:
            """Return a command that calls this one once all others have ended; its reply is that of this one.

            Args:
                command: What comes after.
                takes: The field that gets the list of results.

            Raises:
                InvalidCommand: It cannot be called so.
            """
            ...

else:

    class Group(Command[Any], name="command_bus.Group", durable=True):
        """The command of `group`."""

        __slots__ = (REPLY_TYPE,)
        nodes: list[PackedNode]
        failures: Failures = "fail"
        results: bool = True
        chord: PackedNode | None = None

        def then(self, command: Message[T] | Node[T], *, takes: str | None = None) -> Command[T]:
            """Return a command that calls this one once all others have ended; its reply is that of this one."""
            after = command if isinstance(command, Node) else Node(command)
            after = after if takes is None else replace(after, takes=takes)
            chord = _packed(after, "the chord")
            made: Any = Group(nodes=self.nodes, failures=self.failures, results=self.results, chord=chord)
            return _replying(made, reply_of(after.command))


@overload
def chain(first: Message[R] | Node[R], /) -> Command[R]: ...
@overload
def chain(first: Message[Any] | Node[Any], second: Message[R] | Node[R], /) -> Command[R]: ...
@overload
def chain(first: Message[Any] | Node[Any], second: Message[Any] | Node[Any], third: Message[R] | Node[R], /) -> Command[R]: ...
@overload
def chain(
    first: Message[Any] | Node[Any],
    second: Message[Any] | Node[Any],
    third: Message[Any] | Node[Any],
    fourth: Message[R] | Node[R],
    /,
) -> Command[R]: ...
@overload
def chain(*nodes: Message[Any] | Node[Any]) -> Command[Any]: ...
def chain(*nodes: Message[Any] | Node[Any]) -> Command[Any]:
    """Return a command that calls these one after the other; its reply is that of the last.

    Each joins the end of its entity's line when its turn comes, with its own retries, and parks as it says. A node that is rejected rejects the
    chain with its code, any other end but a reply with the code `node_failed`; then what was done is undone.

    Raises:
        InvalidCommand: There is no node, more than 4,000, or one cannot be called so; the error has its number.
    """
    made: Command[Any] = _replying(Chain(nodes=_packed_all(nodes)), _reply_of(nodes[-1]))
    return made


@overload
def group(nodes: Iterable[Message[R] | Node[R]], *, failures: Literal["fail"] = ...) -> Group[R]: ...
@overload
def group(nodes: Iterable[Message[R] | Node[R]], *, failures: Literal["ignore"]) -> Group[R | NodeFailed]: ...
@overload
def group(
    nodes: Iterable[Message[Any] | Node[Any]], *, failures: Failures = ..., results: Literal[False]
) -> Command[GroupCounts]: ...
def group(nodes: Iterable[Message[Any] | Node[Any]], *, failures: Failures = "fail", results: bool = True) -> Any:
    """Return a command that calls these side by side; its reply is the list of theirs, in this order.

    Args:
        nodes: At most 4,000. For more, a durable handler calls groups of them.
        failures: `"fail"`: once all have ended, the first error in this order rejects the group, and what was done is undone. `"ignore"`: the list
            has a `NodeFailed` in that place.
        results: False: the reply counts them only, where the results together would be too large.

    Raises:
        InvalidCommand: As `chain`.
    """
    given = tuple(nodes)
    if failures not in ("fail", "ignore"):
        raise InvalidCommand(f"failures is 'fail' or 'ignore', not {shown(failures)}")
    made: Any = Group(nodes=_packed_all(given), failures=failures, results=results, chord=None)
    replies = tuple(dict.fromkeys([*map(_reply_of, given), *([NodeFailed] if failures == "ignore" else [])]))
    one: Any = cast("Any", Union)[replies]
    return _replying(made, list[one] if results else GroupCounts)


def _replying(made: Any, reply: Any) -> Any:
    """Return a workflow whose reply is of this type for who sends it."""
    object.__setattr__(made, REPLY_TYPE, reply)  # it is frozen
    return made


def _packed_all(nodes: tuple[Message[Any] | Node[Any], ...]) -> list[PackedNode]:
    if not 1 <= len(nodes) <= MOST_NODES:
        raise InvalidCommand(f"{len(nodes):,} nodes: 1 to {MOST_NODES:,}. For more, a durable handler calls groups of them")
    return [_packed(each, f"node {number}") for number, each in enumerate(nodes, 1)]


def _packed(given: Message[Any] | Node[Any], which: str) -> PackedNode:
    """Return a node as it travels.

    Raises:
        InvalidCommand: It cannot be called so; the error says which.
    """
    each = given if isinstance(given, Node) else Node(given)
    try:
        packed = _of_message(each.command, each.options or {})
        undoing = each.undo or _undo_of(each.command)
        undo = None if undoing is None else _of_message(undoing, {})
    except CommandBusError as error:
        raise InvalidCommand(f"{which}: {error.message}") from error
    fault = ""
    if each.takes is not None and each.takes not in type(each.command).model_fields:
        fault = f"{type(each.command).__qualname__} has no field {each.takes!r}, which is to take the result of what comes before"
    if undo is not None and isinstance(each.command, Query):
        fault = f"{type(each.command).__qualname__} is a query, and changes nothing that could be undone"
    if fault:
        raise InvalidCommand(f"{which}: {fault}")
    return packed.model_copy(update={"takes": each.takes, "undo": undo})


def _undo_of(command: Message[Any]) -> Message[Any] | None:
    """Return what undoes a workflow that is a node, once it has completed: the undos of its own nodes, in reverse.

    Raises:
        InvalidCommand: It will not be known which of its nodes have completed.
    """
    if not isinstance(command, Chain | Group):
        return None
    nodes = [*command.nodes, *([command.chord] if isinstance(command, Group) and command.chord is not None else [])]
    undos = [node.undo for node in reversed(nodes) if node.undo is not None]
    if undos and isinstance(command, Group) and command.failures == "ignore":
        raise InvalidCommand(
            'it is a group with failures="ignore" whose nodes have undos: give the group itself one, by node(…, undo=…)'
        )
    return Chain(nodes=undos) if undos else None


def _of_message(message: Message[Any], options: DispatchOptions) -> PackedNode:
    if not isinstance(message, Message):
        raise InvalidCommand(f"{shown(message)} is no command")
    if isinstance(message, Event):
        raise InvalidCommand(f"{type(message).__qualname__} is an event: let a handler publish it")
    spec = type(message).spec()
    if spec.unique is not None:
        raise InvalidCommand(f"{spec.name!r} has a unique key, which a call does not know")
    if spec.limits:
        check_costs(spec.limits, message)
    out = encoded_message(message, codec_for(type(message)), _LIMITS, at_most_once=spec.delivery == "at_most_once")
    kept = None if spec.history is None else history_of(spec.history)
    out = give(out, cast("DispatchOptions", {name: value for name, value in options.items() if value is not None}), kept)
    if (spec.history if options.get("history") is None else options.get("history")) is False:
        out.options[HISTORY.letter] = None  # not what the settings of the worker say
    return PackedNode(**PackedNode.facts_of(out))


def _reply_of(given: Message[Any] | Node[Any]) -> Any:
    return reply_of(given.command if isinstance(given, Node) else given)
