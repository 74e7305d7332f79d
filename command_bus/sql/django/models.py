"""The tables of inbox and outbox as models, for migrations and the admin; `command_bus.sql.tables` says the same to SQLAlchemy."""

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


class CommandOutbox(models.Model):
    """A command that leaves once its transaction has committed."""

    id = models.BigAutoField(primary_key=True)
    n = models.BigIntegerField(null=True)
    tx = models.BigIntegerField(null=True)
    mailbox = models.TextField()
    command_id = models.TextField()
    digest = models.BinaryField(null=True)
    envelope = models.BinaryField()
    flow = models.TextField()
    due_ms = models.BigIntegerField()
    added_ms = models.BigIntegerField()
    error = models.TextField(null=True)  # noqa: DJ001 - none is not an empty one

    class Meta:
        """The table's name, and its indexes."""

        db_table = "command_outbox"
        indexes = (
            models.Index(fields=["n"], name="command_outbox_n"),
            models.Index(fields=["tx"], name="command_outbox_tx", condition=models.Q(n__isnull=True)),
        )
