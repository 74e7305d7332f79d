"""App of Django with the tables of inbox and outbox: `INSTALLED_APPS = [..., "command_bus.sql.django"]`, then `manage.py migrate`."""
