"""Deletion of a whole namespace, guarded by the few questions that should be asked before. Reached as `bus.entities.obliterate()`."""

from __future__ import annotations

from command_bus.admin.fleet import Fleet
from command_bus.errors import InvalidSettings, WorkersLive
from command_bus.session import Session
from command_bus.transport.mailboxes import EVERYTHING


async def obliterate(session: Session, confirm: str, *, force: bool) -> int:
    """See `Entities.obliterate`."""
    namespace = session.settings.namespace
    if confirm != namespace:
        raise InvalidSettings(
            f"confirm={confirm!r} is not the name of this namespace, which is {namespace!r}: nothing was deleted"
        )
    if not force:
        await _refuse_while_workers_live(session)
    transport = session.transport
    await transport.operator.holds.drain(EVERYTHING, "it is being obliterated")
    shards = range(transport.shards)
    deleted = 0
    for step in (transport.operator.obliteration.begin, transport.operator.obliteration.go_on):
        for shard in shards:
            deleted += await step(shard)
    for shard in reversed(shards):  # the first has `meta`
        deleted += await transport.operator.obliteration.end(shard)
    await session.close()
    return deleted


async def _refuse_while_workers_live(session: Session) -> None:
    """Refuse as long as a worker shows signs of life.

    Raises:
        WorkersLive: One does.
    """
    live = [worker for worker in await Fleet(session).workers() if worker.alive]
    if live:
        shown = ", ".join(f"{worker.name} on {worker.host}, process {worker.pid}" for worker in live[:3])
        more = f" and {len(live) - 3} more" if len(live) > 3 else ""
        raise WorkersLive(
            f"{len(live)} workers of namespace {session.settings.namespace!r} live ({shown}{more}): stop them, and what sends to it, then ask again; "
            "force=True deletes it under their hands",
            workers=tuple(worker.name for worker in live),
        )
