"""The dashboard: pages for people on call, as an ASGI application (extra `dashboard`).

    app.mount("/ops", dashboard(bus, users=passwords({"ann": (ANN, "operator")})))

or `command-bus dashboard --users users.toml`. It uses the bus as any application does. `app.py` puts it together; a page reads, an act changes.
"""

from __future__ import annotations

from command_bus.errors import MissingExtra

try:
    import jinja2 as _jinja2
    import starlette as _starlette
except ImportError as error:  # pragma: no cover - depends on the environment
    raise MissingExtra("command_bus.dashboard needs Starlette and Jinja2: pip install 'command-bus[dashboard]'") from error

from command_bus.dashboard.app import Dashboard, dashboard
from command_bus.dashboard.passwords import hash_password, passwords
from command_bus.dashboard.users import Role, User, Users, behind_proxy, host_check, loopback

__all__ = [
    "Dashboard",
    "Role",
    "User",
    "Users",
    "behind_proxy",
    "dashboard",
    "hash_password",
    "host_check",
    "loopback",
    "passwords",
]

del _jinja2, _starlette
