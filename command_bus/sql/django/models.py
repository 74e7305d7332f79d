"""The tables of the inbox as models, for migrations and the admin; `command_bus.sql.tables` says the same to SQLAlchemy."""

from __future__ import annotations

from django.db import models


class CommandFence(models.Model):
    """The highest fence of an entity that committed."""

    mailbox = models.TextField(primary_key=True)
    fence = models.BigIntegerField()

    class Meta:
        """The table's name."""

        db_table = "command_fence"


class CommandInbox(models.Model):
    """A command whose effect committed."""

    command_id = models.TextField(primary_key=True)
    kept = models.BinaryField()
    done_ms = models.BigIntegerField()

    class Meta:
        """The table's name, and its index."""

        db_table = "command_inbox"
        indexes = (models.Index(fields=["done_ms"], name="command_inbox_done_ms"),)
