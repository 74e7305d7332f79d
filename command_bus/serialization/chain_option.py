"""The option `m` of an envelope: the mailboxes that are held by the handlers that wait for this command, the outermost first.

A call to one of them would wait for ever, so it is refused at once. A chain that is too long to travel is cut at its start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

CHAIN: Final = "m"
_MOST = 32
_MOST_BYTES = 1024
_MAILBOX = re.compile(r"[!-{}~]{1,2048}")


def are_mailboxes(value: Any) -> bool:
    """Return whether a value is a chain of mailboxes."""
    return (
        type(value) is list and 1 <= len(value) <= _MOST and all(type(each) is str and _MAILBOX.fullmatch(each) for each in value)
    )


def chain_in(options: Mapping[str, Any] | None) -> Sequence[str]:
    """Return the chain in the options of an envelope that was read."""
    return options.get(CHAIN, ()) if options else ()


def with_mailbox(chain: Sequence[str], mailbox: str) -> list[str]:
    """Return a chain with one mailbox more, as it travels."""
    longer = [*chain, mailbox][-_MOST:]
    while sum(map(len, longer)) > _MOST_BYTES and len(longer) > 1:
        del longer[0]
    return longer
