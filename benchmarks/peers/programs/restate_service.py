"""The service that Restate calls: a virtual object whose handler has five steps. Hypercorn serves it, as Restate's documentation does."""

from __future__ import annotations

import restate

__all__ = ["app", "note"]

STEPS = 5

note = restate.VirtualObject("Note")


@note.handler()
async def steps(ctx: restate.ObjectContext, number: int) -> int:
    for step in range(STEPS):
        await ctx.run(f"write {step}", lambda step=step: step)
    return number


app = restate.app([note])
