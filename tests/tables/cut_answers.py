"""Answers of receivers whose status is known: rows and columns of `test_cut_answers.py`."""

from __future__ import annotations

__all__ = ["BODIES", "STATUSES"]

STATUSES = (200, 204, 301, 410, 429, 500)

BODIES: dict[str, tuple[bytes, str]] = {
    "whole": (b"Content-Length: 2\r\n\r\nok", "closes"),
    "cut": (b"Content-Length: 9\r\n\r\nok", "closes"),
    "cut before it begins": (b"Content-Length: 9\r\n\r\n", "closes"),
    "cut by a reset": (b"Content-Length: 9\r\n\r\nok", "resets"),
    "silent": (b"Content-Length: 9\r\n\r\nok", "waits"),
    "silent from the start": (b"Content-Length: 9\r\n\r\n", "waits"),
    "chunks that are cut": (b"Transfer-Encoding: chunked\r\n\r\n5\r\nok", "closes"),
    "chunks without a length": (b"Transfer-Encoding: chunked\r\n\r\nno number\r\nok", "closes"),
    "chunks without an end": (b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", "waits"),
    "no gzip": (b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok", "closes"),
    "longer than it says": (b"Content-Length: 2\r\n\r\n" + b"ok" * 100, "closes"),
    "without an end": (b"\r\n" + b"ok" * 100_000, "waits"),
}
"""By what follows the status: the rest of the answer, and what the receiver does then."""
