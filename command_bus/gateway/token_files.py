"""Files of tokens, for the served gateway: TOML, with hashes, rights and rates."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from command_bus.errors import InvalidSettings
from command_bus.gateway.token_hashes import checked_hash
from command_bus.gateway.tokens import Grant, Holder, Tokens, holders_of
from command_bus.integrations.reread_files import RereadFile

_KEYS = {"token", "rights", "rate"}


def read_tokens(file: str | Path) -> Tokens:
    """Return the tokens of a file: a table for each, with `token`, a hash, `rights` and perhaps `rate`.

    The file is read again when it changes: a token that is taken out is let in for a second more at most.

    Raises:
        InvalidSettings: The file cannot be read, or is not of this form.
    """
    found = RereadFile(file, _read)
    return Tokens(lambda: found.value)


def _read(file: str | Path) -> dict[bytes, Holder]:
    try:
        tables = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"the file of tokens cannot be read: {error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{file} is no TOML: {error}") from None
    return holders_of({name: _grant(str(file), name, table) for name, table in tables.items()})


def _grant(file: str, name: str, table: Any) -> Grant:
    if not isinstance(table, dict) or not _KEYS >= table.keys() >= {"token", "rights"} or not isinstance(table["rights"], list):
        raise InvalidSettings(f'{file}: [{name}] has token = "sha256$…", rights = ["send:Deposit", "look"] and perhaps rate = 50')
    return Grant(checked_hash(name, table["token"]), tuple(table["rights"]), table.get("rate"))
