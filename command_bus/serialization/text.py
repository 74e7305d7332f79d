"""Texts that come from handlers, exceptions and senders, made fit for the wire and for a log."""

from __future__ import annotations


def capped(text: object, limit: int) -> str:
    """Return the start of a text, at most `limit` bytes of UTF-8 and an ellipsis; lone surrogates escaped. Other objects by `str`."""
    data = _encoded(text)
    return data.decode() if len(data) <= limit else data[:limit].decode("utf-8", "ignore") + "…"


def capped_tail(text: object, limit: int) -> str:
    """Return the end of a text, limited in the same way: the fault is at the end of a traceback."""
    data = _encoded(text)
    return data.decode() if len(data) <= limit else "…" + data[-limit:].decode("utf-8", "ignore")


def printable(text: str) -> str:
    """Return a text that is safe in a line of a log: newlines, control characters and changes of writing direction are escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _encoded(text: object) -> bytes:
    return str(text).encode("utf-8", "backslashreplace")
