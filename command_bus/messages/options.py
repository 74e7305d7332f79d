"""Keyword arguments of dispatches and calls that are handed on, as types."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, TypedDict
from uuid import UUID

from command_bus.messages.history import HistoryChoice
from command_bus.messages.policies import Priority
from command_bus.messages.reports import OnProgress
from command_bus.messages.retry_policy import RetryPolicy
from command_bus.messages.unique import Unique

SendOn = Literal["completed", "always"]
"""Which ends of a command send its follow-ups."""


class MessageOptions(TypedDict, total=False):
    """Options that every way to send has; see `CommandBus.dispatch`."""

    headers: Mapping[str, str] | None
    priority: Priority | None
    retry: RetryPolicy | None
    attempt_timeout: float | None
    history: HistoryChoice | None


class FollowUpOptions(MessageOptions, total=False):
    """Options of a command that is sent with a settlement; see `CommandContext.send`."""

    delay: float
    at: datetime | None
    expires: float | None


class DispatchOptions(FollowUpOptions, total=False):
    """Options of a dispatch; see `CommandBus.dispatch`."""

    command_id: str | UUID | None
    keep_result: bool
    unique: Unique | None


class DurableCallOptions(MessageOptions, total=False):
    """Options of a call of a durable handler; see `DurableContext.call`."""

    timeout: float | None


class CallOptions(DurableCallOptions, total=False):
    """Options of a call; see `CommandBus.call`."""

    command_id: str | UUID | None


class FollowedCallOptions(CallOptions, total=False):
    """Options of a call whose caller may follow its progress; see `CommandBus.call`."""

    on_progress: OnProgress | None
