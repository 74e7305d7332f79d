"""Entity types as the namespace knows them, and how the record of one is taken back. Reached as `bus.entities.types()` and `forget_type()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from command_bus.admin.dead_letters import DeadLetters
from command_bus.admin.info import EntityTypeInfo
from command_bus.errors import EntityTypeInUse
from command_bus.session import Session

if TYPE_CHECKING:
    from command_bus.admin.entities import Entities

__all__ = ["forget_type", "types_of"]


async def types_of(session: Session) -> list[EntityTypeInfo]:
    """The types that were sent to, or only paused or drained, by name."""
    found = await session.transport.types.all()
    return [EntityTypeInfo(name, record.mailboxes) for name, record in found.items()]


async def forget_type(session: Session, entities: Entities, entity_type: str) -> bool:
    """See `Entities.forget_type`; `entities` are those of the type."""
    records = session.transport.types
    record = (await records.all()).get(entity_type)
    if record is None:
        return False
    await _refuse_if_used(session, entities, entity_type)
    await records.remove(record)
    try:
        await _refuse_if_used(session, entities, entity_type)  # what came in between counts
    except EntityTypeInUse:
        await records.restore(record)
        raise
    session.transport.agreements.forget(entity_type)
    return True


async def _refuse_if_used(session: Session, entities: Entities, entity_type: str) -> None:
    """Refuse as long as anything of the type is stored.

    Raises:
        EntityTypeInUse: Something is.
    """
    found: list[str] = []
    page = await entities.list(limit=1)
    if page.entities:
        found.append(f"{page.matching:,} of its entities have work, or are paused or drained ({page.entities[0].name})")
    letters = [letter.id async for letter in DeadLetters(session).list(limit=1, entity_type=entity_type)]
    found += [f"there is a dead letter of it ({letter})" for letter in letters]
    if any(hold.entity_type == entity_type for hold in await entities.holds()):
        found.append("it is paused or drained: resume it")
    if found:
        raise EntityTypeInUse(
            f"entity type {entity_type!r} is in use: {'; '.join(found)}. Its record keeps two clients from running one entity's commands at once: "
            "let the work end, or purge it and its dead letters, then ask again",
            entity_type=entity_type,
        )
