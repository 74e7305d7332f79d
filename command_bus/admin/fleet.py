"""The workers of a namespace and the commands that they handle; reached as `bus.fleet`."""

from __future__ import annotations

from command_bus.messages.message import is_internal
from command_bus.serialization.announcements import CommandInfo, WorkerStatus, read_description, worker_statuses
from command_bus.session import OnSession


class Fleet(OnSession):
    """The workers of a namespace and the commands that they announce."""

    async def workers(self) -> list[WorkerStatus]:
        """Return the workers, live ones first. A lost worker is listed for an hour (for ten leases, if that is longer).

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        return worker_statuses(await self._transport.announcements.workers())

    async def commands(self) -> list[CommandInfo]:
        """Return the live registry: the announced commands by wire name, with the live workers that handle each. Events are not among them.

        A command that no live worker handles is in it as long as the namespace is, with no workers.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        return [each for each in await self._announced() if each.kind != "event"]

    async def events(self) -> list[CommandInfo]:
        """Return the events that the workers announce, by wire name.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        return [each for each in await self._announced() if each.kind == "event"]

    async def _announced(self) -> list[CommandInfo]:
        live = [worker for worker in await self.workers() if worker.alive]
        found: list[CommandInfo] = []
        for name, record in sorted((await self._transport.announcements.commands()).items()):
            info = read_description(name, record, tuple(worker.name for worker in live if name in worker.commands))
            if info is not None and not is_internal(name):
                found.append(info)
        return found

    async def command(self, name: str) -> CommandInfo | None:
        """Return one of them, or None."""
        return next((each for each in await self.commands() if each.name == name), None)
