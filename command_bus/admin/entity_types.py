"""Entity types as the namespace knows them, and how the record of one is taken back. Reached as `bus.entities.types()` and `forget_type()`."""

from __future__ import annotations

from datetime import datetime

from command_bus.admin.dead_letters import DeadLetters
from command_bus.admin.fleet import Fleet
from command_bus.admin.info import EntityTypeInfo
from command_bus.clock import duration_fault, milliseconds_of
from command_bus.errors import EntityTypeInUse, InvalidSettings, WorkersLive
from command_bus.session import Session
from command_bus.transport.mailboxes import EVERYTHING, mailbox_label, scope_label, scopes_of, type_scope


async def types_of(session: Session) -> list[EntityTypeInfo]:
    """Return the types that commands were sent to, or that were only paused or drained, by name."""
    found = await session.transport.operator.types.all()
    return [EntityTypeInfo(name, record.mailboxes) for name, record in found.items()]


async def forget_type(session: Session, entity_type: str) -> bool:
    """Forget a type as `Entities.forget_type` does."""
    records = session.transport.operator.types
    record = (await records.all()).get(entity_type)
    if record is None:
        return False
    await _refuse_if_used(session, entity_type)
    await records.remove(record)
    try:
        await _refuse_if_used(session, entity_type)  # what came in between counts
    except EntityTypeInUse:
        await records.restore(record)
        raise
    session.transport.agreements.forget(entity_type)
    return True


async def _refuse_if_used(session: Session, entity_type: str) -> None:
    """Refuse as long as anything of the type is stored.

    Raises:
        EntityTypeInUse: Something is.
    """
    found: list[str] = []
    scope = type_scope(entity_type)
    mailboxes = await _mailboxes_of(session, scope)
    if mailboxes:
        found.append(f"{len(mailboxes):,} of its entities have work, or are paused or drained ({mailbox_label(min(mailboxes))})")
    letters = [letter.id async for letter in DeadLetters(session).list(limit=1, entity_type=entity_type)]
    found += [f"there is a dead letter of it ({letter})" for letter in letters]
    async for states in session.transport.operator.states.pages(entity_type):
        if states:
            found.append(f"entities of it have a state ({mailbox_label(min(states))})")
            break
    if any(hold.what == scope_label(scope) for hold in await session.transport.operator.holds.wide()):
        found.append("it is paused or drained: resume it")
    if found:
        raise EntityTypeInUse(
            f"entity type {entity_type!r} is in use: {'; '.join(found)}. Its record keeps two clients from running one entity's commands at once: "
            "let the work end, or purge it, its dead letters and its states, then ask again",
            entity_type=entity_type,
        )


async def _mailboxes_of(session: Session, scope: str) -> list[str]:
    """Return the mailboxes of a type that have work, or are paused or drained themselves."""
    transport = session.transport
    return [
        entity.mailbox
        for shard in range(transport.shards)
        async for page in transport.operator.entities.pages(shard)
        for entity in page
        if scope in scopes_of(entity.mailbox)
    ]


async def pause_end(session: Session, until: datetime | float | None) -> int | None:
    """Return when a pause ends, in ms by the server's clock; None: never by itself.

    Raises:
        InvalidSettings: It is neither a moment with a time zone nor a number of seconds, or past.
    """
    if until is None:
        return None
    now_ms = await session.transport.operator.entities.now_ms()
    if isinstance(until, datetime):
        at = milliseconds_of("until", until)
        if at <= now_ms:
            raise InvalidSettings(f"until: a moment to come, not {until.isoformat()}")
        return at
    fault = duration_fault(until)
    if fault is not None:
        raise InvalidSettings(f"until {fault}, or a datetime with a time zone")
    return now_ms + max(1, int(until * 1000))


async def obliterate(session: Session, confirm: str, *, force: bool) -> int:
    """Delete the namespace as `Entities.obliterate` does."""
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
