"""The two tables of the inbox."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first one."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="CommandFence",
            fields=[
                ("mailbox", models.TextField(primary_key=True, serialize=False)),
                ("fence", models.BigIntegerField()),
            ],
            options={"db_table": "command_fence"},
        ),
        migrations.CreateModel(
            name="CommandInbox",
            fields=[
                ("command_id", models.TextField(primary_key=True, serialize=False)),
                ("kept", models.BinaryField()),
                ("done_ms", models.BigIntegerField()),
            ],
            options={
                "db_table": "command_inbox",
                "indexes": [models.Index(fields=["done_ms"], name="command_inbox_done_ms")],
            },
        ),
    )
