"""Entities that stand still, the longest first: the page that somebody on call opens."""

from __future__ import annotations

from starlette.responses import Response

from command_bus.admin.info import DeadLetter
from command_bus.admin.views import STANDING_STATES, Standstill
from command_bus.dashboard.masking import LARGE
from command_bus.dashboard.visit import Visit
from command_bus.dashboard.whys import LABELS, hold_text, why

_LIMIT = 100
_ROWS = 200
_MOST_READ = 16 * 1024
"""Bytes of a dead letter whose payload is read for one line: a page has a hundred of them."""


async def standing_page(visit: Visit) -> Response:
    """Show what stands still and why; `?state=` only what stands for one reason."""
    wanted = visit.query["state"]
    states = (wanted,) if wanted in STANDING_STATES else ()
    still = await visit.shared("still", lambda: visit.bus.views.standing_still(limit=_LIMIT))
    rows = [each for each in still.entities if not states or each.state in states]
    return visit.page(
        "standing.html",
        still=still,
        rows=await visit.apart(
            lambda: [(each, why(each, still.stats, still.now_ms, letter_error(visit, each.letter))) for each in rows[:_ROWS]]
        ),
        more=max(len(rows) - _ROWS, 0),
        holds=[(hold, hold_text(hold, still.now_ms)) for hold in still.holds],
        tiles=_tiles(still),
        wanted=states[0] if states else "",
        labels=LABELS,
    )


def letter_error(visit: Visit, letter: DeadLetter | None) -> str:
    """Return the error of a dead letter in one line, masked."""
    if letter is None:
        return ""
    kind = letter.error_type.rpartition(".")[2]
    message = letter.error_message
    if visit.state.masking.is_used:  # else its payload need not be read
        is_large = len(letter.raw) > _MOST_READ
        message = LARGE if is_large else visit.state.masking.text(letter.name, letter.payload, message)
    message = message.strip().partition("\n")[0]  # a masked value may have more than a line
    return f"{kind}: {message}" if kind else message or letter.reason


def _tiles(still: Standstill) -> list[tuple[str, str, int, bool]]:
    """Return state, label and number of the tiles, and whether there may be more, without those that are always empty."""
    shown = {each.state for each in still.entities}
    always = ("parked", "no_handler", "paused", "retrying", "limited", "suspended", "running", "waiting")
    counted = {state: sum(each.state == state for each in still.entities) for state in STANDING_STATES}
    counted |= {state: still.totals.get(state, 0) for state in ("parked", "limited", "suspended")}
    return [
        (state, LABELS[state], counted[state], state in still.at_least)
        for state in STANDING_STATES
        if state in always or state in shown
    ]
