"""Errors of the server, or of the way to it: it is away, unsuitable or full, or an operator's order stands against the request."""

from __future__ import annotations

from command_bus.errors.root import CommandBusError


class TransportUnavailable(CommandBusError):
    """The server could not be reached in time.

    Attributes:
        outcome_unknown: True if the request may have been applied; sending the same command id again is safe.
    """

    code = "transport_unavailable"
    retryable = True

    def __init__(self, message: str = "", *, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class Unconfirmed(CommandBusError):
    """The server has the command, but fewer replicas than required confirmed it in time."""

    code = "unconfirmed"
    retryable = True


class UnsuitableServer(CommandBusError):
    """The server may lose or corrupt queued work (too old, evicts keys, read-only …); the message says what to change.

    Attributes:
        outcome_unknown: True if the request may have been applied, in part or whole: the server answered with an error that is not known.
            Sending the same command id again is safe.
    """

    code = "unsuitable_server"

    def __init__(self, message: str = "", *, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class QueueFull(CommandBusError):
    """A depth limit (of the entity, the whole namespace, or the server's memory) refuses the command; it was not accepted.

    Attributes:
        retry_after: Seconds after which a new try is sensible.
        limit: Which limit: `"entity"`, `"total"`, `"entities"` (`max_entities`), `"memory"`, `"drain"` (see `Draining`), or `"predecessor"`
            when an earlier command of the same entity in the same batch was refused and this one must not overtake it.
    """

    code = "queue_full"
    retryable = True

    def __init__(self, message: str = "", *, retry_after: float = 1.0, limit: str = "entity") -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.limit = limit


class Draining(QueueFull):
    """An operator drains the entity, its type or the whole bus: nothing new is accepted until it is resumed."""

    code = "draining"

    def __init__(self, message: str = "", *, retry_after: float = 1.0, limit: str = "drain") -> None:
        super().__init__(message, retry_after=retry_after, limit=limit)


class UniqueKeyTaken(CommandBusError):
    """A call was not accepted: another command holds its unique key, and its reply goes to another caller.

    Attributes:
        other: The id of that command.
    """

    code = "unique_key_taken"
    retryable = True

    def __init__(self, message: str = "", *, other: str = "") -> None:
        super().__init__(message)
        self.other = other


class MayNotReplace(CommandBusError):
    """This user of the server may not take commands out of line, as a unique key needs whose latest command wins; nothing was changed."""

    code = "may_not_replace"


class NewerState(CommandBusError):
    """An entity is in a state that only a later release of this library knows. It was left as it is; that release can change it."""

    code = "newer_state"
