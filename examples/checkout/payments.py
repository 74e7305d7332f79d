"""The client of the payment provider: plain functions, which run in threads."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any

from command_bus import Reject
from examples.checkout.service import PROVIDER_PORT, given

__all__ = ["Payments"]

_PATIENCE = 0.5


class Payments:
    """The provider.

    Args:
        port: Where it listens; None: as the environment says.
    """

    def __init__(self, port: int | None = None) -> None:
        self._port = port or int(given(PROVIDER_PORT))

    def charge(self, order: str, cents: int, *, key: str, reference: str) -> str | None:
        """Charge an order; return the number of the charge, or None if the provider tells the desk later.

        Raises:
            Reject: The card is refused.
            OSError: There was no answer, or not in time: it may be charged.
        """
        status, answer = self._post("/charges", key, {"order": order, "cents": cents, "reference": reference})
        if status == 402:
            raise Reject("the card is refused", code="card")
        return str(answer["charge"]) if status == 200 else None

    def refund(self, order: str) -> None:
        """Pay back what was charged for an order. Nothing can be charged for it any more.

        Raises:
            OSError: There was no answer, or not in time.
        """
        self._post("/refunds", f"refund {order}", {"order": order})

    def _post(self, path: str, key: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE)
        try:
            connection.request("POST", path, json.dumps(body), {"Idempotency-Key": key})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status >= 500:
            raise OSError(f"the provider answered {answer.status}")
        return answer.status, json.loads(data)
