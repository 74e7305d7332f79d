"""A chain replies as its last command, a group as the list of its own.

Read by mypy and pyright, never run; see `registration.py`.
"""

from __future__ import annotations

from typing import Any, assert_type

from command_bus import Command, CommandBus, DurableContext, EntityId, Receipt
from command_bus.workflows import GroupCounts, NodeFailed, chain, group, node


class Render(Command[str], entity="page"):
    page: EntityId


class Bind(Command[int], entity="book"):
    book: EntityId


async def replies(bus: CommandBus, context: DurableContext) -> None:
    assert_type(await bus.call(chain(Render(page="1"), Bind(book="1"))), int)
    assert_type(await bus.call(chain(Bind(book="1"), Bind(book="1"), node(Render(page="1"), undo=Bind(book="1")))), str)
    assert_type(await bus.dispatch(chain(Render(page="1"))), Receipt[str])
    pages = group(Render(page=str(number)) for number in range(3))
    assert_type(await bus.call(pages), list[str])
    assert_type(await bus.call(pages.then(Bind(book="1"), takes="pages")), int)
    assert_type(await bus.call(group([Render(page="1")], failures="ignore")), list[str | NodeFailed])
    assert_type(await bus.call(group([Render(page="1")], results=False)), GroupCounts)
    assert_type(await context.call(chain(group([Bind(book="1")]), Render(page="1"))), str)
    both = await context.all(context.call(Render(page="1")), return_exceptions=True)
    assert_type(both, tuple[str | Exception, ...])


def mistakes() -> None:
    chain("x")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    group([1])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pages: Command[list[int]] = group([Render(page="1")])  # type: ignore[list-item]  # pyright: ignore[reportAssignmentType]
    kept: list[Any] = [pages]
    del kept
