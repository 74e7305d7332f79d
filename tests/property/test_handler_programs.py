"""Random small handlers: begun at once under another task's name, in their entity's task, and as a plain task, each sees and does the same."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given, settings

from command_bus.serialization.dead_letter import DeadLetterRecord
from command_bus.transport.steps import DeadLetterStep, Done, Step
from command_bus.worker.runnable import CommandContexts
from tests.property.handler_programs import ERRORS, Program, Runner, programs
from tests.unit.short_way import Do, Way, turns, way

OTHER: Program = ((Runner.set,), (Runner.pause,), (Runner.round,), (Runner.wait,), (Runner.rename,))
"""What others run beside it, and behind it, and see nothing of it."""


@dataclass
class Ran:
    """The end of a program, and what it saw.

    Attributes:
        saw: What it saw; of itself, and of the others.
        step: How it was settled.
        faults: What the event loop complained about.
    """

    saw: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    step: Any = None
    faults: list[str] = field(default_factory=list[str])


def settled(step: Step) -> Any:
    """Return what a step says, without its times."""
    if isinstance(step, DeadLetterStep):
        letter = DeadLetterRecord.unpack(step.record)
        return letter.reason, letter.error_type, letter.error_message if "scope" not in letter.error_message else ""
    return (step.status, step.left.reply) if isinstance(step, Done) else step


class Boxes:
    """Handlers of three boxes: the program of the first is the one in question.

    Args:
        program: That.
    """

    def __init__(self, program: Program) -> None:
        self.ran = Ran()
        self._programs = {"a": program, "b": OTHER, "c": OTHER}
        self._runners: dict[str, Runner] = {}
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.ran.faults.append(str(context["message"])))

    async def handle(self, command: Do) -> int:
        box = str(command.box)
        if box not in self._programs:
            return 0
        runner = self._runners[box] = Runner()
        try:
            return await runner.run(self._programs[box])
        finally:
            self.ran.saw[box] = runner.saw

    async def cancel_what_was_kept(self) -> None:
        """Cancel what the first has left, as whoever has kept it may."""
        for task in self._runners["a"].kept:
            task.cancel()
        await turns(3)


async def plainly(program: Program) -> Ran:
    boxes, contexts = Boxes(program), CommandContexts()

    async def run(box: str) -> None:
        with contextlib.suppress(BaseException):
            await boxes.handle(Do(box=box))

    for box in ("a", "b", "c"):
        name = f"command_bus.run box:{box}"
        await asyncio.wait([asyncio.get_running_loop().create_task(run(box), name=name, context=contexts.new())])
    await boxes.cancel_what_was_kept()
    return boxes.ran


async def worked(program: Program, *, short: bool, takes: bool = False) -> Ran:
    boxes = Boxes(program)
    async with way(boxes.handle) as found:
        found.takes = takes
        await found.arrive("a", "b", short=short)
        while "a" not in found.steps.steps:
            await asyncio.sleep(0.001)
        await turns(3)
        await found.arrive("c", short=short)
        await boxes.cancel_what_was_kept()
        await _idle(found)
        boxes.ran.step = settled(found.steps.steps["a"])
        assert settled(found.steps.steps["b"])[0] == "completed"
    return boxes.ran


async def _idle(found: Way) -> None:
    await found.idle()
    await turns(3)


@given(program=programs)
@example(program=((Runner.cancel,),))
@example(program=((Runner.share,), (Runner.keep,)))
@example(program=((Runner.catch, ((Runner.cancel,), (Runner.uncancel,), (Runner.pause,))), (Runner.pause,)))
@settings(max_examples=60)
def test_a_handler_sees_and_does_the_same_whichever_way_it_runs(program: Program) -> None:
    expected = asyncio.run(plainly(program))
    usual = asyncio.run(worked(program, short=False))
    assert usual.saw == expected.saw
    for takes in (False, True):
        short = asyncio.run(worked(program, short=True, takes=takes))
        assert short.saw == expected.saw
        assert short.step == usual.step
        assert short.faults == usual.faults == expected.faults


def test_whatever_is_raised_at_once_is_the_same() -> None:
    for kind in ERRORS:
        program: Program = ((Runner.fail, kind),)
        usual, short = asyncio.run(worked(program, short=False)), asyncio.run(worked(program, short=True))
        assert (short.saw, short.step) == (usual.saw, usual.step)
