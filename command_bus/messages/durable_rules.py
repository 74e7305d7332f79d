"""Options that do not go together with a durable class: lanes, and running at most once. A policy of the entity type or the bus may say either."""

from __future__ import annotations

from command_bus.errors import RegistrationError
from command_bus.messages.message import MessageSpec
from command_bus.messages.policies import Delivery, Lanes, MailboxPolicy


def check_durable(spec: MessageSpec, mailbox: MailboxPolicy, delivery: Delivery) -> None:
    """Check that a class, if it is durable, may be so under these policies.

    Raises:
        RegistrationError: It may not.
    """
    if not spec.durable:
        return
    if isinstance(mailbox, Lanes):
        raise RegistrationError(
            f"{spec.name!r} is durable, but entities of type {spec.entity!r} share {mailbox}: one that waits would hold up the others of its "
            "lane. Give its class an entity type with a mailbox for each"
        )
    if delivery == "at_most_once":
        raise RegistrationError(f"{spec.name!r} is durable: it is started again and again, so it cannot be at_most_once")
