"""The record that the handlers leave: a SQLite file that all worker processes write to."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Books"]

_TABLES = """
CREATE TABLE IF NOT EXISTS synced (shop TEXT, page INTEGER, at REAL, attempt INTEGER);
CREATE TABLE IF NOT EXISTS refunded (order_id TEXT, at REAL, attempt INTEGER);
CREATE TABLE IF NOT EXISTS edited (product TEXT, version INTEGER, at REAL);
CREATE TABLE IF NOT EXISTS indexed (product TEXT, version INTEGER, at REAL);
CREATE TABLE IF NOT EXISTS closed (ledger TEXT, command_id TEXT, at REAL, attempt INTEGER);
"""


class Books:
    """The file.

    Args:
        path: Of it.
        tables: What is made if it is not there: SQL.
    """

    def __init__(self, path: Path, tables: str = _TABLES) -> None:
        self._path = path
        with self._open() as file:
            file.execute("PRAGMA journal_mode=WAL")
            file.executescript(tables)

    def note(self, table: str, *values: object) -> None:
        """Append a row; its column `at` is the time."""
        with self._open() as file:
            columns = [row[1] for row in file.execute(f"PRAGMA table_info({table})")]
            whole = dict(zip([name for name in columns if name != "at"], values, strict=True)) | {"at": time.time()}
            names = ", ".join(whole)
            file.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(whole))})", list(whole.values()))  # noqa: S608 - our names

    def rows(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        """Return what a query finds."""
        with self._open() as file:
            return file.execute(question, values).fetchall()

    @contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        connection = sqlite3.connect(self._path, timeout=30)
        try:
            with connection:
                yield connection
        finally:
            connection.close()
