"""The books of the services: a SQLite file. The provider has one of its own, which no service reads."""

from __future__ import annotations

from pathlib import Path

from examples.checkout.service import BOOKS, given
from examples.synchroniser.books import Books

__all__ = ["checkout_books"]

_TABLES = """
CREATE TABLE IF NOT EXISTS stock (sku TEXT PRIMARY KEY, pieces INTEGER);
CREATE TABLE IF NOT EXISTS reserved (order_id TEXT PRIMARY KEY, sku TEXT);
CREATE TABLE IF NOT EXISTS shipped (order_id TEXT, number TEXT, at REAL);
CREATE TABLE IF NOT EXISTS asked (order_id TEXT, command_id TEXT, at REAL);
CREATE TABLE IF NOT EXISTS answered (order_id TEXT, how TEXT, at REAL);
"""


def checkout_books(path: Path | None = None) -> Books:
    """Return the services' books, at this path or where the environment says."""
    return Books(path or Path(given(BOOKS)), _TABLES)
