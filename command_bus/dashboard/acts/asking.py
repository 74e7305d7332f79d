"""The page on which an act is asked for, and the way from its form to the audit log, the bus, and back."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import Response

from command_bus.dashboard.acts.act import PART, Act, Part, Plan, number_in, reason_of
from command_bus.dashboard.acts.commands import COMMAND_ACTS
from command_bus.dashboard.acts.fleet import FLEET_ACTS
from command_bus.dashboard.acts.letters import LETTER_ACTS
from command_bus.dashboard.visit import Fields, Visit, read_form, status_of
from command_bus.errors import CommandBusError, TransportUnavailable

ACTS: dict[str, Act] = FLEET_ACTS | LETTER_ACTS | COMMAND_ACTS
"""All acts, by their names in addresses."""
_PART_SECONDS = 3600


async def act_page(visit: Visit) -> Response:
    """Ask for an act (GET, or a POST of check boxes), or do it (POST).

    Raises:
        HTTPException: There is no such act, the user may not do it, or the form is not theirs.
    """
    fields = visit.query if visit.request.method == "GET" else await read_form(visit.request)
    fields = _with_part(visit, fields)
    act = ACTS.get(fields["act"])
    if act is None:
        raise HTTPException(404, "there is no such act")
    if not visit.user.may(act.role):
        raise HTTPException(
            403,
            f"{act.title}: only {'an admin' if act.role == 'admin' else 'an operator'} may do that; you are a {visit.user.role}",
        )
    if visit.request.method == "GET" or visit.check_form(fields)["asks"]:
        return _asked(visit, act, fields, await act.plan(visit, fields))
    return await _done(visit, act, fields)


def _with_part(visit: Visit, fields: Fields) -> Fields:
    """Return fields with those of the part before, if that was of this act and user; what a form says of it by itself does not count."""
    facts = visit.state.signer.read("part", fields["part"]) or {}
    is_own = (facts.get("act"), facts.get("user")) == (fields["act"], visit.user.name)
    return Fields([*fields.items(), *((name, str(facts[name]) if is_own else "") for name in PART)])


async def _done(visit: Visit, act: Act, fields: Fields) -> Response:
    plan = await act.plan(visit, fields)
    reason = reason_of(fields)
    if plan.nothing and fields["done"]:  # the parts before have changed all
        return visit.back(plan.back, fields["said"])
    problem = _problem(plan, fields, reason)
    if problem:
        return _asked(visit, act, fields, plan, problem, 422)
    ref = await visit.bus.audit.write(visit.user.name, act.title, plan.target, reason, details=plan.details)
    try:
        outcome = await act.perform(visit, fields)
    except CommandBusError as error:
        unclear = isinstance(error, TransportUnavailable)
        told = f"{'unknown whether it was done' if unclear else 'refused'}: {error.message}"
        await _write_end(visit, act, plan, reason, told, ref)
        return _asked(visit, act, fields, plan, error.message or type(error).__name__, status_of(error))
    visit.state.reads.forget()
    if isinstance(outcome, Part):
        await _write_end(visit, act, plan, reason, f"{outcome.text}; the rest follows", ref)
        total = max(number_in(fields, "total"), plan.total)
        part = {"act": fields["act"], "user": visit.user.name, "done": outcome.done, "total": total, "said": outcome.text[:800]}
        signed = visit.state.signer.sign("part", part, _PART_SECONDS)
        keeps = {"act": fields["act"], "why": reason, **plan.keeps, **outcome.keeps, "part": signed}
        return visit.page("going.html", act=act, plan=plan, part=outcome, keeps=keeps, total=total)
    await _write_end(visit, act, plan, reason, outcome, ref)
    return visit.back(plan.back, outcome)


async def _write_end(visit: Visit, act: Act, plan: Plan, reason: str, outcome: str, ref: str) -> None:
    """Write what came of an act. If that fails, the log still says that it was begun."""
    try:
        await visit.bus.audit.write(
            visit.user.name, act.title, plan.target, reason, outcome=outcome, ref=ref, details=plan.details
        )
    except CommandBusError:
        return


def _problem(plan: Plan, fields: Fields, reason: str) -> str:
    if plan.nothing:
        return plan.nothing
    if not reason:
        return "Give a reason: it stands in the audit log."
    if plan.typed and not fields["done"] and fields["typed"].strip() != plan.typed:
        return f"Type {plan.typed} to confirm."
    return ""


def _asked(visit: Visit, act: Act, fields: Fields, plan: Plan, problem: str = "", code: int = 200) -> Response:
    return visit.page("act.html", code=code, act=act, name=fields["act"], plan=plan, problem=problem, given=fields)
