"""`send` and `call`: a command from JSON. It is checked before it is sent, by its class if there is one, else by the announced schema.

`publish`: the same for an event. The options of `send` for a unique key.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Argument, Option

from command_bus.cli import PROGRAM
from command_bus.cli.completion import command_names, event_names
from command_bus.cli.connection import on_bus
from command_bus.cli.options import Answer, PriorityName, Target, with_target
from command_bus.cli.output import to_json
from command_bus.cli.terminal import echo, print_error, usage_error
from command_bus.errors import InvalidCommand
from command_bus.messages.event import Published, PublishOptions
from command_bus.messages.message import Event, Message, is_internal
from command_bus.messages.options import CallOptions, DispatchOptions
from command_bus.messages.outgoing import RawEnvelope
from command_bus.messages.receipts import Receipt
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.messages.unique import Unique
from command_bus.spelling import did_you_mean, some_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from command_bus.bus import CommandBus
    from command_bus.serialization.announcements import CommandInfo

M = TypeVar("M", bound=Message[Any])


class Wins(StrEnum):
    """The winner of two commands of one key, as words of the command line."""

    FIRST = "first"
    LATEST = "latest"


class Until(StrEnum):
    """The time for which a key is held, as words of the command line."""

    SETTLED = "settled"
    STARTED = "started"


Key = Annotated[
    str | None,
    Option(
        "--unique",
        metavar="KEY",
        help="Fold the command with others of its entity that have this key; a class that names no key has its wire name.",
    ),
]
UniqueWins = Annotated[
    Wins | None,
    Option("--wins", help="With --unique: which command stays, the waiting one or this one.  [default: first]"),
]
UniqueUntil = Annotated[
    Until | None,
    Option("--until", help="With --unique: how long the key is held.  [default: settled; latest: started]"),
]
UniqueWindow = Annotated[float | None, Option("--window", help="With --unique: seconds for which the key is held besides.")]
Debounce = Annotated[
    float | None,
    Option("--debounce", help="With --wins latest: seconds without another one until it joins the line."),
]
MaxWait = Annotated[
    float | None,
    Option("--max-wait", help="With --debounce: most seconds that others put it off; with --extend: that they hold the key."),
]
Extend = Annotated[bool, Option("--extend", help="With --window: each command that is dropped begins the window again.")]


def unique_from(
    key: str | None,
    wins: Wins | None,
    until: Until | None,
    *,
    window: float | None,
    debounce: float | None,
    max_wait: float | None,
    extend: bool,
) -> Unique | None:
    """Return the unique key that the options name; None if they name none.

    Raises:
        typer.Exit: A value is wrong, or two do not go together.
    """
    given = {"--wins": wins, "--until": until, "--window": window, "--debounce": debounce, "--max-wait": max_wait}
    if key is None:
        if without := [name for name, value in (given | {"--extend": extend or None}).items() if value is not None]:
            raise usage_error(f"{without[0]} says how a unique key folds: name the key with --unique KEY")
        return None
    winner: Any = "first" if wins is None else wins.value
    end: Any = None if until is None else until.value
    try:
        return Unique(key, winner, end, window=window, debounce=debounce, max_wait=max_wait, extend=extend)
    except InvalidCommand as error:
        raise usage_error(error.message) from None


def receipt_text(receipt: Receipt[Any]) -> str:
    """Return a receipt as a line, with the other command of its key."""
    text = f"{receipt.command_id}: {receipt.status}"
    if receipt.other is None:
        return text
    return f"{text} {receipt.other}" if receipt.status == "replaced" else f"{text}, {receipt.other} has its unique key"


Name = Annotated[
    str,
    Argument(metavar="COMMAND", autocompletion=command_names, help="The command's wire name, as in `introspect`."),
]
Fields = Annotated[
    str | None,
    Argument(metavar="JSON", help="The command's fields: JSON, @FILE, or - for standard input [default: -]."),
]
CommandId = Annotated[
    str | None,
    Option("--command-id", help="Id that makes the command idempotent: a repeat does not run again."),
]
Headers = Annotated[
    list[str] | None, Option("--header", "-H", metavar="NAME=VALUE", help="Header of the command; may be repeated.")
]
Attempts = Annotated[int | None, Option(min=1, help="How often it may be started, instead of what its class says.")]
AttemptTimeout = Annotated[float | None, Option(help="Seconds that one attempt may take, instead of what its class says.")]
KeepEnd = Annotated[
    str | None,
    Option("--history", metavar="AGE", help="Keep the command's end in the history for this long: '30 days', '12 h'."),
]


Priority = Annotated[PriorityName | None, Option(help="Priority of the entity's turn [default: the command's].")]
Delay = Annotated[float, Option(min=0.0, help="Seconds until it joins its entity's mailbox.")]
Expires = Annotated[float | None, Option(help="Seconds after which it is no longer started.")]


@with_target
def send(
    command: Name,
    fields: Fields = None,
    *,
    command_id: CommandId = None,
    header: Headers = None,
    delay: Delay = 0.0,
    expires: Expires = None,
    priority: Priority = None,
    attempts: Attempts = None,
    attempt_timeout: AttemptTimeout = None,
    history: KeepEnd = None,
    unique: Key = None,
    wins: UniqueWins = None,
    until: UniqueUntil = None,
    window: UniqueWindow = None,
    debounce: Debounce = None,
    max_wait: MaxWait = None,
    extend: Extend = False,
    target: Target,
) -> Answer:
    """Dispatch a command, and exit when the server has accepted it.

    \b
    Exit codes: 0 accepted (or was before), 1 refused, 2 wrong usage or fields, 3 unknown whether it was accepted, 4 no server.
    """  # noqa: D301  # fmt: skip
    values, headers = fields_from(fields), headers_from(header)
    options = DispatchOptions(
        command_id=command_id,
        delay=delay,
        headers=headers,
        expires=expires,
        retry=_retry(attempts),
        attempt_timeout=attempt_timeout,
        history=history,
        priority=_priority(priority),
        unique=unique_from(unique, wins, until, window=window, debounce=debounce, max_wait=max_wait, extend=extend),
    )

    async def work(bus: CommandBus) -> Any:
        message = message_from_class(bus, command, values)
        if message is not None:
            return await bus.dispatch(message, **options)
        raw = await announced_fields(bus, command, values)
        return await bus.dispatch_raw(
            raw.entity_type, raw.entity_id, command, raw.payload, version=raw.version, others=raw.others,
            across_shards=raw.across_shards, **options,
        )  # fmt: skip

    receipt = on_bus(target, work, sends=True)
    return Answer(receipt, receipt_text(receipt))


@with_target
def call(
    command: Name,
    fields: Fields = None,
    *,
    command_id: CommandId = None,
    header: Headers = None,
    timeout: Annotated[
        float, Option(min=0.01, help="Seconds to wait; a command that has not started by then never starts.")
    ] = 30.0,
    priority: Priority = None,
    attempts: Attempts = None,
    attempt_timeout: AttemptTimeout = None,
    history: KeepEnd = None,
    target: Target,
) -> None:
    """Send a command or query, wait for it to be settled, and print its reply as JSON.

    \b
    Exit codes: 0 replied, 1 refused, rejected, failed or expired, 2 wrong usage or fields, 3 no outcome in time, 4 no server.
    """  # noqa: D301  # fmt: skip
    values, headers = fields_from(fields), headers_from(header)
    options = CallOptions(
        timeout=timeout,
        command_id=command_id,
        headers=headers,
        priority=_priority(priority),
        retry=_retry(attempts),
        attempt_timeout=attempt_timeout,
        history=history,
    )

    async def work(bus: CommandBus) -> Any:
        message = message_from_class(bus, command, values)
        if message is not None:
            return _reply_data(message, await bus.call(message, **options))
        raw = await announced_fields(bus, command, values)
        return await bus.call_raw(
            raw.entity_type, raw.entity_id, command, raw.payload, version=raw.version, others=raw.others,
            across_shards=raw.across_shards, **options,
        )  # fmt: skip

    echo(to_json(on_bus(target, work, sends=True)))


@with_target
def publish(
    event: Annotated[str, Argument(metavar="EVENT", autocompletion=event_names, help="The event's wire name.")],
    fields: Annotated[
        str | None, Argument(metavar="JSON", help="The event's fields: JSON, @FILE, or - for standard input [default: -].")
    ] = None,
    *,
    event_id: Annotated[
        str | None, Option("--event-id", help="Id that makes the event idempotent: no subscription gets a repeat.")
    ] = None,
    header: Headers = None,
    delay: Delay = 0.0,
    expires: Expires = None,
    priority: Priority = None,
    entity: Annotated[
        str | None, Option(metavar="TYPE:ID", help="Entity of an event that no worker has announced; nothing checks its fields.")
    ] = None,
    target: Target,
) -> Answer:
    """Publish an event, and exit when each subscription that is for it has it. One that none is for is gone.

    \b
    Exit codes: 0 published (or was before), 1 refused by all subscriptions or by some, 2 wrong usage or fields, 3 unknown whether it was
    accepted, 4 no server.
    """  # noqa: D301  # fmt: skip
    values, named = fields_from(fields), None if entity is None else _entity_from(entity)
    options = PublishOptions(
        event_id=event_id, delay=delay, headers=headers_from(header), expires=expires, priority=_priority(priority)
    )

    async def work(bus: CommandBus) -> Published:
        own = {kind.spec().name: kind for kind in bus.registry.messages() if issubclass(kind, Event)}
        message = _message_of(own, "event", event, values)
        if message is not None and named is None:
            return await bus.publish(message, **options)
        announced = await bus.fleet.events()
        if named is not None:
            if message is not None or event in {each.name for each in announced}:
                raise usage_error(f"a field of {event} has the id of its entity: leave out --entity")
            return await bus.publish_raw(*named, event, values, **options)
        raw = _read_fields(announced, event, values, "; --entity TYPE:ID publishes it unchecked")
        if raw.entity_type is None or raw.entity_id is None:
            raise usage_error(f"{event} is announced without an entity, which every event has")
        return await bus.publish_raw(raw.entity_type, raw.entity_id, event, raw.payload, version=raw.version, **options)

    published = on_bus(target, work, sends=True)
    names = ", ".join(published.subscriptions)
    told = f"published to {names}" if names else "no subscription is for it, so no one gets it"
    return Answer(published, f"{published.event_id}: {told}")


def _entity_from(given: str) -> tuple[str, str]:
    """Read an entity from `TYPE:ID`.

    Raises:
        typer.Exit: It has another form.
    """
    kind, _, entity_id = given.partition(":")
    if not kind or not entity_id:
        raise usage_error(f"--entity {given!r}: write TYPE:ID")
    return kind, entity_id


def fields_from(given: str | None) -> dict[str, Any]:
    """Read the fields of a command from JSON.

    Raises:
        typer.Exit: The text is no JSON object.
    """
    from command_bus.serialization.json_forms import read_json

    where = "the argument"
    try:
        if given is None or given == "-":
            if given is None and sys.stdin.isatty():
                given = "{}"
            else:
                where, given = "standard input", sys.stdin.read()
        elif given.startswith("@"):
            where, given = given, Path(given[1:]).read_text(encoding="utf-8")
        values = read_json(given or "{}")
    except OSError as error:
        raise usage_error(f"{where} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise usage_error(f"{where} is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise usage_error(f'{where}: the fields of a command are a JSON object, as in \'{{"account_id": "a-1"}}\'')
    return values


def headers_from(given: list[str] | None) -> dict[str, str] | None:
    """Read headers from `NAME=VALUE`; None for none.

    Raises:
        typer.Exit: One has another form.
    """
    pairs = [each.partition("=") for each in given or ()]
    if wrong := [name for name, equals, _ in pairs if not equals or not name]:
        raise usage_error(f"--header {wrong[0]!r}: write NAME=VALUE")
    return {name: value for name, _, value in pairs} or None


def _priority(given: PriorityName | None) -> Any:
    return None if given is None else given.value


def _retry(attempts: int | None) -> RetryPolicy | None:
    return None if attempts is None else RetryPolicy(attempts=attempts)


def message_from_class(bus: CommandBus, name: str, values: dict[str, Any]) -> Message[Any] | None:
    """Return the command as a message if the application has its class; else None.

    Raises:
        typer.Exit: Fields are wrong.
    """
    own = {handler.spec.name: handler.message_type for handler in bus.registry if handler.declared is None}
    return _message_of(own, "command", name, values)


def _message_of(known: Mapping[str, type[M]], what: str, name: str, values: dict[str, Any]) -> M | None:
    from command_bus.serialization.json_fields import message_from_json

    kind = None if is_internal(name) else known.get(name)
    if kind is None:
        if hint := did_you_mean(name, known):
            print_error(f"the application has no {what} {name}{hint}")
        return None
    try:
        return message_from_json(kind, name, values)
    except InvalidCommand as error:
        raise usage_error(error.message) from None


def _reply_data(message: Message[Any], reply: Any) -> Any:
    """Return a typed reply as the plain data that the worker sent, so that output is the same with and without the class."""
    from command_bus.serialization.models import reply_codec_for
    from command_bus.serialization.msgpack import unpack

    return unpack(reply_codec_for(type(message).spec().reply).encode(reply))


async def announced_fields(bus: CommandBus, name: str, given: dict[str, Any]) -> RawEnvelope:
    """Read the fields by the announced schema, and return the command with them, as they travel.

    Raises:
        typer.Exit: No worker announced the command, or fields are wrong.
    """
    announced = await bus.fleet.commands()
    if name not in {each.name for each in announced} and name in {each.name for each in await bus.fleet.events()}:
        raise usage_error(f"{name} is an event: `{PROGRAM} publish` publishes it")
    return _read_fields(announced, name, given)


def _read_fields(announced: Sequence[CommandInfo], name: str, given: dict[str, Any], otherwise: str = "") -> RawEnvelope:
    from command_bus.serialization.json_fields import JsonFields

    info = next((each for each in announced if each.name == name), None)
    if info is None:
        known = [each.name for each in announced]
        shown = f"{some_of(known)}{did_you_mean(name, known)}"
        raise usage_error(f"no worker has announced {name!r}, so it cannot be checked; announced are: {shown}{otherwise}")
    try:
        values = JsonFields(info.schema).read(name, given)
    except InvalidCommand as error:
        raise usage_error(error.message) from None
    if info.key is None:
        return RawEnvelope(None, None, name, values, info.version)
    if info.key not in values:  # the announced schema did not require it
        raise usage_error(f"{name}: {info.key} is missing")
    others, across = info.others(values), info.across_shards
    return RawEnvelope(info.entity, values[info.key], name, values, info.version, others=others, across_shards=across)
