"""Signatures that a handler may have, and how handlers are called."""

# mypy: disable-error-code="empty-body"
# Most of these functions are only registered, never called.

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from command_bus.errors import CommandBusError, RegistrationError
from command_bus.handlers.handler import Handler, function_handler
from command_bus.messages.context import CommandContext
from command_bus.messages.message import Command, EntityId, Message, Query

if TYPE_CHECKING:
    from elsewhere import Unresolvable  # type: ignore[import-not-found]  # it must not exist

    from command_bus.messages.context import CommandContext as Context


class Deposit(Command[int], entity="account"):
    account_id: EntityId
    amount: int


class Withdraw(Command[int], entity="account"):
    account_id: EntityId
    amount: int


class Sweep(Command[None]): ...


class Find(Query[int | None]): ...


def withdraws(command: Withdraw) -> int: ...


DEPOSIT = Deposit(account_id="a-1", amount=5)
CONTEXT = CommandContext(command_id="c-1")


async def run(handler: Handler, command: Any = DEPOSIT, context: CommandContext | None = CONTEXT) -> Any:
    """Call it as a worker does."""
    if handler.is_async:
        return await handler.invoke(command, context)
    return await asyncio.to_thread(handler.invoke, command, context)


def refused(function: Any, message: type[Message[Any]] = Deposit) -> str:
    with pytest.raises(RegistrationError) as caught:
        function_handler(message, function)
    return str(caught.value)


class TestKindsOfCallables:
    async def test_an_async_function(self) -> None:
        async def deposit(command: Deposit) -> int:
            return command.amount

        handler = function_handler(Deposit, deposit)
        assert (handler.is_async, handler.wants_context, handler.scope) == (True, False, None)
        assert handler.name.endswith("test_an_async_function.<locals>.deposit")
        assert handler.module == __name__
        assert (handler.message_type, handler.spec) == (Deposit, Deposit.spec())
        assert await run(handler, context=None) == 5

    async def test_an_async_function_with_context_is_called_as_it_is(self) -> None:
        async def deposit(command: Deposit, context: CommandContext) -> int:
            return command.amount + context.attempt

        handler = function_handler(Deposit, deposit)
        assert handler.invoke is deposit
        assert await run(handler) == 6

    async def test_no_coroutine_stands_between_worker_and_handler(self) -> None:
        async def deposit(command: Deposit) -> int:
            return command.amount

        coroutine = function_handler(Deposit, deposit).invoke(DEPOSIT, None)
        assert coroutine.cr_code is deposit.__code__
        await coroutine

    async def test_a_sync_function_runs_where_it_is_called(self) -> None:
        def deposit(command: Deposit, context: CommandContext) -> int:
            assert threading.current_thread() is not threading.main_thread()
            return command.amount + context.attempt

        handler = function_handler(Deposit, deposit)
        assert (handler.is_async, handler.wants_context) == (False, True)
        assert await run(handler) == 6

    async def test_bound_methods(self) -> None:
        class Accounts:
            async def deposit(self, command: Deposit) -> int:
                return command.amount

            def withdraw(self, command: Withdraw, context: CommandContext) -> int:
                return -command.amount

            @classmethod
            async def of_class(cls, command: Deposit) -> int:
                return 1

            @staticmethod
            def of_none(command: Deposit) -> int:
                return 2

        accounts = Accounts()
        assert await run(function_handler(Deposit, accounts.deposit)) == 5
        assert await run(function_handler(Withdraw, accounts.withdraw), Withdraw(account_id=1, amount=3)) == -3
        assert await run(function_handler(Deposit, accounts.of_class)) == 1
        assert await run(function_handler(Deposit, Accounts.of_none)) == 2
        assert function_handler(Deposit, accounts.deposit).name.endswith("Accounts.deposit")

    async def test_callable_objects(self) -> None:
        class Async:
            async def __call__(self, command: Deposit, context: CommandContext) -> int:
                return context.attempt

        class Sync:
            def __call__(self, command: Deposit) -> int:
                return 2

        assert function_handler(Deposit, Async()).is_async
        assert await run(function_handler(Deposit, Async())) == 1
        assert not function_handler(Deposit, Sync()).is_async
        assert await run(function_handler(Deposit, Sync())) == 2
        assert function_handler(Deposit, Sync()).name.endswith("Sync.__call__")

    async def test_partials(self) -> None:
        async def deposit(command: Deposit, context: CommandContext, factor: int) -> int:
            return command.amount * factor

        def withdraw(factor: int, command: Deposit) -> int:
            return command.amount * factor

        handler = function_handler(Deposit, functools.partial(deposit, factor=3))
        assert handler.is_async
        assert await run(handler) == 15
        assert handler.name.endswith("deposit")
        assert await run(function_handler(Deposit, functools.partial(withdraw, 2))) == 10

    @pytest.mark.parametrize(
        "annotation", [Awaitable[int], Coroutine[Any, Any, int], "asyncio.Future[int]", "asyncio.Task[int]", Awaitable]
    )
    async def test_a_plain_function_that_says_it_returns_an_awaitable(self, annotation: Any) -> None:
        async def later() -> int:
            return 5

        def deposit(command: Deposit) -> Any:
            return asyncio.ensure_future(later())

        deposit.__annotations__["return"] = annotation
        handler = function_handler(Deposit, deposit)
        assert handler.is_async
        assert await run(handler) == 5

    async def test_a_plain_decorator_around_an_async_function(self) -> None:
        def traced(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs)

            return wrapper

        @traced
        async def deposit(command: Deposit, context: CommandContext) -> int:
            return command.amount + context.attempt

        handler = function_handler(Deposit, deposit)
        assert (handler.is_async, handler.wants_context) == (True, True)
        assert await run(handler) == 6

    async def test_a_decorator_that_makes_an_async_function_sync_works_too(self) -> None:
        async def deposit(command: Deposit) -> int:
            return 5

        @functools.wraps(deposit)
        def finished(command: Deposit) -> int:
            return 7

        assert await run(function_handler(Deposit, finished)) == 7

    async def test_a_sync_function_that_returns_a_coroutine_is_reported(self) -> None:
        async def later(command: Deposit) -> int:
            return 5

        handler = function_handler(Deposit, lambda command, /: later(command))
        assert not handler.is_async
        with pytest.raises(RegistrationError, match="make it `async def`"):
            await run(handler)

    def test_what_is_no_handler(self) -> None:
        async def async_generator(command: Deposit):
            yield 1

        def generator(command: Deposit):
            yield 1

        class Generating:
            def __call__(self, command: Deposit):
                yield 1

        class Class:
            def __init__(self, command: Deposit) -> None: ...

        assert "is a generator" in refused(generator)
        assert "is a generator" in refused(async_generator)
        assert "is a generator" in refused(functools.partial(generator))
        assert "is a generator" in refused(Generating())
        assert "is a class" in refused(Class)
        assert "is not callable" in refused(5)
        assert "is not callable" in refused("deposit")
        assert "tells no signature" in refused(max)


class TestParameters:
    def test_the_command_comes_first(self) -> None:
        def nothing() -> int: ...
        def only_keywords(*, command: Deposit) -> int: ...
        def options(**options: Any) -> int: ...

        for function in (nothing, only_keywords, options):
            assert "takes no command" in refused(function)

    def test_and_is_of_the_message(self) -> None:
        def other(command: Withdraw) -> int: ...
        def text(command: str) -> int: ...
        def swapped(context: CommandContext, command: Deposit) -> int: ...

        assert "registered for Deposit" in refused(other)
        assert "Withdraw" in refused(other)
        assert "is a str" in refused(text)
        assert "CommandContext" in refused(swapped)

    @pytest.mark.parametrize(
        "annotation", [Deposit, Command[int], Command, Message[Any], "Deposit | Withdraw", Any, object, "Nowhere", "1 +"]
    )
    def test_an_annotation_may_be_a_base_class(self, annotation: Any) -> None:
        def deposit(command: Any) -> int: ...

        deposit.__annotations__["command"] = annotation
        function_handler(Deposit, deposit)

    def test_a_message_defined_in_a_function_is_known_by_name(self) -> None:
        class Local(Command[int]): ...

        def right(command: Local) -> int: ...
        def wrong(command: Deposit) -> int: ...

        function_handler(Local, right)
        assert "registered for" in refused(wrong, Local)

    def test_a_local_name_hides_that_of_the_module(self) -> None:
        class Deposit(Command[int]): ...

        def right(command: Deposit) -> int: ...

        function_handler(Deposit, right)

    def test_the_names_of_a_module_are_its_own(self) -> None:
        class Withdraw(Command[int]): ...

        assert "registered for" in refused(withdraws, Withdraw)

    async def test_variadic_functions_are_given_the_command(self) -> None:
        def everything(*args: Any, **kwargs: Any) -> int:
            return len(args) + len(kwargs)

        assert await run(function_handler(Deposit, everything)) == 1

    @pytest.mark.parametrize("annotation", [CommandContext, CommandContext | None, "CommandContext", "CommandContext | None"])
    async def test_the_context_is_found_by_annotation(self, annotation: Any) -> None:
        def deposit(command: Deposit, delivery: Any = None) -> int:
            return 1 if delivery is CONTEXT else 0

        deposit.__annotations__["delivery"] = annotation
        handler = function_handler(Deposit, deposit)
        assert handler.wants_context
        assert await run(handler) == 1

    def test_or_by_its_name_if_it_has_none(self) -> None:
        assert function_handler(Deposit, lambda command, context: 1).wants_context
        assert "its parameter 'ctx' is not filled" in refused(lambda command, ctx: 1)

    async def test_or_by_its_text_where_only_type_checkers_see_the_name(self) -> None:
        async def deposit(command: Deposit, delivery: Any) -> int:
            return int(delivery.attempt)

        deposit.__annotations__["delivery"] = "bus.CommandContext | None"

        handler = function_handler(Deposit, deposit)
        assert handler.wants_context
        assert await run(handler) == 1

    def test_an_alias_that_cannot_be_resolved_is_named(self) -> None:
        async def deposit(command: Deposit, delivery: Context) -> int: ...

        assert "its parameter 'delivery' is not filled" in refused(deposit)

    async def test_it_may_be_keyword_only_or_come_after_what_has_a_default(self) -> None:
        async def keyword(command: Deposit, *, context: CommandContext) -> int:
            return context.attempt

        def late(command: Deposit, service: object = None, context: CommandContext = CONTEXT) -> int:
            assert service is None
            return context.attempt

        other = CommandContext(attempt=9)
        assert await run(function_handler(Deposit, keyword), context=other) == 9
        assert await run(function_handler(Deposit, late), context=other) == 9

    def test_parameters_without_a_provider_are_refused(self) -> None:
        def positional(command: Deposit, service: object) -> int: ...
        def keyword(command: Deposit, *, service: object) -> int: ...
        def third(command: Deposit, context: CommandContext, service: object) -> int: ...
        def mapping(command: Deposit, context: dict[str, str]) -> int: ...
        def twice(command: Deposit, context: CommandContext, again: CommandContext) -> int: ...

        for function in (positional, keyword, third):
            assert "its parameter 'service' is not filled" in refused(function)
            assert function.__qualname__ in refused(function)
        assert "its parameter 'context' is not filled" in refused(mapping)
        assert "its parameter 'again' is not filled" in refused(twice)

    async def test_defaults_are_left_alone(self) -> None:
        def deposit(command: Deposit, factor: int = 2, *rest: int, unit: str = "EUR", **options: str) -> int:
            assert (rest, unit, options) == ((), "EUR", {})
            return command.amount * factor

        assert await run(function_handler(Deposit, deposit)) == 10

    def test_names_that_nobody_can_resolve_are_not_checked(self) -> None:
        async def deposit(command: Unresolvable, other: Unresolvable = None) -> Unresolvable: ...

        assert function_handler(Deposit, deposit).is_async


class TestReplies:
    @pytest.mark.parametrize("annotation", [int, bool, Any, NoReturn, "int", "Nowhere", "1 +", inspect.Signature.empty])
    @pytest.mark.parametrize("kind", ["async", "sync"])
    def test_the_reply_or_what_may_be_one(self, annotation: Any, kind: str) -> None:
        assert function_handler(Deposit, returning(annotation, kind)).is_async is (kind == "async")

    @pytest.mark.parametrize("annotation", [str, None, "str", "int | None", float, list[int]])
    @pytest.mark.parametrize("kind", ["async", "sync"])
    def test_another_type_is_refused_and_both_are_named(self, annotation: Any, kind: str) -> None:
        said = refused(returning(annotation, kind))
        shown = (
            inspect.formatannotation(annotation)
            if not isinstance(annotation, str)
            else annotation.replace("int | None", "Optional[int]")
        )
        assert f"returns {shown}" in said or f"returns {annotation}" in said
        assert "the reply of Deposit is int" in said
        assert "returning.<locals>" in said

    def test_an_awaitable_of_another_type_is_refused(self) -> None:
        assert "returns str" in refused(returning(Awaitable[str], "sync"))
        assert "returns str" in refused(returning(Coroutine[Any, Any, str], "sync"))
        assert "Awaitable[int]" in refused(returning(Awaitable[int], "async"))

    def test_no_reply(self) -> None:
        function_handler(Sweep, returning(None, "async", Sweep))
        function_handler(Sweep, returning(None, "sync", Sweep))
        assert "the reply of Sweep is None" in refused(returning(int, "async", Sweep), Sweep)

    def test_an_optional_reply(self) -> None:
        for annotation in (int, None, int | None, bool | None):
            function_handler(Find, returning(annotation, "async", Find))
        refused(returning(str | None, "async", Find), Find)

    def test_a_decorated_function_is_checked_by_what_was_written(self) -> None:
        @functools.wraps(returning(str, "async"))
        async def wrapper(*args: Any) -> Any: ...

        assert "returns str" in refused(wrapper)


def returning(annotation: Any, kind: str, message: Any = Deposit) -> Callable[..., Any]:
    async def asynchronous(command): ...
    def synchronous(command): ...

    function = asynchronous if kind == "async" else synchronous
    function.__annotations__ = {"command": message}
    if annotation is not inspect.Signature.empty:
        function.__annotations__["return"] = annotation
    return function


def test_registration_errors_are_type_errors_of_this_library() -> None:
    with pytest.raises(TypeError) as caught:
        function_handler(Deposit, 5)  # type: ignore[arg-type]  # that it is refused is the test
    assert isinstance(caught.value, CommandBusError)


def test_the_same_code_is_recognised() -> None:
    class Accounts:
        def deposit(self, command: Deposit) -> int: ...

    one, other = Accounts(), Accounts()
    assert function_handler(Deposit, one.deposit).same_as(function_handler(Deposit, one.deposit))
    assert not function_handler(Deposit, one.deposit).same_as(function_handler(Deposit, other.deposit))
