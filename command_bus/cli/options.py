"""Options that several commands share: `--url`, `--namespace` and `--app`, which form a `Target`, and `--json`, `--yes` and others.

The three options of a target may be given before or after the command's name. `with_target` adds them to a command and passes it one `Target`.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from typer import Argument, Context, Exit, Option, Typer

from command_bus.cli import PROGRAM
from command_bus.cli.lazy_commands import import_bus
from command_bus.cli.terminal import ExitCode, echo


class LogLevel(StrEnum):
    """Lowest level of records that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """Format of log records: lines for people, or one JSON object per line."""

    TEXT = "text"
    JSON = "json"


Url = Annotated[
    str | None,
    Option(help="Server [default: COMMAND_BUS_URL, REDIS_URL, or this project's `dev` server]."),
]
Namespace = Annotated[str | None, Option("--namespace", "-n", help="Namespace [default: COMMAND_BUS_NAMESPACE].")]
App = Annotated[
    str | None,
    Option(metavar="MODULE[:ATTRIBUTE]", help="Use the bus, classes and settings of an application."),
]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
Limit = Annotated[int, Option(min=1, help="How many to show.")]
Prefix = Annotated[
    str,
    Option(
        metavar="PATH",
        help="Path below which a proxy serves the pages, as /ops; X-Forwarded-Prefix of a --proxy counts more.",
    ),
]
Proxies = Annotated[
    list[str] | None,
    Option("--proxy", metavar="ADDRESS", help="Address or network of a proxy, whose headers are trusted."),
]
HostNames = Annotated[
    list[str] | None,
    Option("--name", metavar="HOST", help="Host name that requests may use; others are refused."),
]
Reason = Annotated[str, Option("--reason", "-m", help="A note that `entity` and `stats` show.")]
CommandIds = Annotated[list[str], Argument(metavar="ID", help="Command ids.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation.")]
PauseUntil = Annotated[str | None, Option("--until", metavar="TIME", help="End the pause at this time: 2026-12-01T09:00.")]
PauseFor = Annotated[str | None, Option("--for", metavar="TIME", help="End the pause after this time: 90s, 30m, 2h.")]
Level = Annotated[
    LogLevel | None,
    Option(help="Lowest level that is logged, to standard error [default: the bus's, info]."),
]
Format = Annotated[LogFormat, Option(help="Log lines for people, or one JSON object per line.")]
HealthPort = Annotated[
    int | None,
    Option(min=0, max=65535, help="Serve /healthz, /readyz and /metrics on this port; 0 takes any free one."),
]
HealthHost = Annotated[str, Option(help="Address to serve the health pages on.")]
StuckAfter = Annotated[
    float,
    Option(min=0.5, help="Seconds that the event loop may be blocked until /healthz fails."),
]
DryRun = Annotated[bool, Option("--dry-run", help="Only count, change nothing.")]


@dataclass(frozen=True)
class Target:
    """The server, namespace and application that a command works on; None where an option was not given."""

    url: str | None = field(default=None, repr=False)
    namespace: str | None = None
    app: str | None = None

    @classmethod
    def from_context(cls, context: Context) -> Target:
        """Read the target from the command line. An option after the command's name overrides one before it."""
        found: dict[str, str] = {}
        at: Any = context
        while at is not None:
            for name in ("url", "namespace", "app"):
                if at.params.get(name) is not None:
                    found.setdefault(name, at.params[name])
            at = at.parent
        return cls(**found)

    def command(self, *words: str) -> str:
        """Return a command line of this program for the same target, ready to paste. Passwords in the URL are masked."""
        from command_bus.server_urls import redacted

        url = None if self.url is None else redacted(self.url)
        given = (("--url", url), ("--namespace", self.namespace), ("--app", self.app))
        return shlex.join([PROGRAM, *words, *(word for option, value in given if value is not None for word in (option, value))])


def accept_target_options(context: Context, *, url: Url = None, namespace: Namespace = None, app: App = None) -> None:
    """Accept the options of a target before a command's name, where `Target.from_context` finds them."""


def command_group(summary: str) -> Typer:
    """Return a group of commands, such as `dlq`, that accepts the options of a target."""
    return Typer(callback=accept_target_options, add_completion=False, rich_markup_mode=None, no_args_is_help=True, help=summary)


class Answer(NamedTuple):
    """The answer of a command that has `--json`.

    Attributes:
        data: What `--json` prints.
        text: What is printed for people: a line or table, or several, which are made only then.
        done: Whether the exit code is 0.
        code: The exit code else.
    """

    data: Any
    text: str | Iterable[str]
    done: bool = True
    code: ExitCode = ExitCode.FAILED

    def show(self, *, as_json: bool) -> None:
        """Show the answer.

        Raises:
            typer.Exit: It was not done.
        """
        from command_bus.cli.output import to_json

        text = to_json(self.data) if as_json else self.text
        for line in (text,) if isinstance(text, str) else text:
            echo(line)
        if not self.done:
            raise Exit(self.code)


def outcome(name: str, result: str, *, done: bool = True) -> Answer:
    """Answer with the result of a change to one thing."""
    return Answer({"name": name, "result": result}, f"{name}: {result}", done)


def with_target(command: Callable[..., Answer | None]) -> Callable[..., None]:
    """Add the options of a target to a command, and pass them as its argument `target`. One that returns an `Answer` has `--json`, too."""
    signature = inspect.signature(command, eval_str=True)
    options = inspect.signature(accept_target_options, eval_str=True).parameters
    own = [each for each in signature.parameters.values() if each.name != "target"]
    if signature.return_annotation is Answer:
        own.append(inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json))
    parameters = [options["context"], *own, *(options[name] for name in ("url", "namespace", "app"))]

    def run(context: Context, **given: Any) -> None:
        target = Target.from_context(context)
        if target.app is None:
            import_bus()
        answer = command(target=target, **{name: value for name, value in given.items() if name in signature.parameters})
        if answer is not None:
            answer.show(as_json=given["as_json"])

    return _described_as(run, command, signature.replace(parameters=parameters))


def with_options(argument: str, make: Callable[..., Any]) -> Callable[[Callable[..., Answer | None]], Callable[..., Any]]:
    """Return a decorator that adds the options of a function to a command, and passes what the function returns as one argument.

    Args:
        argument: The command's parameter; `--help` lists the options in its place.
        make: Its keyword parameters are the options.
    """
    options = inspect.signature(make, eval_str=True).parameters

    def decorate(command: Callable[..., Answer | None]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)
        parameters = [
            found for each in signature.parameters.values() for found in (options.values() if each.name == argument else (each,))
        ]

        def run(*words: Any, **given: Any) -> Answer | None:
            made = make(**{name: given.pop(name) for name in options})
            return command(*words, **{argument: made}, **given)

        return _described_as(run, command, signature.replace(parameters=parameters))

    return decorate


def entity_type_named(word: str) -> str | None:
    """Return the entity type that a word of the command line names: None for `~`, the commands without an entity."""
    return None if word == "~" else word


def _described_as(run: Callable[..., Any], command: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    """Give a function the name and help of a command, and a signature, which typer reads."""
    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    run.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


class PriorityName(StrEnum):
    """The priorities, as words of the command line."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Action(StrEnum):
    """Actions on one entity."""

    SHOW = "show"
    PAUSE = "pause"
    RESUME = "resume"
    PRIORITIZE = "prioritize"
    DRAIN = "drain"
    PURGE = "purge"
    ABORT = "abort"
    FORGET = "forget"
    KEYS = "keys"
