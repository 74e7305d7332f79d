"""The table *unrun ends × moments × decisions*: ends that a worker decides without the handler, of a durable command that has something to undo.

Data alone: `test_unrun_ends.py` carries it out. A new end is a row here, and a way to bring it about there.
"""

from __future__ import annotations

__all__ = ["DECISIONS", "ENDS", "MOMENTS", "NEVER", "ROWS"]

ENDS = {
    "no_handler": "a deploy without its class",
    "invalid": "a deploy whose class refuses what was sent before",
    "unsupported_version": "an envelope of a later release",
    "undecodable": "an envelope that is damaged",
    "bad_signature": "a deploy with other keys",
}
"""The reasons of the letters, and how they come about."""

MOMENTS = {
    "started": "a worker starts it",
    "lost": "a worker takes it over from one that is lost",
    "undoing": "a worker starts it while it is being undone",
}

DECISIONS = {
    "replayed": "an operator replays its letter where a worker can run it",
    "discarded": "an operator discards its letter, and no worker can run it",
    "left": "nobody decides anything",
}

NEVER = {
    ("undoing", "replayed"): "its end is decided: there is no letter",
    ("undoing", "discarded"): "its end is decided: there is no letter",
    ("bad_signature", "undoing"): "such a worker refuses what undoes as well",
    ("started", "left"): "its entity waits for somebody who decides",
    ("lost", "left"): "its entity waits for somebody who decides",
}

ROWS = [
    f"{end}, {moment}, {decision}"
    for end in ENDS
    for moment in MOMENTS
    for decision in DECISIONS
    if not NEVER.keys() & {(moment, decision), (end, moment)}
]
