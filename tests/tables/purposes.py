"""The table *sealed as × opened as*: what was encrypted or signed for one purpose, name and entity is nothing for any other.

Data alone: `test_purposes.py` carries it out, each place against each other. A new purpose or place is a row here.
"""

from __future__ import annotations

__all__ = ["PLACES", "Place"]

Place = tuple[str, tuple[str, ...]]

_HERE = ("c-1", "Pay", "box", "a")
PLACES: dict[str, Place] = {
    "command": ("command", _HERE),
    "of another id": ("command", ("c-2", "Pay", "box", "a")),
    "of another name": ("command", ("c-1", "Refund", "box", "a")),
    "of another type": ("command", ("c-1", "Pay", "tin", "a")),
    "of another entity": ("command", ("c-1", "Pay", "box", "b")),
    "template": ("template", _HERE),
    "template of another schedule": ("template", ("c-2", "Pay", "box", "a")),
    "reply": ("reply", _HERE),
    "reply of another id": ("reply", ("c-2", "Pay", "box", "a")),
    "reply of another name": ("reply", ("c-1", "Refund", "box", "a")),
    "reply of another entity": ("reply", ("c-1", "Pay", "box", "b")),
    "step": ("stored", ("box:a", "c-1", "s:charge#1")),
    "step of another name": ("stored", ("box:a", "c-1", "s:charge#2")),
    "step of another id": ("stored", ("box:a", "c-2", "s:charge#1")),
    "step of another entity": ("stored", ("box:b", "c-1", "s:charge#1")),
    "step whose names run on": ("stored", ("box:a", "c-1\0s", ":charge#1")),
    "signal": ("stored", ("box:a", "c-1", "g:charge")),
    "progress": ("stored", ("box:a", "c-1", "p")),
    "webhook": ("webhook", ("crm",)),
    "another webhook": ("webhook", ("erp",)),
}
"""For which purpose something is sealed, and for whom."""
