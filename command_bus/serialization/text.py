"""Texts that come from handlers, exceptions and senders, made fit for the wire and for a log."""

from __future__ import annotations

__all__ = ["capped", "capped_tail", "printable"]


def capped(text: object, limit: int) -> str:
    """The start of a text, at most `limit` bytes of UTF-8 and an ellipsis; lone surrogates escaped. Other objects by `str`."""
    data = _encoded(text)
    return data.decode() if len(data) <= limit else data[:limit].decode("utf-8", "ignore") + "…"


def capped_tail(text: object, limit: int) -> str:
    """The same of the end of a text: of a traceback, that is where the fault is."""
    data = _encoded(text)
    return data.decode() if len(data) <= limit else "…" + data[-limit:].decode("utf-8", "ignore")


def printable(text: str) -> str:
    """The text as it may stand in a line of a log: without a newline, control character or change of writing direction of its own."""
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _encoded(text: object) -> bytes:
    return str(text).encode("utf-8", "backslashreplace")
