"""`entity TYPE ID abort`: asks, ends the attempt that runs, and says in words what came of it."""

from __future__ import annotations

import getpass
import socket
from typing import TYPE_CHECKING

import typer

from command_bus.cli import PROGRAM
from command_bus.cli.connection import Place, confirm_or_exit, connected, execute
from command_bus.cli.json_output import plainly
from command_bus.cli.process.options import Outcome
from command_bus.cli.terminal import print_error, say

if TYPE_CHECKING:
    from command_bus.admin.info import AbortReport, EntityDetails

__all__ = ["abort"]

_RISK = " If its handler cannot be ended, it goes on beside its successor."


def abort(
    place: Place, entity_type: str, entity_id: str, *, reason: str, wait: float, force: bool, yes: bool, as_json: bool
) -> None:
    """See `command-bus entity`.

    Raises:
        typer.Exit: Nothing was ended; the code says why.
    """
    name = f"{entity_type}:{entity_id}"

    async def look() -> EntityDetails:
        async with connected(place) as bus:
            return await bus.entity(entity_type, entity_id).show(waiting=0)

    async def act() -> AbortReport:
        async with connected(place) as bus:
            return await bus.entity(entity_type, entity_id).abort(reason, by=_who(), wait=wait, force=force)

    if not yes:
        question = _question(execute(look))
        if question is None:
            print_error(f"{name}: nothing runs, so nothing was ended")
            raise typer.Exit(Outcome.FAILED)
        confirm_or_exit(question + (_RISK if force else ""), yes=yes)
    report = execute(act)
    if as_json:
        say(plainly(report))
    elif report.result == "ended":
        say(f"{report.entity}: {_told(report)}")
    else:
        print_error(f"{report.entity}: {_told(report)}")
    if report.result != "ended":
        raise typer.Exit(Outcome.UNKNOWN if report.result == "unanswered" else Outcome.FAILED)


def _who() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user without a name, in a container
        return socket.gethostname()


def _question(found: EntityDetails) -> str | None:
    """What is asked before; None if nothing runs."""
    from command_bus.cli.output import duration

    entity, head = found.entity, found.head
    if entity.state != "running" or head is None:
        return None
    return (
        f"End attempt {entity.attempt} of {head.name} {head.command_id}, which has run for {duration(entity.running_for)} on worker {entity.worker}?"
        " It counts as interrupted: another attempt follows, or a dead letter if this was its last."
    )


def _told(report: AbortReport) -> str:
    from command_bus.cli.output import duration

    where = f"{report.host}, process {report.pid}" if report.pid is not None else "not known where"
    attempt = f"attempt {report.attempt} of {report.name} {report.command_id}"
    what = f"{attempt}, which had run for {duration(report.running_for)} on worker {report.worker} ({where})"
    match report.result:
        case "ended":
            return f"ended {what}. {_FOLLOWS[report.again]}"
        case "finished":
            return f"{what}, ended by itself, or its worker was lost: nothing was aborted"
        case "nothing":
            return "nothing runs, so nothing was ended"
        case "runs_on" if report.in_thread:
            return (
                f"{attempt} still runs: its handler is in a thread, which nothing can stop. It has been told (context.cancelled), and its entity "
                f"waits for its end. --force gives the entity up beside it, restarting worker {report.worker} ({where}) ends it"
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
