"""Texts that come from handlers and exceptions, made fit for the wire."""

from __future__ import annotations

__all__ = ["capped", "capped_tail"]


def capped(text: object, limit: int) -> str:
    """The start of a text, at most `limit` bytes of UTF-8 and an ellipsis; lone surrogates escaped. Other objects by `str`."""
    data = _encoded(text)
    return data.decode() if len(data) <= limit else data[:limit].decode("utf-8", "ignore") + "…"


def capped_tail(text: object, limit: int) -> str:
    """The same of the end of a text: of a traceback, that is where the fault is."""
    data = _encoded(text)
    return data.decode() if len(data) <= limit else "…" + data[-limit:].decode("utf-8", "ignore")


def _encoded(text: object) -> bytes:
    return str(text).encode("utf-8", "backslashreplace")
