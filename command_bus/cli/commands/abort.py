"""`entity TYPE:ID abort`: ask, end the attempt that runs, and report the result in a sentence."""

from __future__ import annotations

import getpass
import socket
from typing import TYPE_CHECKING

from typer import Exit

from command_bus.cli import PROGRAM
from command_bus.cli.connection import on_bus
from command_bus.cli.options import Target
from command_bus.cli.output import format_duration, to_json
from command_bus.cli.terminal import ExitCode, confirm_or_exit, echo, failure, print_error

if TYPE_CHECKING:
    from command_bus.admin.info import AbortReport, EntityDetails

_RISK = " If its handler cannot be ended, it goes on beside its successor."


def abort(
    target: Target, entity_type: str, entity_id: str, *, reason: str, wait: float, force: bool, yes: bool, as_json: bool
) -> None:
    """Run `command-bus entity TYPE:ID abort`.

    Raises:
        typer.Exit: Nothing was ended; the exit code says why.
    """
    name = f"{entity_type}:{entity_id}"

    if not yes:
        question = _question(on_bus(target, lambda bus: bus.entity(entity_type, entity_id).show(waiting=0)))
        if question is None:
            raise failure(f"{name}: nothing runs, so nothing was ended")
        confirm_or_exit(question + (_RISK if force else ""), yes=yes)
    report = on_bus(target, lambda bus: bus.entity(entity_type, entity_id).abort(reason, by=_operator(), wait=wait, force=force))
    if as_json:
        echo(to_json(report))
    elif report.result == "ended":
        echo(f"{report.entity}: {_result_sentence(report)}")
    else:
        print_error(f"{report.entity}: {_result_sentence(report)}")
    if report.result != "ended":
        raise Exit(ExitCode.UNKNOWN if report.result == "unanswered" else ExitCode.FAILED)


def _operator() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user without a name, in a container
        return socket.gethostname()


def _question(found: EntityDetails) -> str | None:
    """Return the question to ask first; None if nothing runs."""
    entity, head = found.entity, found.head
    if entity.state != "running" or head is None:
        return None
    attempt = f"attempt {entity.attempt} of {head.name} {head.command_id}"
    return (
        f"End {attempt}, which has run for {format_duration(entity.running_for)} on worker {entity.worker}?"
        " It counts as interrupted: another attempt follows, or a dead letter if this was its last."
    )


def _result_sentence(report: AbortReport) -> str:
    where = f"{report.host}, process {report.pid}" if report.pid is not None else "unknown host"
    attempt = f"attempt {report.attempt} of {report.name} {report.command_id}"
    what = f"{attempt}, which had run for {format_duration(report.running_for)} on worker {report.worker} ({where})"
    match report.result:
        case "ended":
            return f"ended {what}. {_FOLLOWS[report.again]}"
        case "finished":
            return f"{what}, ended by itself, or its worker was lost: nothing was aborted"
        case "nothing":
            return "nothing runs, so nothing was ended"
        case "runs_on" if report.in_thread:
            return (
                f"{attempt} still runs: its handler is in a thread, which nothing can stop. context.cancelled is set, and its entity waits "
                f"for its end. --force gives the entity up beside it, restarting worker {report.worker} ({where}) ends it"
            )
        case "runs_on":
            return (
                f"{attempt} still runs: its handler has been cancelled and goes on. --force gives the entity up beside it, restarting worker "
                f"{report.worker} ({where}) ends it"
            )
        case "blocked":
            return (
                f"{attempt} cannot be ended: the event loop of its worker is blocked at {report.where}. It is cancelled when the loop goes on; "
                f"else restart worker {report.worker} ({where})"
            )
        case _:
            return (
                f"no answer in time from worker {report.worker} ({where}): {attempt} may still be ended. The worker is of an earlier release, "
                f"stopped or cut off; look again with `{PROGRAM} entity`, or restart it"
            )


_FOLLOWS = {
    True: "It is started again, as its next attempt",
    False: "It is a dead letter now (interrupted): see `command-bus dlq list --reason interrupted`",
    None: "It is started again if it has attempts left, else it is a dead letter (interrupted)",
}
