"""The options of an envelope: what a sender asks for one command alone.

A reader that meets a letter which it does not know treats the envelope as one of a later version. So a later release that has more to say of
something takes another letter, and this one leaves such commands to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from command_bus.clock import LONGEST, checked_seconds, duration_fault
from command_bus.errors import InvalidCommand, InvalidSettings
from command_bus.messages.history import MOST_KEPT, History
from command_bus.messages.message import MOST_ENTITIES, MOST_VERSION
from command_bus.messages.outgoing import Across
from command_bus.messages.policies import Priority
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.serialization.limits import ZLIB
from command_bus.spelling import shown

T = TypeVar("T")


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class EnvelopeOption(Generic[T]):
    """An option of an envelope.

    Attributes:
        letter: Its key in the map of options.
        name: What it is, as `docs/wire-format.md` calls it.
        default: The value of an envelope without it.
        check: Tells whether what travelled may be read.
        pack: Makes of a value what travels.
        read: Makes of what travelled a value.
    """

    letter: str
    name: str
    default: T
    check: Callable[[Any], bool]
    pack: Callable[[Any], Any] = _same
    read: Callable[[Any], T] = _same

    def of(self, options: Mapping[str, Any] | None) -> T:
        """Return its value in the options of an envelope."""
        return self.read(options[self.letter]) if options and self.letter in options else self.default

    def put(self, options: dict[str, Any], value: object) -> None:
        """Add a value to options, unless it is the default.

        Raises:
            InvalidCommand: It is not what it may be, or does not travel.
        """
        if value != self.default:
            options[self.letter] = self.pack(value)

    def replaced(self, options: Mapping[str, Any] | None, value: object) -> dict[str, Any] | None:
        """Return the options with another value of it; None if there are none."""
        others = {letter: other for letter, other in (options or {}).items() if letter != self.letter}
        self.put(others, value)
        return others or None


_USUAL = RetryPolicy()
_FIELDS = ("delay", "backoff", "factor", "max_delay", "jitter", "delays")
_MOST_DELAYS = 50  # an envelope has no longer arrays than 64


def _packed_retry(retry: Any) -> dict[str, Any]:
    if not isinstance(retry, RetryPolicy):
        raise InvalidCommand(f"retry is a RetryPolicy, not {shown(retry)}")
    if callable(retry.backoff):
        raise InvalidCommand(
            "retry: a function of backoff does not travel with a command; give the class one, or delays=(…) here"
        )
    if (retry.retry_on, retry.give_up_on) != (_USUAL.retry_on, _USUAL.give_up_on):
        raise InvalidCommand(
            "retry: exception types do not travel with a command; retry_on and give_up_on of its class apply, or of its entity type"
        )
    if retry.delays is not None and len(retry.delays) > _MOST_DELAYS:
        raise InvalidCommand(f"retry: at most {_MOST_DELAYS} delays travel with a command, not {len(retry.delays)}")
    given = {name: getattr(retry, name) for name in _FIELDS}
    return {"attempts": retry.attempts} | {name: value for name, value in given.items() if value != getattr(_USUAL, name)}


def _read_retry(value: Any) -> RetryPolicy | None:
    if type(value) is not dict or not value.keys() <= {"attempts", *_FIELDS}:
        return None
    try:
        policy = RetryPolicy(**value)
    except (InvalidSettings, TypeError, ValueError):
        return None
    return policy if policy.delays is None or len(policy.delays) <= _MOST_DELAYS else None


_MOST_CALLERS = 15
_LONGEST_CHAIN = 32
_MOST_BYTES = 1024
_CALLER_MAILBOX = re.compile(r"[!-~]{1,2048}")
_CHAIN_MAILBOX = re.compile(r"[!-{}~]{1,2048}")
_ACTIVATION = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


def _fits(pattern: re.Pattern[str], value: object) -> bool:
    return type(value) is str and pattern.fullmatch(value) is not None


def _are_callers(value: Any) -> bool:
    return (
        type(value) is dict
        and 1 <= len(value) <= _MOST_CALLERS
        and all(_fits(_CALLER_MAILBOX, mailbox) and _fits(_ACTIVATION, activation) for mailbox, activation in value.items())
    )


def _are_mailboxes(value: Any) -> bool:
    return type(value) is list and 1 <= len(value) <= _LONGEST_CHAIN and all(_fits(_CHAIN_MAILBOX, each) for each in value)


def with_caller(callers: Mapping[str, str], mailbox: str, activation: str) -> Mapping[str, str]:
    """Return the callers with one more; without it if they are as many, or as long, as travel."""
    more = {**callers, mailbox: activation}
    fits = len(more) <= _MOST_CALLERS and sum(len(name) for name in more) <= _MOST_BYTES
    return more if fits else callers


def with_mailbox(chain: Sequence[str], mailbox: str) -> list[str]:
    """Return a chain with one mailbox more, as it travels."""
    longer = [*chain, mailbox][-_LONGEST_CHAIN:]
    while sum(map(len, longer)) > _MOST_BYTES and len(longer) > 1:
        del longer[0]
    return longer


class ReturnAddress(NamedTuple):
    """The durable command that waits for an outcome, and by what name it knows it."""

    mailbox: str
    command_id: str
    call: str


def _is_return_address(value: Any) -> bool:
    if type(value) is not list or len(value) != len(ReturnAddress._fields):
        return False
    mailbox, _, call = value
    return all(type(each) is str and each for each in value) and "|" not in mailbox and "|" not in call


class KeptHistory(NamedTuple):
    """A history that travels.

    Attributes:
        age_ms: For how long the end is kept.
        number: Among how many others of its shard.
        beside: 1 if the command's payload is kept, too; 2 if the steps of a durable one are; 3 if both are.
    """

    age_ms: int
    number: int
    beside: int = 0

    @property
    def payload(self) -> bool:
        """True if the command's payload is kept."""
        return bool(self.beside & 1)

    @property
    def steps(self) -> bool:
        """True if the steps of a durable command are kept."""
        return bool(self.beside & 2)

    @property
    def bounds(self) -> str:
        """Its bounds, as the scripts take them."""
        return f"h{self.age_ms}:{self.number}"


def _packed_history(history: History) -> list[Any]:
    beside = history.payload | history.steps << 1
    return [history.age_ms, history.number, *([beside] if beside else [])]


def _is_history(value: Any) -> bool:
    if type(value) is not list or len(value) not in (2, 3) or not all(type(each) is int for each in value):
        return False
    return 1 <= value[0] <= LONGEST * 1000 and 1 <= value[1] <= MOST_KEPT and value[2:] in ([], [1], [2], [3])


def _are_entities(value: Any, most: int = MOST_ENTITIES - 1) -> bool:
    """Return whether it names further entities: none in the entry that stands for a command in their lines."""
    return (
        type(value) is list
        and len(value) <= most
        and all(type(each) is list and len(each) == 2 and all(type(part) is str and part for part in each) for each in value)
    )


def _packed_entities(entities: Sequence[tuple[str, str]]) -> list[list[str]]:
    return [list(each) for each in entities]


def _read_entities(entities: Any) -> tuple[tuple[str, str], ...]:
    return tuple((entity, of) for entity, of in entities)


def _is_across(value: Any) -> bool:
    return (
        type(value) is list
        and len(value) == len(Across._fields)
        and type(value[0]) is str
        and value[0] != ""
        and type(value[1]) is int
        and _are_entities(value[2], most=MOST_ENTITIES)
    )


RETRY: Final = EnvelopeOption[RetryPolicy | None](
    "r", "retry", None, lambda value: _read_retry(value) is not None, _packed_retry, _read_retry
)
ATTEMPT_TIMEOUT: Final = EnvelopeOption[float | None](
    "t",
    "attempt_timeout",
    None,
    lambda value: type(value) in (int, float) and duration_fault(value) is None,
    lambda seconds: checked_seconds("attempt_timeout", seconds),
)
PRIORITY: Final = EnvelopeOption[Priority]("p", "priority", "normal", lambda value: value in ("high", "low"))
VERSION: Final = EnvelopeOption[int]("v", "version", 1, lambda value: type(value) is int and 1 < value <= MOST_VERSION)
COMPRESSION: Final = EnvelopeOption[str | None]("z", "compressed", None, lambda value: value == ZLIB)
CALLERS: Final = EnvelopeOption[Mapping[str, str]]("c", "limits", {}, _are_callers, dict)
CHAIN: Final = EnvelopeOption[Sequence[str]]("m", "mailboxes", (), _are_mailboxes)
DURABLE: Final = EnvelopeOption[bool]("d", "durable", False, lambda value: value == 1, int, bool)
RETURN: Final = EnvelopeOption[ReturnAddress | None](
    "w", "durable command that waits", None, _is_return_address, list, lambda address: ReturnAddress(*address)
)
HISTORY: Final = EnvelopeOption[KeptHistory | None](
    "h", "end", None, _is_history, _packed_history, lambda history: KeptHistory(*history)
)
UNIQUE: Final = EnvelopeOption[str | None]("u", "unique key", None, lambda key: type(key) is str and key != "")
OTHERS: Final = EnvelopeOption[Sequence[tuple[str, str]]](
    "j",
    "other entities",
    (),
    _are_entities,
    _packed_entities,
    _read_entities,
)
ACROSS: Final = EnvelopeOption[Across | None](
    "a",
    "of several shards",
    None,
    _is_across,
    lambda across: [across.command_id, across.fence, _packed_entities(across.entities)],
    lambda value: Across(value[0], value[1], _read_entities(value[2])),
)

KNOWN_OPTIONS: Final[dict[str, EnvelopeOption[Any]]] = {
    option.letter: option
    for option in (
        RETRY,
        ATTEMPT_TIMEOUT,
        PRIORITY,
        VERSION,
        COMPRESSION,
        CALLERS,
        CHAIN,
        DURABLE,
        RETURN,
        HISTORY,
        UNIQUE,
        OTHERS,
        ACROSS,
    )
}
"""The options by their letters."""

GIVEN: Final = (RETRY, ATTEMPT_TIMEOUT)
"""Those that a dispatch gives under the same name."""
