"""Files of users, for the served dashboard: TOML, with hashes and roles."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from command_bus.dashboard.passwords import Passwords, checked_entries
from command_bus.dashboard.users import Role, checked_role
from command_bus.errors import InvalidSettings
from command_bus.integrations.reread_files import RereadFile


def read_users(file: str | Path) -> Passwords:
    """Return the users of a file: a table for each, with `password`, a hash, and `role`. The file is read again when it changes.

    Raises:
        InvalidSettings: The file cannot be read, or is not of this form.
    """
    found = RereadFile(
        file, lambda file: checked_entries({name: _entry(str(file), name, table) for name, table in _tables(file).items()})
    )
    return Passwords(lambda: found.value)


def read_roles(file: str | Path) -> Mapping[str, Role]:
    """Return the roles in a file of users whom a proxy signs in: a table for each, with `role` alone. It is read again when it changes.

    Raises:
        InvalidSettings: The file cannot be read, or is not of this form.
    """
    return _Roles(RereadFile(file, lambda file: {name: _role(str(file), name, table) for name, table in _tables(file).items()}))


class _Roles(Mapping[str, Role]):
    """The roles that a file has now."""

    def __init__(self, found: RereadFile[dict[str, Role]]) -> None:
        self._found = found

    def __getitem__(self, name: str) -> Role:
        return self._found.value[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found.value)

    def __len__(self) -> int:
        return len(self._found.value)


def _tables(file: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"the file of users cannot be read: {error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{file} is no TOML: {error}") from None


def _role(file: str, name: str, table: Any) -> Role:
    if not isinstance(table, dict) or table.keys() != {"role"}:
        raise InvalidSettings(
            f'{file}: a proxy signs in, so [{name}] has role = "viewer", "operator" or "admin", and nothing else'
        )
    return checked_role(name, table["role"])


def _entry(file: str, name: str, table: Any) -> tuple[str, Any]:
    if not isinstance(table, dict) or not {"password", "role"} >= table.keys() >= {"password"}:
        raise InvalidSettings(f'{file}: [{name}] has password = "scrypt$…" and role = "viewer", "operator" or "admin"')
    return table["password"], checked_role(name, table.get("role", "viewer"))
