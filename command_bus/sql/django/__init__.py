"""App of Django with the tables of the inbox: `INSTALLED_APPS = [..., "command_bus.sql.django"]`, then `manage.py migrate`."""
