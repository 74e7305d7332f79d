"""Translation of redis-py's errors into the bus's.

An error says either that the request *certainly was not applied* (refused before it ran), or it is *ambiguous* (the connection broke
after it was sent). Only requests that may run twice are repeated after an ambiguous error.
"""

from __future__ import annotations

from redis import exceptions as redis_errors

from command_bus.errors import CommandBusError, QueueFull, TransportUnavailable, UnsuitableServer

CONNECTION_ERRORS = (redis_errors.RedisError, OSError, TimeoutError)
"""The errors that redis-py raises for a request that did not succeed."""


class CutOff(redis_errors.ConnectionError):
    """The connection ended while a request was under way: it may have been applied."""


class NotPrimary(redis_errors.ConnectionError):
    """The server is not the primary (any more), so the connection to it was ended. `said` is the server's error."""

    def __init__(self, said: redis_errors.ResponseError) -> None:
        super().__init__(f"{type(said).__name__}: {said}")
        self.said = said


_BUSY = ("LOADING", "BUSY", "MISCONF", "NOREPLICAS", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "MAX NUMBER OF CLIENTS")
_BUSY_ERRORS = (  # in a pipeline the code is cut off the text
    redis_errors.BusyLoadingError,
    redis_errors.ClusterDownError,
    redis_errors.MasterDownError,
    redis_errors.TryAgainError,
)


def translated(error: BaseException, where: str, *, writes: bool = False) -> CommandBusError:
    """Return the typed error for one of redis-py's; `where` names the server without its password.

    `writes` marks a script, which writes in several steps: an unexpected error of it may have come after some of them.
    """
    text = str(error).removesuffix(".")  # it becomes a part of a sentence
    upper = _inner(error)
    if isinstance(error, redis_errors.OutOfMemoryError) or upper.startswith("OOM"):
        return QueueFull(f"{where} is at its memory limit (maxmemory): it refuses new commands until work drains", limit="memory")
    if isinstance(error, redis_errors.AuthenticationError) or upper.startswith(("NOAUTH", "WRONGPASS")) or _is_denied(error):
        return UnsuitableServer(f"{where} refuses this user: {text}. Check user and password in the URL, and the user's ACL")
    if isinstance(error, NotPrimary) or is_read_only(error):
        return _of_no_primary(error, where)
    if upper.startswith(("MOVED", "CROSSSLOT", "ASK ")):
        return UnsuitableServer(f"{where} is a node of a Redis Cluster, given as a single server: {text}")
    if "NOGROUP" in upper:
        return TransportUnavailable(f"{where}: the ready stream or its group was deleted; a worker creates them again")
    if upper.startswith("UNBLOCKED"):
        return TransportUnavailable(f"{where} let go of a request that waited: {text}", outcome_unknown=True)
    if isinstance(error, _BUSY_ERRORS) or upper.startswith(_BUSY):
        return TransportUnavailable(f"{where} is not ready: {text}")
    if (fault := _tls_fault(upper)) is not None:
        return UnsuitableServer(f"{where} {fault} ({text})")
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError):
        refused = _never_sent(error)
        hint = (
            ". Nothing listens there: is the server started, and are host and port right?"
            if "connect call failed" in text.lower()
            else ""
        )
        text = text or type(error).__name__
        return TransportUnavailable(f"{where} cannot be reached: {text}{hint}", outcome_unknown=not refused)
    return UnsuitableServer(f"{where} {_unexpected(text)}", outcome_unknown=writes)


def _unexpected(text: str) -> str:
    if text.startswith("WRONGTYPE"):
        return (
            f"has a value of another type where this library keeps its own: {text}. Something else wrote a key of the namespace; "
            "`command-bus doctor` names odd values"
        )
    return f"answered with an error that this library does not expect: {text}"


def _of_no_primary(error: BaseException, where: str) -> TransportUnavailable:
    said = error.said if isinstance(error, NotPrimary) else error
    if is_read_only(said):
        return TransportUnavailable(f"{where} is a read-only replica (now): if it stays one, connect to the primary")
    return TransportUnavailable(f"{where} is not the primary any more: {said}", outcome_unknown=was_unblocked(said))


def is_read_only(error: BaseException) -> bool:
    """Return whether a replica refused to write."""
    return isinstance(error, redis_errors.ReadOnlyError) or _inner(error).startswith("READONLY")


def is_redirect(error: BaseException) -> bool:
    """Return whether a node of a Redis Cluster answered that another node has the slot. Such a node has applied nothing.

    redis-py before 6 knows no redirections outside of its own cluster client: there they are plain errors.
    """
    if isinstance(error, NotPrimary):
        error = error.said
    return isinstance(error, redis_errors.MovedError | redis_errors.AskError) or str(error).startswith(("MOVED ", "ASK "))


def was_unblocked(error: BaseException) -> bool:
    """Return whether a request was blocked at a primary that became a replica."""
    return "instance state changed" in str(error)


def _inner(error: BaseException) -> str:
    """Return the server's error in capitals. Before Redis 7, an error inside a script begins with its place in the script."""
    return str(error).upper().rpartition(": -")[2]


def is_not_permitted(error: CommandBusError) -> bool:
    """Return whether a request failed because the user lacks a right."""
    return error.__cause__ is not None and _is_denied(error.__cause__)


def _is_denied(error: BaseException) -> bool:
    """Return whether an ACL refused a request, or a command of a script."""
    denials = ("NOPERM", "ACL FAILURE IN SCRIPT", "THE USER EXECUTING THE SCRIPT CAN'T")
    return isinstance(error, redis_errors.NoPermissionError) or _inner(error).startswith(denials)


def is_of_a_value(error: BaseException) -> bool:
    """Return whether what was stored made a request fail, or its answer be unreadable: without that value others succeed."""
    if not isinstance(error, CommandBusError):
        return isinstance(error, Exception) and not isinstance(error, OSError)
    cause = error.__cause__
    if not isinstance(error, UnsuitableServer) or not isinstance(cause, redis_errors.ResponseError):
        return False
    return not (_is_denied(cause) or _inner(cause).startswith(_OF_THE_SERVER))


_OF_THE_SERVER = ("NOAUTH", "WRONGPASS", "MOVED", "CROSSSLOT", "ASK ", "UNKNOWN COMMAND")


def is_of_a_replica(error: CommandBusError) -> bool:
    """Return whether a request failed because a replica refused to write."""
    cause = error.__cause__
    return cause is not None and is_read_only(cause.said if isinstance(cause, NotPrimary) else cause)


_TLS_FAULTS = {  # as OpenSSL words them; asking again would not help
    "CERTIFICATE_VERIFY_FAILED": "has a certificate that is not trusted: check tls_ca, and that the URL names the certificate's host",
    "CERTIFICATE_REQUIRED": "wants a certificate of its clients: set tls_cert and tls_key",
    "WRONG_VERSION_NUMBER": "does not speak TLS: use redis:// or give its TLS port",
    "UNKNOWN_CA": "does not trust this client's certificate: tls_cert is of another authority than the server's",
    "HANDSHAKE_FAILURE": "and this client have no version or cipher of TLS in common, or it wants a certificate (tls_cert, tls_key)",
}


def _tls_fault(upper: str) -> str | None:
    """Return what is wrong with a TLS connection, from redis-py's wording of OpenSSL's error."""
    if "SSL" not in upper:
        return None
    return next((fault for sign, fault in _TLS_FAULTS.items() if sign in upper), None)


def _never_sent(error: BaseException) -> bool:
    """Return whether the connection was never made, so that nothing can have been applied."""
    if isinstance(error, CutOff):  # whatever else its waiter was busy with
        return False
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ConnectionRefusedError | FileNotFoundError):
            return True
        seen = seen.__cause__ or seen.__context__
    text = str(error)
    return "connecting to" in text or "Connection refused" in text
