"""Configuration of the app, found by Django."""

from __future__ import annotations

from django.apps import AppConfig


class CommandBusSqlConfig(AppConfig):
    """The app `command_bus_sql`."""

    name = "command_bus.sql.django"
    label = "command_bus_sql"
    verbose_name = "command_bus"
