"""Errors of what operators ask for."""

from __future__ import annotations

from command_bus.errors.root import CommandBusError


class EntitiesStopped(CommandBusError):
    """`wait_idle` cannot end by itself: entities are paused or parked.

    Attributes:
        entities: Their names, at most a hundred.
    """

    code = "entities_stopped"

    def __init__(self, message: str = "", *, entities: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.entities = entities


class EntityTypeInUse(CommandBusError):
    """The record of an entity type cannot be taken back: something of it is stored; the message says what."""

    code = "entity_type_in_use"

    def __init__(self, message: str = "", *, entity_type: str = "") -> None:
        super().__init__(message)
        self.entity_type = entity_type


class WorkersLive(CommandBusError):
    """A namespace is not deleted as long as workers of it live.

    Attributes:
        workers: Their names.
    """

    code = "workers_live"
    retryable = True

    def __init__(self, message: str = "", *, workers: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.workers = workers


class IdleTimeout(CommandBusError, TimeoutError):
    """`wait_idle` waited its time and there is still work; `depth` says how many commands."""

    code = "idle_timeout"
    retryable = True

    def __init__(self, message: str = "", *, depth: int = 0) -> None:
        super().__init__(message)
        self.depth = depth
