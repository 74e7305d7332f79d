"""Signing in and out, and the choice of a theme."""

from __future__ import annotations

import asyncio
import math

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from command_bus.dashboard.forms import read_form
from command_bus.dashboard.options import State
from command_bus.dashboard.passwords import SESSION_COOKIE, Passwords, source_of
from command_bus.dashboard.visit import THEME_COOKIE, Visit, root_of, set_cookie, theme_of
from command_bus.dashboard.words import render

_YEAR = 365 * 24 * 3600
_WRONG = 0.3
"""Seconds that a wrong password costs besides its hash."""


def safe_path(text: str) -> str:
    """Return a path of the dashboard to go on to; `/` for anything that could lead elsewhere."""
    harmless = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and "\\" not in text
    return text if harmless and not text.startswith("/sign-") else "/"


async def sign_in(state: State, request: Request) -> Response:
    """Show the form, or take it.

    Raises:
        HTTPException: There are no passwords here.
    """
    users = state.users
    if not isinstance(users, Passwords):
        raise HTTPException(404, "there is no sign-in here")
    following = safe_path(request.query_params.get("next", "/"))
    if request.method == "GET":
        return _form(state, request, following)
    fields = await read_form(request)
    following = safe_path(fields["next"] or "/")
    source = source_of(request)
    if wait := users.attempts.wait(source):
        response = _form(state, request, following, "Too many tries. Wait some minutes.", 429)
        response.headers["Retry-After"] = str(math.ceil(wait))
        return response
    if users.is_busy:
        response = _form(state, request, following, "Many sign in just now. Try again in some seconds.", 503)
        response.headers["Retry-After"] = "5"
        return response
    users.attempts.begin(source)
    name = fields["name"].strip()
    if not await users.is_user(name, fields["password"]):
        await asyncio.sleep(_WRONG)
        return _form(state, request, following, "The name or the password is wrong.", 403)
    users.attempts.succeeded(source)
    entered = RedirectResponse(f"{root_of(request)}{following}", status_code=303)
    set_cookie(entered, request, state, SESSION_COOKIE, users.session(name), users.seconds)
    return entered


def _form(state: State, request: Request, following: str, problem: str = "", status: int = 200) -> HTMLResponse:
    text = render(
        "sign_in.html",
        root=root_of(request),
        following=following,
        problem=problem,
        theme=theme_of(request),
        title_of_all=state.options.title,
        namespace=state.bus.settings.namespace,
    )
    return HTMLResponse(text, status_code=status)


async def sign_out(visit: Visit) -> Response:
    """End the session of this browser.

    Raises:
        HTTPException: The form is not of this user.
    """
    await _own_form(visit)
    response = RedirectResponse(visit.url("/sign-in"), status_code=303)
    response.delete_cookie(SESSION_COOKIE, path=visit.root or "/")
    return response


async def choose_theme(visit: Visit) -> Response:
    """Keep the theme that somebody has chosen.

    Raises:
        HTTPException: The form is not of this user.
    """
    fields = await _own_form(visit)
    response = RedirectResponse(f"{visit.root}{safe_path(fields['next'])}", status_code=303)
    set_cookie(response, visit.request, visit.state, THEME_COOKIE, fields["theme"][:10], _YEAR)
    return response


async def _own_form(visit: Visit) -> dict[str, str]:
    fields = await read_form(visit.request)
    if not visit.is_own_form(fields):
        raise HTTPException(403, "the form is too old, or of somebody else: load the page again")
    return {"next": fields["next"], "theme": fields["theme"]}
