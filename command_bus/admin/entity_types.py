"""Entity types as the namespace knows them, and how the record of one is taken back. Reached as `bus.entities.types()` and `forget_type()`."""

from __future__ import annotations

from command_bus.admin.dead_letters import DeadLetters
from command_bus.admin.info import EntityTypeInfo
from command_bus.errors import EntityTypeInUse
from command_bus.session import Session
from command_bus.transport.mailboxes import mailbox_label, scope_of, type_scope


async def types_of(session: Session) -> list[EntityTypeInfo]:
    """Return the types that commands were sent to, or that were only paused or drained, by name."""
    found = await session.transport.operator.types.all()
    return [EntityTypeInfo(name, record.mailboxes) for name, record in found.items()]


async def forget_type(session: Session, entity_type: str) -> bool:
    """See `Entities.forget_type`."""
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
    if any(hold.scope == scope for hold in await session.transport.operator.holds.wide()):
        found.append("it is paused or drained: resume it")
    if found:
        raise EntityTypeInUse(
            f"entity type {entity_type!r} is in use: {'; '.join(found)}. Its record keeps two clients from running one entity's commands at once: "
            "let the work end, or purge it and its dead letters, then ask again",
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
        if scope_of(entity.mailbox) == scope
    ]
