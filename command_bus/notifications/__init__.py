"""Notifications: a bus tells others what happens, by pub/sub of its own server or by NATS. See `notifications.py`."""

from command_bus.notifications.nats import NatsNotifier
from command_bus.notifications.notices import ALL_TYPES, Notice, NoticeKind, Topic
from command_bus.notifications.notifications import NotificationFigures, Notifications
from command_bus.notifications.notifier import Ground, Notifier, NotifierLink
from command_bus.notifications.pubsub import RedisNotifier

__all__ = [
    "ALL_TYPES",
    "Ground",
    "NatsNotifier",
    "Notice",
    "NoticeKind",
    "NotificationFigures",
    "Notifications",
    "Notifier",
    "NotifierLink",
    "RedisNotifier",
    "Topic",
]
