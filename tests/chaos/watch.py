"""Watches the server and this process during the run: unplanned silences are recorded as faults, too.

On a crowded machine a server or the harness (which runs the proxies) may get no processor for a while. Then leases end that no fault of
the nemesis explains, and the checker must know why.
"""

from __future__ import annotations

import asyncio
import time

from redis.exceptions import RedisError

from tests.chaos.faults import FaultContext
from tests.chaos.nemesis import Nemesis

__all__ = ["progress", "watch"]

_EVERY, _SILENCE = 0.05, 0.3


async def watch(context: FaultContext) -> None:
    """Watch until cancelled."""
    heard = turned = time.monotonic()
    while True:
        await asyncio.sleep(_EVERY)
        now = time.monotonic()
        if now - turned > _EVERY + _SILENCE:
            context.note("gap", "*", turned, "the harness, and so its proxies")
        turned = now
        try:
            for admin in context.target.admins():
                await admin.ping()
        except (RedisError, OSError):
            turned = time.monotonic()
            continue
        turned = time.monotonic()
        if turned - heard > _SILENCE:
            context.note("silence", "*", heard, "the server did not answer")
        heard = turned


async def progress(context: FaultContext, nemesis: Nemesis, seconds: float) -> None:
    """Print a line every few seconds, until cancelled: the whole run's figures, those of the last seconds, and what the nemesis does."""
    began = before = time.monotonic()
    had = 0
    requests = context.fleet.requests
    while True:
        await asyncio.sleep(5.0)
        requests.follow()
        now = time.monotonic()
        gone, accepted = now - began, requests.answers["accepted"]
        others = {name: count for name, count in requests.answers.items() if name != "accepted"}
        print(
            f"chaos: {gone:4.0f} of {seconds:.0f} s, {accepted} commands accepted ({accepted / gone:.0f}/s, "
            f"now {(accepted - had) / (now - before):.0f}/s), "
            f"{nemesis.injected} faults ({nemesis.injected / gone:.1f}/s), {others}, "
            f"{nemesis.phase}",
            flush=True,
        )
        before, had = now, accepted
