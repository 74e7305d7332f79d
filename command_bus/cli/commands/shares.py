"""`command-bus shares`: who waits and is served by tenant, and the weights by which tenants share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from command_bus.cli.connection import act_on_bus, on_bus
from command_bus.cli.options import Answer, Target, command_group, with_target
from command_bus.cli.output import listing
from command_bus.cli.terminal import escape, failure

if TYPE_CHECKING:
    from command_bus.admin.info import ShareInfo

shares = command_group("Fair shares between tenants: list, put, remove.")
_Tenant = Annotated[str, Argument(metavar="TENANT", help="The tenant, as in the commands' field.")]


@shares.command("list", short_help="List the tenants that have a weight, wait, run or were served.")
@with_target
def list_shares(
    *,
    limit: Annotated[int, Option(min=1, help="How many to show: those with most waiting entities.")] = 100,
    target: Target,
) -> Answer:
    """List tenants with their weights, how many of their entities wait for a worker or run, and starts in the last minute, about.

    \b
    Exit codes: 0 shown, 2 wrong usage, 4 no server.
    """  # noqa: D301
    found = sorted(on_bus(target, lambda bus: bus.fairness.list()), key=lambda each: (-each.waiting, -each.served, each.tenant))
    return listing("shares", found, limit, ["tenant", "weight", "waiting", "running", "last minute"], _row)


@shares.command("put", short_help="Give a tenant a weight.")
@with_target
def put_share(
    tenant: _Tenant,
    weight: Annotated[float, Argument(min=0.001, max=1000, help="The weight; a tenant without one has 1.")],
    *,
    target: Target,
) -> Answer:
    """Give a tenant a weight, for the whole fleet, at once: where two wait, 3 has three starts for each one of 1.

    \b
    Exit codes: 0 written, 2 wrong usage, 4 no server.
    """  # noqa: D301
    act_on_bus(target, "Set weight", f"tenant {tenant}", lambda bus: bus.fairness.put(tenant, weight=weight))
    return _weighed(tenant, weight)


@shares.command("remove", short_help="Take a tenant's weight back.")
@with_target
def remove_share(tenant: _Tenant, *, target: Target) -> Answer:
    """Take a tenant's weight back: it is 1 again.

    \b
    Exit codes: 0 removed, 1 it had none, 2 wrong usage, 4 no server.
    """  # noqa: D301
    if not act_on_bus(target, "Remove weight", f"tenant {tenant}", lambda bus: bus.fairness.remove(tenant)):
        raise failure(f"{escape(tenant)} has no weight: `shares list` shows them")
    return _weighed(tenant, 1.0)


def _weighed(tenant: str, weight: float) -> Answer:
    return Answer({"tenant": tenant, "weight": weight}, f"{escape(tenant)}: weight {weight:g}")


def _row(each: ShareInfo) -> tuple[str, str, int, int, int]:
    return each.tenant or "(no tenant)", f"{each.weight:g}", each.waiting, each.running, each.served
