"""The payment provider: an HTTP server as a process of its own, `python -m examples.checkout.provider 0`.

Some requests it answers with an error, some so late that its caller has gone, though it has charged. Some charges it confirms later, at the
desk, some of these twice, some too late, some never. It keeps a ledger, and charges once per idempotency key, as such providers do. It knows nothing
of orders: two keys for one order are two charges.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from contextlib import suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any, cast

from examples.checkout.service import BOOKS, DESK_PORT, PROVIDER_PORT, given
from examples.flights.worker import main

__all__ = ["Ledger", "ledger_beside"]

_TABLES = """
CREATE TABLE IF NOT EXISTS charges (key TEXT PRIMARY KEY, order_id TEXT, cents INTEGER, state TEXT);
CREATE TABLE IF NOT EXISTS closed (order_id TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS told (what TEXT);
"""
_LATE = 1.2  # seconds; a client waits half a second
_LATER = (0.5, 9.0)
"""Seconds until a charge is confirmed that takes its time."""


class Ledger:
    """The charges and refunds: a SQLite file with one writer at a time."""

    def __init__(self, path: Path) -> None:
        self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._file.executescript(_TABLES)
        self._lock = threading.Lock()

    def rows(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        """Return what a query finds, or change something."""
        with self._lock:
            return self._file.execute(question, values).fetchall()

    def state(self, key: str) -> str | None:
        """Return what became of the request with a key: charged, pending, refused or refunded; None if it is new."""
        return next((str(state) for (state,) in self.rows("SELECT state FROM charges WHERE key = ?", key)), None)

    def begin(self, key: str, order: str, cents: int, state: str) -> str:
        """Note a request, unless its key is known; return what became of it."""
        if self.rows("SELECT 1 FROM closed WHERE order_id = ?", order):
            state = "refused"
        self.rows("INSERT OR IGNORE INTO charges VALUES (?, ?, ?, ?)", key, order, cents, state)
        return self.state(key) or state

    def confirm(self, key: str) -> bool:
        """Charge what is pending; return whether it was."""
        return bool(self.rows("UPDATE charges SET state = 'charged' WHERE key = ? AND state = 'pending' RETURNING 1", key))

    def refund(self, order: str) -> None:
        """Pay an order back, and refuse what may still come."""
        self.rows("INSERT OR IGNORE INTO closed VALUES (?)", order)
        self.rows("UPDATE charges SET state = 'refunded' WHERE order_id = ? AND state = 'charged'", order)
        self.rows("UPDATE charges SET state = 'refused' WHERE order_id = ? AND state = 'pending'", order)

    def tell(self, what: str) -> None:
        """Note how a request was answered."""
        self.rows("INSERT INTO told VALUES (?)", what)


def ledger_beside(books: Path) -> Ledger:
    """Return the provider's ledger, which lies beside the services' books."""
    return Ledger(books.with_name("provider.sqlite"))


class _Provider(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, desk: int, ledger: Ledger) -> None:
        super().__init__(("127.0.0.1", port), _Request)
        self.ledger = ledger
        self.random = Random(1)
        self._desk = desk

    def charge(self, key: str, order: str, cents: int, reference: str) -> tuple[int, dict[str, str]]:
        """Answer a request for a charge."""
        known = self.ledger.state(key)
        if known is not None:
            self.ledger.tell("a key that it knows")
        state = self.ledger.begin(key, order, cents, self._mood())
        if known is None and state == "pending":
            threading.Thread(target=self._confirm, args=(key, reference), daemon=True).start()
        status = {"charged": 200, "pending": 202, "refunded": 200}.get(state, 402)
        return status, {"charge": f"charge {key[:8]}"}

    def _mood(self) -> str:
        mood = self.random.random()
        return "refused" if mood < 0.05 else "pending" if mood < 0.3 else "charged"

    def _confirm(self, key: str, reference: str) -> None:
        """Charge after a while, and tell the desk."""
        if self.random.random() < 0.1:
            return  # never
        time.sleep(self.random.uniform(*_LATER))
        if not self.ledger.confirm(key):
            return
        for _ in range(2 if self.random.random() < 0.5 else 1):
            self.ledger.tell("a confirmation")
            self._tell({"reference": reference, "charge": f"charge {key[:8]}", "event": f"event {key}"})

    def _tell(self, event: dict[str, str]) -> None:
        for _ in range(20):  # providers try again for days
            with suppress(OSError):
                connection = HTTPConnection("127.0.0.1", self._desk, timeout=5)
                connection.request("POST", "/events", json.dumps(event))
                if connection.getresponse().status < 500:
                    return
            time.sleep(0.3)


class _Request(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Answer, more or less."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        provider = cast("_Provider", self.server)
        ledger, mood = provider.ledger, provider.random.random()
        if mood < 0.15:
            ledger.tell("an error")
            self._answer(503, {})
            return
        if self.path == "/refunds":
            ledger.refund(body["order"])
            status, answer = 200, dict[str, str]()
        else:
            status, answer = provider.charge(self.headers["Idempotency-Key"], body["order"], body["cents"], body["reference"])
        if mood < 0.3:
            ledger.tell("too late")
            time.sleep(_LATE)
        with suppress(ConnectionError):
            self._answer(status, answer)

    def _answer(self, status: int, body: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the standard library
        """Stay silent."""


async def serve(_concurrency: int) -> None:
    """Answer until SIGTERM."""
    server = _Provider(int(given(PROVIDER_PORT)), int(given(DESK_PORT)), ledger_beside(Path(given(BOOKS))))
    await asyncio.to_thread(server.serve_forever)


if __name__ == "__main__":
    main(serve)
