"""Files of users, for the served dashboard: TOML, with hashes and roles."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from command_bus.dashboard.passwords import Passwords, passwords
from command_bus.dashboard.users import checked_role
from command_bus.errors import InvalidSettings

__all__ = ["read_users"]


def read_users(file: str | Path) -> Passwords:
    """Return the users of a file: a table for each, with `password`, a hash, and `role`.

    Raises:
        InvalidSettings: The file cannot be read, or is not of this form.
    """
    try:
        tables = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"the file of users cannot be read: {error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{file} is no TOML: {error}") from None
    return passwords({name: _entry(str(file), name, table) for name, table in tables.items()})


def _entry(file: str, name: str, table: Any) -> tuple[str, Any]:
    if not isinstance(table, dict) or not {"password", "role"} >= table.keys() >= {"password"}:
        raise InvalidSettings(f'{file}: [{name}] has password = "scrypt$…" and role = "viewer", "operator" or "admin"')
    return table["password"], checked_role(name, table.get("role", "viewer"))
