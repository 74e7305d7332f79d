"""`HandlingPolicy`: what applies to a command, out of what its dispatch, its class, its entity type and the bus say, in this order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from command_bus.errors import RegistrationError
from command_bus.messages.message import MessageSpec
from command_bus.messages.policies import Delivery, Lanes, MailboxPolicy
from command_bus.messages.retry_policy import RetryPolicy

_ONE_START = RetryPolicy(attempts=1)
_USUAL = RetryPolicy()


class PolicyLevel(Protocol):
    """One who may say something: a class, an entity type or the bus. None says nothing."""

    @property
    def delivery(self) -> Delivery | None:
        """What an interruption means."""
        ...

    @property
    def retry(self) -> RetryPolicy | None:
        """How failures are retried."""
        ...

    @property
    def attempt_timeout(self) -> float | None:
        """Seconds that one attempt may take."""
        ...


@dataclass(frozen=True, slots=True)
class HandlingPolicy:
    """The policy of one command.

    Attributes:
        delivery: What an interruption means.
        retry: How failures are retried.
        attempt_timeout: Seconds that one attempt may take, or None.
    """

    delivery: Delivery = "at_least_once"
    retry: RetryPolicy = _USUAL
    attempt_timeout: float | None = None

    def with_overrides(self, retry: RetryPolicy | None, attempt_timeout: float | None) -> HandlingPolicy:
        """Return the policy of a command whose dispatch says something of its own.

        Which exceptions are retried stays with the class: types do not travel.
        """
        policy = self
        if retry is not None:
            kept = replace(retry, retry_on=self.retry.retry_on, give_up_on=self.retry.give_up_on)
            policy = replace(policy, retry=kept)
        return policy if attempt_timeout is None else replace(policy, attempt_timeout=attempt_timeout)


def handling_policy(*levels: PolicyLevel) -> HandlingPolicy:
    """Return what applies of several levels, the most specific one first.

    A command that is delivered at most once is started once, unless the level that says so, or one above it, has a policy of retries: retries that
    a wider level has for all are not meant for it.
    """
    delivery: Delivery | None = None
    retry: RetryPolicy | None = None
    timeout: float | None = None
    for level in levels:
        retry = retry or level.retry
        if delivery is None and level.delivery is not None:
            delivery = level.delivery
            if delivery == "at_most_once":
                retry = retry or _ONE_START
        if timeout is None:
            timeout = level.attempt_timeout
    return HandlingPolicy(delivery or "at_least_once", retry or _USUAL, timeout)


def check_policies(
    spec: MessageSpec,
    mailbox: MailboxPolicy,
    delivery: Delivery,
    *,
    has_state: bool = False,
    repeats: bool = False,
    of_entity: bool = False,
) -> None:
    """Check that a class may be durable, have a state or be handled in batches, if it is, under these policies.

    Raises:
        RegistrationError: It may not.
    """
    if isinstance(mailbox, Lanes) and (spec.durable or has_state):
        what = "is durable" if spec.durable else "has a state"
        why = "one that waits would hold up the others of its lane" if spec.durable else "a lane has no state"
        raise RegistrationError(
            f"{spec.name!r} {what}, but entities of type {spec.entity!r} share {mailbox}: {why}. Give its class an entity type with a "
            "mailbox for each"
        )
    if isinstance(mailbox, Lanes) and of_entity:
        raise RegistrationError(
            f"{spec.name!r} is handled in batches of one entity, but entities of type {spec.entity!r} share {mailbox}: a lane has commands of "
            'several. Give its class an entity type with a mailbox for each, or leave of="entity" out'
        )
    if repeats and delivery == "at_most_once":
        raise RegistrationError(
            f"{spec.name!r} is handled in batches: a call that fails is repeated, so it cannot be at_most_once"
        )
    if spec.durable and delivery == "at_most_once":
        raise RegistrationError(f"{spec.name!r} is durable: it is started again and again, so it cannot be at_most_once")
