"""The commands of the workload, and what each is to come to: worker, producer and checker agree on it here."""

from __future__ import annotations

from command_bus import Command, EntityId, EntityState, Event, RetryPolicy

__all__ = [
    "UNTIL_DONE",
    "Applied",
    "Apply",
    "Deposit",
    "Ghost",
    "Late",
    "Move",
    "Once",
    "Order",
    "Parcel",
    "Poison",
    "Steady",
    "Tally",
    "Tick",
    "Total",
    "Withdraw",
    "expected_value",
]


class Poison(Exception):
    """The error of a handler that is planned to fail for good."""


# Interrupted starts are attempts: only what is planned to fail for good may run out of them.
UNTIL_DONE = RetryPolicy(attempts=1_000, delay=0.01, max_delay=0.05, give_up_on=(Poison,))


class Apply(Command[int], entity="line", retry=UNTIL_DONE):
    """Puts its number into the ledger. `plan` says how: see `worker_app`."""

    line: EntityId
    number: int
    plan: str = ""
    busy: float = 0.0


class Applied(Event, entity="line", name="line.applied"):
    """Says that an `Apply` has put its number into the ledger."""

    line: EntityId
    number: int


class Once(Command[int], entity="line", delivery="at_most_once"):
    """The same, never started twice. It shares its lines with `Apply`: an interruption must not disturb their order."""

    line: EntityId
    number: int
    plan: str = ""
    busy: float = 0.0


class Steady(Command[int], entity="line", retry=UNTIL_DONE):
    """The same, by a handler in a thread, which nothing can cancel: a zombie of it goes on to the end, and offers its result."""

    line: EntityId
    number: int
    plan: str = ""
    busy: float = 0.0


class Tally(Command[int], entity="tally", retry=UNTIL_DONE):
    """Counted in the state of its entity, or run in one call with those behind it, or both."""

    tally: EntityId
    number: int
    plan: str = ""
    busy: float = 0.0


class Total(EntityState, entity="tally"):
    """The state: how many were counted, and a sum that is another one in any other order."""

    count: int = 0
    digest: int = 0

    def add(self, number: int) -> None:
        """Count a command."""
        self.count, self.digest = self.count + 1, (self.digest * 31 + number + 1) % (2**61 - 1)


class Tick(Command[int], entity="ticker", retry=UNTIL_DONE):
    """Sent by a schedule. The tick's number is in its command id."""

    ticker: EntityId


class Late(Command[int], entity="late", retry=UNTIL_DONE):
    """Known to the newer half of the deploys only; its line waits for a worker of that half."""

    line: EntityId
    number: int
    plan: str = ""
    busy: float = 0.0


class Withdraw(Command[int], entity="account", retry=UNTIL_DONE):
    """Takes from one account, then sends the `Deposit` to the other: the total is conserved if neither is lost or doubled."""

    account: EntityId
    number: int
    to: str
    amount: int
    plan: str = ""
    busy: float = 0.0


class Deposit(Command[int], entity="account", retry=UNTIL_DONE):
    """The other half of a `Withdraw`, sent by its handler under an id made of the withdrawal's."""

    account: EntityId
    amount: int


class Order(Command[int], entity="order", retry=UNTIL_DONE):
    """Calls an `Apply` of another line from inside its handler, and waits `patience` seconds for it."""

    order: EntityId
    number: int
    patience: float
    within: float


class Move(Command[int], entity="vault", retry=UNTIL_DONE, across_shards=True):
    """Takes from one vault and gives to another, in the lines of both; or to itself, in one. `also` is its number in the other's line."""

    vault: EntityId
    target: EntityId
    number: int
    also: int
    amount: int
    plan: str = ""
    busy: float = 0.0


class Parcel(Command[int], entity="line", retry=UNTIL_DONE):
    """An `Apply` with much to carry."""

    line: EntityId
    number: int
    ballast: bytes


class Ghost(Command[int], entity="ghost"):
    """A command without a handler."""

    ghost: EntityId
    number: int


def expected_value(number: int) -> int:
    """Return the handler's result for the command of this number."""
    return number * 7 + 3
