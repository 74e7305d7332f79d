"""Fair shares between tenants: their weights, and who waits. Reached as `bus.fairness`.

A class names the field of its tenant: `class Import(Command[None], entity="file", fair_by="customer")`. Where entities of several tenants
wait for a worker, each tenant gets its share of the starts; one that waits alone gets all.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter

from command_bus.admin.info import ShareInfo
from command_bus.errors import InvalidCommand, InvalidSettings
from command_bus.session import OnSession
from command_bus.transport.flows import Flow, tenant_of

_LEAST, _MOST = 0.001, 1000.0


class Fairness(OnSession):
    """The shares of a bus's tenants.

    Args:
        session: Connections and settings of the bus.
    """

    async def put(self, tenant: str | int, *, weight: float) -> None:
        """Give a tenant a weight, for the whole fleet, at once: where two wait, 3 has three starts for each one of 1, the default.

        Args:
            tenant: As the field of its commands has it.
            weight: 0.001 to 1,000.

        Raises:
            InvalidSettings: The weight is not in this range, or the tenant is empty or too long.
            TransportUnavailable: The server cannot be reached; with several shards some may have it. Asking again is safe.
        """
        if (
            isinstance(weight, bool)
            or not isinstance(weight, int | float)
            or not math.isfinite(weight)
            or not _LEAST <= weight <= _MOST
        ):
            raise InvalidSettings(
                f"weight={weight!r}: a number from {_LEAST} to {_MOST:,.0f}, as weight=3; 1 is the weight of all others"
            )
        await self._operator.shares.put(_checked(tenant), float(weight))

    async def remove(self, tenant: str | int) -> bool:
        """Take a tenant's weight back: it is 1 again. False if it had none.

        Raises:
            InvalidSettings: The tenant is empty or too long.
            TransportUnavailable: As for `put`.
        """
        name = _checked(tenant)
        known = name in await self._operator.shares.weights()
        await self._operator.shares.put(name, None)
        return known

    async def list(self) -> list[ShareInfo]:
        """Return the tenants that have a weight, wait, run or were served in the last minute, by name.

        What has no tenant shares as one, with an empty name. What was served is counted where the server looks after the line anyway: of
        ten thousand tenants and priorities at a time, as starts of the running minute of its clock, and of the one before as large a part
        as is left of it.

        Raises:
            TransportUnavailable: The server cannot be reached.
        """
        shares = self._operator.shares
        weights, waiting, running, served = await asyncio.gather(
            shares.weights(), shares.waiting(), shares.running(), shares.served()
        )
        waiting_of, running_of, served_of = _by_tenant(waiting), _by_tenant(running), _by_tenant(served)
        return [
            ShareInfo(
                name,
                weights.get(name, 1.0),
                waiting_of[name],
                running_of[name],
                served_of[name],
                served[Flow("high", name)],
                served[Flow("low", name)],
            )
            for name in sorted({*weights, *waiting_of, *running_of, *served_of})
        ]


def _by_tenant(counts: Counter[Flow]) -> Counter[str]:
    """Return the counts of all priorities of each tenant."""
    found: Counter[str] = Counter()
    for flow, count in counts.items():
        found[flow.tenant] += count
    return found


def _checked(tenant: str | int) -> str:
    try:
        name = tenant_of(tenant)
    except InvalidCommand as error:
        raise InvalidSettings(error.message) from error
    if not name:
        raise InvalidSettings("tenant: not empty; what has no tenant has the weight 1")
    return name
