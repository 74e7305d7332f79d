"""The protocols of a transport for senders. See `transport.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from command_bus.errors import CommandBusError
from command_bus.messages.policies import MailboxPolicy
from command_bus.transport.records import CommandLocation
from command_bus.transport.submissions import Admission, Submission, UnavailableShards


class Producer(Protocol):
    """Puts commands into mailboxes.

    The commands of a batch are decided in order. The first rule that fits gives the answer:

    1. The command is `marked` and its id has a mark: `DUPLICATE` if the mark has the same digest, else `CONFLICT`. So a known id is
       answered like this also where the mailbox is full or drained.
    2. The mailbox is drained, alone, with its type or with everything: `DRAINING`.
    3. An earlier command of the mailbox in this batch was refused by rule 2 or 4: `PREDECESSOR_REFUSED`, so that it is not overtaken. A
       batch may hold commands of several callers: the earlier one may be another caller's.
    4. The mailbox holds `max_depth` commands, delayed ones included: `ENTITY_FULL`. The shard holds its share of `max_total_depth`:
       `TOTAL_FULL`. The mailbox has neither a command in line nor a parked one, and as many mailboxes as the shard's share of
       `max_entities` have: `TOO_MANY_ENTITIES`.
    5. `ACCEPTED`: the command is in its mailbox, or waits for its delay. A marked one has a waiting mark (`marks.waiting_mark`) until it
       is settled. A command without a mark is accepted as often as it is sent.

    A submission with `unique` comes between 3 and 4: while another command holds its key it is `FOLDED` where the first wins. Where the
    latest wins it takes the place in `max_depth` of one that waits and was never started, which is taken out and whose caller is told
    (`Cancelled`, `superseded`); then it is `REPLACED`, or `MAY_NOT_REPLACE` if this user has no right to that. The other's id is noted in
    `unique.other`. `docs/unique.md` says when a key is held.

    `WRONG_TYPE` answers the commands of a mailbox that can take none, because its key has another type, say. At the server's memory limit
    the whole batch fails with `QueueFull`, and nothing of it is accepted.

    A producer repeats a request that had no answer; the repeat gets the first answer, and nothing is accepted twice. Before a request
    leaves late or again, the producer calls `renewed` of the submissions that have it. Nothing else of a batch changes.
    """

    @property
    def window(self) -> int:
        """How many commands leave together at most."""
        ...

    def enqueue(self, submission: Submission, timeout: float) -> Awaitable[Admission]:
        """Accept one command; concurrent calls of one event-loop turn leave as one batch, in the order of the calls.

        Raises:
            BusClosed: The transport is closed.
            QueueFull: The server is at its memory limit.
            TransportUnavailable: No answer within `timeout` seconds, or too many commands wait here. `outcome_unknown` says whether the
                command may have been accepted.
            Unconfirmed: It is accepted, but too few replicas confirmed that in time.
            UnsuitableServer: The server lacks what is needed.
        """
        ...

    async def enqueue_many(
        self, submissions: Sequence[Submission], timeout: float, unavailable: UnavailableShards | None = None
    ) -> list[Admission | CommandBusError]:
        """Accept many commands, in order per mailbox; an outcome per command, or the error because of which there is none.

        They leave in chunks. Once a command is refused, other than as a `CONFLICT`, the commands of its mailbox in later chunks are not
        sent: they are `PREDECESSOR_REFUSED`, also where their ids are known.

        `timeout` is per chunk. After a chunk that failed nothing more of its shard is sent; nor by later calls that are given the same
        `unavailable`, in which shards are noted that did not answer in time.
        """
        ...


class Taken(NamedTuple):
    """The state of an outbox in a shard.

    Attributes:
        value: What the next request must expect; empty if there was none yet.
        rows: Keys of rows whose commands were accepted, and that may stand in the database still.
    """

    value: str
    rows: frozenset[str]


class Placed(NamedTuple):
    """The answer to a request that an outbox has expected.

    Attributes:
        admissions: One for each row.
        value: What the next request must expect.
        is_confirmed: Whether the replicas that must know of it do.
    """

    admissions: list[Admission]
    value: str
    is_confirmed: bool


class Outboxes(Protocol):
    """Accepts commands that transactions of a database have left in a table, in order, each once."""

    async def look(self, name: str, shard: int) -> Taken:
        """Return the state of an outbox in a shard; nothing is changed.

        Raises:
            CommandBusError: The server cannot be asked now.
        """
        ...

    async def place(
        self, name: str, shard: int, expected: str, token: str, rows: Sequence[tuple[str, Submission]], deleted: Sequence[str]
    ) -> Placed | Taken:
        """Accept rows as `Producer` accepts a batch, in one step with the note that they are taken. None may be noted yet.

        Where the state is another one than expected, it is returned, and nothing is changed: a request is sent again without harm.

        Args:
            name: What the outbox is called.
            shard: Number of the one to which all of these commands go.
            expected: The state as it was answered last.
            token: Random, one for this request and its repeats.
            rows: Keys of rows, without spaces, and their commands, none with a unique key.
            deleted: Keys of rows that are deleted in the database: what is noted of them is dropped.

        Raises:
            CommandBusError: It is not known whether it was carried out, or the server refuses it.
        """
        ...


class Reply(Protocol):
    """One call's wait."""

    async def within(self, deadline: float) -> bytes | None:
        """Return the reply record, or None if it does not come before the deadline (monotonic)."""
        ...

    def then(self, arrived: Callable[[bytes], None]) -> None:
        """Call this with the reply record when it comes, instead of `within`."""
        ...

    def end(self) -> None:
        """End the wait now, unless the reply is there: `within` returns None."""
        ...

    def forget(self) -> None:
        """Drop the wait: its caller waits no longer."""
        ...


class Replies(Protocol):
    """Receives the replies of one process.

    Attributes:
        process: What a command must carry so that its reply comes here.
    """

    process: str

    def expect(self, command_id: str) -> Reply:
        """Be ready for a reply, before the command is sent."""
        ...


class Agreements(Protocol):
    """The agreement of all clients of a namespace on the mailbox policy of each entity type."""

    async def open(self) -> object:
        """Record what all agree on, or follow it. A worker that the namespace has forgotten asks again.

        Raises:
            InvalidSettings: They disagree; or the namespace was made again since, with something else than this process has opened.
        """
        ...

    def recorded(self, entity_type: str) -> MailboxPolicy | None:
        """Return the policy that the namespace recorded, if it is known here."""
        ...

    async def learn(self, entity_type: str) -> None:
        """Read it, if it is recorded.

        Raises:
            CommandBusError: It cannot be read now.
        """
        ...

    def agreed(self, entity_type: str) -> MailboxPolicy | None:
        """Return the policy of an entity type, if it was agreed on; None while others wait for an agreement, so that none is overtaken."""
        ...

    async def agree(self, entity_type: str, deadline: float = 0.0) -> MailboxPolicy:
        """Record or compare the policy of an entity type, once, or repeatedly until a monotonic deadline.

        Raises:
            InvalidSettings: The namespace recorded another policy.
            TooManyEntityTypes: The namespace has as many types as it may have.
            TransportUnavailable: There was no answer in time.
        """
        ...

    def forget(self, entity_type: str) -> None:
        """Agree on this type again before its next command."""
        ...

    async def shared(self, name: str, value: bytes) -> bytes:
        """Return what the namespace has under a name that is no entity type; record this value if it has nothing.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        ...


class CommandLocator(Protocol):
    """Finds single commands. A sender may have few rights: what it may not read is left out."""

    async def marks(self, command_id: str) -> list[bytes]:
        """Return the marks of a command id (see `marks.py`): several if it was accepted in several shards."""
        ...

    async def look(self, mailbox: str, command_id: str) -> CommandLocation:
        """Return where a command of this mailbox is.

        Raises:
            CommandBusError: The server cannot be asked.
        """
        ...

    async def shard_depth(self, shard: int) -> int:
        """Return how many commands a shard holds, by its counter.

        Raises:
            CommandBusError: The server cannot be asked.
        """
        ...

    async def line(self, mailbox: str, most: int | None = None) -> Sequence[tuple[str, bytes]]:
        """Return the first entries of a mailbox: message ids and envelopes. At most so many; None: as many as are searched for a command.

        Raises:
            CommandBusError: The server cannot be asked, or this user may not read mailboxes.
        """
        ...
