"""`Notifier`: how notices travel. `RedisNotifier` and `NatsNotifier` are two; an application may write another.

A notifier is a plan: each bus that opens with it makes a link of its own. Nothing that a link does may stop a command. Its owner
(`notifications.py`) gives it time, counts what fails, and keeps what is to be told in bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from command_bus.notifications.notices import Notice, NoticeKind, Topic
from command_bus.transport.ports.extensions import Channels


@dataclass(frozen=True, slots=True)
class Ground:
    """The bus, as a notifier sees it.

    Attributes:
        namespace: What the bus is called on the server.
        channels: Returns the channels of its server; raises `UnsuitableServer` if it has none.
        receive: To be called, in the bus's event loop, with each message of a topic that is subscribed.
        missed: To be called when messages may have been missed: a subscription was cut, and is there again.
    """

    namespace: str
    channels: Callable[[], Channels]
    receive: Callable[[Topic, bytes], None]
    missed: Callable[[], None]


class NotifierLink(Protocol):
    """Carries notices for one open bus. Calls come from its event loop; nothing is connected before the first."""

    async def publish(self, notices: Sequence[Notice]) -> None:
        """Send notices, and add the commands of each notice of `work` to the hint of its type before others learn of it.

        What it raises is counted; notices of `work` are given again then.
        """
        ...

    async def consume_hint(self, entity_type: str | None) -> bool:
        """Take one from the hint of a type. Return whether to wake: it was above zero, or that is not known (no hint, no store of hints)."""
        ...

    async def subscribe(self, topic: Topic) -> None:
        """Receive a topic's messages from now on, through all cuts. If the server cannot be reached, that is no error: it is tried on."""
        ...

    async def unsubscribe(self, topic: Topic) -> None:
        """Receive them no more. After the last topic nothing of the link is left at the server."""
        ...

    async def close(self) -> None:
        """End whatever is under way."""
        ...


class Notifier(Protocol):
    """Plans how notices travel.

    Attributes:
        kinds: What the buses that have it tell. What they may listen to is not restricted by it.
        settled: Wire names of the commands whose end the notice `settled` reports; None is all.
    """

    @property
    def kinds(self) -> frozenset[NoticeKind]:
        """See the class."""
        ...

    @property
    def settled(self) -> frozenset[str] | None:
        """See the class."""
        ...

    def link(self, ground: Ground) -> NotifierLink:
        """Return the link of a bus that has just opened. It must return at once: connecting comes later."""
        ...
