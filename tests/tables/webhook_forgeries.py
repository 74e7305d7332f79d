"""The table *ways to have a text signed × what the bus requires*: whoever may only send gets no text of theirs to a webhook's receiver.

Data alone: `test_webhook_forgeries.py` carries it out. A new door is a row here, and a function of its name there.
"""

from __future__ import annotations

__all__ = ["REFUSED", "SETTLED", "WAYS"]

WAYS = {
    "raw": "bus.dispatch_raw names the library's own command",
    "call_raw": "bus.call_raw names it",
    "batch": "a batch has an envelope of it",
    "schedule": "a schedule has it as its template",
    "class": "bus.dispatch sends an instance of its class",
    "copied": "an instance with the seal of another delivery",
    "settled": "an end is written to the stream of workers",
    "said": "an end is written to the stream of senders",
    "accepted": "an acceptance of a command that nobody sent is written there",
    "gap": "the stream of senders is trimmed",
}

REFUSED = ("raw", "call_raw", "batch", "schedule", "settled")
"""Those that are refused at once; the others reach the server, and nobody is told."""

SETTLED = {
    "unsigned": {},
    "signed": {"signing_keys": {"k": "a secret that is long enough"}, "require_signatures": True},
}
"""What workers require, and a thief lacks."""
