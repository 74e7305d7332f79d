"""Flows: what entities wait in, once classes or shares are used. A flow is a class and a tenant.

Its text is the digit of the class and the encoded tenant, as in the scripts (`lua/shared/line.lua`). The normal class without a tenant has
the empty text here: such a command asks for nothing.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from command_bus.errors import InvalidCommand
from command_bus.messages.policies import PRIORITIES, Priority
from command_bus.serialization.envelope import WireEnvelope
from command_bus.serialization.envelope_options import PRIORITY
from command_bus.serialization.odd_values import stored_number
from command_bus.transport.mailboxes import encoded

NORMAL_FLOW = "1"
"""The normal class without a tenant, where a script wants a flow."""
OUTCOME_FLOW = "!"
"""The mark of an outcome in place of a flow: it is no command."""
_MOST = 200


class Flow(NamedTuple):
    """A class, and the tenant, which is empty if there is none."""

    priority: Priority
    tenant: str


NO_FLOW = Flow("normal", "")
"""The normal class without a tenant."""


def flow_of(priority: Priority, tenant: str = "") -> str:
    """Return the text of a flow."""
    if priority == "normal" and not tenant:
        return ""
    return f"{PRIORITIES.index(priority)}{encoded(tenant) if tenant else ''}"


def envelope_flow(envelope: WireEnvelope, tenant: str = "") -> str:
    """Return what the command of an envelope waits in. Envelopes do not name the tenant."""
    return flow_of(PRIORITY.of(envelope.options), tenant)


def parse_flow(text: str) -> Flow:
    """Return a flow of its text; what is none is the normal class without a tenant."""
    if not text or text[0] not in "012":
        return NO_FLOW
    return Flow(PRIORITIES[int(text[0])], unquote(text[1:]))


def flow_of_record(part: str | None, head: str) -> Flow:
    """Return what an entity waits in, by the part `f` of its record and the id of its next command; an empty id counts as before all."""
    if not part:
        return NO_FLOW
    waiting: list[Flow] = []
    for run in part.split(","):
        flow, _, rest = run.partition("*")
        first = rest.partition("@")[2]
        if first and head and _place(head) >= _place(first):
            waiting = []
        waiting.append(parse_flow(flow))
    tenants = [flow.tenant for flow in waiting if flow.tenant]
    highest = min(waiting, key=lambda flow: PRIORITIES.index(flow.priority)).priority
    return Flow(highest, tenants[-1] if tenants else "")


def _place(message: str) -> tuple[int, int]:
    ms, _, count = message.partition("-")
    return stored_number("active", ms), stored_number("active", count or None)


def tenant_of(value: object) -> str:
    """Return the one form of a tenant: text, so that `7` and `"7"` name the same one; empty for None: none.

    Raises:
        InvalidCommand: Not a text or an int, or longer than 200 bytes.
    """
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidCommand(f"a tenant is a string or an int, not {type(value).__name__}: see the class's fair_by")
    text = str(value)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidCommand(f"the tenant {text[:40]!r} has lone surrogates, which UTF-8 cannot carry") from error
    if size > _MOST:
        raise InvalidCommand(f"a tenant may have {_MOST} bytes, this one has {size}: use a shorter name or a digest of it")
    return text
