"""Webhooks: what happens to commands, told to others by signed HTTP requests (extra `webhooks`). See `webhooks.py`."""

from command_bus.webhooks.deliveries import DeliverWebhook, DeliveryFailed
from command_bus.webhooks.record import WebhookInfo
from command_bus.webhooks.signing import new_secret, signed_headers
from command_bus.webhooks.webhooks import Delivery, Webhooks

__all__ = ["DeliverWebhook", "Delivery", "DeliveryFailed", "WebhookInfo", "Webhooks", "new_secret", "signed_headers"]
