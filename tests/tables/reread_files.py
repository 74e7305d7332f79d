"""The table *files × changes*: what a served dashboard and gateway know of people holds as the files have it, while they run.

Data alone: `test_reread_files.py` carries it out. A new file is a row in `FILES` and a reader there, a new change a row in `CHANGES`.
"""

from __future__ import annotations

__all__ = ["CHANGES", "FILES"]

FILES = ("users", "roles", "tokens")
"""Users with passwords, roles of those whom a proxy signs in, and tokens of the gateway."""

CHANGES = {
    "taken out": (False, "ann is not in it any more"),
    "another secret": (False, "ann has another password or token; a role has none"),
    "fewer rights": (True, "ann may do less"),
    "put in": (True, "somebody else is in it as well"),
    "replaced": (False, "another file without ann is renamed to its name"),
    "no TOML": (True, "it cannot be read: what was read before holds on, and the log says so"),
    "of no form": (True, "a value in it is none"),
    "empty": (True, "nobody is in it: a file of users or tokens has at least one"),
    "deleted": (True, "it is not there"),
}
"""Whether ann is let in after a change, and what it is."""
