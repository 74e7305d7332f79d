"""The table of the outbox, and on PostgreSQL what numbers its rows."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from command_bus.sql.outbox_table import NUMBERING


def number(apps: Any, editor: Any) -> None:
    """Let the database number rows when they are committed."""
    del apps
    if editor.connection.vendor == "postgresql":
        for statement in ("ALTER TABLE command_outbox ALTER COLUMN tx SET DEFAULT txid_current()", *NUMBERING):
            editor.execute(statement, params=None)


class Migration(migrations.Migration):
    """The second one."""

    dependencies = (("command_bus_sql", "0001_initial"),)
    operations = (
        migrations.CreateModel(
            name="CommandOutbox",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("n", models.BigIntegerField(null=True)),
                ("tx", models.BigIntegerField(null=True)),
                ("mailbox", models.TextField()),
                ("command_id", models.TextField()),
                ("digest", models.BinaryField(null=True)),
                ("envelope", models.BinaryField()),
                ("flow", models.TextField()),
                ("due_ms", models.BigIntegerField()),
                ("added_ms", models.BigIntegerField()),
                ("error", models.TextField(null=True)),
            ],
            options={
                "db_table": "command_outbox",
                "indexes": [
                    models.Index(fields=["n"], name="command_outbox_n"),
                    models.Index(fields=["tx"], name="command_outbox_tx", condition=models.Q(n__isnull=True)),
                ],
            },
        ),
        migrations.RunPython(number, migrations.RunPython.noop),
    )
